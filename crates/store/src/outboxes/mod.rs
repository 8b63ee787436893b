//! Outboxes: what is declared of them, with their secrets encrypted, and what processes say of their relays.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::time::Duration;

use async_trait::async_trait;
use relais_core::{OutboxChange, OutboxDeclarations, OutboxRecord, OutboxSecrets, RelayReport, StoreError};

use crate::{
    outboxes::statements::OutboxRows as _,
    session::{Database, Session as _},
    verbs::Verbs,
};

/// A process that was not heard of for so long is gone.
const SILENT: Duration = Duration::from_secs(3600);

#[async_trait]
impl<D: Database> OutboxDeclarations for Verbs<D> {
    async fn list_outboxes(&self) -> Result<Vec<OutboxRecord>, StoreError> {
        let mut outboxes = self.database.list_outboxes().await?;
        for outbox in &mut outboxes {
            outbox.secrets = OutboxSecrets::new(self.keys.open_outbox(&outbox.name, outbox.secrets.expose())?);
        }
        Ok(outboxes)
    }

    async fn report_relays(&self, process: String, reports: Vec<RelayReport>) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        session.forget_relays(&process, SILENT).await?;
        session.report_relays(&process, &reports).await?;
        session.commit().await
    }

    async fn list_relays(&self, within: Duration) -> Result<Vec<RelayReport>, StoreError> {
        self.database.list_relays(within).await
    }
}

impl<D: Database> Verbs<D> {
    /// Changes an outbox, in the transaction of a declaration.
    pub(crate) async fn change_outbox(
        &self,
        session: &mut D::Session,
        change: &OutboxChange,
    ) -> Result<(), StoreError> {
        match change {
            OutboxChange::Delete(name) => session.delete_outbox(name).await,
            OutboxChange::Pause { name, paused } => match session.pause_outbox(name, *paused).await? {
                true => Ok(()),
                false => Err(StoreError::Conflict(format!("there is no outbox {name}"))),
            },
            OutboxChange::Put { outbox, paused } => {
                if self.keys.is_empty() {
                    // Refused to a process without a key if others have encrypted theirs.
                    for (name, stored) in session.list_outbox_secrets().await? {
                        self.keys.open_outbox(&name, &stored)?;
                    }
                }
                let sealed = self.keys.seal_outbox(&outbox.name, outbox.secrets.expose())?;
                session.put_outbox(&outbox.name, &outbox.declaration, &sealed, *paused).await
            }
        }
    }
}
