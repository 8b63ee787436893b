//! The inbox: tasks that a program puts into the database in a transaction of its own, together with whatever else it
//! writes there. See [`enqueue`].

use std::{future::Future, time::Duration};

use relais_core::{InboxEntry, Json};

use crate::{
    row::{Columns, corrupt},
    session::Result,
};

/// A connection of a program's own, to the database that the store is on. Transactions are dereferenced to one.
pub trait Enqueue {
    /// Puts an entry into the inbox. It becomes a task when the transaction commits.
    fn enqueue(&mut self, entry: &InboxEntry) -> impl Future<Output = std::result::Result<(), sqlx::Error>> + Send;
}

/// Puts an entry into the inbox, in the caller's own transaction: a task is made of it if and only if that commits.
///
/// On PostgreSQL whoever runs an engine on the database is told by the commit itself. On SQLite nobody is: ring the engine's
/// bell after the commit (`Engine::look_into_inbox`), or it looks by itself within seconds.
pub async fn enqueue<C: Enqueue + ?Sized>(
    connection: &mut C,
    entry: &InboxEntry,
) -> std::result::Result<(), sqlx::Error> {
    connection.enqueue(entry).await
}

impl Enqueue for sqlx::PgConnection {
    async fn enqueue(&mut self, entry: &InboxEntry) -> std::result::Result<(), sqlx::Error> {
        sqlx::query("INSERT INTO relais.inbox (task_id, service, client, request) VALUES ($1, $2, $3, $4::json)")
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
    async fn enqueue(&mut self, entry: &InboxEntry) -> std::result::Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO inbox (task_id, service, client, request, created)
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

/// The inbox within a transaction of the store.
pub(crate) trait Inbox: Send {
    /// Locks the first entries that were not refused, passing over those that others have locked.
    fn lock_inbox(&mut self, limit: usize) -> impl Future<Output = Result<Vec<(i64, InboxEntry)>>> + Send;

    /// Removes entries.
    fn empty_inbox(&mut self, ids: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// Notes why entries were refused.
    fn refuse_inbox(&mut self, refused: &[(i64, String)]) -> impl Future<Output = Result<()>> + Send;

    /// Forgets refused entries that are older than this, at most so many.
    fn forget_inbox(&mut self, older_than: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}

pub(crate) fn inbox_entry(row: &impl Columns) -> Result<(i64, InboxEntry)> {
    let entry = InboxEntry {
        task_id: row.task_id("task_id")?,
        service: row.text("service")?,
        client: row.text("client")?,
        request: Json::parse(row.text("request")?).map_err(corrupt)?,
    };
    Ok((row.big("id")?, entry))
}
