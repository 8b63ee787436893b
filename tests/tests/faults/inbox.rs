//! Programs with transactional submissions: some commit, some roll back, some do not know.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use relais_core::StoredSubmission;
use relais_engine::{Access, Engine};
use relais_protocol::consumer::SubmitRequest;
use relais_store::{Enqueue, enqueue};
use relais_tests::chaos::Random;
use serde_json::json;
use sqlx::{Connection as _, Database, PgConnection, Postgres, Sqlite, SqliteConnection, Transaction};

use super::ledger::Ledger;

/// Somebody who wants things done together with what else they write.
pub struct Depositor {
    pub engine: Engine,
    pub access: Access,
    pub url: String,
    pub name: String,
    pub ledger: Arc<Ledger>,
    pub random: Random,
}

impl Depositor {
    /// Puts so many there, one after the other.
    pub async fn run(mut self, tasks: usize) -> Result<()> {
        if self.url.starts_with("sqlite:") {
            let mut connection = SqliteConnection::connect(&self.url).await?;
            self.deposit_all::<Sqlite>(&mut connection, tasks).await
        } else {
            let mut connection = PgConnection::connect(&self.url).await?;
            self.deposit_all::<Postgres>(&mut connection, tasks).await
        }
    }

    async fn deposit_all<D: Database>(&mut self, connection: &mut D::Connection, tasks: usize) -> Result<()>
    where
        D::Connection: Enqueue,
    {
        for number in 0..tasks {
            let mark = format!("{}-{number}", self.name);
            let request = json!({"body": {"mark": mark}, "correlationId": mark}).to_string();
            let request: SubmitRequest = serde_json::from_str(&request)?;
            let entry = self.engine.prepare(&self.access, &request)?;
            if self.random.once_in(4) {
                self.ledger.book().revoked.insert(entry.task_id);
                let mut transaction = connection.begin().await?;
                put::<D>(&mut transaction, &entry).await?;
                transaction.rollback().await?;
                continue;
            }
            let mut transaction = connection.begin().await?;
            put::<D>(&mut transaction, &entry).await.context("put a task into the inbox")?;
            transaction.commit().await?;
            self.ledger.accepted(entry.task_id, &mark);
            // On SQLite nobody else rings.
            self.engine.collect_submissions();
            if self.random.once_in(3) {
                let mut transaction = connection.begin().await?;
                // It may still be there: then it is refused.
                match put::<D>(&mut transaction, &entry).await {
                    Ok(()) => transaction.commit().await?,
                    Err(_) => transaction.rollback().await?,
                }
            }
        }
        Ok(())
    }
}

async fn put<D: Database>(transaction: &mut Transaction<'_, D>, entry: &StoredSubmission) -> Result<(), sqlx::Error>
where
    D::Connection: Enqueue,
{
    enqueue::<D::Connection>(&mut **transaction, entry).await
}
