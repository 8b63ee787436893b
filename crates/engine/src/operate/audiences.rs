//! Declared audiences: the port to what knows them, and the use cases of operators.
//!
//! A target that is declared belongs to its declaration: nobody else changes its members. Who the members of a target are, the
//! log of notifications knows; [`DeclaredAudiences`] brings the two together, and `relais-relay` implements it.

use std::{collections::BTreeSet, fmt, sync::Arc};

use async_trait::async_trait;
use relais_core::{AudienceChange, Change, DeclaredAudience};
use relais_protocol::{
    admin::{AppliedAction, ApplyReport},
    audience::{AudienceDeclaration, AudienceState},
};

use super::admin::deleted;
use crate::{Engine, EngineError, Problem};

/// What is to be changed of audiences.
#[derive(Debug, Default)]
pub struct AudiencePlan {
    /// What is done with each of them, by its name: `TYPE`, or `TYPE:target`.
    pub entries: Vec<(String, AppliedAction)>,
    /// The changes.
    pub changes: Vec<AudienceChange>,
    /// What is wrong, below `/audiences`.
    pub problems: Vec<Problem>,
}

/// Declared audiences, for operators. One that is not declared is [`EngineError::AudienceNotFound`].
#[async_trait]
pub trait DeclaredAudiences: fmt::Debug + Send + Sync + 'static {
    /// Checks what is declared and compares it with what is there. Changes nothing.
    async fn plan(&self, declared: &[AudienceDeclaration], prune: bool) -> Result<AudiencePlan, EngineError>;

    /// The types of audience that there are once this is declared: those that are always there too.
    async fn types_after(&self, declared: &[AudienceDeclaration], prune: bool)
    -> Result<BTreeSet<String>, EngineError>;

    /// The audiences as a file would say it.
    async fn declarations(&self) -> Result<Vec<AudienceDeclaration>, EngineError>;

    /// The audiences, in the order of their types and targets, without their members.
    async fn states(&self) -> Result<Vec<AudienceState>, EngineError>;

    /// One audience, with its members.
    async fn state(&self, audience: &DeclaredAudience) -> Result<AudienceState, EngineError>;

    /// Makes the members of every declared target those that are declared. What can not be done now is done later.
    async fn settle(&self);
}

/// How an audience is called: `TYPE`, or `TYPE:target`.
pub(crate) fn audience_name(kind: &str, target: Option<&str>) -> String {
    target.map_or_else(|| kind.to_owned(), |target| format!("{kind}:{target}"))
}

impl Engine {
    pub(crate) fn audiences(&self) -> Option<&Arc<dyn DeclaredAudiences>> {
        self.0.options.audiences.as_ref()
    }

    /// Makes members those that are declared.
    pub(crate) async fn settle_audiences(&self) {
        if let Some(audiences) = self.audiences() {
            audiences.settle().await;
        }
    }

    /// The declared audiences, in the order of their types and targets.
    pub async fn audience_states(&self) -> Result<Vec<AudienceState>, EngineError> {
        match self.audiences() {
            Some(audiences) => audiences.states().await,
            None => Ok(Vec::new()),
        }
    }

    /// One declared audience, with its members.
    pub async fn audience_state(&self, kind: &str, target: Option<&str>) -> Result<AudienceState, EngineError> {
        let audience = DeclaredAudience { kind: kind.to_owned(), target: target.map(str::to_owned) };
        self.audiences().ok_or(EngineError::AudienceNotFound)?.state(&audience).await
    }

    /// Declares a type, or a target, no more. The target loses the members that were declared; those of others stay.
    pub async fn delete_audience(&self, kind: &str, target: Option<&str>) -> Result<ApplyReport, EngineError> {
        let audience = DeclaredAudience { kind: kind.to_owned(), target: target.map(str::to_owned) };
        self.audience_state(kind, target).await?;
        self.declare(vec![Change::Audience(AudienceChange::Delete(audience))]).await?;
        self.settle_audiences().await;
        Ok(deleted("audience", audience_name(kind, target)))
    }
}
