//! What a driver says in SQL about attempts that are over, and about keys of which there is one task at a time.

use std::future::Future;

use relais_core::{Attempt, ClientKey, NewTask, ServiceKey, TaskId};

use crate::session::{InsertedTask, KnownKey, Result};

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

    /// Those of the batch's unique keys that are in use.
    fn known_unique(&mut self, tasks: &[NewTask]) -> impl Future<Output = Result<Vec<KnownKey>>> + Send;

    /// Notes the unique keys of those that have one; whoever had one before has it no more.
    fn insert_unique(&mut self, tasks: &[InsertedTask]) -> impl Future<Output = Result<()>> + Send;

    /// Takes keys back, for tasks that had ended and begin anew; those that others have meanwhile are theirs.
    fn retake_unique(&mut self, keys: &[FreedKey]) -> impl Future<Output = Result<()>> + Send;

    /// Lets go of keys, but for those that last longer than their tasks.
    fn free_unique(&mut self, keys: &[FreedKey]) -> impl Future<Output = Result<()>> + Send;

    /// Forgets at most `limit` keys whose time is up; tells how many.
    fn forget_unique(&mut self, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}
