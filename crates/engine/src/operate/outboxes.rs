//! Outboxes: the port to what knows them, and the use cases of operators.
//!
//! The engine declares outboxes with everything else, so that a file is applied as a whole. What an outbox's database, table
//! and sink are, [`OutboxRelays`] knows; `relais-relay` implements it.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use relais_core::{Change, RelayChange, RelayKind, RelayName, RelayRecord};
use relais_protocol::{
    admin::{AppliedAction, ApplyReport},
    outbox::{OutboxDeclaration, OutboxState, ParkedEvent},
};

use super::admin::deleted;
use crate::{Engine, EngineError, Problem};

/// How far a declared outbox or capture is checked before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RelayCheck {
    /// Its database and its sink must be there and usable.
    #[default]
    Whole,
    /// They must be usable if they are there. For a file: what it declares besides must not wait for a database that is away.
    IfThere,
    /// Nothing is connected to.
    Declaration,
}

/// What is to be changed of outboxes, captures or notification sources.
#[derive(Debug, Default)]
pub struct RelayPlan {
    /// What is done with each of them.
    pub entries: Vec<(RelayName, AppliedAction)>,
    /// The changes.
    pub changes: Vec<RelayChange>,
    /// What is wrong, below `/outboxes`, `/captures` or `/notificationSources`.
    pub problems: Vec<Problem>,
}

/// Which parked events are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParkedChoice {
    /// Those with these ids.
    These(Vec<String>),
    /// All of them.
    All,
}

/// Outboxes, for operators. An outbox that is not declared is [`EngineError::OutboxNotFound`]; one whose database can not be
/// asked is [`EngineError::OutboxUnavailable`].
#[async_trait]
pub trait OutboxRelays: fmt::Debug + Send + Sync + 'static {
    /// Checks what is declared and compares it with what is there. Changes nothing.
    async fn plan(
        &self,
        declared: &[OutboxDeclaration],
        prune: bool,
        check: RelayCheck,
    ) -> Result<RelayPlan, EngineError>;

    /// The outboxes as a file would say it, without secrets.
    async fn declarations(&self) -> Result<Vec<OutboxDeclaration>, EngineError>;

    /// The outboxes, in the order of their names, as their relays last reported. Asks no other database than the store.
    async fn states(&self) -> Result<Vec<OutboxState>, EngineError>;

    /// One outbox, with what its database says now.
    async fn state(&self, name: &str) -> Result<OutboxState, EngineError>;

    /// One outbox, as it is stored.
    async fn record(&self, name: &str) -> Result<RelayRecord, EngineError>;

    /// Drops the slot and the publication of an outbox that was deleted, if it was captured.
    async fn release(&self, record: &RelayRecord) -> Result<(), EngineError>;

    /// Events that are parked, the oldest first, at most `limit`.
    async fn list_parked(&self, name: &str, limit: usize) -> Result<Vec<ParkedEvent>, EngineError>;

    /// Retries parked events; how many.
    async fn retry_parked(&self, name: &str, which: ParkedChoice) -> Result<u64, EngineError>;

    /// Skips parked events: they count as published; how many.
    async fn skip_parked(&self, name: &str, which: ParkedChoice) -> Result<u64, EngineError>;

    /// The outboxes that this process publishes and that are in trouble, and why. Answers at once.
    fn in_trouble(&self) -> Vec<(String, String)>;
}

impl Engine {
    pub(crate) fn outboxes(&self) -> Option<&Arc<dyn OutboxRelays>> {
        self.0.options.outboxes.as_ref()
    }

    fn outboxes_of_this_server(&self) -> Result<&Arc<dyn OutboxRelays>, EngineError> {
        self.outboxes().ok_or(EngineError::OutboxNotFound)
    }

    /// The outboxes, in the order of their names.
    pub async fn outbox_states(&self) -> Result<Vec<OutboxState>, EngineError> {
        match self.outboxes() {
            Some(outboxes) => outboxes.states().await,
            None => Ok(Vec::new()),
        }
    }

    /// One outbox.
    pub async fn outbox_state(&self, name: &str) -> Result<OutboxState, EngineError> {
        self.outboxes_of_this_server()?.state(name).await
    }

    /// Events of an outbox that are parked.
    pub async fn list_parked(&self, name: &str, limit: usize) -> Result<Vec<ParkedEvent>, EngineError> {
        self.outboxes_of_this_server()?.list_parked(name, limit).await
    }

    /// Retries parked events.
    pub async fn retry_parked(&self, name: &str, which: ParkedChoice) -> Result<u64, EngineError> {
        self.outboxes_of_this_server()?.retry_parked(name, which).await
    }

    /// Skips parked events: they count as published.
    pub async fn skip_parked(&self, name: &str, which: ParkedChoice) -> Result<u64, EngineError> {
        self.outboxes_of_this_server()?.skip_parked(name, which).await
    }

    /// Pauses or resumes an outbox.
    pub async fn pause_outbox(&self, name: &str, paused: bool) -> Result<OutboxState, EngineError> {
        let name = self.outboxes_of_this_server()?.record(name).await?.name;
        self.declare(vec![Change::Relay(RelayChange::Pause { kind: RelayKind::Outbox, name: name.clone(), paused })])
            .await?;
        self.outbox_state(name.as_str()).await
    }

    /// Removes an outbox. Its table stays as it is; its slot and publication are dropped.
    pub async fn delete_outbox(&self, name: &str) -> Result<ApplyReport, EngineError> {
        let changes = vec![Change::Relay(RelayChange::Delete(
            RelayKind::Outbox,
            self.outboxes_of_this_server()?.record(name).await?.name,
        ))];
        let gone = self.deleted_relays(&changes).await?;
        self.declare(changes).await?;
        self.release_relays(gone);
        Ok(deleted("outbox", name.to_owned()))
    }

    /// What an operator should know although the process is ready.
    pub fn notes(&self) -> Vec<String> {
        let outboxes = self.outboxes().map(|outboxes| outboxes.in_trouble()).unwrap_or_default();
        let captures = self.captures().map(|captures| captures.in_trouble()).unwrap_or_default();
        let sources = self.notification_sources().map(|sources| sources.in_trouble()).unwrap_or_default();
        let noted = |kind: &'static str, troubles: Vec<(String, String)>| {
            troubles.into_iter().map(move |(name, why)| format!("{kind} {name}: {why}"))
        };
        let relays = noted("outbox", outboxes).chain(noted("capture", captures));
        let others = self.0.readiness.in_trouble().into_iter().map(|(part, why)| format!("{part}: {why}"));
        relays.chain(noted("notification source", sources)).chain(others).collect()
    }
}
