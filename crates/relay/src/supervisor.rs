//! Keeps one relay for each declared outbox, capture or notification source that is not paused, and reports on them.
//!
//! What is declared is read when something may have changed, and now and then besides. Only what has changed is stopped and
//! started. The store hears every few seconds how the relays of this process are, so that any process can tell.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use relais_bus::Bus;
use relais_capture::Spool;
use relais_core::{RelayChange, RelayDeclarations, RelayKind, RelayName, RelayRecord, RelayReport, StoreError};
use relais_engine::{EngineError, Problem, RelayCheck, RelayPlan, chain};
use relais_notify::Notifications;
use relais_protocol::admin::AppliedAction;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::SinkFactory;

/// How often this process reports on its relays. Also how often what is declared is compared, besides wake-ups.
const REPORT: Duration = Duration::from_secs(5);

/// When to report on what was just started.
const SOON: Duration = Duration::from_secs(1);

/// What was reported longer ago is of a process that is gone.
const SILENT: Duration = Duration::from_secs(20);

/// How long to wait before a store that is away is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// What is to be done for one declaration.
pub(crate) type Planned = (RelayName, AppliedAction, Option<RelayChange>);

/// Knows what is to be done for a declaration.
#[async_trait]
pub(crate) trait Planner: Sync {
    /// What is declared.
    type Declaration: Sync;

    /// Its name.
    fn name(declaration: &Self::Declaration) -> &str;

    /// What is to be done for one; or what is wrong with it.
    async fn planned(
        &self,
        declaration: &Self::Declaration,
        stored: Option<&RelayRecord>,
        how: RelayCheck,
    ) -> Result<Planned, Vec<Problem>>;
}

/// What relays need of the process that runs them.
#[derive(Clone)]
pub struct RelayResources {
    /// Makes sinks of declarations.
    pub sinks: Arc<dyn SinkFactory>,
    /// Where large transactions wait for their commit, for all relays together.
    pub spool: Option<Spool>,
    /// What notification sources hear, and where it goes; none in a process that has no notifications.
    pub events: Option<EventResources>,
}

/// What notification sources need.
#[derive(Clone)]
pub struct EventResources {
    /// The event bus; none if it is off.
    pub bus: Option<Bus>,
    /// Notifications.
    pub notifications: Notifications,
}

/// One outbox or capture that this process publishes, or one source that it hears.
#[async_trait]
pub(crate) trait Supervised: Sized + Send + 'static {
    /// Which of them.
    const KIND: RelayKind;

    /// Whether this process has something to do for it. For one that is paused it mostly has not.
    fn is_wanted(record: &RelayRecord) -> bool {
        !record.paused
    }

    /// Starts to publish, once `before` has ended.
    fn start(record: RelayRecord, resources: RelayResources, before: Option<Self>) -> Self;

    /// What it was started with.
    fn record(&self) -> &RelayRecord;

    /// What this process reports of it, as JSON.
    fn report(&self) -> BoxFuture<'static, Option<String>>;

    /// Stops, and waits until the round that has begun is finished.
    async fn stopped(self);

    /// Stops because it was paused or deleted, and lets go of what it has on servers. `declarations` tells whether it is still
    /// so.
    async fn let_go(self, is_deleted: bool, declarations: Arc<dyn RelayDeclarations>);
}

/// The outboxes, the captures or the notification sources of a server.
pub(crate) struct Supervisor<R> {
    pub(crate) declarations: Arc<dyn RelayDeclarations>,
    pub(crate) resources: RelayResources,
    /// What this process is called.
    pub(crate) process: String,
    running: Mutex<BTreeMap<RelayName, R>>,
}

impl<R: Supervised> Supervisor<R> {
    pub(crate) fn new(declarations: Arc<dyn RelayDeclarations>, resources: RelayResources, process: String) -> Self {
        Self { declarations, resources, process, running: Mutex::default() }
    }

    pub(crate) async fn run(&self, mut changes: watch::Receiver<i64>, stop: CancellationToken) {
        let (mut away, mut reported) = (false, false);
        while !stop.is_cancelled() {
            changes.mark_unchanged();
            let pause = match self.reconcile().await {
                Ok(started) => {
                    away = false;
                    if started { SOON } else { REPORT }
                }
                Err(error) => {
                    if !away {
                        let (kind, error) = (R::KIND.as_str(), chain(&error));
                        tracing::warn!(kind, %error, "what is declared can not be read; relays that run go on");
                    }
                    away = true;
                    RETRY
                }
            };
            let reports = self.report().await;
            // Where there is nothing to report, nothing is written.
            if !reports.is_empty() || reported {
                reported = !reports.is_empty();
                self.tell(reports).await;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = changes.changed() => if changed.is_err() { break },
                () = stop.cancelled() => {}
            }
        }
        let running = std::mem::take(&mut *self.running());
        for relay in running.into_values().map(|relay| tokio::spawn(relay.stopped())).collect::<Vec<_>>() {
            // One that panicked has said so.
            let _ = relay.await;
        }
        if reported {
            self.tell(Vec::new()).await;
        }
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, BTreeMap<RelayName, R>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts and stops what has changed, and nothing else; whether it started something.
    async fn reconcile(&self) -> Result<bool, StoreError> {
        let declared = self.declarations.list_relays(R::KIND).await?;
        let known: BTreeMap<&RelayName, bool> = declared.iter().map(|one| (&one.name, R::is_wanted(one))).collect();
        let mut running = self.running();
        let gone: Vec<RelayName> =
            running.keys().filter(|name| !known.get(name).is_some_and(|wanted| *wanted)).cloned().collect();
        for name in gone {
            if let Some(relay) = running.remove(&name) {
                tokio::spawn(relay.let_go(!known.contains_key(&name), Arc::clone(&self.declarations)));
            }
        }
        let mut any = false;
        for record in declared.iter().filter(|record| R::is_wanted(record)) {
            let before = match running.get(&record.name) {
                Some(known) if known.record() == record => continue,
                _ => running.remove(&record.name),
            };
            let started = R::start(record.clone(), self.resources.clone(), before);
            running.insert(record.name.clone(), started);
            any = true;
        }
        Ok(any)
    }

    async fn report(&self) -> Vec<RelayReport> {
        let asked: Vec<_> = self.running().iter().map(|(name, relay)| (name.clone(), relay.report())).collect();
        // All at once: one database that is away must not hold up what is said of the others.
        let asked = asked.into_iter().map(async |(name, report)| {
            Some(RelayReport { name, process: self.process.clone(), report: report.await? })
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    async fn tell(&self, reports: Vec<RelayReport>) {
        if let Err(error) = self.declarations.report_relays(R::KIND, self.process.clone(), reports).await {
            tracing::debug!(error = %chain(&error), "relays could not be reported on");
        }
    }

    /// What is declared under this name.
    pub(crate) async fn record(&self, name: &str) -> Result<Option<RelayRecord>, StoreError> {
        let declared = self.declarations.list_relays(R::KIND).await?;
        Ok(declared.into_iter().find(|record| record.name.as_str() == name))
    }

    /// Checks what is declared and compares it with what is there.
    pub(crate) async fn plan<P: Planner>(
        &self,
        planner: &P,
        declared: &[P::Declaration],
        prune: bool,
        how: RelayCheck,
    ) -> Result<RelayPlan, EngineError> {
        let section = match R::KIND {
            RelayKind::Outbox => "outboxes",
            RelayKind::Capture => "captures",
            RelayKind::NotificationSource => "notificationSources",
        };
        let known = self.declarations.list_relays(R::KIND).await?;
        let known: BTreeMap<&str, &RelayRecord> = known.iter().map(|record| (record.name.as_str(), record)).collect();
        let (mut plan, mut named) = (RelayPlan::default(), HashSet::new());
        for (i, declaration) in declared.iter().enumerate() {
            let below = |problem: Problem| Problem::at(format!("/{section}/{i}/{}", problem.path), problem.message);
            if !named.insert(P::name(declaration)) {
                let message = format!("{} {} is declared twice", R::KIND, P::name(declaration));
                plan.problems.push(Problem::at(format!("/{section}/{i}"), message));
                continue;
            }
            let stored = known.get(P::name(declaration)).copied();
            match planner.planned(declaration, stored, how).await {
                Ok((name, action, change)) => {
                    plan.entries.push((name, action));
                    plan.changes.extend(change);
                }
                Err(problems) => plan.problems.extend(problems.into_iter().map(below)),
            }
        }
        for record in known.values().filter(|record| prune && !named.contains(record.name.as_str())) {
            plan.entries.push((record.name.clone(), AppliedAction::Deleted));
            plan.changes.push(RelayChange::Delete(R::KIND, record.name.clone()));
        }
        Ok(plan)
    }

    /// What processes last reported, by name.
    pub(crate) async fn reports<F: DeserializeOwned + Default>(
        &self,
    ) -> Result<BTreeMap<RelayName, Vec<(String, F)>>, EngineError> {
        let mut reports: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for RelayReport { name, process, report } in self.declarations.list_reports(R::KIND, SILENT).await? {
            // A report of another version says less, or more.
            let report = serde_json::from_str(&report).unwrap_or_default();
            reports.entry(name).or_default().push((process, report));
        }
        Ok(reports)
    }
}
