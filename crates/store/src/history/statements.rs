//! What a driver says in SQL about attempts that are over, and about keys of which there is one task at a time.

use std::future::Future;

use relais_core::{Attempt, AttemptOutcome, ClientKey, Failure, NewTask, RetryPolicy, ServiceKey, StoreError, TaskId};

use crate::{
    row::{Columns, client_key, corrupt, json, narrow, retry_policy, service_key, unsigned},
    session::Result,
    submit::statements::{InsertedTask, KnownKey},
};

/// A unique key, and the task whose it is or was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreedKey {
    pub service: ServiceKey,
    pub client: ClientKey,
    pub key: String,
    pub task_id: TaskId,
}

/// Reads of attempts, which need no transaction.
pub(crate) trait HistoryReader: Send + Sync {
    /// The attempts of a task that are over, in their order.
    fn list_attempts(&self, id: i64) -> impl Future<Output = Result<Vec<Attempt>>> + Send;
}

/// Attempts and unique keys within a transaction.
pub(crate) trait History: Send {
    /// Keeps attempts that are over, of tasks that are not; each with the task's id.
    fn insert_attempts(&mut self, attempts: &[(i64, Attempt)]) -> impl Future<Output = Result<()>> + Send;

    /// Keeps the last attempt of each of these tasks, which have ended and are about to begin anew.
    fn keep_last_attempts(&mut self, ids: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// Notes that these are asked for once more, and now: what waits for its time waits no longer, and has the place of
    /// one that came now.
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

/// An attempt that is over.
pub(crate) fn attempt(row: &impl Columns) -> Result<Attempt> {
    let code = row.small("outcome")?;
    let failure = row.text_if_any("error_message")?.map(|message| {
        Ok::<_, StoreError>(Failure {
            message,
            kind: row.text_if_any("error_kind")?,
            trace: row.text_if_any("error_trace")?,
            ..Failure::default()
        })
    });
    Ok(Attempt {
        number: narrow(row.int("number")?),
        started: row.moment_if_any("started")?,
        ended: row.moment_if_any("ended")?,
        outcome: AttemptOutcome::from_code(code).ok_or_else(|| corrupt(format!("outcome {code}")))?,
        worker_host: row.text_if_any("worker_host")?,
        failure: failure.transpose()?,
        response: json(row.text_if_any("response")?)?,
    })
}

/// What is written of an attempt's failure: the message, the kind and the trace.
pub(crate) fn failure_of(attempt: &Attempt) -> (Option<String>, (Option<String>, Option<String>)) {
    match attempt.failure.clone() {
        Some(failure) => (Some(failure.message), (failure.kind, failure.trace)),
        None => (None, (None, None)),
    }
}

/// The key of which there is one task at a time.
pub(crate) fn unique_key(row: &impl Columns) -> Result<KnownKey> {
    Ok(KnownKey {
        service: service_key(row)?,
        client: client_key(row)?,
        key: row.text("key")?,
        fingerprint: Vec::new(),
        task_id: row.task_id("task_id")?,
        position: unsigned(row.big("position")?),
    })
}
