//! Notification sources: the port to what knows them, and the use cases of operators.
//!
//! Like outboxes and captures, they are declared with everything else. What a source hears and what it makes of it,
//! [`NotificationSources`] knows; `relais-relay` implements it.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use relais_core::{Change, RelayChange, RelayKind, RelayRecord};
use relais_protocol::{
    admin::ApplyReport,
    notification_source::{NotificationSourceDeclaration, NotificationSourceState},
};

use super::{
    admin::deleted,
    outboxes::{RelayCheck, RelayPlan},
};
use crate::{Engine, EngineError};

/// Notification sources, for operators. One that is not declared is [`EngineError::NotificationSourceNotFound`].
#[async_trait]
pub trait NotificationSources: fmt::Debug + Send + Sync + 'static {
    /// Checks what is declared and compares it with what is there. Changes nothing.
    async fn plan(
        &self,
        declared: &[NotificationSourceDeclaration],
        prune: bool,
        check: RelayCheck,
    ) -> Result<RelayPlan, EngineError>;

    /// The sources as a file would say it.
    async fn declarations(&self) -> Result<Vec<NotificationSourceDeclaration>, EngineError>;

    /// The sources, in the order of their names, as their processes last reported.
    async fn states(&self) -> Result<Vec<NotificationSourceState>, EngineError>;

    /// One source; this process says how it does now.
    async fn state(&self, name: &str) -> Result<NotificationSourceState, EngineError>;

    /// One source, as it is stored.
    async fn record(&self, name: &str) -> Result<RelayRecord, EngineError>;

    /// The sources that this process hears and that are in trouble, and why. Answers at once.
    fn in_trouble(&self) -> Vec<(String, String)>;
}

impl Engine {
    pub(crate) fn notification_sources(&self) -> Option<&Arc<dyn NotificationSources>> {
        self.0.options.notification_sources.as_ref()
    }

    fn sources_of_this_server(&self) -> Result<&Arc<dyn NotificationSources>, EngineError> {
        self.notification_sources().ok_or(EngineError::NotificationSourceNotFound)
    }

    /// The notification sources, in the order of their names.
    pub async fn notification_source_states(&self) -> Result<Vec<NotificationSourceState>, EngineError> {
        match self.notification_sources() {
            Some(sources) => sources.states().await,
            None => Ok(Vec::new()),
        }
    }

    /// One notification source.
    pub async fn notification_source_state(&self, name: &str) -> Result<NotificationSourceState, EngineError> {
        self.sources_of_this_server()?.state(name).await
    }

    /// Pauses or resumes a notification source. What happens while it is paused does not become notifications later.
    pub async fn pause_notification_source(
        &self,
        name: &str,
        paused: bool,
    ) -> Result<NotificationSourceState, EngineError> {
        let sources = self.sources_of_this_server()?;
        let name = sources.record(name).await?.name;
        let change = RelayChange::Pause { kind: RelayKind::NotificationSource, name: name.clone(), paused };
        self.declare(vec![Change::Relay(change)]).await?;
        sources.state(name.as_str()).await
    }

    /// Removes a notification source. Its notifications stay.
    pub async fn delete_notification_source(&self, name: &str) -> Result<ApplyReport, EngineError> {
        let record = self.sources_of_this_server()?.record(name).await?;
        let change = RelayChange::Delete(RelayKind::NotificationSource, record.name);
        self.declare(vec![Change::Relay(change)]).await?;
        Ok(deleted("notification source", name.to_owned()))
    }
}
