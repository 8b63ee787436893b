//! The relay: reads what is unpublished, hands it to the sink, and marks what was confirmed.
//!
//! By polling, one round after the other: read a batch, publish it, mark it. A crash between any two of these repeats messages
//! and loses none. A failing message holds back its own key only. When nothing at all is answered, the sink is away: the relay
//! then tries one message at a time, with growing pauses, and parks nothing. `capture` has what differs when the rows come from
//! the log; whoever captures has all partitions, so that the two never run at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use relais_message::Sink;
use tokio_util::sync::CancellationToken;

use crate::{
    Activity, FIELDS, Layout, Mode, OutboxError, OutboxStore, ReadRequest, RelayHandle, RelayIntent, RelayOptions,
    Retry,
    preparation::Preparation,
    publish::{Probe, Round},
};

/// How often published rows are purged: 4,000 rows a second at most, in small transactions.
const PURGE_EVERY: Duration = Duration::from_secs(5);

/// How often a relay without partitions looks whether whoever captures is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Publishes an outbox.
pub struct Relay {
    pub(crate) store: Arc<dyn OutboxStore>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) options: RelayOptions,
    pub(crate) handle: RelayHandle,
}

/// What a relay knows while it runs.
pub(crate) struct Shift {
    /// The partitions that it has.
    partitions: Vec<i32>,
    /// When it got them.
    renewed: Option<Instant>,
    /// What it has told the others.
    intent: RelayIntent,
    purged: Instant,
    /// How often it has waited since something is away.
    pauses: u32,
    /// There while the sink is away.
    probe: Option<Probe>,
    /// How many messages were confirmed when the sink said nothing for the last time.
    silence: Option<u64>,
}

impl Relay {
    /// Checks the table and the templates.
    pub async fn new(
        store: Arc<dyn OutboxStore>,
        sink: Arc<dyn Sink>,
        options: RelayOptions,
    ) -> Result<Self, OutboxError> {
        let layout = store.prepare().await?;
        for template in
            [&options.destination, &options.routing_key].into_iter().chain(options.headers.iter().map(|(_, t)| t))
        {
            template.check(&FIELDS)?;
        }
        warn_of_order(&options.outbox, &layout);
        let relay = Self { store, sink, options, handle: RelayHandle::default() };
        // The key becomes SQL: a database that does not take it says so now.
        relay.store.read_unpublished(&ReadRequest { rows: 0, ..relay.request(Vec::new(), 0) }).await?;
        if relay.options.mode == Mode::Capture && relay.store.capture_source().await?.is_none() {
            return Err(OutboxError::NoCapture);
        }
        Ok(relay)
    }

    /// Sees how it is.
    pub fn handle(&self) -> RelayHandle {
        self.handle.clone()
    }

    /// Publishes until it is told to stop. A round that has begun is finished first.
    pub async fn run(self, stop: CancellationToken) {
        let mut shift = Shift {
            partitions: Vec::new(),
            renewed: None,
            intent: RelayIntent::Shares,
            purged: Instant::now(),
            pauses: 0,
            probe: None,
            silence: None,
        };
        let mut preparation = Preparation::new(&self);
        preparation.drop_unread_slot(&self).await;
        let mut missed = 0;
        while !stop.is_cancelled() {
            preparation.judge_if_due(&self).await;
            if !self.keep_leases(&mut shift, preparation.intent(), &stop).await {
                continue;
            }
            if shift.partitions.is_empty() {
                self.handle.update(|stats| (stats.activity, stats.trouble) = (Activity::StandBy, None));
                self.stand_by(&mut shift, &mut missed, &stop).await;
                continue;
            }
            missed = 0;
            self.purge_if_due(&mut shift).await;
            let has_all = self.has_all(&shift);
            if has_all && shift.probe.is_none() {
                preparation.begin_if_due(&self);
            }
            if has_all && let Some(source) = preparation.take_ready(&self).await {
                let end = self.capture(&source, &mut shift, &stop).await;
                preparation.note_end(&self, &source, end).await;
                shift.renewed = None;
                continue;
            }
            preparation.watch_slot(&self).await;
            if self.options.mode == Mode::Capture {
                let why = preparation.why().unwrap_or_else(|| "the slot is being made".to_owned());
                self.handle.update(|stats| stats.trouble = Some(format!("the outbox is not captured yet: {why}")));
                self.sleep(LOOK_EVERY, &stop).await;
                continue;
            }
            self.handle.update(|stats| stats.activity = Activity::Polling);
            if let Step::Idle = self.step(&mut shift, None, &stop).await {
                self.wait(&preparation, &stop).await;
            }
        }
        preparation.abort();
        if let Err(error) = self.store.release_leases(&self.options.outbox, &self.options.relay).await {
            tracing::warn!(outbox = self.options.outbox, %error, "failed to release the leases of a relay");
        }
    }

    pub(crate) fn has_all(&self, shift: &Shift) -> bool {
        shift.partitions.len() == usize::try_from(self.options.partitions).unwrap_or_default()
    }

    /// Renews the leases if it is time, or if the others are to know something new; false if that was not possible.
    pub(crate) async fn keep_leases(&self, shift: &mut Shift, intent: RelayIntent, stop: &CancellationToken) -> bool {
        let fresh = shift.renewed.is_some_and(|at| at.elapsed() <= self.options.lease / 3);
        if fresh && shift.intent == intent {
            return true;
        }
        let RelayOptions { outbox, relay, partitions, lease, .. } = &self.options;
        match self.store.renew_leases(outbox, relay, *partitions, *lease, intent).await {
            Ok(leases) => {
                self.handle.update(|stats| (stats.partitions, stats.relays) = (leases.partitions.len(), leases.relays));
                (shift.partitions, shift.renewed, shift.intent) = (leases.partitions, Some(Instant::now()), intent);
                true
            }
            Err(error) => {
                self.pause(shift, database_is_away(&error), stop).await;
                // Somebody else may have them by now.
                if shift.renewed.is_some_and(|at| at.elapsed() > self.options.lease) {
                    shift.partitions.clear();
                }
                false
            }
        }
    }

    /// One round of polling, and the pause after it if something is away.
    pub(crate) async fn step(&self, shift: &mut Shift, up_to: Option<&str>, stop: &CancellationToken) -> Step {
        match self.round(&shift.partitions, up_to, &mut shift.probe, &mut shift.silence).await {
            Ok(Round::Busy) => {
                shift.pauses = 0;
                Step::Busy
            }
            Ok(Round::Idle) => {
                shift.pauses = 0;
                self.handle.update(|stats| stats.trouble = None);
                Step::Idle
            }
            Ok(Round::Away(why)) => {
                self.pause(shift, format!("the sink is away: {why}"), stop).await;
                Step::Away
            }
            Err(error) => {
                self.pause(shift, database_is_away(&error), stop).await;
                Step::Away
            }
        }
    }

    pub(crate) fn request(&self, partitions: Vec<i32>, rows: usize) -> ReadRequest {
        let RelayOptions { outbox, key, partitions: of, batch_bytes, retry, .. } = &self.options;
        ReadRequest {
            outbox: outbox.clone(),
            key: key.clone(),
            partitions,
            of: *of,
            rows,
            bytes: *batch_bytes,
            limit: retry.limit,
            up_to: None,
        }
    }

    /// Waits until there may be something to do.
    async fn wait(&self, preparation: &Preparation, stop: &CancellationToken) {
        let next = self.store.next_retry(&self.options.outbox).await.ok().flatten();
        let pause = next.map_or(self.options.poll, |next| next.min(self.options.poll));
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.store.wait_for_rows() => {}
            () = preparation.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Waits until it has a share of the work. Whoever captures is seen by the slot: if nobody reads it any more, its leases
    /// need not expire first.
    async fn stand_by(&self, shift: &mut Shift, missed: &mut u32, stop: &CancellationToken) {
        self.sleep(LOOK_EVERY.min(self.options.lease / 3), stop).await;
        // Partitions that somebody gives up must not wait for the next renewal.
        shift.renewed = None;
        match self.gone_reader().await {
            Ok(Some(gone)) if *missed > 0 => {
                tracing::info!(outbox = self.options.outbox, relay = gone, "takes over from a relay that is gone");
                let _ = self.store.release_leases(&self.options.outbox, &gone).await;
                (*missed, shift.renewed) = (0, None);
            }
            Ok(Some(_)) => *missed += 1,
            Ok(None) | Err(_) => *missed = 0,
        }
    }

    /// The relay that says that it captures, if nobody reads its slot.
    async fn gone_reader(&self) -> Result<Option<String>, OutboxError> {
        let Some(source) = self.store.capture_source().await? else { return Ok(None) };
        let Some(reader) = self.store.relay_that_captures(&self.options.outbox).await? else { return Ok(None) };
        let state = source.slot(&self.options)?.state(source.pool()).await?;
        Ok(state.is_none_or(|state| !state.active).then_some(reader))
    }

    pub(crate) async fn sleep(&self, pause: Duration, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Waits because something is away, longer each time.
    async fn pause(&self, shift: &mut Shift, why: String, stop: &CancellationToken) {
        if shift.pauses == 0 {
            tracing::warn!(outbox = self.options.outbox, why, "an outbox is not published for now");
        }
        self.handle.update(|stats| stats.trouble = Some(why));
        shift.pauses += 1;
        let Retry { base, cap, .. } = self.options.retry;
        let whole =
            (base / 10).saturating_mul(2_u32.saturating_pow(shift.pauses)).min(cap).min(Duration::from_secs(10));
        let chance = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
        self.sleep(whole.mul_f64(1.0 - chance / 4.0), stop).await;
    }

    pub(crate) async fn purge_if_due(&self, shift: &mut Shift) {
        const BATCH: usize = 1000;
        const TURNS: usize = 20;
        if self.options.delete_published || shift.purged.elapsed() < PURGE_EVERY {
            return;
        }
        shift.purged = Instant::now();
        for _ in 0..TURNS {
            match self.store.purge_published(self.options.retention, BATCH).await {
                Ok(gone) if gone >= BATCH as u64 => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(outbox = self.options.outbox, %error, "failed to purge published rows");
                    return;
                }
            }
        }
    }
}

/// What a round of polling came to, after any pause.
pub(crate) enum Step {
    /// There may be more.
    Busy,
    /// There was nothing.
    Idle,
    /// Something was away.
    Away,
}

pub(crate) fn database_is_away(error: &OutboxError) -> String {
    format!("the outbox's database is away: {error}")
}

fn warn_of_order(outbox: &str, layout: &Layout) {
    if !layout.has("sequence") {
        tracing::warn!(
            outbox,
            "the outbox has no column `sequence`: rows of an aggregate are ordered by created_at, as well as that can tell"
        );
    }
}
