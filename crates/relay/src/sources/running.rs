//! One notification source that this process hears.
//!
//! A push worker hears the source's channels. Every process that has notifications hears every event: the first one makes the
//! notification, and the others find that it is there. So nothing is lost with a process that dies, and nobody has to agree
//! with anybody on who is next.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use relais_bus::{Bus, Event, Metadata, Order, PushWorker, SubscriberError};
use relais_core::{RelayDeclarations, RelayKind, RelayRecord};
use relais_engine::chain;
use relais_notify::{NotificationSource, SourceEvent, SourceOutcome};
use relais_protocol::notification_source::NotificationSourceProcess;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::declaration::{DeclaredSource, OWN};
use crate::{
    declaration::told,
    running::LONGEST_PAUSE,
    supervisor::{EventResources, RelayResources, Supervised},
};

/// So many events become notifications at once; they share transactions. Those of one key wait for each other.
const AT_ONCE: usize = 64;

/// How often an event is tried while the store is away: 1, 2, 4 … 128 seconds apart. Then it is a dead letter.
const RETRIES: u32 = 8;
const RETRY_UNIT: Duration = Duration::from_millis(500);

/// How often to look whether the bus is connected, at the start.
const CONNECTING: Duration = Duration::from_millis(20);

/// A notification source that this process hears.
pub(crate) struct RunningSource {
    record: RelayRecord,
    pub(super) insight: Arc<SourceInsight>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[async_trait]
impl Supervised for RunningSource {
    const KIND: RelayKind = RelayKind::NotificationSource;

    fn start(record: RelayRecord, resources: RelayResources, before: Option<Self>) -> Self {
        let stop = CancellationToken::new();
        let insight = Arc::new(SourceInsight::new(record.name.to_string()));
        let (stopped, seen, to_run) = (stop.clone(), Arc::clone(&insight), record.clone());
        let task = tokio::spawn(async move {
            // The old one goes on until the new one hears: an event that both hear has the same notification.
            let (heard, is_heard) = tokio::sync::oneshot::channel();
            let hearing = hear(&to_run, resources.events.as_ref(), &seen, heard, stopped);
            let replacing = async {
                if let Some(before) = before {
                    let _ = tokio::time::timeout(LONGEST_PAUSE, is_heard).await;
                    before.stopped().await;
                }
            };
            tokio::join!(hearing, replacing);
        });
        Self { record, insight, stop, task }
    }

    fn record(&self) -> &RelayRecord {
        &self.record
    }

    fn report(&self) -> BoxFuture<'static, Option<String>> {
        let process = self.insight.process("");
        self.insight.show_trouble(process.trouble.is_some());
        Box::pin(async move { serde_json::to_string(&process).ok() })
    }

    async fn stopped(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(source = %self.record.name, %error, "a notification source ended badly");
        }
        // Alerts must not go on about what this process saw last.
        self.insight.show_trouble(false);
    }

    async fn let_go(self, _: bool, _: Arc<dyn RelayDeclarations>) {
        self.stopped().await;
    }
}

/// How a source does in this process.
#[derive(Debug)]
pub(super) struct SourceInsight {
    name: String,
    listening: AtomicBool,
    emitted: AtomicU64,
    known: AtomicU64,
    passed_over: AtomicU64,
    failed: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl SourceInsight {
    fn new(name: String) -> Self {
        Self {
            name,
            listening: AtomicBool::new(false),
            emitted: AtomicU64::new(0),
            known: AtomicU64::new(0),
            passed_over: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            trouble: Mutex::default(),
        }
    }

    /// As operators see it.
    pub(super) fn process(&self, process: &str) -> NotificationSourceProcess {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NotificationSourceProcess {
            process: process.to_owned(),
            listening: self.listening.load(Ordering::Relaxed),
            emitted: count(&self.emitted),
            known: count(&self.known),
            passed_over: count(&self.passed_over),
            failed: count(&self.failed),
            trouble: self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Says what is wrong; whether that is new.
    fn set_trouble(&self, why: Option<String>) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *trouble != why;
        *trouble = why;
        is_new
    }

    fn count(&self, counter: &AtomicU64, outcome: &'static str) {
        counter.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("relais_notification_source_events_total", "source" => self.name.clone(), "outcome" => outcome)
            .increment(1);
    }

    fn show_trouble(&self, is_there: bool) {
        metrics::gauge!("relais_notification_source_trouble", "source" => self.name.clone()).set(f64::from(is_there));
    }
}

/// Hears events until it is told to stop; `heard` is told when it begins. What is under way then is finished.
async fn hear(
    record: &RelayRecord,
    events: Option<&EventResources>,
    insight: &Arc<SourceInsight>,
    heard: tokio::sync::oneshot::Sender<()>,
    stop: CancellationToken,
) {
    let name = record.name.as_str();
    let mut pause = Duration::from_millis(250);
    let worker = loop {
        match start(record, events, insight).await {
            Ok(worker) => break worker,
            Err(why) => {
                if insight.set_trouble(Some(why.clone())) {
                    tracing::warn!(source = name, why, "events can not be heard for now");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            () = stop.cancelled() => return,
        }
    };
    while events.and_then(|events| events.bus.as_ref()).is_some_and(|bus| !bus.health().healthy) {
        tokio::select! {
            () = tokio::time::sleep(CONNECTING) => {}
            () = stop.cancelled() => break,
        }
    }
    tracing::info!(source = name, "events become notifications");
    insight.set_trouble(None);
    insight.listening.store(true, Ordering::Relaxed);
    let _ = heard.send(());
    stop.cancelled().await;
    let report = worker.stop().await;
    insight.listening.store(false, Ordering::Relaxed);
    if !report.left.is_empty() {
        tracing::warn!(source = name, left = report.left.len(), "events were left that are no notifications here");
    }
    tracing::info!(source = name, "events become notifications no more");
}

async fn start(
    record: &RelayRecord,
    events: Option<&EventResources>,
    insight: &Arc<SourceInsight>,
) -> Result<PushWorker, String> {
    let DeclaredSource { name, channels, mapping, .. } =
        DeclaredSource::stored(record).map_err(|problems| told(&problems))?;
    let EventResources { bus, notifications } = events.ok_or("this process has no notifications")?;
    let bus: &Bus = bus.as_ref().ok_or("the event bus is off (`events.enabled`)")?;
    let source = Arc::new(NotificationSource::new(notifications.clone(), name.as_str(), mapping));
    let mut worker = PushWorker::builder(format!("notification-source/{name}"))
        .concurrency(AT_ONCE)
        .order(Order::Key)
        .retries(RETRIES)
        .retry_unit(RETRY_UNIT);
    for channel in channels {
        worker = worker.channel(channel);
    }
    let insight = Arc::clone(insight);
    let handler = move |event: Arc<Event>| {
        let (source, insight) = (Arc::clone(&source), Arc::clone(&insight));
        async move { handle(&source, &insight, &event).await }
    };
    worker.start(bus, handler).await.map_err(|error| chain(&error))
}

async fn handle(source: &NotificationSource, insight: &SourceInsight, event: &Event) -> Result<(), SubscriberError> {
    // A pattern with wildcards also matches what processes tell each other.
    if event.channel.starts_with(OWN) {
        return Ok(());
    }
    let fail = |error: String| {
        insight.count(&insight.failed, "failed");
        if insight.set_trouble(Some(error.clone())) {
            tracing::warn!(source = insight.name, channel = %event.channel, id = %event.id, error, "an event can not become a notification");
        }
    };
    let payload = match event.payload.as_json() {
        Ok(payload) => payload,
        Err(error) => {
            fail(error.to_string());
            return Err(SubscriberError::fatal(error));
        }
    };
    let metadata: Vec<(&str, &str)> = event.metadata.iter().collect();
    let timestamp = event.timestamp.to_string();
    let heard = SourceEvent {
        id: event.id,
        channel: &event.channel,
        publisher: &event.source,
        timestamp: &timestamp,
        key: event.metadata.get(Metadata::KEY),
        metadata: &metadata,
        payload: payload.get(),
    };
    match source.hear(&heard).await {
        Ok(outcome) => {
            match outcome {
                SourceOutcome::Emitted => insight.count(&insight.emitted, "emitted"),
                SourceOutcome::Known => insight.count(&insight.known, "known"),
                SourceOutcome::PassedOver => insight.count(&insight.passed_over, "passed_over"),
            }
            insight.set_trouble(None);
            Ok(())
        }
        Err(error) if error.is_passing() => {
            insight.set_trouble(Some(error.to_string()));
            Err(SubscriberError::retryable(error))
        }
        Err(error) => {
            fail(error.to_string());
            Err(SubscriberError::fatal(error))
        }
    }
}
