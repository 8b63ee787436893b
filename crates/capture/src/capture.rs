//! Captures tables: follows the slot, makes Debezium's records of changes, and hands them to a sink.
//!
//! A batch is published, then its position is stored, then the slot is told: a crash between any two of these repeats records and
//! skips none. Many processes may run the same capture. The slot lets one of them read; the others stand by.
//!
//! A message that the sink does not take is tried again for ever, and everything waits behind it: unlike an outbox, a capture has
//! no row in which to keep it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use relais_message::{Headers, Message, PublishOutcome, RoutedMessage, Sink};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Address, CaptureError, CaptureProgress, Change, ChangeBatch, ChangeStream, ColumnRules, Lack, Operation,
    Publication, PublishedTable, Relation, RelationColumn, ReplicationConnection, Row, Slot, SlotState, SnapshotPlace,
    Source, StreamEvent, StreamOptions, StreamPosition, Wanted,
    catalog::Catalog,
    check,
    debezium::{Envelope, EnvelopeOptions, Record},
    progress::ProgressStore,
    snapshot::{Chunk, PREFIX, SnapshotReader, Streamed, Watermarks, key_of},
};

type Result<T> = std::result::Result<T, CaptureError>;

/// Connections of a capture: one for progress, one to look after the slot.
const CONNECTIONS: u32 = 2;

/// How often the slot is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// How often a process that stands by looks whether the slot is free.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The longest pause before something is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What is captured, and how it is published.
#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// Its name. It is the first part of topics.
    pub name: String,
    /// Schema and name of each table.
    pub tables: Vec<(String, String)>,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Which columns are published, and how.
    pub columns: ColumnRules,
    /// How records look.
    pub envelope: EnvelopeOptions,
    /// Whether the rows that are there at the beginning are published too.
    pub initial_snapshot: bool,
    /// At most so many rows of a snapshot at once.
    pub chunk_rows: usize,
    /// At most so many changes at once.
    pub batch_rows: usize,
    /// About so many bytes at once.
    pub batch_bytes: usize,
    /// How long the sink may take for one batch.
    pub publish_timeout: Duration,
    /// A slot for which the server keeps more WAL than this is dropped: its disk comes first. There is a gap then, and tables are
    /// read anew.
    pub max_retained_wal: Option<u64>,
}

impl CaptureOptions {
    /// The defaults, for a capture of this name. `tables` are names or `schema.name`.
    pub fn new(name: impl Into<String>, tables: &[&str]) -> Result<Self> {
        let name = name.into();
        let simple = name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let slot = Slot::new(format!("relais_{simple}"))?.name().to_owned();
        let table = |table: &&str| {
            let (schema, name) = table.split_once('.').unwrap_or(("public", table));
            (schema.to_owned(), name.to_owned())
        };
        Ok(Self {
            envelope: EnvelopeOptions::new(&name),
            name,
            tables: tables.iter().map(table).collect(),
            publication: slot.clone(),
            slot,
            columns: ColumnRules::default(),
            initial_snapshot: true,
            chunk_rows: 1000,
            batch_rows: 1000,
            batch_bytes: 8 * 1024 * 1024,
            publish_timeout: Duration::from_secs(30),
            max_retained_wal: None,
        })
    }

    fn table_names(&self) -> Vec<String> {
        self.tables.iter().map(|(schema, name)| format!("{schema}.{name}")).collect()
    }
}

/// What a capture does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CaptureActivity {
    /// Somebody else reads the slot, or it is not there yet.
    #[default]
    StandBy,
    /// It follows the stream, and reads tables beside it.
    Snapshot,
    /// It follows the stream.
    Streaming,
}

/// What a capture has done so far, and how it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Changes whose records the sink confirmed.
    pub changes: u64,
    /// Rows of snapshots whose records the sink confirmed.
    pub snapshot_rows: u64,
    /// What it does.
    pub activity: CaptureActivity,
    /// Why nothing goes on, if that is so.
    pub trouble: Option<String>,
    /// How much WAL the server keeps for the slot, in bytes.
    pub retained_wal: Option<u64>,
    /// How much WAL is not confirmed yet, in bytes.
    pub unconfirmed_wal: Option<u64>,
    /// When the last change that was published was committed: microseconds since 1970.
    pub last_committed_at: Option<i64>,
}

/// Sees how a capture is, from anywhere.
#[derive(Debug, Clone, Default)]
pub struct CaptureHandle(Arc<watch::Sender<CaptureStats>>);

impl CaptureHandle {
    /// What it has done so far, and how it is.
    pub fn stats(&self) -> CaptureStats {
        self.0.borrow().clone()
    }

    /// Waits until it is as wanted.
    pub async fn until(&self, wanted: impl FnMut(&CaptureStats) -> bool) {
        // An error would say that nobody can change it any more; this handle can.
        let _ = self.0.subscribe().wait_for(wanted).await;
    }

    fn update(&self, change: impl FnOnce(&mut CaptureStats)) {
        self.0.send_if_modified(|stats| {
            let before = stats.clone();
            change(stats);
            *stats != before
        });
    }
}

/// A database of which tables are captured: what can be asked and done without capturing.
#[derive(Debug, Clone)]
pub struct CapturedDatabase {
    pool: PgPool,
    address: Address,
    url: String,
}

impl CapturedDatabase {
    /// Connects.
    pub async fn connect(url: &str) -> Result<Self> {
        let address = Address::parse(url)?;
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false).connect(url).await?;
        Ok(Self { pool, address, url: url.to_owned() })
    }

    /// What the database lacks; nothing is changed.
    pub async fn check(&self, options: &CaptureOptions) -> Result<Vec<Lack>> {
        let wanted = Wanted {
            tables: options.tables.clone(),
            changes: true,
            slot: options.slot.clone(),
            publication: options.publication.clone(),
        };
        check(&self.pool, &wanted).await
    }

    /// How the slot is; none if there is none.
    pub async fn slot(&self, options: &CaptureOptions) -> Result<Option<SlotState>> {
        Slot::new(&options.slot)?.state(&self.pool).await
    }

    /// How far the capture is; none if it never began.
    pub async fn progress(&self, options: &CaptureOptions) -> Result<Option<CaptureProgress>> {
        self.store(options).read().await
    }

    /// Asks for tables to be read again beside the stream, all of them if none is named; whether the capture ever ran.
    pub async fn request_snapshot(&self, options: &CaptureOptions, tables: &[String]) -> Result<bool> {
        let all = options.table_names();
        if let Some(unknown) = tables.iter().find(|table| !all.contains(table)) {
            return Err(CaptureError::Name(format!("{unknown} is not captured; there are {}", all.join(", "))));
        }
        self.store(options).request_snapshot(if tables.is_empty() { &all } else { tables }).await
    }

    /// Drops slot and publication and forgets how far the capture is.
    pub async fn drop(&self, options: &CaptureOptions) -> Result<()> {
        Slot::new(&options.slot)?.drop(&self.pool).await?;
        Publication::drop(&options.publication, &self.pool).await?;
        self.store(options).forget().await
    }

    fn store(&self, options: &CaptureOptions) -> ProgressStore {
        ProgressStore { pool: self.pool.clone(), capture: options.name.clone() }
    }
}

/// Captures tables.
pub struct Capture {
    database: CapturedDatabase,
    sink: Arc<dyn Sink>,
    options: CaptureOptions,
    handle: CaptureHandle,
}

impl Capture {
    /// A capture that begins with [`run`](Self::run).
    pub fn new(database: CapturedDatabase, sink: Arc<dyn Sink>, options: CaptureOptions) -> Self {
        Self { database, sink, options, handle: CaptureHandle::default() }
    }

    /// Sees how it is.
    pub fn handle(&self) -> CaptureHandle {
        self.handle.clone()
    }

    /// Captures until it is told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let mut failures: u32 = 0;
        while !stop.is_cancelled() {
            let error = match self.capture(&stop, &mut failures).await {
                Ok(()) => continue,
                Err(error) => error,
            };
            if error.is_in_use() {
                self.handle.update(|stats| (stats.activity, stats.trouble) = (CaptureActivity::StandBy, None));
                self.sleep(LOOK_EVERY, &stop).await;
                continue;
            }
            let why = describe(&error);
            if self.handle.stats().trouble.as_ref() != Some(&why) {
                tracing::warn!(capture = self.options.name, why, "tables are not captured for now");
            }
            self.handle.update(|stats| (stats.activity, stats.trouble) = (CaptureActivity::StandBy, Some(why)));
            failures += 1;
            let pause = Duration::from_millis(100).saturating_mul(2_u32.saturating_pow(failures.min(16)));
            self.sleep(pause.min(LONGEST_PAUSE), &stop).await;
        }
    }

    async fn sleep(&self, pause: Duration, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Makes ready what is missing, and follows the stream until it ends.
    async fn capture(&self, stop: &CancellationToken, failures: &mut u32) -> Result<()> {
        let progress = self.prepare().await?;
        let options = StreamOptions {
            messages: true,
            resume: Some(progress.position),
            batch_rows: self.options.batch_rows,
            batch_bytes: self.options.batch_bytes,
            ..StreamOptions::new(&self.options.slot, &self.options.publication)
        };
        let stream = ChangeStream::start(&self.database.address, options).await?;
        let run = format!("{}-{:x}", self.options.name, std::process::id() ^ now_micros() as u32);
        let mut following = Following {
            capture: self,
            stream,
            store: self.database.store(&self.options),
            catalog: Catalog::new(self.database.pool.clone(), self.options.columns.clone()),
            tables: HashMap::new(),
            envelope: Envelope::new(self.options.envelope.clone()),
            snapshot: progress.snapshot.into(),
            after_key: progress.after_key,
            first_of_snapshot: true,
            run,
            reading: None,
            streamed: Streamed::default(),
            position: progress.position,
            watched: Instant::now(),
            failures,
        };
        let ended = following.follow(stop).await;
        if ended.is_ok() {
            following.stream.stop().await;
        }
        ended
    }

    /// Makes publication, slot and progress where they are missing; how far the capture is.
    async fn prepare(&self) -> Result<CaptureProgress> {
        let (database, options) = (&self.database, &self.options);
        let lacks = database.check(options).await?;
        let lacks: Vec<String> = lacks.iter().filter(|lack| !lack.only_a_warning).map(ToString::to_string).collect();
        if !lacks.is_empty() {
            return Err(CaptureError::Lacks(lacks.join("; ")));
        }
        let store = database.store(options);
        store.prepare().await?;
        let operations = "insert, update, delete, truncate".to_owned();
        let publication = Publication { name: options.publication.clone(), tables: options.tables.clone(), operations };
        publication.ensure(&database.pool).await?;
        let mut connection = ReplicationConnection::connect(&database.address, 1024 * 1024).await?;
        let identity = connection.identify_system().await?;
        let slot = Slot::new(&options.slot)?;
        let (state, progress) = (slot.state(&database.pool).await?, store.read().await?);
        let tables = if options.initial_snapshot { options.table_names() } else { Vec::new() };
        match (state, progress) {
            (Some(state), Some(progress)) if !state.lost => {
                if progress.system != identity.system {
                    return Err(CaptureError::OtherServer);
                }
                if progress.position.commit_lsn > identity.wal_end {
                    return Err(CaptureError::Rewound);
                }
                return Ok(progress);
            }
            // Somebody else made it, and knows from where it is to go on.
            (Some(state), None) if !state.lost => store.begin(&identity, &[]).await?,
            (state, progress) => {
                if progress.is_some_and(|progress| progress.position.commit_lsn > 0) {
                    if !options.initial_snapshot {
                        return Err(CaptureError::Gap);
                    }
                    tracing::warn!(
                        capture = options.name,
                        "the slot is gone, and changes with it: all tables are read anew"
                    );
                }
                if state.is_some() {
                    slot.drop(&database.pool).await?;
                }
                // Before the slot, so that a crash between the two does not leave one without a snapshot.
                store.begin(&identity, &tables).await?;
                slot.create(&database.address).await?;
            }
        }
        store.read().await?.ok_or(CaptureError::Gap)
    }
}

/// A chunk that is being read, and the keys that were changed since its first watermark was streamed.
struct Reading {
    table: String,
    marks: Watermarks,
    task: JoinHandle<Result<(Chunk, Watermarks)>>,
    changed: Option<ChangedRows>,
}

/// Rows that were changed while a chunk was read.
#[derive(Default)]
struct ChangedRows {
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

/// Follows the stream.
struct Following<'a> {
    capture: &'a Capture,
    stream: ChangeStream,
    store: ProgressStore,
    catalog: Catalog,
    tables: HashMap<u32, (Arc<Relation>, Arc<PublishedTable>)>,
    envelope: Envelope,
    snapshot: VecDeque<String>,
    after_key: Option<Vec<String>>,
    first_of_snapshot: bool,
    run: String,
    reading: Option<Reading>,
    streamed: Streamed,
    position: StreamPosition,
    watched: Instant,
    failures: &'a mut u32,
}

impl Following<'_> {
    async fn follow(&mut self, stop: &CancellationToken) -> Result<()> {
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
                () = stop.cancelled() => return Ok(()),
                batch = self.stream.next() => {
                    let ChangeBatch { events, confirm, .. } = batch?;
                    let outgoing = self.outgoing(events).await?;
                    if !self.deliver(outgoing, stop).await? {
                        return Ok(());
                    }
                    if let Some(lsn) = confirm {
                        self.stream.confirm(lsn);
                    }
                    *self.failures = 0;
                }
                _ = upkeep.tick() => self.upkeep().await?,
            }
        }
    }

    /// Begins to read the next chunk of a snapshot, if there is one and none is being read.
    fn read_on(&mut self) {
        let Some(table) = self.snapshot.front().filter(|_| self.reading.is_none()).cloned() else { return };
        let (url, after) = (self.capture.database.url.clone(), self.after_key.clone());
        let run = format!("{}-{:x}", self.run, now_micros());
        let (rows, bytes) = (self.capture.options.chunk_rows, self.capture.options.batch_bytes);
        let marks = Watermarks::first(&run);
        let of = table.clone();
        let task = tokio::spawn(async move {
            SnapshotReader::connect(&url, run, rows, bytes).await?.read(&of, after.as_deref()).await
        });
        self.reading = Some(Reading { table, marks, task, changed: None });
    }

    /// Looks at the slot, and whether a snapshot was asked for.
    async fn upkeep(&mut self) -> Result<()> {
        // A reader that failed before its marks never shows in the stream.
        if let Some(reading) = self.reading.take_if(|reading| reading.changed.is_none() && reading.task.is_finished()) {
            match reading.task.await {
                Ok(Err(error)) => return Err(error),
                // The marks are on their way.
                Ok(Ok(read)) => {
                    let task = tokio::spawn(async move { Ok(read) });
                    self.reading = Some(Reading { table: reading.table, marks: reading.marks, task, changed: None });
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
        if let Some(limit) = options.max_retained_wal.filter(|limit| state.retained > *limit) {
            Slot::new(&options.slot)?.drop(&database.pool).await?;
            return Err(CaptureError::SlotTooLarge { retained: state.retained, limit });
        }
        if self.reading.is_none()
            && let Some(progress) = self.store.read().await?
        {
            (self.snapshot, self.after_key) = (progress.snapshot.into(), progress.after_key);
        }
        Ok(())
    }

    /// The messages of a batch.
    async fn outgoing(&mut self, events: Vec<StreamEvent>) -> Result<Outgoing> {
        let mut outgoing = Outgoing::default();
        let now = now_micros();
        for event in events {
            match event {
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
                    outgoing.messages.extend(messages(records, &place));
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
            let id = match chunk.key.is_empty() {
                true => format!("{}-{:x}-{number}", chunk.table, position.commit_lsn),
                false => format!("{}-{:x}-{}", chunk.table, position.commit_lsn, key_of(&row, &chunk.key).join("-")),
            };
            let operation = project(Operation::Read { after: row }, &table);
            let records = self.envelope.records(&table.table, &operation, &source, now / 1000);
            outgoing.messages.extend(messages(records, &MessagePlace { id, name: "read", committed_at: now }));
            outgoing.snapshot_rows += 1;
        }
        if chunk.is_last {
            self.snapshot.pop_front();
            self.after_key = None;
            self.first_of_snapshot = self.snapshot.is_empty();
            outgoing.read.push((chunk.table, None));
        } else {
            self.after_key = chunk.last;
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

    /// Publishes until the sink has confirmed everything, and stores how far it is; false if it was told to stop before.
    async fn deliver(&mut self, outgoing: Outgoing, stop: &CancellationToken) -> Result<bool> {
        let Outgoing { mut messages, changes, snapshot_rows, position, committed_at, read } = outgoing;
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
        if let Some(position) = position.filter(|position| *position > self.position) {
            self.store.advance(position).await?;
            self.position = position;
        }
        for (table, after_key) in read {
            self.store.advance_snapshot(&table, after_key.as_deref()).await?;
        }
        self.capture.handle.update(|stats| {
            stats.changes += changes;
            stats.snapshot_rows += snapshot_rows;
            stats.last_committed_at = committed_at.or(stats.last_committed_at);
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

fn messages(records: Vec<Record>, place: &MessagePlace) -> impl Iterator<Item = RoutedMessage> {
    records.into_iter().enumerate().map(|(number, record)| {
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
        RoutedMessage { routing_key: record.topic.clone(), destination: record.topic, message }
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

fn describe(error: &CaptureError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn now_micros() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}
