//! Captures tables: follows the slot, makes Debezium's records of changes, and hands them to a sink.
//!
//! A batch is published, then its position is stored, then the slot is told: a crash between any two of these repeats records and
//! skips none. Many processes may run the same capture. The slot lets one of them read; the others stand by.
//!
//! A message that the sink does not take is tried again for ever, and everything waits behind it: unlike an outbox, a capture has
//! no row in which to keep it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use relais_message::Sink;
use tokio_util::sync::CancellationToken;

use crate::{
    CaptureActivity, CaptureError, CaptureHandle, CaptureOptions, CaptureProgress, CapturedDatabase, ChangeStream,
    Publication, ReplicationConnection, Slot, StreamOptions, StreamPosition, SystemIdentity,
    catalog::Catalog,
    debezium::Envelope,
    follow::{Following, StoredPosition, now_micros},
    progress::ProgressStore,
    snapshot::Streamed,
};

type Result<T> = std::result::Result<T, CaptureError>;

/// How often a process that stands by looks whether the slot is free.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The longest pause before something is tried again.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Captures tables.
pub struct Capture {
    pub(crate) database: CapturedDatabase,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) options: CaptureOptions,
    pub(crate) handle: CaptureHandle,
    /// What the sink has confirmed in this process, and the timeline then. A standby that takes over may never have had it, and
    /// then the progress that it has is older too.
    reached: Mutex<Option<(u32, StreamPosition)>>,
}

impl Capture {
    /// A capture that begins with [`run`](Self::run).
    pub fn new(database: CapturedDatabase, sink: Arc<dyn Sink>, options: CaptureOptions) -> Self {
        Self { database, sink, options, handle: CaptureHandle::default(), reached: Mutex::default() }
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
            let why = error.describe();
            if self.handle.stats().trouble.as_ref() != Some(&why) {
                tracing::warn!(capture = self.options.name, why, "tables are not captured for now");
            }
            self.handle.update(|stats| (stats.activity, stats.trouble) = (CaptureActivity::StandBy, Some(why)));
            // Nobody reads the slot meanwhile, and the server keeps its WAL.
            tokio::select! {
                protected = self.database.protect(&self.options) => {
                    if let Err(error @ CaptureError::SlotTooLarge { .. }) = protected {
                        tracing::warn!(capture = self.options.name, why = error.describe(), "dropped a slot");
                    }
                }
                () = stop.cancelled() => {}
            }
            failures += 1;
            let pause = Duration::from_millis(100).saturating_mul(2_u32.saturating_pow(failures.min(16)));
            self.sleep(pause.min(LONGEST_PAUSE), &stop).await;
        }
    }

    pub(crate) async fn sleep(&self, pause: Duration, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Makes ready what is missing, and follows the stream until it ends.
    async fn capture(&self, stop: &CancellationToken, failures: &mut u32) -> Result<()> {
        let progress = tokio::select! {
            progress = self.prepare() => progress?,
            () = stop.cancelled() => return Ok(()),
        };
        let options = StreamOptions {
            messages: true,
            resume: Some(progress.position),
            batch_rows: self.options.batch_rows,
            batch_bytes: self.options.batch_bytes,
            spool: self.options.spool.clone(),
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
            up_to: None,
            first_of_snapshot: true,
            run,
            reading: None,
            streamed: Streamed::default(),
            left_out: HashSet::new(),
            position: StoredPosition::new(progress.position),
            timeline: progress.timeline,
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
        let slot = Slot::new(&options.slot)?;
        // Nothing is changed by those who stand by: whoever reads may have a newer declaration.
        if slot.state(&database.pool).await?.is_some_and(|state| state.active) {
            return Err(CaptureError::in_use());
        }
        let lacks = database.check(options).await?;
        let lacks: Vec<String> = lacks.iter().filter(|lack| !lack.only_a_warning).map(ToString::to_string).collect();
        if !lacks.is_empty() {
            return Err(CaptureError::Lacks(lacks.join("; ")));
        }
        let store = database.store(options);
        store.prepare().await?;
        let operations = "insert, update, delete, truncate".to_owned();
        let publication = Publication {
            name: options.publication.clone(),
            tables: options.tables.clone(),
            operations,
            owner: options.owner(),
        };
        publication.ensure(&database.pool).await?;
        let mut connection = ReplicationConnection::connect(&database.address, 1024 * 1024).await?;
        let identity = connection.identify_system().await?;
        let (state, progress) = (slot.state(&database.pool).await?, store.read().await?);
        match (state, progress) {
            (Some(state), Some(progress)) if !state.lost => {
                if progress.system != identity.system {
                    return Err(CaptureError::OtherServer);
                }
                let published = progress.position.max(self.reached_on(progress.timeline));
                if was_lost(&mut connection, &identity, progress.timeline, published).await? {
                    // Others, and whoever comes after us, would not know.
                    store.advance(published).await?;
                    let tables = self.tables_after_gap(progress).ok_or(CaptureError::Rewound)?;
                    store.begin(&identity, &tables).await?;
                    store.advance(from(state.confirmed_lsn)).await?;
                } else {
                    if progress.timeline != identity.timeline {
                        store.set_timeline(identity.timeline).await?;
                    }
                    store.claim_slot().await?;
                    return self.without_removed_tables(&store, progress).await;
                }
            }
            // Somebody else made it, and knows from where it is to go on.
            (Some(state), None) if !state.lost => {
                store.begin(&identity, &[]).await?;
                store.advance(from(state.confirmed_lsn)).await?;
            }
            (state, progress) => {
                let tables = match progress {
                    // It had no slot yet: what was to be read is still to be read.
                    Some(progress) if progress.position == StreamPosition::default() => progress.snapshot,
                    Some(progress) => self.tables_after_gap(progress).ok_or(CaptureError::Gap)?,
                    None if options.initial_snapshot => options.table_names(),
                    None => Vec::new(),
                };
                if state.is_some() {
                    slot.drop(&database.pool).await?;
                }
                // Before the slot, so that a crash between the two does not leave one without a snapshot.
                store.begin(&identity, &tables).await?;
                let new = slot.create(&database.address).await?;
                // From now on a slot that is missing is a gap.
                store.advance(from(new.consistent_point)).await?;
            }
        }
        store.read().await?.ok_or(CaptureError::Gap)
    }

    /// The sink has confirmed all up to here.
    pub(crate) fn note_reached(&self, timeline: u32, position: StreamPosition) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some((timeline, position));
    }

    fn reached_on(&self, timeline: u32) -> StreamPosition {
        let reached = *self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached.filter(|(on, _)| *on == timeline).map(|(_, position)| position).unwrap_or_default()
    }

    /// The tables that are read anew because changes are gone; none if that has to wait until an operator asks for it.
    fn tables_after_gap(&self, progress: CaptureProgress) -> Option<Vec<String>> {
        let tables = match self.options.initial_snapshot {
            true => self.options.table_names(),
            // An operator who asks for a snapshot knows of the gap.
            false => progress.snapshot,
        };
        if tables.is_empty() {
            return None;
        }
        tracing::warn!(
            capture = self.options.name,
            "the slot or the log is gone, and changes with it: tables are read anew"
        );
        Some(tables)
    }

    /// A table that is not captured any more is not read any further.
    pub(crate) async fn without_removed_tables(
        &self,
        store: &ProgressStore,
        mut progress: CaptureProgress,
    ) -> Result<CaptureProgress> {
        let tables = self.options.table_names();
        while let Some(removed) = progress.snapshot.iter().position(|table| !tables.contains(table)) {
            let table = progress.snapshot.remove(removed);
            store.remove_from_snapshot(&table).await?;
            if removed == 0 {
                progress.after_key = None;
            }
        }
        Ok(progress)
    }
}

/// Whether the server does not have what was published: it was restored, or it is a standby that took over and was behind.
async fn was_lost(
    connection: &mut ReplicationConnection,
    identity: &SystemIdentity,
    timeline: u32,
    published: StreamPosition,
) -> Result<bool> {
    if timeline == identity.timeline {
        return Ok(published.commit_lsn > identity.wal_end);
    }
    // The log of a server that took over goes on with other changes at the switch: a commit that begins there is not its own.
    let switch = connection.timeline_switch(identity.timeline, timeline).await?;
    Ok(switch.is_none_or(|lsn| published.commit_lsn >= lsn))
}

/// The place before all changes of transactions that commit at this LSN or later.
fn from(lsn: u64) -> StreamPosition {
    StreamPosition { commit_lsn: lsn, ordinal: 0 }
}
