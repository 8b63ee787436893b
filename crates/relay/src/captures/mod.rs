//! All declared captures: which of them run here, and what operators ask of them.

mod declaration;
mod running;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;
use relais_capture::{Address, CaptureError, CapturedDatabase, format_lsn};
use relais_core::{RelayChange, RelayDeclarations, RelayKind, RelayRecord, StoreError};
use relais_engine::{CaptureRelays, EngineError, Problem, RelayCheck, RelayPlan};
use relais_protocol::{
    admin::AppliedAction,
    capture::{CaptureDeclaration, CapturePosition, CaptureProcess, CaptureState},
};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use self::{
    declaration::{DeclaredCapture, whole_name},
    running::{RunningCapture, release, why},
};
use crate::{
    RelayResources,
    check::{PATIENCE, Wrong, check_sink, database_away, is_away, problems},
    declaration::told,
    supervisor::{Planned, Planner, Supervised as _, Supervisor},
};

/// The application layer of captures. Cheap to clone.
#[derive(Clone)]
pub struct Captures(Arc<Supervisor<RunningCapture>>);

impl fmt::Debug for Captures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captures").finish_non_exhaustive()
    }
}

impl Captures {
    /// Captures as the store has them. `process` must be the name of no other process.
    pub fn new(declarations: Arc<dyn RelayDeclarations>, resources: RelayResources, process: String) -> Self {
        Self(Arc::new(Supervisor::new(declarations, resources, process)))
    }

    /// Runs the declared captures until it is told to stop; what has begun is finished first. `changes` says when what is
    /// declared may have changed ([`Engine::declaration_changes`](relais_engine::Engine::declaration_changes)).
    pub async fn run(self, changes: watch::Receiver<i64>, stop: CancellationToken) {
        self.0.run(changes, stop).await;
    }

    async fn records(&self) -> Result<Vec<RelayRecord>, StoreError> {
        self.0.declarations.list_relays(RelayKind::Capture).await
    }
}

#[async_trait]
impl Planner for Captures {
    type Declaration = CaptureDeclaration;

    fn name(declaration: &CaptureDeclaration) -> &str {
        &declaration.capture_name
    }

    async fn planned(
        &self,
        declaration: &CaptureDeclaration,
        stored: Option<&RelayRecord>,
        how: RelayCheck,
    ) -> Result<Planned, Vec<Problem>> {
        let before = stored.and_then(|record| DeclaredCapture::stored(record).ok());
        let declared = DeclaredCapture::new(declaration.clone(), before.as_ref())?;
        if let Some(problem) = before.and_then(|before| changed_publication(&before, &declared)) {
            return Err(vec![problem]);
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
        if how != RelayCheck::Declaration {
            let (sink, source) = (declared.sink(), declared.source());
            let (database, sink) =
                tokio::join!(check_database(&declared), check_sink(&source, &sink, self.0.resources.sinks.as_ref()));
            let problems = problems([database, sink], name.as_str(), how);
            if !problems.is_empty() {
                return Err(problems);
            }
        }
        let change = RelayChange::Put { relay: Box::new(record), paused: declaration.paused };
        Ok((name, action, Some(change)))
    }
}

/// A slot can not decode changes that are older than its publication.
fn changed_publication(before: &DeclaredCapture, declared: &DeclaredCapture) -> Option<Problem> {
    let (old, new) = (&before.options, &declared.options);
    let has_moved = server(before) != server(declared);
    (!has_moved && old.slot == new.slot && old.publication != new.publication).then(|| {
        let message = format!(
            "the slot {} was made for the publication {}: change `slot` too, or keep it",
            old.slot, old.publication
        );
        Problem::at("publication", message)
    })
}

/// Which server a capture reads, as far as its URL tells.
fn server(declared: &DeclaredCapture) -> String {
    Address::parse(declared.database_url()).map(|address| address.to_string()).unwrap_or_default()
}

/// Captures that name the same slot of the same server: each would get a part of the changes.
fn shared_slots(declared: &[CaptureDeclaration], stored: &[RelayRecord], prune: bool) -> Vec<Problem> {
    let place = |one: &DeclaredCapture| (server(one), one.options.slot.clone());
    let named: HashSet<&str> = declared.iter().map(|one| one.capture_name.as_str()).collect();
    let others = stored.iter().filter(|record| !prune && !named.contains(record.name.as_str()));
    let others = others.filter_map(|record| DeclaredCapture::stored(record).ok());
    let mut taken: HashMap<_, String> = others.map(|one| (place(&one), one.name.to_string())).collect();
    let mut problems = Vec::new();
    for (i, declaration) in declared.iter().enumerate() {
        let before = stored.iter().find(|record| record.name.as_str() == declaration.capture_name);
        let before = before.and_then(|record| DeclaredCapture::stored(record).ok());
        // What is wrong with it besides is said by others.
        let Ok(one) = DeclaredCapture::new(declaration.clone(), before.as_ref()) else { continue };
        if let Some(other) = taken.insert(place(&one), one.name.to_string()).filter(|other| *other != one.name.as_str())
        {
            let message = format!("the slot {} is that of the capture {other}; name another one", one.options.slot);
            problems.push(Problem::at(format!("/captures/{i}/slot"), message));
        }
    }
    problems
}

async fn check_database(declared: &DeclaredCapture) -> Result<(), Wrong> {
    let checked = async {
        let database = CapturedDatabase::connect(declared.database_url()).await?;
        let lacks = database.check(&declared.options).await?;
        let columns = database.unknown_columns(&declared.options).await?;
        Ok::<_, CaptureError>((lacks, columns))
    };
    let unusable = |message: String| Err(Wrong::Unusable(Problem::at("databaseUrl", message)));
    match timeout(PATIENCE, checked).await {
        Ok(Ok((lacks, columns))) => {
            let lacks = lacks.iter().filter(|lack| !lack.only_a_warning).map(ToString::to_string);
            let unknown = columns.iter().map(|column| format!("there is no column {column}"));
            let missing: Vec<String> = lacks.chain(unknown).collect();
            if missing.is_empty() { Ok(()) } else { unusable(missing.join("; ")) }
        }
        Ok(Err(CaptureError::Database(error))) if is_away(&error) => Err(database_away(&error.to_string())),
        Ok(Err(error)) if error.is_passing() => Err(database_away(&why(&error))),
        Ok(Err(error)) => unusable(why(&error)),
        Err(_) => Err(database_away(&format!("no answer within {PATIENCE:?}"))),
    }
}

#[async_trait]
impl CaptureRelays for Captures {
    async fn plan(
        &self,
        declared: &[CaptureDeclaration],
        prune: bool,
        how: RelayCheck,
    ) -> Result<RelayPlan, EngineError> {
        let mut plan = self.0.plan(self, declared, prune, how).await?;
        plan.problems.extend(shared_slots(declared, &self.records().await?, prune));
        Ok(plan)
    }

    async fn declarations(&self) -> Result<Vec<CaptureDeclaration>, EngineError> {
        self.records().await?.iter().map(shown).collect()
    }

    async fn states(&self) -> Result<Vec<CaptureState>, EngineError> {
        let (records, mut reports) = (self.records().await?, self.0.reports().await?);
        let state = |record: &RelayRecord| Ok(state(shown(record)?, reports.remove(&record.name).unwrap_or_default()));
        records.iter().map(state).collect()
    }

    async fn state(&self, name: &str) -> Result<CaptureState, EngineError> {
        let record = self.record(name).await?;
        let mut reports = self.0.reports().await?.remove(&record.name).unwrap_or_default();
        let runs = |running: &&RunningCapture| !running.record().paused;
        let own = self.0.running().get(&record.name).filter(runs).map(|one| one.insight.process(&self.0.process));
        if let Some(own) = own {
            reports.retain(|(process, _)| *process != self.0.process);
            reports.push((self.0.process.clone(), own));
            reports.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        let mut state = state(shown(&record)?, reports);
        let asked = within(&record, async |database, declared| {
            Ok((database.progress(&declared.options).await?, database.slot(&declared.options).await?))
        });
        match asked.await {
            Ok((progress, slot)) => {
                state.position = progress.map(|progress| CapturePosition {
                    commit_lsn: format_lsn(progress.position.commit_lsn),
                    snapshot: progress.snapshot,
                });
                state.retained_wal = slot.map(|slot| slot.retained).or(state.retained_wal);
            }
            Err(error) => state.trouble = state.trouble.or_else(|| Some(error.to_string())),
        }
        Ok(state)
    }

    async fn record(&self, name: &str) -> Result<RelayRecord, EngineError> {
        self.0.record(name).await?.ok_or(EngineError::CaptureNotFound)
    }

    async fn request_snapshot(&self, name: &str, tables: &[String]) -> Result<(), EngineError> {
        let record = self.record(name).await?;
        let tables: Vec<String> = tables.iter().map(|table| whole_name(table)).collect();
        let asked = within(&record, async |database, declared| {
            if let Some(unknown) = tables.iter().find(|table| !declared.shown.tables.contains(table)) {
                let message = format!("{unknown} is not captured; there are {}", declared.shown.tables.join(", "));
                return Ok(Err(EngineError::Invalid(vec![Problem::at("/tables", message)])));
            }
            let began = database.request_snapshot(&declared.options, &tables).await?;
            Ok(if began { Ok(()) } else { Err(EngineError::CaptureUnavailable("it never ran yet".to_owned())) })
        });
        asked.await?
    }

    async fn release(&self, record: &RelayRecord) -> Result<(), EngineError> {
        release(record, self.0.declarations.as_ref()).await.map_err(|why| {
            EngineError::CaptureUnavailable(format!(
                "the capture is deleted, and its slot and publication could not be dropped: {why}; drop them by hand"
            ))
        })
    }

    fn in_trouble(&self) -> Vec<(String, String)> {
        let running = self.0.running();
        let trouble = running.iter().filter_map(|(name, one)| Some((name.to_string(), one.insight.stats().trouble?)));
        trouble.collect()
    }
}

/// A capture as it may be shown.
fn shown(record: &RelayRecord) -> Result<CaptureDeclaration, EngineError> {
    let declaration: Result<CaptureDeclaration, _> = serde_json::from_str(record.declaration.get());
    let declaration = declaration.map_err(|error| EngineError::from(StoreError::Failed(error.into())))?;
    Ok(CaptureDeclaration { paused: Some(record.paused), ..declaration })
}

fn state(declaration: CaptureDeclaration, reports: Vec<(String, CaptureProcess)>) -> CaptureState {
    let processes: Vec<CaptureProcess> =
        reports.into_iter().map(|(process, report)| of_process(process, report)).collect();
    // Those who stand by do not matter while another one reads. One that died may still seem to read.
    let mut readers = processes.iter().filter(|process| process.activity != Default::default()).peekable();
    let nobody = || "no process captures it: none has the role relay, or none is there".to_owned();
    let trouble = match processes.is_empty() {
        true => Some(nobody()).filter(|_| declaration.paused != Some(true)),
        false => match readers.peek() {
            Some(_) => readers.find_map(|reader| reader.trouble.clone()),
            None => processes.iter().find_map(|process| process.trouble.clone()),
        },
    };
    CaptureState {
        changes: processes.iter().map(|process| process.changes).sum(),
        snapshot_rows: processes.iter().map(|process| process.snapshot_rows).sum(),
        retained_wal: processes.iter().find_map(|process| process.retained_wal),
        declaration,
        processes,
        position: None,
        trouble,
    }
}

/// What is old is not shown of those who stand by.
fn of_process(process: String, report: CaptureProcess) -> CaptureProcess {
    match report.activity == Default::default() {
        true => CaptureProcess { process, lag_seconds: None, retained_wal: None, unconfirmed_wal: None, ..report },
        false => CaptureProcess { process, ..report },
    }
}

/// Asks a capture's database, for a bounded time.
async fn within<T>(
    record: &RelayRecord,
    ask: impl AsyncFnOnce(CapturedDatabase, DeclaredCapture) -> Result<T, CaptureError>,
) -> Result<T, EngineError> {
    let unavailable = |why: String| Err(EngineError::CaptureUnavailable(why));
    let declared = match DeclaredCapture::stored(record) {
        Ok(declared) => declared,
        Err(problems) => return unavailable(format!("its declaration can not be used: {}", told(&problems))),
    };
    let asked = async {
        let database = CapturedDatabase::connect(declared.database_url()).await?;
        ask(database, declared).await
    };
    match timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => unavailable(why(&error)),
        Err(_) => unavailable(format!("no answer within {PATIENCE:?}")),
    }
}
