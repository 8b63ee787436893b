//! Transactional submissions: tasks that a program wrote to the database in its own transaction.
//!
//! The task exists if and only if that transaction commits. It writes one row and holds no lock that others need. An
//! engine collects the row afterwards, by the same rules as any submission.

use crate::{Json, NewTask, TaskId};

/// A transactional submission.
#[derive(Debug, Clone)]
pub struct StoredSubmission {
    /// Its public name.
    pub task_id: TaskId,
    /// The service.
    pub service: String,
    /// The consumer.
    pub client: String,
    /// The request as over HTTP: `{"body": {…}, …}`.
    pub request: Json,
}

/// The port that validates transactional submissions against one version of the declaration.
pub trait SubmissionValidator: Send + Sync {
    /// The version of the declaration.
    fn version(&self) -> i64;

    /// The task of a submission, or why it is refused.
    fn judge(&self, entry: &StoredSubmission) -> Result<NewTask, String>;
}

/// The outcome of collecting submissions.
#[derive(Debug, Clone, Default)]
pub struct CollectedSubmissions {
    /// Nothing was collected, because the declaration has changed.
    pub stale: bool,
    /// How many became tasks.
    pub taken: usize,
    /// Those that were refused; they are kept with the reason.
    pub refused: Vec<(Option<TaskId>, String)>,
    /// There may be more.
    pub more: bool,
}
