//! What a driver says in SQL about attempts that are over, and about keys of which there is one task at a time.

use std::future::Future;

use relais_core::{Attempt, ClientKey, NewTask, RetryPolicy, ServiceKey, TaskId};

use crate::{
    row::{Columns, corrupt, retry_policy},
    session::{InsertedTask, KnownKey, Result},
};

/// A unique key, and the task whose it is or was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreedKey {
    pub service: ServiceKey,
    pub client: ClientKey,
    pub key: String,
    pub task_id: TaskId,
}

/// Attempts and unique keys within a transaction.
pub(crate) trait History: Send {
    /// Keeps attempts that are over, of tasks that are not; each with the task's id.
    fn insert_attempts(&mut self, attempts: &[(i64, Attempt)]) -> impl Future<Output = Result<()>> + Send;

    /// Keeps the last attempt of each of these tasks, which have ended and are about to begin anew.
    fn keep_last_attempts(&mut self, ids: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// Notes that these are asked for once more, and now: what waits for its time waits no longer, and has the place of one that
    /// came now.
    fn note_revivals(&mut self, ids: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// The hosts of attempts of these tasks that failed or were lost, and the codes of which it was.
    fn past_hosts(&mut self, ids: &[i64]) -> impl Future<Output = Result<Vec<(i64, String, i16)>>> + Send;

    /// Those of the batch's unique keys that are in use.
    fn known_unique(&mut self, tasks: &[NewTask]) -> impl Future<Output = Result<Vec<KnownKey>>> + Send;

    /// Notes the unique keys of those that have one; whoever had one before has it no more.
    fn insert_unique(&mut self, tasks: &[InsertedTask]) -> impl Future<Output = Result<()>> + Send;

    /// Takes keys back, for tasks that had ended and begin anew; those that others have meanwhile are theirs.
    fn retake_unique(&mut self, keys: &[FreedKey]) -> impl Future<Output = Result<()>> + Send;

    /// Those of these tasks whose keys belong to others that have not ended.
    fn key_taken(&mut self, keys: &[FreedKey]) -> impl Future<Output = Result<Vec<TaskId>>> + Send;

    /// Lets go of keys, but for those that last longer than their tasks.
    fn free_unique(&mut self, keys: &[FreedKey]) -> impl Future<Output = Result<()>> + Send;

    /// Forgets at most `limit` keys whose time is up; tells how many.
    fn forget_unique(&mut self, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}

/// Who had a task before, and how that ended.
pub(crate) fn past_host(row: &impl Columns) -> Result<(i64, String, i16)> {
    Ok((row.big("task")?, row.text("worker_host")?, row.small("outcome")?))
}

/// How often to try a task again: its own policy under its service's, or the one that there is.
pub(crate) fn policy_of_task(text: Option<&str>) -> Result<RetryPolicy> {
    let Some(both) = text.filter(|text| text.starts_with('[')) else { return retry_policy(text) };
    let (own, service): (RetryPolicy, RetryPolicy) = serde_json::from_str(both).map_err(corrupt)?;
    Ok(own.under(service))
}
