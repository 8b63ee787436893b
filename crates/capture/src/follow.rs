//! Follows the stream: makes records of changes, publishes them, and takes in the chunks of snapshots.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use relais_message::{Headers, Message, PublishOutcome, RoutedMessage, Template, TemplateFields};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Capture, CaptureActivity, CaptureError, CaptureOptions, Change, ChangeBatch, ChangeStream, Operation,
    PublishedTable, ROUTE_FIELDS, Relation, RelationColumn, Row, SnapshotPlace, Source, StreamEvent, StreamPosition,
    Table,
    capture::LONGEST_PAUSE,
    catalog::Catalog,
    debezium::{Envelope, Record},
    progress::ProgressStore,
    snapshot::{Chunk, KeyRange, PREFIX, SnapshotReader, Streamed, Watermarks, key_of},
};

type Result<T> = std::result::Result<T, CaptureError>;

/// How often the slot is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// How long a position may wait to be stored while batches are small: a commit for each of them would slow down the writers.
const STORE_EVERY: Duration = Duration::from_millis(50);

/// A chunk that is being read, and the keys that were changed since its first watermark was streamed.
pub(crate) struct Reading {
    table: String,
    marks: Watermarks,
    task: JoinHandle<Result<(Chunk, Watermarks)>>,
    changed: Option<ChangedRows>,
}

/// Rows that were changed while a chunk was read.
#[derive(Default)]
pub(crate) struct ChangedRows {
    /// The values of their replica identity.
    identities: HashSet<Vec<String>>,
    /// Whether all rows that were there are gone.
    truncated: bool,
}

impl ChangedRows {
    /// A table without an identity can not tell its rows apart.
    fn note(&mut self, row: &Row, identity: &[usize]) {
        if !identity.is_empty() {
            self.identities.insert(key_of(row, identity));
        }
    }

    fn has(&self, row: &Row, identity: &[usize]) -> bool {
        self.truncated || (!identity.is_empty() && self.identities.contains(&key_of(row, identity)))
    }
}

/// What came of a batch.
#[derive(Default)]
struct Outgoing {
    messages: Vec<RoutedMessage>,
    changes: u64,
    snapshot_rows: u64,
    position: Option<StreamPosition>,
    committed_at: Option<i64>,
    /// A table, and the key up to which it was read; none: to its end.
    read: Vec<(String, Option<Vec<String>>)>,
}

/// How far the stream was published, and how much of that is stored.
pub(crate) struct StoredPosition {
    stored: StreamPosition,
    reached: StreamPosition,
    /// How many messages were published since it was stored.
    messages: usize,
    stored_at: Instant,
    /// What the slot may be told once it is stored.
    confirm: Option<u64>,
}

impl StoredPosition {
    pub(crate) fn new(stored: StreamPosition) -> Self {
        Self { stored, reached: stored, messages: 0, stored_at: Instant::now(), confirm: None }
    }

    fn is_stored(&self) -> bool {
        self.reached == self.stored
    }

    /// Whether it must not wait: a crash repeats at most this many messages and those of the batch that is being published.
    fn is_due(&self, messages: usize) -> bool {
        self.messages >= messages || self.stored_at.elapsed() >= STORE_EVERY
    }
}

/// Follows the stream.
pub(crate) struct Following<'a> {
    pub(crate) capture: &'a Capture,
    pub(crate) stream: ChangeStream,
    pub(crate) store: ProgressStore,
    pub(crate) catalog: Catalog,
    pub(crate) tables: HashMap<u32, (Arc<Relation>, Arc<PublishedTable>)>,
    pub(crate) envelope: Envelope,
    pub(crate) snapshot: VecDeque<String>,
    pub(crate) after_key: Option<Vec<String>>,
    /// The table that is being read, and the last key that it had when that began.
    pub(crate) up_to: Option<(String, Vec<String>)>,
    pub(crate) first_of_snapshot: bool,
    pub(crate) run: String,
    pub(crate) reading: Option<Reading>,
    pub(crate) streamed: Streamed,
    /// Tables whose changes are left out.
    pub(crate) left_out: HashSet<String>,
    pub(crate) position: StoredPosition,
    pub(crate) timeline: u32,
    pub(crate) watched: Instant,
    pub(crate) failures: &'a mut u32,
}

impl Following<'_> {
    pub(crate) async fn follow(&mut self, stop: &CancellationToken) -> Result<()> {
        let mut upkeep = tokio::time::interval(WATCH_EVERY);
        upkeep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.read_on();
            let activity = match self.reading.is_some() {
                true => CaptureActivity::Snapshot,
                false => CaptureActivity::Streaming,
            };
            self.capture.handle.update(|stats| (stats.activity, stats.trouble) = (activity, None));
            tokio::select! {
                () = stop.cancelled() => return self.store_position().await,
                batch = self.stream.next() => {
                    let ChangeBatch { events, confirm, .. } = batch?;
                    let outgoing = self.outgoing(events).await?;
                    if !self.deliver(outgoing, stop).await? {
                        return self.store_position().await;
                    }
                    self.position.confirm = confirm.or(self.position.confirm);
                    if self.position.is_stored() || self.position.is_due(self.capture.options.batch_rows) {
                        self.store_position().await?;
                    }
                    *self.failures = 0;
                }
                () = tokio::time::sleep_until((self.position.stored_at + STORE_EVERY).into()),
                    if !self.position.is_stored() => self.store_position().await?,
                _ = upkeep.tick() => self.upkeep().await?,
            }
        }
    }

    /// Stores how far it is, then tells the slot.
    async fn store_position(&mut self) -> Result<()> {
        if !self.position.is_stored() {
            self.store.advance(self.position.reached).await?;
            self.position.stored = self.position.reached;
            (self.position.messages, self.position.stored_at) = (0, Instant::now());
        }
        if let Some(lsn) = self.position.confirm.take() {
            self.stream.confirm(lsn);
        }
        Ok(())
    }

    /// Begins to read the next chunk of a snapshot, if there is one and none is being read.
    fn read_on(&mut self) {
        let Some(table) = self.snapshot.front().filter(|_| self.reading.is_none()).cloned() else { return };
        let url = self.capture.database.url.clone();
        let up_to = self.up_to.as_ref().filter(|(of, _)| *of == table).map(|(_, key)| key.clone());
        let range = KeyRange { after: self.after_key.clone(), up_to };
        let run = format!("{}-{:x}", self.run, now_micros());
        let (rows, bytes) = (self.capture.options.chunk_rows, self.capture.options.batch_bytes);
        let marks = Watermarks::first(&run);
        let of = table.clone();
        let task =
            tokio::spawn(async move { SnapshotReader::connect(&url, run, rows, bytes).await?.read(&of, range).await });
        self.reading = Some(Reading { table, marks, task, changed: None });
    }

    /// Looks at the slot, and whether a snapshot was asked for.
    async fn upkeep(&mut self) -> Result<()> {
        // The marks of a reader that failed may never come.
        if let Some(reading) = self.reading.take_if(|reading| reading.task.is_finished()) {
            let Reading { table, marks, task, changed } = reading;
            match task.await {
                Ok(Err(error)) => return Err(error),
                // The marks are on their way.
                Ok(Ok(read)) => {
                    let task = tokio::spawn(async move { Ok(read) });
                    self.reading = Some(Reading { table, marks, task, changed });
                }
                Err(_) => {}
            }
        }
        if self.watched.elapsed() < WATCH_EVERY {
            return Ok(());
        }
        self.watched = Instant::now();
        let (database, options) = (&self.capture.database, &self.capture.options);
        let Some(state) = database.slot(options).await? else { return Err(CaptureError::Gap) };
        self.capture.handle.update(|stats| {
            (stats.retained_wal, stats.unconfirmed_wal) = (Some(state.retained), Some(state.unconfirmed));
        });
        database.protect(options).await?;
        if self.reading.is_none()
            && let Some(progress) = self.store.read().await?
        {
            // Whoever asked may not know yet that a table was removed.
            let progress = self.capture.without_removed_tables(&self.store, progress).await?;
            (self.snapshot, self.after_key) = (progress.snapshot.into(), progress.after_key);
        }
        Ok(())
    }

    fn is_captured(&self, relation: &Relation) -> bool {
        let tables = &self.capture.options.tables;
        tables.iter().any(|(schema, name)| *schema == relation.schema && *name == relation.name)
    }

    /// Says once that changes of a table are left out: nobody else notices that a captured table was renamed.
    fn tell_of_left_out(&mut self, relation: &Relation) {
        let table = format!("{}.{}", relation.schema, relation.name);
        if !self.left_out.contains(&table) {
            let capture = &self.capture.options.name;
            tracing::warn!(capture, table, "changes of a table that is not captured are left out; was it renamed?");
            self.left_out.insert(table);
        }
    }

    /// The messages of a batch.
    async fn outgoing(&mut self, events: Vec<StreamEvent>) -> Result<Outgoing> {
        let mut outgoing = Outgoing::default();
        let now = now_micros();
        for event in events {
            match event {
                // Of a table that is not captured any more, or of a publication that has others too.
                StreamEvent::Change(change) if !self.is_captured(&change.relation) => {
                    self.tell_of_left_out(&change.relation);
                    outgoing.position = Some(change.position);
                }
                StreamEvent::Change(change) => {
                    self.note(&change);
                    let table = self.table(&change.relation).await?;
                    let source = Source {
                        database: self.capture.database.address.database().to_owned(),
                        transaction: change.transaction.number,
                        lsn: change.lsn,
                        commit_lsn: Some(change.transaction.commit_lsn),
                        committed_at: change.transaction.committed_at,
                        snapshot: None,
                    };
                    let operation = project(change.operation, &table);
                    let records = self.envelope.records(&table.table, &operation, &source, now / 1000);
                    let id = format!("{:x}-{}", change.position.commit_lsn, change.position.ordinal);
                    let place = MessagePlace { id, name: name_of(&operation), committed_at: source.committed_at };
                    let route = Route { options: &self.capture.options, table: &table.table };
                    outgoing.messages.extend(messages(records, &place, &route));
                    outgoing.changes += 1;
                    outgoing.committed_at = Some(source.committed_at);
                    outgoing.position = Some(change.position);
                }
                StreamEvent::Message(message) => {
                    outgoing.position = Some(message.position);
                    if message.prefix == PREFIX {
                        let text = String::from_utf8_lossy(&message.content).into_owned();
                        self.take_mark(&text, message.position, now, &mut outgoing).await?;
                    }
                }
            }
        }
        Ok(outgoing)
    }

    /// Notes a change for the chunk that is being read.
    fn note(&mut self, change: &Change) {
        let Some(reading) = &mut self.reading else {
            self.streamed.note(change.transaction.number);
            return;
        };
        let Some(changed) = &mut reading.changed else {
            self.streamed.note(change.transaction.number);
            return;
        };
        if reading.table != format!("{}.{}", change.relation.schema, change.relation.name) {
            return;
        }
        let columns = &change.relation.columns;
        let identity: Vec<usize> = (0..columns.len()).filter(|place| columns[*place].in_identity).collect();
        match &change.operation {
            Operation::Insert { after } | Operation::Read { after } => changed.note(after, &identity),
            Operation::Update { before, after, .. } => {
                changed.note(after, &identity);
                if let Some(before) = before {
                    changed.note(before, &identity);
                }
            }
            Operation::Delete { before, .. } => changed.note(before, &identity),
            Operation::Truncate => changed.truncated = true,
        }
    }

    /// A watermark was streamed.
    async fn take_mark(
        &mut self,
        text: &str,
        position: StreamPosition,
        now: i64,
        outgoing: &mut Outgoing,
    ) -> Result<()> {
        let Some(reading) = &mut self.reading else { return Ok(()) };
        if text == reading.marks.low() {
            reading.changed = Some(ChangedRows::default());
        } else if text == reading.marks.high() {
            let Some(Reading { task, changed: Some(changed), .. }) = self.reading.take() else { return Ok(()) };
            let (chunk, _) = task.await.map_err(|_| CaptureError::Ended)??;
            // A chunk that has not seen what was streamed already is read again.
            if self.streamed.are_in(&chunk) {
                self.take_chunk(chunk, &changed, position, now, outgoing).await?;
            }
        }
        Ok(())
    }

    async fn take_chunk(
        &mut self,
        chunk: Chunk,
        changed: &ChangedRows,
        position: StreamPosition,
        now: i64,
        outgoing: &mut Outgoing,
    ) -> Result<()> {
        let columns = chunk.columns.iter().map(|column| RelationColumn {
            name: column.name.clone(),
            type_oid: column.type_oid,
            type_modifier: column.type_modifier,
            in_identity: column.in_identity,
        });
        let relation = Relation { oid: chunk.oid, schema: chunk.schema, name: chunk.name, columns: columns.collect() };
        let table = self.catalog.table(&relation).await?;
        let identity: Vec<usize> = (0..chunk.columns.len()).filter(|place| chunk.columns[*place].in_identity).collect();
        for (number, row) in chunk.rows.into_iter().enumerate() {
            if changed.has(&row, &identity) {
                continue;
            }
            let snapshot = match std::mem::take(&mut self.first_of_snapshot) {
                true => SnapshotPlace::First,
                false => SnapshotPlace::Middle,
            };
            let source = Source {
                database: self.capture.database.address.database().to_owned(),
                transaction: 0,
                lsn: position.commit_lsn,
                commit_lsn: None,
                committed_at: now,
                snapshot: Some(snapshot),
            };
            // Not by the row's key, which may be masked.
            let id = format!("{}-{:x}-{number}", chunk.table, position.commit_lsn);
            let operation = project(Operation::Read { after: row }, &table);
            let records = self.envelope.records(&table.table, &operation, &source, now / 1000);
            let place = MessagePlace { id, name: "read", committed_at: now };
            let route = Route { options: &self.capture.options, table: &table.table };
            outgoing.messages.extend(messages(records, &place, &route));
            outgoing.snapshot_rows += 1;
        }
        if chunk.is_last {
            self.snapshot.pop_front();
            (self.after_key, self.up_to) = (None, None);
            self.first_of_snapshot = self.snapshot.is_empty();
            outgoing.read.push((chunk.table, None));
        } else {
            self.after_key = chunk.last;
            self.up_to = chunk.up_to.map(|key| (chunk.table.clone(), key));
            outgoing.read.push((chunk.table, self.after_key.clone()));
        }
        Ok(())
    }

    /// What is known of a table of the stream.
    async fn table(&mut self, relation: &Arc<Relation>) -> Result<Arc<PublishedTable>> {
        if let Some((known, table)) = self.tables.get(&relation.oid)
            && Arc::ptr_eq(known, relation)
        {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(self.catalog.table(relation).await?);
        self.tables.insert(relation.oid, (Arc::clone(relation), Arc::clone(&table)));
        Ok(table)
    }

    /// Publishes until the sink has confirmed everything, and notes how far it is; false if it was told to stop before.
    async fn deliver(&mut self, outgoing: Outgoing, stop: &CancellationToken) -> Result<bool> {
        let Outgoing { mut messages, changes, snapshot_rows, position, committed_at, read } = outgoing;
        let number = messages.len();
        let mut pause = Duration::from_millis(50);
        while !messages.is_empty() {
            let (kept, why) = self.publish(messages).await;
            messages = kept;
            let Some(why) = why else { continue };
            let why = format!("the sink did not take {} messages: {why}", messages.len());
            if self.capture.handle.stats().trouble.is_none() {
                tracing::warn!(capture = self.capture.options.name, why, "tables are not captured for now");
            }
            self.capture.handle.update(|stats| stats.trouble = Some(why));
            self.capture.sleep(pause, stop).await;
            if stop.is_cancelled() {
                return Ok(false);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            self.upkeep().await?;
        }
        if let Some(position) = position.filter(|position| *position > self.position.reached) {
            // Before it is stored: the server may be lost with what it stores.
            self.capture.note_reached(self.timeline, position);
            self.position.reached = position;
            self.position.messages += number;
        }
        if !read.is_empty() {
            // Before the chunk that was read there.
            self.store_position().await?;
        }
        for (table, after_key) in read {
            self.store.advance_snapshot(&table, after_key.as_deref()).await?;
        }
        self.capture.handle.update(|stats| {
            stats.changes += changes;
            stats.snapshot_rows += snapshot_rows;
            stats.last_committed_at = committed_at.or(stats.last_committed_at);
            if let Some(committed_at) = committed_at {
                // Two clocks: the database's may be ahead.
                let micros = u64::try_from(now_micros() - committed_at).unwrap_or_default();
                stats.lag = Some(Duration::from_micros(micros));
            }
        });
        Ok(true)
    }

    /// Publishes once; what is left, and why.
    async fn publish(&self, messages: Vec<RoutedMessage>) -> (Vec<RoutedMessage>, Option<String>) {
        let limit = self.capture.options.publish_timeout;
        // Most batches are confirmed whole. Bodies are shared, not copied.
        let outcomes = match timeout(limit, self.capture.sink.publish(messages.clone())).await {
            Ok(outcomes) => outcomes,
            Err(_) => return (messages, Some(format!("it did not answer within {limit:?}"))),
        };
        let mut why = None;
        let left = messages.into_iter().zip(outcomes).filter_map(|(message, outcome)| match outcome {
            PublishOutcome::Confirmed => None,
            PublishOutcome::Refused(said) | PublishOutcome::Unknown(said) => {
                why.get_or_insert(said);
                Some(message)
            }
            PublishOutcome::NotSent => Some(message),
        });
        (left.collect(), why)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.task.abort();
        }
    }
}

/// What tells a message from others, and what it is about.
struct MessagePlace {
    id: String,
    name: &'static str,
    committed_at: i64,
}

/// Where the records of a table go.
struct Route<'a> {
    options: &'a CaptureOptions,
    table: &'a Table,
}

impl Route<'_> {
    /// The text of a template. Without one, and where it has other fields, it is the topic.
    fn text(&self, template: Option<&Template>, topic: &str) -> String {
        template.and_then(|template| template.render(self).ok()).unwrap_or_else(|| topic.to_owned())
    }
}

impl TemplateFields for Route<'_> {
    fn named(&self, name: &str) -> Option<Cow<'_, str>> {
        let [capture, schema, table] = ROUTE_FIELDS;
        match name {
            _ if name == capture => Some(Cow::Borrowed(&self.options.name)),
            _ if name == schema => Some(Cow::Borrowed(&self.table.schema)),
            _ if name == table => Some(Cow::Borrowed(&self.table.name)),
            _ => None,
        }
    }

    fn header(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn payload(&self, _: &[String]) -> Option<String> {
        None
    }
}

fn messages<'a>(
    records: Vec<Record>,
    place: &'a MessagePlace,
    route: &'a Route<'a>,
) -> impl Iterator<Item = RoutedMessage> + 'a {
    records.into_iter().enumerate().map(move |(number, record)| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers: Headers =
            record.headers.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect();
        let is_tombstone = record.value.is_none();
        let message = Message {
            id: if number == 0 { place.id.clone() } else { format!("{}-{number}", place.id) },
            key: record.key.as_deref().map(text),
            event_type: if is_tombstone { "tombstone".to_owned() } else { place.name.to_owned() },
            time: jiff::Timestamp::from_microsecond(place.committed_at).unwrap_or_default(),
            headers,
            payload: record.value,
            content_type: "application/json".to_owned(),
        };
        let routing_key = route.text(route.options.routing_key.as_ref(), &record.topic);
        RoutedMessage {
            routing_key,
            destination: route.text(route.options.destination.as_ref(), &record.topic),
            message,
        }
    })
}

fn name_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::Insert { .. } => "insert",
        Operation::Update { .. } => "update",
        Operation::Delete { .. } => "delete",
        Operation::Truncate => "truncate",
        Operation::Read { .. } => "read",
    }
}

/// Leaves out the columns that are not published.
fn project(operation: Operation, table: &PublishedTable) -> Operation {
    let row = |row: Row| -> Row {
        if row.len() == table.places.len() {
            return row;
        }
        table.places.iter().map(|place| row.get(*place).cloned().unwrap_or(crate::Value::Null)).collect()
    };
    match operation {
        Operation::Insert { after } => Operation::Insert { after: row(after) },
        Operation::Update { before, whole_before, after } => {
            Operation::Update { before: before.map(row), whole_before, after: row(after) }
        }
        Operation::Delete { before, whole_before } => Operation::Delete { before: row(before), whole_before },
        Operation::Truncate => Operation::Truncate,
        Operation::Read { after } => Operation::Read { after: row(after) },
    }
}

pub(crate) fn now_micros() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}
