//! Outboxes, captures and notification sources: what is declared of them, with their secrets encrypted, and what processes say of their relays.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::time::Duration;

use async_trait::async_trait;
use relais_core::{RelayChange, RelayDeclarations, RelayKind, RelayRecord, RelayReport, RelaySecrets, StoreError};

use crate::{
    relays::statements::RelayRows as _,
    session::{Database, Session as _},
    verbs::Verbs,
};

/// A process that was not heard of for so long is gone.
const SILENT: Duration = Duration::from_secs(3600);

#[async_trait]
impl<D: Database> RelayDeclarations for Verbs<D> {
    async fn list_relays(&self, kind: RelayKind) -> Result<Vec<RelayRecord>, StoreError> {
        let mut relays = self.database.list_relays(kind).await?;
        for relay in &mut relays {
            relay.secrets = RelaySecrets::new(self.keys.open_relay(kind, &relay.name, relay.secrets.expose())?);
        }
        Ok(relays)
    }

    async fn report_relays(
        &self,
        kind: RelayKind,
        process: String,
        reports: Vec<RelayReport>,
    ) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        session.forget_reports(kind, &process, SILENT).await?;
        session.write_reports(kind, &process, &reports).await?;
        session.commit().await
    }

    async fn list_reports(&self, kind: RelayKind, within: Duration) -> Result<Vec<RelayReport>, StoreError> {
        self.database.list_reports(kind, within).await
    }
}

impl<D: Database> Verbs<D> {
    /// Changes one of them, in the transaction of a declaration.
    pub(crate) async fn change_relay(&self, session: &mut D::Session, change: &RelayChange) -> Result<(), StoreError> {
        match change {
            RelayChange::Delete(kind, name) => session.delete_relay(*kind, name).await,
            RelayChange::Pause { kind, name, paused } => match session.pause_relay(*kind, name, *paused).await? {
                true => Ok(()),
                false => Err(StoreError::Conflict(format!("there is no {kind} {name}"))),
            },
            RelayChange::Put { relay, paused } => {
                let RelayRecord { kind, name, declaration, secrets, .. } = relay.as_ref();
                if self.keys.is_empty() {
                    // Refused to a process without a key if others have encrypted theirs.
                    for (name, stored) in session.list_relay_secrets(*kind).await? {
                        self.keys.open_relay(*kind, &name, &stored)?;
                    }
                }
                let sealed = self.keys.seal_relay(*kind, name, secrets.expose())?;
                session.put_relay(*kind, name, declaration, &sealed, *paused).await
            }
        }
    }
}
