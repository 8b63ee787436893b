//! The relay by change capture: rows come from PostgreSQL's write-ahead log, in the order of their commits.
//!
//! Rows are marked as they are by polling, so that each of the two can take over from the other at any row. Whenever something
//! is left in the table that the stream has passed or may never bring (at the start, after the sink was away, after a message
//! failed), the relay catches up: it polls until the table has nothing up to the place where its last row was, notes where the
//! log ends by then, and goes on with the stream. Rows of transactions before that place may be published already, and are
//! looked up before they are sent.
//!
//! While rows are published, those before them are marked ([`Marking`]). The slot is told of rows only after their marks.
//!
//! A message that fails is written down in its row, and its key is left to polling until all of it is published: the stream
//! passes over its rows, which are safe in the table.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use jiff::Timestamp;
use relais_capture::{
    Change, ChangeBatch, ChangeStream, Operation, Relation, SlotState, StreamEvent, StreamOptions, Value,
};
use relais_message::Headers;
use tokio_util::sync::CancellationToken;

use crate::{
    Activity, CaptureSource, OutboxError, OutboxRow, ReadRequest, Relay, RelayIntent, RelayOptions,
    marking::Marking,
    relay::{Shift, Step},
};

/// How often the slot is looked at.
pub(crate) const WATCH_EVERY: Duration = Duration::from_secs(2);

/// How often rows that failed are looked at, while there are any.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How much less often rows that the stream should have brought are looked for while it brings others.
const SWEEP_LESS_WHEN_BUSY: u32 = 6;

/// So many transactions are remembered of which rows were passed over.
const PASSED_OVER: usize = 1000;

/// Why capturing ended.
pub(crate) enum CaptureEnd {
    /// The relay was told to stop.
    Stopped,
    /// Somebody else has partitions now.
    LeasesLost,
    /// The server keeps too much WAL for the slot.
    TooLarge(u64),
    /// The stream failed.
    Failed(OutboxError),
}

impl From<OutboxError> for CaptureEnd {
    fn from(error: OutboxError) -> Self {
        Self::Failed(error)
    }
}

impl From<relais_capture::CaptureError> for CaptureEnd {
    fn from(error: relais_capture::CaptureError) -> Self {
        Self::Failed(error.into())
    }
}

/// What a relay knows while it captures.
struct Capturing<'a> {
    relay: &'a Relay,
    source: &'a CaptureSource,
    columns: Columns,
    marking: Marking<'a>,
    /// Rows of transactions up to here may have been published by polling.
    polled_until: u64,
    /// Keys that are left to polling.
    failed_keys: BTreeSet<String>,
    /// Transactions with rows that the stream has passed over, and others perhaps do not see yet.
    passed_over: BTreeSet<u32>,
    watched: Instant,
    /// When the stream brought something for the last time.
    brought: Instant,
    /// When the transaction of the last row that it brought was committed, by the database's clock.
    brought_until: Option<i64>,
    /// When it was looked for rows that the stream should have brought.
    swept: Instant,
    /// How often in a row there were some.
    missed: u32,
}

impl Relay {
    /// Captures until it is told to stop, or cannot go on.
    pub(crate) async fn capture(
        &self,
        source: &CaptureSource,
        shift: &mut Shift,
        stop: &CancellationToken,
    ) -> CaptureEnd {
        let mut capturing = Capturing {
            relay: self,
            source,
            columns: Columns::default(),
            marking: Marking::default(),
            polled_until: 0,
            failed_keys: BTreeSet::new(),
            passed_over: BTreeSet::new(),
            watched: Instant::now(),
            brought: Instant::now(),
            brought_until: None,
            swept: Instant::now(),
            missed: 0,
        };
        match capturing.run(shift, stop).await {
            Ok(()) => CaptureEnd::Stopped,
            Err(end) => end,
        }
    }

    pub(crate) async fn slot_state(&self, source: &CaptureSource) -> Result<Option<SlotState>, OutboxError> {
        let state = source.slot(&self.options)?.state(source.pool()).await?;
        self.handle.update(|stats| stats.retained_wal = state.as_ref().map(|state| state.retained));
        Ok(state)
    }
}

impl Capturing<'_> {
    async fn run(&mut self, shift: &mut Shift, stop: &CancellationToken) -> Result<(), CaptureEnd> {
        // Before the stream: the slot is not read meanwhile, and nobody waits for us.
        self.catch_up(shift, RelayIntent::WantsAll, stop).await?;
        // While the server has not noticed yet that the one before is gone, it is better to poll.
        let mut stream = self.start().await?;
        let mut ended = self.follow(&mut stream, shift, stop).await;
        // What is marked is not repeated.
        let marked = self.marking.settle().await;
        self.tell_slot(&stream);
        if ended.is_ok() {
            ended = marked.map_err(CaptureEnd::Failed);
        }
        if matches!(ended, Err(CaptureEnd::Failed(_))) {
            return ended;
        }
        stream.stop().await;
        ended
    }

    async fn start(&self) -> Result<ChangeStream, CaptureEnd> {
        let options = &self.relay.options;
        let stream = StreamOptions {
            batch_rows: options.batch_rows.max(1),
            batch_bytes: options.batch_bytes,
            spool: options.capture.spool.clone(),
            ..StreamOptions::new(self.source.slot(options)?.name(), self.source.publication_name(options)?)
        };
        Ok(ChangeStream::start(&self.source.address, stream).await?)
    }

    async fn follow(
        &mut self,
        stream: &mut ChangeStream,
        shift: &mut Shift,
        stop: &CancellationToken,
    ) -> Result<(), CaptureEnd> {
        self.relay.handle.update(|stats| {
            (stats.activity, stats.why_not_capture, stats.trouble) = (Activity::Capturing, None, None);
        });
        tracing::info!(outbox = self.relay.options.outbox, "the outbox is captured");
        let mut failures = tokio::time::interval(LOOK_EVERY);
        failures.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut upkeep = tokio::time::interval(Duration::from_secs(1).min(self.relay.options.lease / 3));
        upkeep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // The stream comes last: it may have something at any time, and marks are to be on their way before.
                biased;
                () = stop.cancelled() => return Ok(()),
                marked = self.marking.settle(), if self.marking.is_running() => marked?,
                _ = failures.tick(), if !self.failed_keys.is_empty() => {
                    self.marking.settle().await?;
                    self.look_at_failures(shift, stop).await?;
                }
                _ = upkeep.tick() => {
                    // Marks that nobody waits for would keep a connection from whatever comes next.
                    self.marking.settle().await?;
                    self.upkeep(shift, RelayIntent::Captures, stop).await?;
                    self.sweep(shift, stop).await?;
                }
                batch = stream.next() => {
                    let ChangeBatch { events, confirm, .. } = batch?;
                    if let Some(StreamEvent::Change(last)) = events.last() {
                        self.brought_until = Some(last.transaction.committed_at);
                    }
                    let brought = !events.is_empty();
                    self.deliver(events, shift, stop).await?;
                    if brought {
                        // A sink may have taken long, and more is waiting: that is not quiet.
                        self.brought = Instant::now();
                    }
                    if stop.is_cancelled() {
                        return Ok(());
                    }
                    self.marking.delivered(confirm);
                }
            }
            self.tell_slot(stream);
        }
    }

    /// Tells the slot what is marked.
    fn tell_slot(&mut self, stream: &ChangeStream) {
        if let Some(lsn) = self.marking.take_marked() {
            stream.confirm(lsn);
        }
    }

    /// Keeps the leases, looks at the slot, and purges, if it is time.
    async fn upkeep(
        &mut self,
        shift: &mut Shift,
        intent: RelayIntent,
        stop: &CancellationToken,
    ) -> Result<(), CaptureEnd> {
        let relay = self.relay;
        if relay.keep_leases(shift, intent, stop).await && !relay.has_all(shift) {
            return Err(CaptureEnd::LeasesLost);
        }
        relay.purge_if_due(shift).await;
        if self.watched.elapsed() < WATCH_EVERY {
            return Ok(());
        }
        self.watched = Instant::now();
        let Some(state) = relay.slot_state(self.source).await? else {
            return Err(OutboxError::SlotGone.into());
        };
        relay.handle.update(|stats| stats.unconfirmed_wal = Some(state.unconfirmed));
        if state.lost {
            return Err(OutboxError::SlotGone.into());
        }
        if state.retained > relay.options.capture.max_retained_wal {
            return Err(CaptureEnd::TooLarge(state.retained));
        }
        Ok(())
    }

    /// Looks for rows that the stream should have brought long ago, and publishes them. If that happens again, something is
    /// wrong with the stream, and it is made anew.
    async fn sweep(&mut self, shift: &mut Shift, stop: &CancellationToken) -> Result<(), CaptureEnd> {
        let every = self.relay.options.capture.sweep;
        let quiet = self.brought.elapsed() > every;
        if self.swept.elapsed() < if quiet { every } else { every * SWEEP_LESS_WHEN_BUSY } {
            return Ok(());
        }
        self.swept = Instant::now();
        // A stream that is behind still brings what is newer than its last row.
        let brought_until = self.brought_until.filter(|_| !quiet);
        if !self.source.has_overdue(every, brought_until).await? {
            self.missed = 0;
            return Ok(());
        }
        let before = self.relay.handle.stats().published;
        self.catch_up(shift, RelayIntent::Captures, stop).await?;
        let found = self.relay.handle.stats().published > before;
        self.missed = if found && quiet { self.missed + 1 } else { 0 };
        if self.missed > 1 { Err(OutboxError::StreamMisses.into()) } else { Ok(()) }
    }

    /// Publishes by polling whatever the table has by now, so that only the stream is left.
    async fn catch_up(
        &mut self,
        shift: &mut Shift,
        intent: RelayIntent,
        stop: &CancellationToken,
    ) -> Result<(), CaptureEnd> {
        let relay = self.relay;
        // Polling would publish what is not marked.
        self.marking.settle().await?;
        self.until_visible().await?;
        let before = relay.handle.stats().activity;
        relay.handle.update(|stats| stats.activity = Activity::CatchingUp);
        let mut last = self.source.last_unpublished().await?;
        while let Some(up_to) = last.take()
            && !stop.is_cancelled()
        {
            self.upkeep(shift, intent, stop).await?;
            last = match relay.step(shift, Some(&up_to), stop).await {
                Step::Busy => Some(up_to),
                // Newer rows of other keys show whether the sink is away, or does not survive one message.
                Step::Away => self.source.last_unpublished().await?,
                Step::Idle => None,
            };
        }
        self.polled_until = self.source.wal_end().await?;
        let failed = relay.store.failed_keys(&self.request_failed_keys()).await?;
        self.failed_keys = failed.into_iter().map(|failed| failed.key).collect();
        self.are_few_failed_keys()?;
        relay.handle.update(|stats| stats.activity = before);
        Ok(())
    }

    /// One more than there may be, to see that there are more.
    fn request_failed_keys(&self) -> ReadRequest {
        self.relay.request(Vec::new(), self.relay.options.capture.max_failed_keys + 1)
    }

    /// They are kept in memory. If there are many, polling is better at it.
    fn are_few_failed_keys(&self) -> Result<(), CaptureEnd> {
        let limit = self.relay.options.capture.max_failed_keys;
        if self.failed_keys.len() > limit { Err(OutboxError::ManyFailedKeys(limit).into()) } else { Ok(()) }
    }

    /// Waits until others see the rows that the stream has passed over.
    async fn until_visible(&mut self) -> Result<(), OutboxError> {
        let passed_over: Vec<u32> = std::mem::take(&mut self.passed_over).into_iter().collect();
        if passed_over.is_empty() { Ok(()) } else { self.source.until_visible(&passed_over).await }
    }

    /// Catches up once a row that failed is to be tried again, or an operator has decided about it.
    async fn look_at_failures(&mut self, shift: &mut Shift, stop: &CancellationToken) -> Result<(), CaptureEnd> {
        let failed = self.relay.store.failed_keys(&self.request_failed_keys()).await?;
        let due = failed.iter().any(|failed| failed.is_due);
        let keys: BTreeSet<String> = failed.into_iter().map(|failed| failed.key).collect();
        if due || keys != self.failed_keys {
            self.catch_up(shift, RelayIntent::Captures, stop).await?;
        }
        Ok(())
    }

    /// Publishes rows of the stream. After it they are published, or their keys are left to polling.
    async fn deliver(
        &mut self,
        events: Vec<StreamEvent>,
        shift: &mut Shift,
        stop: &CancellationToken,
    ) -> Result<(), CaptureEnd> {
        let mut rows = Vec::with_capacity(events.len());
        for event in events {
            let StreamEvent::Change(change) = event else { continue };
            match self.columns.row(&change, self.source, &self.relay.options) {
                Streamed::Row(row) => rows.push((*row, change.transaction)),
                Streamed::Waits(key) => {
                    self.failed_keys.insert(key);
                    self.passed_over.insert(change.transaction.number);
                }
                Streamed::Nothing => {}
            }
        }
        while !rows.is_empty() && !stop.is_cancelled() {
            self.leave_out_published(&mut rows).await?;
            let mut sent = Vec::with_capacity(rows.len());
            let mut transactions: Vec<u32> = Vec::new();
            for (row, transaction) in &rows {
                if self.failed_keys.contains(&row.key) {
                    self.passed_over.insert(transaction.number);
                } else {
                    if transactions.last() != Some(&transaction.number) {
                        transactions.push(transaction.number);
                    }
                    sent.push(row.clone());
                }
            }
            let relay = self.relay;
            let (marked, (published, confirmed)) = tokio::join!(self.marking.settle(), relay.publish_rows(sent));
            marked?;
            if !confirmed.is_empty() {
                self.marking.begin(relay.mark(confirmed, transactions.clone()));
            }
            if published.is_silent() {
                // The sink is away. All these rows are in the table: polling finds out when it is back.
                if let Some((_, transaction)) = rows.last() {
                    self.source.until_visible(&[transaction.number]).await?;
                }
                self.catch_up(shift, RelayIntent::Captures, stop).await?;
                continue;
            }
            let held_back: BTreeSet<String> = published.held_back.iter().map(|row| row.key.clone()).collect();
            if published.has_failures() {
                // What is not to be seen yet can not be written down.
                self.source.until_visible(&transactions).await?;
            }
            let failed = self.relay.record(published, true).await?;
            let passed_over = rows.iter().filter(|(row, _)| held_back.contains(&row.key));
            self.passed_over.extend(passed_over.map(|(_, transaction)| transaction.number));
            self.failed_keys.extend(failed.into_iter().map(|failed| failed.key).chain(held_back));
            if self.passed_over.len() > PASSED_OVER {
                self.until_visible().await?;
            }
            return self.are_few_failed_keys();
        }
        Ok(())
    }

    /// Leaves out what polling has published while the stream was behind.
    async fn leave_out_published(
        &self,
        rows: &mut Vec<(OutboxRow, Arc<relais_capture::Transaction>)>,
    ) -> Result<(), OutboxError> {
        let suspects = || rows.iter().filter(|(_, transaction)| transaction.commit_lsn <= self.polled_until);
        let ids: Vec<&str> = suspects().map(|(row, _)| row.id.as_str()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let mut transactions: Vec<u32> = suspects().map(|(_, transaction)| transaction.number).collect();
        transactions.dedup();
        let published = self.source.published(&ids, &transactions, self.relay.options.delete_published).await?;
        let known: HashSet<&String> = published.iter().collect();
        rows.retain(|(row, _)| !known.contains(&row.id));
        Ok(())
    }
}

/// Where the outbox's columns are in a streamed row.
#[derive(Default)]
struct Columns {
    relation: Option<Arc<Relation>>,
    places: Vec<Option<usize>>,
}

/// What a change is to the relay.
enum Streamed {
    /// A row to publish.
    Row(Box<OutboxRow>),
    /// A row that was written with a failure in it already: its key is left to polling.
    Waits(String),
    /// Nothing: another operation, another table, or a row that counts as published.
    Nothing,
}

const COLUMNS: [&str; 14] = [
    "id",
    "aggregate_id",
    "event_type",
    "payload",
    "created_at",
    "retry_count",
    "aggregate_type",
    "headers",
    "destination",
    "schema_version",
    "correlation_id",
    "published_at",
    "parked_at",
    "next_try_at",
];

impl Columns {
    /// The row of an insert.
    fn row(&mut self, change: &Change, source: &CaptureSource, options: &RelayOptions) -> Streamed {
        let Operation::Insert { after } = &change.operation else { return Streamed::Nothing };
        if change.relation.schema != source.schema || change.relation.name != source.table.name() {
            return Streamed::Nothing;
        }
        if !self.relation.as_ref().is_some_and(|known| Arc::ptr_eq(known, &change.relation)) {
            let place = |name: &&str| change.relation.columns.iter().position(|column| column.name == **name);
            (self.places, self.relation) = (COLUMNS.iter().map(place).collect(), Some(Arc::clone(&change.relation)));
        }
        let value = |number: usize| match after.get((*self.places.get(number)?)?)? {
            Value::Text(text) => Some(text),
            Value::Null | Value::Unchanged => None,
        };
        let text = |number: usize| value(number).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let created_at = value(4).and_then(|bytes| read_time(bytes));
        let mut row = OutboxRow {
            id: text(0).unwrap_or_default(),
            key: String::new(),
            aggregate_id: text(1).unwrap_or_default(),
            event_type: text(2).unwrap_or_default(),
            payload: value(3).cloned().unwrap_or_else(Bytes::new),
            created_at: created_at.unwrap_or(Timestamp::UNIX_EPOCH),
            retry_count: text(5).and_then(|count| count.parse().ok()).unwrap_or_default(),
            aggregate_type: text(6),
            headers: value(7).map_or_else(Headers::default, |json| crate::rows::read_headers(&lossy(json))),
            destination: text(8),
            schema_version: text(9),
            correlation_id: text(10),
            unreadable: created_at.is_none().then(|| "the row can not be read: created_at is no time".to_owned()),
        };
        // A row without the value shares the key of all that have none, as in SQL.
        row.key = options.key.render(&row).unwrap_or_default();
        if value(11).is_some() {
            return Streamed::Nothing;
        }
        if value(12).is_some() || value(13).is_some() {
            return Streamed::Waits(row.key);
        }
        Streamed::Row(Box::new(row))
    }
}

fn lossy(bytes: &Bytes) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Reads `2026-11-18 06:59:25.123456+00`.
fn read_time(bytes: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_log_are_read() {
        let read = |text: &str| read_time(text.as_bytes()).map(|time| time.as_microsecond());
        assert_eq!(read("2026-11-18 06:59:25.123456+00"), Some(1_794_985_165_123_456));
        assert_eq!(read("2026-11-18 06:59:25+00"), Some(1_794_985_165_000_000));
        assert_eq!(read("infinity"), None);
    }
}
