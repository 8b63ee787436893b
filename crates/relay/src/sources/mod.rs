//! All declared notification sources: which of them this process hears, and what operators ask of them.

mod declaration;
mod running;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use relais_core::{RelayChange, RelayDeclarations, RelayKind, RelayRecord, StoreError};
use relais_engine::{EngineError, NotificationSources, Problem, RelayCheck, RelayPlan};
use relais_protocol::{
    admin::AppliedAction,
    notification_source::{NotificationSourceDeclaration, NotificationSourceProcess, NotificationSourceState},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{declaration::DeclaredSource, running::RunningSource};
use crate::{
    RelayResources,
    supervisor::{Planned, Planner, Supervised as _, Supervisor},
};

/// The application layer of notification sources. Cheap to clone.
#[derive(Clone)]
pub struct Sources(Arc<Supervisor<RunningSource>>);

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

impl Sources {
    /// Sources as the store has them. `process` must be the name of no other process.
    pub fn new(declarations: Arc<dyn RelayDeclarations>, resources: RelayResources, process: String) -> Self {
        Self(Arc::new(Supervisor::new(declarations, resources, process)))
    }

    /// Hears events for the declared sources until it is told to stop; what has begun is finished first.
    pub async fn run(self, changes: watch::Receiver<i64>, stop: CancellationToken) {
        self.0.run(changes, stop).await;
    }

    async fn records(&self) -> Result<Vec<RelayRecord>, StoreError> {
        self.0.declarations.list_relays(RelayKind::NotificationSource).await
    }
}

#[async_trait]
impl Planner for Sources {
    type Declaration = NotificationSourceDeclaration;

    fn name(declaration: &NotificationSourceDeclaration) -> &str {
        &declaration.source_name
    }

    async fn planned(
        &self,
        declaration: &NotificationSourceDeclaration,
        stored: Option<&RelayRecord>,
        _: RelayCheck,
    ) -> Result<Planned, Vec<Problem>> {
        let declared = DeclaredSource::new(declaration.clone())?;
        if self.0.resources.events.as_ref().is_some_and(|events| events.bus.is_none()) {
            return Err(vec![Problem::at("bus", "the event bus of this server is off: set `events.enabled`")]);
        }
        let (name, mut record) = (declared.name.clone(), declared.record()?);
        let action = match stored {
            None => AppliedAction::Created,
            Some(stored) => {
                record.paused = declaration.paused.unwrap_or(stored.paused);
                if record == *stored {
                    return Ok((name, AppliedAction::Unchanged, None));
                }
                AppliedAction::Updated
            }
        };
        let change = RelayChange::Put { relay: Box::new(record), paused: declaration.paused };
        Ok((name, action, Some(change)))
    }
}

#[async_trait]
impl NotificationSources for Sources {
    async fn plan(
        &self,
        declared: &[NotificationSourceDeclaration],
        prune: bool,
        how: RelayCheck,
    ) -> Result<RelayPlan, EngineError> {
        self.0.plan(self, declared, prune, how).await
    }

    async fn declarations(&self) -> Result<Vec<NotificationSourceDeclaration>, EngineError> {
        self.records().await?.iter().map(shown).collect()
    }

    async fn states(&self) -> Result<Vec<NotificationSourceState>, EngineError> {
        let (records, mut reports) = (self.records().await?, self.0.reports().await?);
        let state = |record: &RelayRecord| Ok(state(shown(record)?, reports.remove(&record.name).unwrap_or_default()));
        records.iter().map(state).collect()
    }

    async fn state(&self, name: &str) -> Result<NotificationSourceState, EngineError> {
        let record = self.record(name).await?;
        let mut reports = self.0.reports().await?.remove(&record.name).unwrap_or_default();
        let is_this = |running: &&RunningSource| running.record() == &record;
        let own = self.0.running().get(&record.name).filter(is_this).map(|one| one.insight.process(&self.0.process));
        if let Some(own) = own {
            reports.retain(|(process, _)| *process != self.0.process);
            reports.push((self.0.process.clone(), own));
            reports.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        Ok(state(shown(&record)?, reports))
    }

    async fn record(&self, name: &str) -> Result<RelayRecord, EngineError> {
        self.0.record(name).await?.ok_or(EngineError::NotificationSourceNotFound)
    }

    fn in_trouble(&self) -> Vec<(String, String)> {
        let running = self.0.running();
        running.iter().filter_map(|(name, one)| Some((name.to_string(), one.insight.process("").trouble?))).collect()
    }
}

fn shown(record: &RelayRecord) -> Result<NotificationSourceDeclaration, EngineError> {
    let declaration: Result<NotificationSourceDeclaration, _> = serde_json::from_str(record.declaration.get());
    let declaration = declaration.map_err(|error| EngineError::from(StoreError::Failed(error.into())))?;
    Ok(NotificationSourceDeclaration { paused: Some(record.paused), ..declaration })
}

fn state(
    declaration: NotificationSourceDeclaration,
    reports: Vec<(String, NotificationSourceProcess)>,
) -> NotificationSourceState {
    let processes: Vec<NotificationSourceProcess> =
        reports.into_iter().map(|(process, report)| NotificationSourceProcess { process, ..report }).collect();
    let nobody = "no process hears its events: none has the role notifications, or none is there";
    let trouble = match processes.is_empty() {
        true => Some(nobody.to_owned()).filter(|_| declaration.paused != Some(true)),
        false => processes.iter().find_map(|process| process.trouble.clone()),
    };
    NotificationSourceState {
        emitted: processes.iter().map(|process| process.emitted).sum(),
        failed: processes.iter().map(|process| process.failed).sum(),
        declaration,
        processes,
        trouble,
    }
}
