//! Declarations: services, clients and authorizations. Schedules (`schedules/`), outboxes, captures and notification
//! sources (`relays/`), audiences (`audiences/`) and signing secrets (`secrets/`) are declared in the same transaction, by their own features.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use async_trait::async_trait;
use relais_core::{Change, DeclarationStore, Declared, StoreError, Wakeup};

use crate::{
    audiences::statements::AudienceRows as _, counters::ledger::Ledger, declarations::statements::DeclarationRows as _,
    flow::statements::Flows as _, session::Database, verbs::Verbs,
};

#[async_trait]
impl<D: Database> DeclarationStore for Verbs<D> {
    async fn declared(&self) -> Result<Declared, StoreError> {
        let mut declared = self.database.declared().await?;
        self.decrypt(&mut declared)?;
        self.note_limited(&declared);
        Ok(declared)
    }

    async fn declared_version(&self) -> Result<i64, StoreError> {
        self.database.declared_version().await
    }

    async fn declare(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        // First, so that two declarations take turns instead of meeting half-way.
        session.bump_declared().await?;
        for change in &changes {
            match change {
                Change::Schedule(change) => Self::change_schedule(&mut session, change).await?,
                Change::Relay(change) => self.change_relay(&mut session, change).await?,
                Change::Audience(change) => session.change_audience(change).await?,
                Change::PutSigningSecret { client_id, secret, overlap, unless_any } => {
                    self.put_secret(&mut session, (client_id, secret), *overlap, *unless_any).await?;
                }
                other => session.declare(other).await?,
            }
        }
        session.note_limits().await?;
        session.note_flows().await?;
        // A service that goes on may have tasks to be claimed.
        let wakeup = Wakeup { declared: true, ..Wakeup::default() };
        self.finish(session, Ledger::default(), wakeup).await
    }

    async fn encrypt_secrets(&self) -> Result<u64, StoreError> {
        self.encrypt_secrets().await
    }
}
