//! The relay: reads what is unpublished, hands it to the sink, and marks what was confirmed.
//!
//! One round after the other: read a batch, publish it, mark it. A crash between any two of these repeats messages and loses
//! none. A failing message holds back its own key only. When nothing at all is answered, the sink is away: the relay then
//! tries one message at a time, with growing pauses, and parks nothing.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use relais_message::{Envelope, PublishOutcome, RoutedMessage, Sink, Template};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{FIELDS, FailedRow, Layout, OutboxError, OutboxRow, OutboxStore, ReadRequest};

/// How often published rows are purged: 4,000 rows a second at most, in small transactions.
const PURGE_EVERY: Duration = Duration::from_secs(5);

/// How the pauses between tries grow, and when to give up.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// After so many failed tries a message is parked.
    pub limit: u32,
    /// The first pause.
    pub base: Duration,
    /// Each pause is so many times the one before.
    pub factor: f64,
    /// The longest pause.
    pub cap: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { limit: 10, base: Duration::from_secs(1), factor: 2.0, cap: Duration::from_secs(300) }
    }
}

impl Retry {
    /// The pause after so many failed tries.
    fn pause(&self, failed: u32) -> Duration {
        let grown = self.base.as_secs_f64() * self.factor.powi(i32::try_from(failed.saturating_sub(1)).unwrap_or(64));
        Duration::try_from_secs_f64(grown.min(self.cap.as_secs_f64())).unwrap_or(self.cap)
    }
}

/// How a relay works, and where messages go.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// The name of the outbox: relays of one name share its work.
    pub outbox: String,
    /// What this relay is called. No two may have the same name.
    pub relay: String,
    /// A message's key. Order is kept per key.
    pub key: Template,
    /// Where a message goes, unless its row names a destination.
    pub destination: Template,
    /// RabbitMQ's routing key.
    pub routing_key: Template,
    /// Headers that every message gets.
    pub headers: Vec<(String, Template)>,
    /// How payloads are wrapped.
    pub envelope: Envelope,
    /// What comes before CloudEvents' names in headers; see [`Envelope::wrap`].
    pub header_prefix: String,
    /// At most so many rows at once.
    pub batch_rows: usize,
    /// About so many bytes of payload at once.
    pub batch_bytes: usize,
    /// How often to look where nobody says that there are new rows.
    pub poll: Duration,
    /// How long the partitions of a relay that died stay its own.
    pub lease: Duration,
    /// Into how many partitions keys are divided. The same for all relays of an outbox.
    pub partitions: i32,
    /// How long the sink may take for one batch.
    pub publish_timeout: Duration,
    /// Retries and parking.
    pub retry: Retry,
    /// Whether published rows are deleted at once instead of marked.
    pub delete_published: bool,
    /// How long published rows are kept.
    pub retention: Duration,
}

impl RelayOptions {
    /// The defaults, for an outbox of this name. The relay gets a name that nobody else has.
    pub fn new(outbox: impl Into<String>) -> Result<Self, OutboxError> {
        Ok(Self {
            outbox: outbox.into(),
            relay: uuid::Uuid::now_v7().to_string(),
            key: Template::parse("{aggregate_id}")?,
            destination: Template::parse("outbox.event.{event_type}")?,
            routing_key: Template::parse("{event_type}")?,
            headers: Vec::new(),
            envelope: Envelope::Bare,
            header_prefix: "ce-".to_owned(),
            batch_rows: 500,
            batch_bytes: 8 * 1024 * 1024,
            poll: Duration::from_millis(500),
            lease: Duration::from_secs(15),
            partitions: 16,
            publish_timeout: Duration::from_secs(30),
            retry: Retry::default(),
            delete_published: false,
            retention: Duration::from_secs(7 * 24 * 3600),
        })
    }
}

/// What a relay has done so far, and how it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Messages that the sink confirmed.
    pub published: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Messages that were parked.
    pub parked: u64,
    /// Partitions that it has.
    pub partitions: usize,
    /// Relays of the same outbox that are there.
    pub relays: usize,
    /// Why nothing goes on, if that is so: the sink or the database is away.
    pub trouble: Option<String>,
}

/// Sees how a relay is, from anywhere.
#[derive(Debug, Clone, Default)]
pub struct RelayHandle(Arc<watch::Sender<RelayStats>>);

impl RelayHandle {
    /// What it has done so far, and how it is.
    pub fn stats(&self) -> RelayStats {
        self.0.borrow().clone()
    }

    /// Waits until it is as wanted.
    pub async fn until(&self, wanted: impl FnMut(&RelayStats) -> bool) {
        // An error would say that nobody can change it any more; this handle can.
        let _ = self.0.subscribe().wait_for(wanted).await;
    }

    fn update(&self, change: impl FnOnce(&mut RelayStats)) {
        self.0.send_if_modified(|stats| {
            let before = stats.clone();
            change(stats);
            *stats != before
        });
    }
}

/// Publishes an outbox by polling.
pub struct Relay {
    store: Arc<dyn OutboxStore>,
    sink: Arc<dyn Sink>,
    options: RelayOptions,
    handle: RelayHandle,
}

/// How to find out whether the sink is back, and which message it was if it is: a few messages at a time, each of another key.
struct Probe {
    /// How many were tried so far, so that it is another one's turn each time.
    tried: usize,
    /// How many to try next.
    size: usize,
    /// Whether the sink confirmed the last ones.
    alive: bool,
}

/// What one round came to.
enum Round {
    /// There was something to do, so there may be more.
    Busy,
    /// There was nothing to do.
    Idle,
    /// The sink answers nothing.
    Away(String),
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
        Ok(relay)
    }

    /// Sees how it is.
    pub fn handle(&self) -> RelayHandle {
        self.handle.clone()
    }

    /// Publishes until it is told to stop. A round that has begun is finished first.
    pub async fn run(self, stop: CancellationToken) {
        let mut renewed: Option<Instant> = None;
        let mut purged = Instant::now();
        let mut partitions = Vec::new();
        let mut pauses = 0;
        // There while the sink is away.
        let mut probe = None;
        while !stop.is_cancelled() {
            if renewed.is_none_or(|at| at.elapsed() > self.options.lease / 3) {
                match self.renew().await {
                    Ok(leased) => (partitions, renewed) = (leased, Some(Instant::now())),
                    Err(error) => {
                        self.pause(&mut pauses, format!("the outbox's database is away: {error}"), &stop).await;
                        // Somebody else may have them by now.
                        if renewed.is_some_and(|at| at.elapsed() > self.options.lease) {
                            partitions.clear();
                        }
                        continue;
                    }
                }
            }
            if purged.elapsed() > PURGE_EVERY {
                purged = Instant::now();
                self.purge().await;
            }
            let round = match partitions.is_empty() {
                true => Ok(Round::Idle),
                false => self.round(&partitions, &mut probe).await,
            };
            match round {
                Ok(Round::Busy) => pauses = 0,
                Ok(Round::Idle) => {
                    pauses = 0;
                    self.handle.update(|stats| stats.trouble = None);
                    self.wait(&stop).await;
                }
                Ok(Round::Away(why)) => self.pause(&mut pauses, format!("the sink is away: {why}"), &stop).await,
                Err(error) => {
                    self.pause(&mut pauses, format!("the outbox's database is away: {error}"), &stop).await;
                }
            }
        }
        if let Err(error) = self.store.release_leases(&self.options.outbox, &self.options.relay).await {
            tracing::warn!(outbox = self.options.outbox, %error, "failed to release the leases of a relay");
        }
    }

    async fn renew(&self) -> Result<Vec<i32>, OutboxError> {
        let RelayOptions { outbox, relay, partitions, lease, .. } = &self.options;
        let leases = self.store.renew_leases(outbox, relay, *partitions, *lease).await?;
        self.handle.update(|stats| (stats.partitions, stats.relays) = (leases.partitions.len(), leases.relays));
        Ok(leases.partitions)
    }

    fn request(&self, partitions: Vec<i32>, rows: usize) -> ReadRequest {
        let RelayOptions { outbox, key, partitions: of, batch_bytes, retry, .. } = &self.options;
        ReadRequest {
            outbox: outbox.clone(),
            key: key.clone(),
            partitions,
            of: *of,
            rows,
            bytes: *batch_bytes,
            limit: retry.limit,
        }
    }

    /// Reads, publishes and marks one batch.
    async fn round(&self, partitions: &[i32], probe: &mut Option<Probe>) -> Result<Round, OutboxError> {
        let mut rows = self.store.read_unpublished(&self.request(partitions.to_vec(), self.options.batch_rows)).await?;
        if rows.is_empty() {
            *probe = None;
            return Ok(Round::Idle);
        }
        if let Some(Probe { tried, size, .. }) = probe {
            rows = heads_of_keys(rows, *tried, *size);
        }
        let (mut failed, mut sent, mut outgoing) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sent_keys, mut stopped) = (HashSet::new(), HashSet::new());
        for row in rows {
            if stopped.contains(&row.key) {
                continue;
            }
            match self.outgoing(&row) {
                Ok(message) => {
                    sent_keys.insert(row.key.clone());
                    outgoing.push(message);
                    sent.push(row);
                }
                Err(why) => {
                    stopped.insert(row.key.clone());
                    // Only the first of a key fails: what is behind others has its turn when they are published.
                    if !sent_keys.contains(&row.key) {
                        failed.push((row, why));
                    }
                }
            }
        }
        let outcomes = self.publish(outgoing).await;
        let tried = outcomes.len();
        let refused = outcomes.iter().filter(|outcome| matches!(outcome, PublishOutcome::Refused(_))).count();
        let (mut confirmed, mut unknown) = (Vec::new(), Vec::new());
        for (row, outcome) in sent.into_iter().zip(outcomes) {
            match outcome {
                PublishOutcome::Confirmed => confirmed.push(row.id),
                PublishOutcome::Refused(why) => failed.push((row, why)),
                PublishOutcome::Unknown(why) => unknown.push((row, why)),
                PublishOutcome::NotSent => {}
            }
        }
        if !confirmed.is_empty() {
            let delete = self.options.delete_published;
            self.store.mark_published(&self.options.outbox, &confirmed, delete).await?;
            self.handle.update(|stats| stats.published += confirmed.len() as u64);
        }
        // A sink that says neither yes nor no to anything is away. But if it was there a moment ago and does not survive this one
        // message, then it is the message's fault.
        let silent = confirmed.is_empty() && refused == 0 && !unknown.is_empty();
        let alive = probe.as_ref().is_some_and(|probe| probe.alive);
        let tried_several = tried > 1;
        let is_culprit = silent && !tried_several && alive;
        let away = silent && !is_culprit;
        let why = unknown.first().map(|(_, why)| why.clone()).filter(|_| away);
        // While the sink is away the whole relay waits: it is no message's fault, and none is touched.
        failed.extend(unknown.into_iter().filter(|_| !away));
        self.record(failed).await?;
        *probe = match probe.take() {
            None if silent => Some(Probe { tried: 0, size: 1, alive: false }),
            None => None,
            // One of these: each by itself then.
            Some(Probe { tried, .. }) if silent && tried_several => Some(Probe { tried, size: 1, alive }),
            Some(Probe { tried, .. }) if silent => Some(Probe { tried: tried + 1, size: 1, alive: false }),
            Some(Probe { size, .. }) if size >= self.options.batch_rows => None,
            Some(Probe { tried, size, .. }) => Some(Probe { tried: tried + size, size: size * 2, alive: true }),
        };
        if !silent {
            self.handle.update(|stats| stats.trouble = None);
        }
        Ok(why.map_or(Round::Busy, Round::Away))
    }

    /// The message of a row and where it goes; or why it cannot be sent.
    fn outgoing(&self, row: &OutboxRow) -> Result<RoutedMessage, String> {
        let options = &self.options;
        if let Some(why) = &row.unreadable {
            return Err(why.clone());
        }
        if row.retry_count >= options.retry.limit {
            return Err("it was tried as often as the limit allows".to_owned());
        }
        let mut message = row.message();
        for (name, template) in &options.headers {
            message.headers.set(name.clone(), template.render(row).map_err(|error| error.to_string())?);
        }
        let destination = match &row.destination {
            Some(destination) => destination.clone(),
            None => options.destination.render(row).map_err(|error| error.to_string())?,
        };
        let routing_key = options.routing_key.render(row).map_err(|error| error.to_string())?;
        let source = format!("/outboxes/{}", options.outbox);
        let message = options.envelope.wrap(&message, &source, &options.header_prefix);
        Ok(RoutedMessage { destination, routing_key, message })
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let (number, limit) = (batch.len(), self.options.publish_timeout);
        match timeout(limit, self.sink.publish(batch)).await {
            Ok(outcomes) => outcomes,
            Err(_) => vec![PublishOutcome::Unknown(format!("the sink did not answer within {limit:?}")); number],
        }
    }

    /// Writes down what failed: a message is retried, or parked at the limit.
    async fn record(&self, failed: Vec<(OutboxRow, String)>) -> Result<(), OutboxError> {
        if failed.is_empty() {
            return Ok(());
        }
        let Retry { limit, .. } = self.options.retry;
        let failed = failed.into_iter().map(|(row, error)| {
            let retry_count = row.retry_count.saturating_add(1).min(limit);
            let again = (retry_count < limit).then(|| self.options.retry.pause(retry_count));
            FailedRow { id: row.id, key: row.key, retry_count, error, again }
        });
        let failed: Vec<FailedRow> = failed.collect();
        self.store.record_failures(&self.options.outbox, &failed).await?;
        let parked = failed.iter().filter(|failed| failed.again.is_none());
        for FailedRow { id, key, error, .. } in parked.clone() {
            tracing::warn!(outbox = self.options.outbox, id, key, error, "parked a message");
        }
        self.handle.update(|stats| {
            stats.failed += failed.len() as u64;
            stats.parked += parked.count() as u64;
        });
        Ok(())
    }

    /// Waits until there may be something to do.
    async fn wait(&self, stop: &CancellationToken) {
        let next = self.store.next_retry(&self.options.outbox).await.ok().flatten();
        let pause = next.map_or(self.options.poll, |next| next.min(self.options.poll));
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.store.wait_for_rows() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Waits because something is away, longer each time.
    async fn pause(&self, pauses: &mut u32, why: String, stop: &CancellationToken) {
        if *pauses == 0 {
            tracing::warn!(outbox = self.options.outbox, why, "an outbox is not published for now");
        }
        self.handle.update(|stats| stats.trouble = Some(why));
        *pauses += 1;
        let Retry { base, cap, .. } = self.options.retry;
        let whole = (base / 10).saturating_mul(2_u32.saturating_pow(*pauses)).min(cap).min(Duration::from_secs(10));
        let chance = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(whole.mul_f64(1.0 - chance / 4.0)) => {}
        }
    }

    async fn purge(&self) {
        const BATCH: usize = 1000;
        const TURNS: usize = 20;
        if self.options.delete_published {
            return;
        }
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

/// Of the first rows of all keys, so many, from this number on, counted round and round.
fn heads_of_keys(rows: Vec<OutboxRow>, number: usize, count: usize) -> Vec<OutboxRow> {
    let mut keys = HashSet::new();
    let mut heads: Vec<OutboxRow> = rows.into_iter().filter(|row| keys.insert(row.key.clone())).collect();
    let turned = number % heads.len().max(1);
    heads.rotate_left(turned);
    heads.truncate(count);
    heads
}

fn warn_of_order(outbox: &str, layout: &Layout) {
    if !layout.has("sequence") {
        tracing::warn!(
            outbox,
            "the outbox has no column `sequence`: rows of an aggregate are ordered by created_at, as well as that can tell"
        );
    }
}
