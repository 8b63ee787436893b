//! All declared outboxes: which of them run here, and what operators ask of them.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use relais_core::{RelayChange, RelayDeclarations, RelayKind, RelayRecord, StoreError};
use relais_engine::{EngineError, OutboxRelays, ParkedChoice, Problem, RelayCheck, RelayPlan};
use relais_outbox::{OutboxError, OutboxStore, ReadRequest, RelayOptions};
use relais_protocol::{
    admin::AppliedAction,
    outbox::{OutboxDeclaration, OutboxState, ParkedEvent},
};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    RelayResources,
    check::{check, open, why},
    declaration::Declared,
    report::{BacklogFigures, RelayFigures},
    running::{COUNTED, Running},
    supervisor::{Planned, Planner, Supervisor},
};

/// How long an operator waits for an outbox's database.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many parked events are changed at once.
const BATCH: usize = 1000;

/// The application layer of outboxes. Cheap to clone.
#[derive(Clone)]
pub struct Outboxes(Arc<Supervisor<Running>>);

impl fmt::Debug for Outboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outboxes").finish_non_exhaustive()
    }
}

impl Outboxes {
    /// Outboxes as the store has them. `process` must be the name of no other process.
    pub fn new(declarations: Arc<dyn RelayDeclarations>, resources: RelayResources, process: String) -> Self {
        Self(Arc::new(Supervisor::new(declarations, resources, process)))
    }

    /// Publishes the declared outboxes until it is told to stop; what has begun is finished first. `changes` says when what is
    /// declared may have changed ([`Engine::declaration_changes`](relais_engine::Engine::declaration_changes)).
    pub async fn run(self, changes: watch::Receiver<i64>, stop: CancellationToken) {
        self.0.run(changes, stop).await;
    }

    async fn records(&self) -> Result<Vec<RelayRecord>, StoreError> {
        self.0.declarations.list_relays(RelayKind::Outbox).await
    }

    /// The outbox's database: the relay's own, or opened for this once.
    async fn database(&self, record: &RelayRecord) -> Result<(Arc<dyn OutboxStore>, RelayOptions), EngineError> {
        let declared = Declared::stored(record).map_err(|problems| not_understood(&problems))?;
        let known =
            self.0.running().get(&record.name).filter(|known| known.record == *record).map(|k| k.insight.store());
        if let Some(Some(store)) = known {
            return Ok((store, declared.options));
        }
        let store = within(open(&declared)).await?;
        Ok((store, declared.options))
    }

    /// Does something with all parked events that are meant, a batch at a time.
    async fn each_parked(&self, name: &str, which: ParkedChoice, decision: Decision) -> Result<u64, EngineError> {
        let (store, options) = self.database(&self.record(name).await?).await?;
        let mut changed = 0;
        match which {
            ParkedChoice::These(ids) => {
                for ids in ids.chunks(BATCH) {
                    changed += decide(store.as_ref(), name, ids, decision).await?;
                }
            }
            ParkedChoice::All => {
                // What is parked again meanwhile is left alone.
                let mut seen = HashSet::new();
                loop {
                    let parked = within(store.list_parked(&request(&options, BATCH))).await?;
                    let ids: Vec<String> =
                        parked.into_iter().map(|row| row.id).filter(|id| seen.insert(id.clone())).collect();
                    if ids.is_empty() {
                        break;
                    }
                    changed += decide(store.as_ref(), name, &ids, decision).await?;
                }
            }
        }
        Ok(changed)
    }
}

#[async_trait]
impl OutboxRelays for Outboxes {
    async fn plan(
        &self,
        declared: &[OutboxDeclaration],
        prune: bool,
        how: RelayCheck,
    ) -> Result<RelayPlan, EngineError> {
        self.0.plan(self, declared, prune, how).await
    }

    async fn declarations(&self) -> Result<Vec<OutboxDeclaration>, EngineError> {
        let records = self.records().await?;
        records.iter().map(shown).collect()
    }

    async fn states(&self) -> Result<Vec<OutboxState>, EngineError> {
        let (records, mut figures) = (self.records().await?, self.0.reports::<RelayFigures>().await?);
        let state = |record: &RelayRecord| Ok(state(shown(record)?, figures.remove(&record.name).unwrap_or_default()));
        records.iter().map(state).collect()
    }

    async fn state(&self, name: &str) -> Result<OutboxState, EngineError> {
        let record = self.record(name).await?;
        let mut figures = self.0.reports::<RelayFigures>().await?.remove(&record.name).unwrap_or_default();
        let own = self.0.running().get(&record.name).map(|running| running.insight.stats());
        if let Some(stats) = own {
            figures.retain(|(process, _)| *process != self.0.process);
            figures.push((self.0.process.clone(), RelayFigures::new(stats, None)));
            figures.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        let mut state = state(shown(&record)?, figures);
        let asked = async {
            let (store, options) = self.database(&record).await?;
            within(store.backlog(&options.outbox, COUNTED)).await
        };
        match asked.await {
            Ok(backlog) => tell_backlog(&mut state, &BacklogFigures::from(&backlog)),
            Err(error) => state.trouble = state.trouble.or_else(|| Some(error.to_string())),
        }
        Ok(state)
    }

    async fn record(&self, name: &str) -> Result<RelayRecord, EngineError> {
        self.0.record(name).await?.ok_or(EngineError::OutboxNotFound)
    }

    async fn release(&self, record: &RelayRecord) -> Result<(), EngineError> {
        // Declared again meanwhile, the slot is in use again.
        if self.0.record(record.name.as_str()).await?.is_some() {
            return Ok(());
        }
        let declared = Declared::stored(record).map_err(|problems| not_understood(&problems))?;
        let store = within(open(&declared)).await?;
        within(relais_outbox::drop_slot(store.as_ref(), &declared.options)).await
    }

    async fn list_parked(&self, name: &str, limit: usize) -> Result<Vec<ParkedEvent>, EngineError> {
        let (store, options) = self.database(&self.record(name).await?).await?;
        let parked = within(store.list_parked(&request(&options, limit))).await?;
        let event = |row: relais_outbox::ParkedRow| ParkedEvent {
            id: row.id,
            key: row.key,
            event_type: row.event_type,
            retry_count: row.retry_count,
            error: row.error,
        };
        Ok(parked.into_iter().map(event).collect())
    }

    async fn retry_parked(&self, name: &str, which: ParkedChoice) -> Result<u64, EngineError> {
        self.each_parked(name, which, Decision::Retry).await
    }

    async fn skip_parked(&self, name: &str, which: ParkedChoice) -> Result<u64, EngineError> {
        self.each_parked(name, which, Decision::Skip).await
    }

    fn in_trouble(&self) -> Vec<(String, String)> {
        let running = self.0.running();
        let trouble = running.iter().filter_map(|(name, one)| Some((name.to_string(), one.insight.stats().trouble?)));
        trouble.collect()
    }
}

#[async_trait]
impl Planner for Outboxes {
    type Declaration = OutboxDeclaration;

    fn name(declaration: &OutboxDeclaration) -> &str {
        &declaration.outbox_name
    }

    async fn planned(
        &self,
        declaration: &OutboxDeclaration,
        stored: Option<&RelayRecord>,
        how: RelayCheck,
    ) -> Result<Planned, Vec<Problem>> {
        let mut declared = Declared::new(declaration.clone())?;
        if let Some(stored) = stored.and_then(|record| Declared::stored(record).ok()) {
            declared.keep_secrets(&stored);
        }
        let (name, mut record) = (declared.name.clone(), declared.record()?);
        let action = match stored {
            None => AppliedAction::Created,
            Some(stored) => {
                record.paused = declaration.paused.unwrap_or(stored.paused);
                // Nothing is asked of anybody: a file that is applied again must not wait for databases that are away.
                if record == *stored {
                    return Ok((name, AppliedAction::Unchanged, None));
                }
                AppliedAction::Updated
            }
        };
        let problems = check(&declared, self.0.resources.sinks.as_ref(), how).await;
        if !problems.is_empty() {
            return Err(problems);
        }
        let change = RelayChange::Put { relay: Box::new(record), paused: declaration.paused };
        Ok((name, action, Some(change)))
    }
}

/// What becomes of parked events.
#[derive(Debug, Clone, Copy)]
enum Decision {
    Retry,
    Skip,
}

async fn decide(store: &dyn OutboxStore, name: &str, ids: &[String], decision: Decision) -> Result<u64, EngineError> {
    match decision {
        Decision::Retry => within(store.retry_parked(name, ids)).await,
        Decision::Skip => within(store.skip_parked(name, ids)).await,
    }
}

/// An outbox as it may be shown.
fn shown(record: &RelayRecord) -> Result<OutboxDeclaration, EngineError> {
    let declaration: Result<OutboxDeclaration, _> = serde_json::from_str(record.declaration.get());
    let declaration = declaration.map_err(|error| EngineError::from(StoreError::Failed(error.into())))?;
    Ok(OutboxDeclaration { paused: Some(record.paused), ..declaration })
}

fn state(declaration: OutboxDeclaration, figures: Vec<(String, RelayFigures)>) -> OutboxState {
    let mut state = OutboxState {
        declaration,
        relays: figures.iter().map(|(process, figures)| figures.state(process)).collect(),
        unpublished: None,
        more_unpublished: false,
        oldest_seconds: None,
        parked: None,
        published: figures.iter().map(|(_, figures)| figures.published).sum(),
        failed: figures.iter().map(|(_, figures)| figures.failed).sum(),
        trouble: figures.iter().find_map(|(_, figures)| figures.trouble.clone()),
    };
    if let Some(backlog) = figures.iter().find_map(|(_, figures)| figures.backlog) {
        tell_backlog(&mut state, &backlog);
    }
    if state.relays.is_empty() && state.declaration.paused != Some(true) {
        state.trouble = Some("no process publishes it: none has the role relay, or none is there".to_owned());
    }
    state
}

fn tell_backlog(state: &mut OutboxState, backlog: &BacklogFigures) {
    state.unpublished = Some(backlog.unpublished);
    state.more_unpublished = backlog.more;
    state.oldest_seconds = backlog.oldest_seconds;
    state.parked = Some(backlog.parked);
}

fn request(options: &RelayOptions, rows: usize) -> ReadRequest {
    ReadRequest {
        outbox: options.outbox.clone(),
        key: options.key.clone(),
        partitions: Vec::new(),
        of: options.partitions,
        rows,
        bytes: options.batch_bytes,
        limit: options.retry.limit,
        up_to: None,
    }
}

/// Asks an outbox's database, for a bounded time.
async fn within<T>(asked: impl Future<Output = Result<T, OutboxError>>) -> Result<T, EngineError> {
    match timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        // 22P02: a text that is no UUID, where the ids are.
        Ok(Err(OutboxError::Database(sqlx::Error::Database(error)))) if error.code().as_deref() == Some("22P02") => {
            let message = format!("is not an id of this outbox: {}", error.message());
            Err(EngineError::Invalid(vec![Problem::at("/ids", message)]))
        }
        Ok(Err(error)) => Err(EngineError::OutboxUnavailable(why(&error))),
        Err(_) => Err(EngineError::OutboxUnavailable(format!("no answer within {PATIENCE:?}"))),
    }
}

fn not_understood(problems: &[Problem]) -> EngineError {
    let told: Vec<String> = problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
    EngineError::OutboxUnavailable(format!("its declaration can not be used: {}", told.join("; ")))
}
