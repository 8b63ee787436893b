//! Transactional submissions: tasks that a program puts into the database in a transaction of its own, together with whatever else it
//! writes there. See [`enqueue`].

use std::{collections::HashSet, future::Future, time::Duration};

use relais_core::{Json, StoredSubmission, TaskId};

use crate::{row::Columns, session::Result};

/// A connection of a program's own, to the database that the store is on. Transactions are dereferenced to one.
pub trait Enqueue {
    /// Puts an entry into the stored submissions. It becomes a task when the transaction commits.
    fn enqueue(
        &mut self,
        entry: &StoredSubmission,
    ) -> impl Future<Output = std::result::Result<(), sqlx::Error>> + Send;
}

/// Puts an entry into the stored submissions, in the caller's own transaction: a task is made of it if and only if that
/// commits.
///
/// On PostgreSQL whoever runs an engine on the database is told by the commit itself. On SQLite nobody is: ring the
/// engine's bell after the commit (`Engine::collect_submissions`), or it looks by itself within seconds.
pub async fn enqueue<C: Enqueue + ?Sized>(
    connection: &mut C,
    entry: &StoredSubmission,
) -> std::result::Result<(), sqlx::Error> {
    connection.enqueue(entry).await
}

impl Enqueue for sqlx::PgConnection {
    async fn enqueue(&mut self, entry: &StoredSubmission) -> std::result::Result<(), sqlx::Error> {
        sqlx::query("INSERT INTO relais.submission (task_id, service, client, request) VALUES ($1, $2, $3, $4::json)")
            .bind(entry.task_id.0)
            .bind(&entry.service)
            .bind(&entry.client)
            .bind(entry.request.get())
            .execute(self)
            .await
            .map(drop)
    }
}

impl Enqueue for sqlx::SqliteConnection {
    async fn enqueue(&mut self, entry: &StoredSubmission) -> std::result::Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO submission (task_id, service, client, request, created)
             VALUES (?1, ?2, ?3, ?4, CAST(round(unixepoch('subsec') * 1000) AS INTEGER))",
        )
        .bind(entry.task_id.to_string())
        .bind(&entry.service)
        .bind(&entry.client)
        .bind(entry.request.get())
        .execute(self)
        .await
        .map(drop)
    }
}

/// Transactional submissions within a transaction of the store.
pub(crate) trait SubmissionRows: Send {
    /// Locks the first entries that were not refused, passing over those that others have locked.
    fn lock_submissions(&mut self, limit: usize) -> impl Future<Output = Result<Vec<Locked>>> + Send;

    /// Those of the names that tasks have already.
    fn known_tasks(&mut self, names: &[TaskId]) -> impl Future<Output = Result<HashSet<TaskId>>> + Send;

    /// Removes entries.
    fn delete_submissions(&mut self, ids: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// Notes why entries were refused.
    fn refuse_submissions(&mut self, refused: &[(i64, String)]) -> impl Future<Output = Result<()>> + Send;

    /// Forgets refused entries that are older than this, at most so many.
    fn purge_submissions(&mut self, older_than: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}

/// A row of the stored submissions: an entry, or why it is none.
pub(crate) type Locked = (i64, std::result::Result<StoredSubmission, String>);

/// Anybody may have written it.
pub(crate) fn stored_submission(row: &impl Columns) -> Result<Locked> {
    let read = || {
        Ok::<_, String>(StoredSubmission {
            task_id: row.task_id("task_id").map_err(|_| "task_id is no UUID".to_owned())?,
            service: row.text("service").map_err(|error| error.to_string())?,
            client: row.text("client").map_err(|error| error.to_string())?,
            request: Json::parse(row.text("request").map_err(|error| error.to_string())?)
                .map_err(|error| format!("the request is not taken: {error}"))?,
        })
    };
    Ok((row.big("id")?, read()))
}
