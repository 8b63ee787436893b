//! Captures: the port to what knows them, and the use cases of operators.
//!
//! Like outboxes, they are declared with everything else. What a capture's database, tables and sink are, [`CaptureRelays`]
//! knows; `relais-relay` implements it.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use relais_core::{Change, RelayChange, RelayKind, RelayRecord};
use relais_protocol::{
    admin::ApplyReport,
    capture::{CaptureDeclaration, CaptureState},
};

use super::{
    admin::deleted,
    outboxes::{RelayCheck, RelayPlan},
};
use crate::{Engine, EngineError};

/// Captures, for operators. A capture that is not declared is [`EngineError::CaptureNotFound`]; one whose database can not be
/// asked is [`EngineError::CaptureUnavailable`].
#[async_trait]
pub trait CaptureRelays: fmt::Debug + Send + Sync + 'static {
    /// Checks what is declared and compares it with what is there. Changes nothing.
    async fn plan(
        &self,
        declared: &[CaptureDeclaration],
        prune: bool,
        check: RelayCheck,
    ) -> Result<RelayPlan, EngineError>;

    /// The captures as a file would say it, without secrets.
    async fn declarations(&self) -> Result<Vec<CaptureDeclaration>, EngineError>;

    /// The captures, in the order of their names, as their processes last reported. Asks no other database than the store.
    async fn states(&self) -> Result<Vec<CaptureState>, EngineError>;

    /// One capture, with what its database says now.
    async fn state(&self, name: &str) -> Result<CaptureState, EngineError>;

    /// One capture, as it is stored.
    async fn record(&self, name: &str) -> Result<RelayRecord, EngineError>;

    /// Asks for tables to be read again beside the stream; all of them if none is named.
    async fn request_snapshot(&self, name: &str, tables: &[String]) -> Result<(), EngineError>;

    /// Drops the slot and the publication of a capture that was deleted, and forgets how far it was.
    async fn release(&self, record: &RelayRecord) -> Result<(), EngineError>;

    /// The captures that this process runs and that are in trouble, and why. Answers at once.
    fn in_trouble(&self) -> Vec<(String, String)>;
}

impl Engine {
    pub(crate) fn captures(&self) -> Option<&Arc<dyn CaptureRelays>> {
        self.0.options.captures.as_ref()
    }

    fn captures_of_this_server(&self) -> Result<&Arc<dyn CaptureRelays>, EngineError> {
        self.captures().ok_or(EngineError::CaptureNotFound)
    }

    /// The captures, in the order of their names.
    pub async fn capture_states(&self) -> Result<Vec<CaptureState>, EngineError> {
        match self.captures() {
            Some(captures) => captures.states().await,
            None => Ok(Vec::new()),
        }
    }

    /// One capture.
    pub async fn capture_state(&self, name: &str) -> Result<CaptureState, EngineError> {
        self.captures_of_this_server()?.state(name).await
    }

    /// Asks for tables of a capture to be read again; all of them if none is named.
    pub async fn request_snapshot(&self, name: &str, tables: &[String]) -> Result<CaptureState, EngineError> {
        let captures = self.captures_of_this_server()?;
        captures.request_snapshot(name, tables).await?;
        captures.state(name).await
    }

    /// Pauses or resumes a capture. While it is paused, its database keeps its WAL.
    pub async fn pause_capture(&self, name: &str, paused: bool) -> Result<CaptureState, EngineError> {
        let captures = self.captures_of_this_server()?;
        let name = captures.record(name).await?.name;
        let change = RelayChange::Pause { kind: RelayKind::Capture, name: name.clone(), paused };
        self.declare(vec![Change::Relay(change)]).await?;
        captures.state(name.as_str()).await
    }

    /// Removes a capture, with its slot, its publication and how far it was. Its tables stay as they are.
    pub async fn drop_capture(&self, name: &str) -> Result<ApplyReport, EngineError> {
        let captures = self.captures_of_this_server()?;
        let record = captures.record(name).await?;
        self.declare(vec![Change::Relay(RelayChange::Delete(RelayKind::Capture, record.name.clone()))]).await?;
        captures.release(&record).await?;
        Ok(deleted("capture", name.to_owned()))
    }
}
