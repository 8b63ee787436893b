//! The way to capture while the relay polls: whether it is possible, the making of publication and slot, and the care of a slot
//! that nobody reads.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Notify, task::JoinHandle};

use crate::{
    CaptureSource, Mode, OutboxError, OutboxStore, Relay, RelayIntent, RelayOptions,
    capture::{CaptureEnd, WATCH_EVERY},
};

/// How the way to capture stands, while the relay polls.
pub(crate) struct Preparation {
    /// When to try; none: never.
    due: Option<Instant>,
    running: Option<JoinHandle<Result<Option<CaptureSource>, OutboxError>>>,
    finished: Arc<Notify>,
    failures: u32,
    why: Option<String>,
    /// Whether the database lacks nothing, as far as was asked.
    possible: bool,
    watched: Instant,
}

impl Preparation {
    pub(crate) fn new(relay: &Relay) -> Self {
        Self {
            due: (relay.options.mode != Mode::Polling).then(Instant::now),
            running: None,
            finished: Arc::default(),
            failures: 0,
            why: None,
            possible: false,
            watched: Instant::now(),
        }
    }

    /// What the other relays are to know. Who captures needs all partitions.
    pub(crate) fn intent(&self) -> RelayIntent {
        match self.running.is_some() || (self.possible && self.is_due()) {
            true => RelayIntent::WantsAll,
            false => RelayIntent::Shares,
        }
    }

    fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    /// Asks whether the database can be captured at all, before others give their partitions away for it.
    pub(crate) async fn judge_if_due(&mut self, relay: &Relay) {
        if self.possible || self.running.is_some() || !self.is_due() {
            return;
        }
        let asked = async {
            let Some(source) = relay.store.capture_source().await? else { return Ok(None) };
            Ok::<_, OutboxError>(Some(source.lacks(&relay.options).await?))
        };
        match asked.await {
            Ok(Some(lacks)) if lacks.is_empty() => self.possible = true,
            Ok(Some(lacks)) => self.put_off(relay, &OutboxError::CaptureLacks(lacks.join("; "))),
            // A database that has no log.
            Ok(None) => self.due = None,
            Err(error) => self.put_off(relay, &error),
        }
    }

    /// Why it does not capture.
    pub(crate) fn why(&self) -> Option<String> {
        self.why.clone()
    }

    /// Begins to make publication and slot, beside the polling.
    pub(crate) fn begin_if_due(&mut self, relay: &Relay) {
        if self.running.is_some() || !self.possible || !self.is_due() {
            return;
        }
        let (store, options) = (Arc::clone(&relay.store), relay.options.clone());
        let finished = Arc::clone(&self.finished);
        self.running = Some(tokio::spawn(async move {
            let prepared = prepare(&*store, &options).await;
            finished.notify_one();
            prepared
        }));
    }

    /// Waits until it is worth to look again.
    pub(crate) async fn changed(&self) {
        match &self.running {
            Some(_) => self.finished.notified().await,
            None => std::future::pending().await,
        }
    }

    /// What can be captured, as soon as it can.
    pub(crate) async fn take_ready(&mut self, relay: &Relay) -> Option<CaptureSource> {
        let running = self.running.take_if(|running| running.is_finished())?;
        match running.await {
            Ok(Ok(Some(source))) => return Some(source),
            // A database that has no log.
            Ok(Ok(None)) => self.due = None,
            Ok(Err(error)) => self.put_off(relay, &error),
            Err(_) => self.due = Some(Instant::now() + relay.options.capture.retry),
        }
        None
    }

    /// Notes how capturing ended.
    pub(crate) async fn note_end(&mut self, relay: &Relay, source: &CaptureSource, end: CaptureEnd) {
        relay.handle.update(|stats| (stats.unconfirmed_wal, stats.retained_wal) = (None, None));
        match end {
            CaptureEnd::Stopped | CaptureEnd::LeasesLost => (self.due, self.failures) = (Some(Instant::now()), 0),
            CaptureEnd::Failed(error) => self.put_off(relay, &error),
            CaptureEnd::TooLarge(retained) => {
                let error = OutboxError::SlotTooLarge { retained, limit: relay.options.capture.max_retained_wal };
                self.put_off(relay, &error);
                self.drop_slot(relay, source).await;
            }
        }
    }

    fn put_off(&mut self, relay: &Relay, error: &OutboxError) {
        self.failures += 1;
        self.possible = false;
        // What passes is tried again soon, since the slot is there and the log grows.
        let pause = match error.is_passing() {
            true => Duration::from_millis(250).saturating_mul(self.failures).min(relay.options.capture.retry),
            false => relay.options.capture.retry,
        };
        self.due = Some(Instant::now() + pause);
        let why = error.to_string();
        if self.why.as_ref() != Some(&why) {
            tracing::warn!(outbox = relay.options.outbox, why, "the outbox is not captured");
        }
        relay.handle.update(|stats| stats.why_not_capture = Some(why.clone()));
        self.why = Some(why);
    }

    /// An outbox that is only polled needs no slot: one that is left from before would fill the server's disk.
    pub(crate) async fn drop_unread_slot(&self, relay: &Relay) {
        if relay.options.mode == Mode::Polling
            && let Ok(Some(source)) = relay.store.capture_source().await
            && let Ok(Some(state)) = relay.slot_state(&source).await
            && !state.active
        {
            self.drop_slot(relay, &source).await;
        }
    }

    /// A slot that nobody reads must not fill the server's disk.
    pub(crate) async fn watch_slot(&mut self, relay: &Relay) {
        if self.watched.elapsed() < WATCH_EVERY {
            return;
        }
        self.watched = Instant::now();
        if relay.options.mode == Mode::Polling {
            self.drop_unread_slot(relay).await;
            return;
        }
        let Ok(Some(source)) = relay.store.capture_source().await else { return };
        let state = match relay.slot_state(&source).await {
            Ok(Some(state)) => state,
            Ok(None) | Err(_) => return,
        };
        let limit = relay.options.capture.max_retained_wal;
        // One that is being made keeps WAL too, and waits for as long as a transaction is open.
        if state.retained > limit && (!state.active || self.running.is_some()) {
            if let Some(running) = self.running.take() {
                running.abort();
                self.put_off(relay, &OutboxError::SlotTooLarge { retained: state.retained, limit });
            }
            self.drop_slot(relay, &source).await;
        }
    }

    async fn drop_slot(&self, relay: &Relay, source: &CaptureSource) {
        let dropped = async {
            source.slot(&relay.options)?.drop(source.pool()).await?;
            Ok::<_, OutboxError>(())
        };
        match dropped.await {
            Ok(()) => {
                tracing::warn!(outbox = relay.options.outbox, "dropped the outbox's slot to protect the server's disk")
            }
            Err(error) => tracing::error!(outbox = relay.options.outbox, %error, "failed to drop the outbox's slot"),
        }
    }

    pub(crate) fn abort(&self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

async fn prepare(store: &dyn OutboxStore, options: &RelayOptions) -> Result<Option<CaptureSource>, OutboxError> {
    let Some(source) = store.capture_source().await? else { return Ok(None) };
    source.prepare(options).await?;
    Ok(Some(source))
}
