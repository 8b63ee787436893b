//! Tasks that a program put into the database in its own transaction, and that are to be taken in.
//!
//! A task exists if and only if that transaction is committed. It writes one row and locks nothing that others need, however
//! long it takes; whoever runs an engine takes the row in afterwards, by the same rules as any submission.

use crate::{Json, NewTask, TaskId};

/// A task that is to be taken in.
#[derive(Debug, Clone)]
pub struct StoredSubmission {
    /// Its public name.
    pub task_id: TaskId,
    /// The service.
    pub service: String,
    /// The consumer.
    pub client: String,
    /// What a consumer would say over HTTP: `{"body": {…}, …}`.
    pub request: Json,
}

/// Who judges entries, by what is declared at one moment.
pub trait SubmissionValidator: Send + Sync {
    /// The version of what is declared by which it judges.
    fn version(&self) -> i64;

    /// The task that an entry asks for, or why it is refused.
    fn judge(&self, entry: &StoredSubmission) -> Result<NewTask, String>;
}

/// What became of entries.
#[derive(Debug, Clone, Default)]
pub struct CollectedSubmissions {
    /// Nothing, because something else is declared by now.
    pub stale: bool,
    /// So many are tasks now.
    pub taken: usize,
    /// These were refused, and are kept with the reason.
    pub refused: Vec<(Option<TaskId>, String)>,
    /// There may be more.
    pub more: bool,
}
