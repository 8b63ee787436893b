//! One capture that is run by this process: opened, run, and opened again while its database is away.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use relais_capture::{Capture, CaptureActivity, CaptureError, CaptureHandle, CaptureStats, CapturedDatabase};
use relais_core::{RelayDeclarations, RelayKind, RelayRecord};
use relais_engine::chain;
use relais_protocol::capture::{CaptureActivityName, CaptureProcess};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::declaration::DeclaredCapture;
use crate::{
    declaration::told,
    running::{DROP_TRIES, LONGEST_PAUSE},
    sink::TracedSink,
    supervisor::{RelayResources, Supervised},
};

/// How long it may take to drop a slot, whoever reads it.
const RELEASE: Duration = Duration::from_secs(10);

/// How often the slot of a capture that is paused is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(5);

/// How long to wait for whoever reads a slot that is to be dropped.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A capture that this process runs.
pub(crate) struct RunningCapture {
    record: RelayRecord,
    pub(crate) insight: Arc<CaptureInsight>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[async_trait]
impl Supervised for RunningCapture {
    const KIND: RelayKind = RelayKind::Capture;

    /// While a capture is paused its slot stays, so that somebody must see that it does not fill the database's disk.
    fn is_wanted(_: &RelayRecord) -> bool {
        true
    }

    fn start(record: RelayRecord, resources: RelayResources, before: Option<Self>) -> Self {
        let (stop, insight) = (CancellationToken::new(), Arc::new(CaptureInsight::default()));
        let (stopped, seen, to_run) = (stop.clone(), Arc::clone(&insight), record.clone());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                let (old, new) = (before.record.clone(), to_run.clone());
                before.stopped().await;
                tokio::spawn(async move { drop_renamed_slot(&old, &new).await });
            }
            match to_run.paused {
                true => watch_slot(&to_run, &seen, stopped).await,
                false => capture(&to_run, &resources, &seen, stopped).await,
            }
        });
        Self { record, insight, stop, task }
    }

    fn record(&self) -> &RelayRecord {
        &self.record
    }

    fn report(&self) -> BoxFuture<'static, Option<String>> {
        if self.record.paused {
            return Box::pin(async { None });
        }
        let process = self.insight.process("");
        self.insight.meter.show(self.record.name.as_str(), &process);
        Box::pin(async move { serde_json::to_string(&process).ok() })
    }

    async fn stopped(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(capture = %self.record.name, %error, "a capture ended badly");
        }
        let (name, process) = (self.record.name.as_str(), self.insight.process(""));
        self.insight.meter.show(name, &process);
        // Alerts must not go on about what this process saw last.
        let (changes, snapshot_rows) = (process.changes, process.snapshot_rows);
        self.insight.meter.show(name, &CaptureProcess { changes, snapshot_rows, ..CaptureProcess::default() });
    }

    /// While it is paused the slot stays, or changes would be lost. Once it is deleted, nobody reads the slot any more.
    async fn let_go(self, is_deleted: bool, declarations: Arc<dyn RelayDeclarations>) {
        let record = self.record.clone();
        self.stopped().await;
        if !is_deleted {
            return;
        }
        let mut pause = Duration::from_millis(500);
        for _ in 0..DROP_TRIES {
            match release(&record, declarations.as_ref()).await {
                Ok(()) => return,
                Err(why) => tracing::warn!(
                    capture = %record.name, why,
                    "the capture's slot and publication could not be dropped yet; drop them by hand if it does not come back"
                ),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Nobody reads a slot that has another name now. A slot of the same name stays: another URL may lead to the same database.
async fn drop_renamed_slot(old: &RelayRecord, new: &RelayRecord) {
    let (Ok(old), Ok(new)) = (DeclaredCapture::stored(old), DeclaredCapture::stored(new)) else { return };
    let slot = &old.options.slot;
    if *slot == new.options.slot {
        return;
    }
    let dropped = async { CapturedDatabase::connect(old.database_url()).await?.drop_slot(&old.options).await };
    if let Err(error) = dropped.await {
        tracing::warn!(capture = %old.name, slot, error = why(&error), "the old slot could not be dropped; drop it by hand");
    }
}

/// Drops slot and publication, and forgets how far the capture is. What is declared again by now is in use again and stays.
pub(crate) async fn release(record: &RelayRecord, declarations: &dyn RelayDeclarations) -> Result<(), String> {
    let declared = DeclaredCapture::stored(record).map_err(|problems| told(&problems))?;
    let dropped = async {
        let database = CapturedDatabase::connect(declared.database_url()).await.map_err(|error| why(&error))?;
        loop {
            // Asked each time: that may take long, and the next reader would be sent away.
            let dropped = match slot_declared_again(record, declarations).await? {
                None => database.drop(&declared.options).await,
                Some(slot) if slot == declared.options.slot => return Ok(()),
                // How far it is belongs to the new one.
                Some(_) => database.drop_slot(&declared.options).await,
            };
            match dropped {
                // Another process that does not know yet that it was deleted has come back to it.
                Err(error) if error.is_in_use() => tokio::time::sleep(LOOK_AGAIN).await,
                dropped => return dropped.map_err(|error| why(&error)),
            }
        }
    };
    let late = |_| Err(format!("no answer within {RELEASE:?}, or the slot is in use"));
    timeout(RELEASE, dropped).await.unwrap_or_else(late)
}

/// The slot of what is declared under the name of a capture that was deleted.
async fn slot_declared_again(
    deleted: &RelayRecord,
    declarations: &dyn RelayDeclarations,
) -> Result<Option<String>, String> {
    let declared = declarations.list_relays(RelayKind::Capture).await.map_err(|error| chain(&error))?;
    let Some(again) = declared.iter().find(|one| one.name == deleted.name) else { return Ok(None) };
    let again = DeclaredCapture::stored(again).map_err(|problems| told(&problems))?;
    Ok(Some(again.options.slot))
}

/// What is wrong, once: what a database says already has all that caused it.
pub(crate) fn why(error: &CaptureError) -> String {
    match error {
        CaptureError::Database(cause) => format!("{error}: {cause}"),
        other => chain(other),
    }
}

/// How a capture does, seen from outside its task.
#[derive(Default)]
pub(crate) struct CaptureInsight {
    handle: Mutex<Option<CaptureHandle>>,
    /// Why it does not run yet.
    trouble: Mutex<Option<String>>,
    meter: Meter,
}

impl CaptureInsight {
    pub(crate) fn stats(&self) -> CaptureStats {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let trouble = || self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        handle.map_or_else(|| CaptureStats { trouble: trouble(), ..CaptureStats::default() }, |handle| handle.stats())
    }

    /// As operators see it.
    pub(crate) fn process(&self, process: &str) -> CaptureProcess {
        let stats = self.stats();
        CaptureProcess {
            process: process.to_owned(),
            activity: match stats.activity {
                CaptureActivity::StandBy => CaptureActivityName::Standby,
                CaptureActivity::Snapshot => CaptureActivityName::Snapshot,
                CaptureActivity::Streaming => CaptureActivityName::Streaming,
            },
            changes: stats.changes,
            snapshot_rows: stats.snapshot_rows,
            last_committed_ms: stats.last_committed_at.map(|micros| micros / 1000),
            lag_seconds: stats.lag.map(|lag| lag.as_secs_f64()),
            retained_wal: stats.retained_wal,
            unconfirmed_wal: stats.unconfirmed_wal,
            trouble: stats.trouble,
        }
    }

    /// Says why it does not run; whether that is new.
    fn set_trouble(&self, why: String) -> bool {
        let known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).replace(why.clone());
        known != Some(why)
    }
}

/// Opens what it needs, and captures until it is told to stop.
async fn capture(record: &RelayRecord, resources: &RelayResources, insight: &CaptureInsight, stop: CancellationToken) {
    let name = record.name.as_str();
    let mut pause = Duration::from_millis(250);
    loop {
        let prepared = tokio::select! {
            prepared = prepare(record, resources) => prepared,
            () = stop.cancelled() => return,
        };
        match prepared {
            Ok((capture, sink)) => {
                tracing::info!(capture = name, "captures tables");
                *insight.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(capture.handle());
                capture.run(stop).await;
                relais_message::Sink::close(sink.as_ref()).await;
                tracing::info!(capture = name, "captures tables no more");
                return;
            }
            Err(why) => {
                if insight.set_trouble(why.clone()) {
                    tracing::warn!(capture = name, why, "tables can not be captured for now");
                }
                tokio::select! {
                    _ = protect(record) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            () = stop.cancelled() => return,
        }
    }
}

/// Looks after the slot of a capture that is paused.
async fn watch_slot(record: &RelayRecord, insight: &CaptureInsight, stop: CancellationToken) {
    while !stop.is_cancelled() {
        tokio::select! {
            protected = protect(record) => {
                if let Some(why) = protected {
                    insight.set_trouble(why);
                }
            }
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(WATCH_EVERY) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Drops the slot of a capture that does not run if the server keeps too much WAL for it; what there is to say about that.
async fn protect(record: &RelayRecord) -> Option<String> {
    let declared = DeclaredCapture::stored(record).ok()?;
    let protected =
        async { CapturedDatabase::connect(declared.database_url()).await?.protect(&declared.options).await };
    match timeout(RELEASE, protected).await {
        Ok(Err(error @ CaptureError::SlotTooLarge { .. })) => {
            let why = why(&error);
            tracing::warn!(capture = %record.name, why, "changes from now on are lost to the capture");
            Some(why)
        }
        // A database that is away is asked again.
        _ => None,
    }
}

async fn prepare(record: &RelayRecord, resources: &RelayResources) -> Result<(Capture, Arc<TracedSink>), String> {
    let mut declared = DeclaredCapture::stored(record).map_err(|problems| told(&problems))?;
    declared.options.spool = resources.spool.clone();
    let database = CapturedDatabase::connect(declared.database_url()).await.map_err(|error| why(&error))?;
    let sink = resources.sinks.open(&declared.source(), &declared.sink()).await.map_err(|error| error.to_string())?;
    let sink = Arc::new(TracedSink { source: format!("capture {}", record.name), sink });
    Ok((Capture::new(database, Arc::clone(&sink) as _, declared.options), sink))
}

/// The metrics of one capture. Counters go on where they were.
#[derive(Default)]
struct Meter(Mutex<(u64, u64)>);

impl Meter {
    fn show(&self, capture: &str, process: &CaptureProcess) {
        let name = || capture.to_owned();
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (changes, rows) = std::mem::replace(&mut *counted, (process.changes, process.snapshot_rows));
        metrics::counter!("relais_capture_changes_total", "capture" => name())
            .increment(process.changes.saturating_sub(changes));
        metrics::counter!("relais_capture_snapshot_rows_total", "capture" => name())
            .increment(process.snapshot_rows.saturating_sub(rows));
        metrics::gauge!("relais_capture_trouble", "capture" => name()).set(f64::from(process.trouble.is_some()));
        let reads = process.activity != CaptureActivityName::Standby;
        metrics::gauge!("relais_capture_reading", "capture" => name()).set(f64::from(reads));
        let lag = process.lag_seconds.filter(|_| reads).unwrap_or_default();
        metrics::gauge!("relais_capture_lag_seconds", "capture" => name()).set(lag);
        // Only whoever reads the slot looks at it, so that a sum over processes is right.
        let wal = |bytes: Option<u64>| bytes.filter(|_| reads).unwrap_or_default() as f64;
        metrics::gauge!("relais_capture_retained_wal_bytes", "capture" => name()).set(wal(process.retained_wal));
        metrics::gauge!("relais_capture_unconfirmed_wal_bytes", "capture" => name()).set(wal(process.unconfirmed_wal));
    }
}
