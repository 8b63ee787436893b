//! One outbox that is published by this process: opened, run, and opened again while its database is away.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use relais_core::{RelayDeclarations, RelayKind, RelayRecord};
use relais_engine::chain;
use relais_outbox::{OutboxStore, Relay, RelayHandle, RelayStats};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    check::{open, why},
    declaration::Declared,
    report::{Meter, RelayFigures},
    sink::TracedSink,
    supervisor::{RelayResources, Supervised},
};

/// The longest pause before a database that is away is asked again.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How often it is tried to drop a slot that nobody reads any more.
pub(crate) const DROP_TRIES: usize = 20;

/// How many unpublished rows are counted.
pub(crate) const COUNTED: u64 = 10_000;

/// How long a database may take to count them.
const COUNTING: Duration = Duration::from_secs(5);

/// An outbox that this process publishes.
pub(crate) struct Running {
    /// What it was started with.
    pub(crate) record: RelayRecord,
    pub(crate) insight: Arc<Insight>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[async_trait]
impl Supervised for Running {
    const KIND: RelayKind = RelayKind::Outbox;

    fn start(record: RelayRecord, resources: RelayResources, before: Option<Self>) -> Self {
        let (stop, insight) = (CancellationToken::new(), Arc::new(Insight::default()));
        let (stopped, seen, to_run) = (stop.clone(), Arc::clone(&insight), record.clone());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                // In the database before, nobody reads the slot any more.
                match before.is_elsewhere(&to_run) {
                    true => before.let_go_of_slot().await,
                    false => before.stopped().await,
                }
            }
            publish(&to_run, &resources, &seen, stopped).await;
        });
        Self { record, insight, stop, task }
    }

    fn record(&self) -> &RelayRecord {
        &self.record
    }

    fn report(&self) -> BoxFuture<'static, Option<String>> {
        let (insight, outbox) = (Arc::clone(&self.insight), self.record.name.clone());
        Box::pin(async move { serde_json::to_string(&insight.figures(outbox.as_str()).await).ok() })
    }

    async fn stopped(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(outbox = %self.record.name, %error, "a relay ended badly");
        }
        let (outbox, stats) = (self.record.name.as_str(), self.insight.stats());
        self.insight.meter.show(outbox, &RelayFigures::new(stats, None));
        self.insight.meter.close(outbox);
    }

    /// Paused or deleted, nobody reads the slot, and it must not fill the database's disk.
    async fn let_go(self, _: bool, _: Arc<dyn RelayDeclarations>) {
        self.let_go_of_slot().await;
    }
}

impl Running {
    async fn let_go_of_slot(self) {
        let (store, record) = (self.insight.store(), self.record.clone());
        self.stopped().await;
        let (Some(store), Ok(declared)) = (store, Declared::stored(&record)) else { return };
        let mut pause = Duration::from_secs(1);
        for _ in 0..DROP_TRIES {
            match relais_outbox::drop_slot(store.as_ref(), &declared.options).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(
                    outbox = %record.name, error = %chain(&error),
                    "the outbox's slot could not be dropped yet; drop it by hand if the outbox does not come back"
                ),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Running {
    /// Whether it has another table than this one.
    fn is_elsewhere(&self, other: &RelayRecord) -> bool {
        match (Declared::stored(&self.record), Declared::stored(other)) {
            (Ok(one), Ok(other)) => {
                (one.database_url(), &one.shown.table) != (other.database_url(), &other.shown.table)
            }
            _ => false,
        }
    }
}

/// How an outbox does, seen from outside its task.
#[derive(Default)]
pub(crate) struct Insight {
    relay: Mutex<Option<RelayHandle>>,
    store: Mutex<Option<Arc<dyn OutboxStore>>>,
    /// Why there is no relay yet.
    trouble: Mutex<Option<String>>,
    meter: Meter,
}

impl Insight {
    /// The outbox's database, once it is open.
    pub(crate) fn store(&self) -> Option<Arc<dyn OutboxStore>> {
        lock(&self.store).clone()
    }

    pub(crate) fn stats(&self) -> RelayStats {
        let relay = lock(&self.relay).clone();
        relay.map_or_else(
            || RelayStats { trouble: lock(&self.trouble).clone(), ..RelayStats::default() },
            |relay| relay.stats(),
        )
    }

    /// What this process reports of it, with what its database says.
    pub(crate) async fn figures(&self, outbox: &str) -> RelayFigures {
        let stats = self.stats();
        let backlog = match self.store() {
            Some(store) => match tokio::time::timeout(COUNTING, store.backlog(outbox, COUNTED)).await {
                Ok(backlog) => backlog.ok(),
                Err(_) => None,
            },
            None => None,
        };
        let figures = RelayFigures::new(stats, backlog.as_ref());
        self.meter.show(outbox, &figures);
        figures
    }

    fn set(&self, relay: RelayHandle, store: Arc<dyn OutboxStore>) {
        *lock(&self.relay) = Some(relay);
        *lock(&self.store) = Some(store);
        *lock(&self.trouble) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the outbox and publishes it until it is told to stop.
async fn publish(record: &RelayRecord, resources: &RelayResources, insight: &Insight, stop: CancellationToken) {
    let outbox = record.name.as_str();
    let mut pause = Duration::from_millis(250);
    loop {
        let prepared = tokio::select! {
            prepared = prepare(record, resources) => prepared,
            () = stop.cancelled() => return,
        };
        match prepared {
            Ok((relay, store, sink)) => {
                tracing::info!(outbox, "publishes an outbox");
                insight.set(relay.handle(), store);
                relay.run(stop).await;
                sink.sink.close().await;
                tracing::info!(outbox, "publishes an outbox no more");
                return;
            }
            Err(why) => {
                let known = lock(&insight.trouble).replace(why.clone());
                if known.as_ref() != Some(&why) {
                    tracing::warn!(outbox, why, "an outbox can not be published for now");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            () = stop.cancelled() => return,
        }
    }
}

type Prepared = (Relay, Arc<dyn OutboxStore>, Arc<TracedSink>);

async fn prepare(record: &RelayRecord, resources: &RelayResources) -> Result<Prepared, String> {
    let mut declared = Declared::stored(record).map_err(|problems| {
        let told = problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message));
        told.collect::<Vec<_>>().join("; ")
    })?;
    let store = open(&declared).await.map_err(|error| why(&error))?;
    declared.options.capture.spool = resources.spool.clone();
    let sink = resources.sinks.open(record.name.as_str(), &declared.sink()).await.map_err(|error| error.to_string())?;
    let sink = Arc::new(TracedSink { source: format!("outbox {}", record.name), sink });
    let relay = Relay::new(Arc::clone(&store), Arc::clone(&sink) as _, declared.options);
    let relay = relay.await.map_err(|error| why(&error))?;
    Ok((relay, store, sink))
}
