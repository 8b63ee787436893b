//! Operators: the audit log, written as it comes and forgotten in small batches; and who is signed in.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::time::Duration;

use async_trait::async_trait;
use relais_core::{AuditEntry, AuditOutcome, AuditPage, OperatorStore, SessionsOf, StoreError};

use crate::{
    operators::statements::OperatorRows as _,
    session::{Database, Session as _},
    verbs::Verbs,
};

/// So many lines are forgotten in one transaction.
const BATCH: usize = 1000;

/// A process that was not heard of for so long is gone.
const SILENT: Duration = Duration::from_secs(3600);

/// So many processes are listened to.
const PROCESSES: usize = 200;

/// A session that lasts longer lasts for ever.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

#[async_trait]
impl<D: Database> OperatorStore for Verbs<D> {
    async fn write_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        let entries: Vec<AuditEntry> = entries.into_iter().map(AuditEntry::tidied).collect();
        let mut session = self.database.begin().await?;
        session.write_audit(&entries).await?;
        session.commit().await
    }

    async fn begin_audit(&self, entry: AuditEntry) -> Result<i64, StoreError> {
        let mut session = self.database.begin().await?;
        let line = session.begin_audit(&entry.tidied()).await?;
        session.commit().await?;
        Ok(line)
    }

    async fn complete_audit(&self, line: i64, outcome: Option<AuditOutcome>) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        match outcome {
            Some(outcome) => session.complete_audit(line, &outcome.tidied()).await?,
            None => session.drop_audit(line).await?,
        }
        session.commit().await
    }

    async fn list_audit(&self, before: Option<i64>, limit: usize) -> Result<AuditPage, StoreError> {
        let records = self.database.list_audit(before.unwrap_or(i64::MAX), limit).await?;
        let next_before = records.last().filter(|_| records.len() == limit).map(|record| record.id);
        Ok(AuditPage { records, next_before })
    }

    async fn purge_audit(&self, older_than: Duration) -> Result<u64, StoreError> {
        self.purge_rows(BATCH as u64, |session| Box::pin(session.purge_audit(older_than, BATCH))).await
    }

    /// What has expired is forgotten along the way.
    async fn open_session(&self, id: String, operator: String, lasts: Duration) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        session.forget_sessions(BATCH).await?;
        session.open_session(&id, &operator, lasts.min(LONGEST)).await?;
        session.commit().await
    }

    async fn session_is_open(&self, id: String) -> Result<bool, StoreError> {
        self.database.session_is_open(&id).await
    }

    async fn end_sessions(&self, which: SessionsOf) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let ended = session.end_sessions(&which).await?;
        session.commit().await?;
        Ok(ended)
    }

    /// What is of processes that are gone is forgotten along the way.
    async fn publish_workers(&self, process: String, workers: Option<String>) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        session.publish_workers(&process, workers.as_deref()).await?;
        session.purge_published_workers(SILENT, BATCH).await?;
        session.commit().await
    }

    async fn list_published_workers(
        &self,
        except: String,
        within: Duration,
    ) -> Result<Vec<(String, Duration)>, StoreError> {
        let told = self.database.list_published_workers(&except, within, PROCESSES).await?;
        Ok(told.into_iter().map(|(text, ago)| (text, Duration::from_millis(u64::try_from(ago).unwrap_or(0)))).collect())
    }
}
