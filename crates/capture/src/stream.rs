//! The stream of changes from a slot, in batches, each change with its place in the stream.
//!
//! A task of its own reads the connection, so that the server is answered also while nobody takes the batches. It never holds
//! more than the limits of two batches: then it stops to read, and the server waits.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    Address, CaptureError, Operation, ReplicationConnection,
    connection::{literal, protocol, quoted, server_error},
    pgoutput::{EPOCH, Message, Reader, Relation, decode},
};

type Result<T> = std::result::Result<T, CaptureError>;

/// How often the server is told where we are, and asked whether it is there.
const STATUS: Duration = Duration::from_secs(10);

/// A server that is silent for so long, although it was asked, is away. It may be busy with a large transaction of other tables,
/// and says nothing meanwhile; a host that is gone is found by TCP's own keep-alives.
const SILENCE: Duration = Duration::from_secs(300);

/// A confirmation waits for others for so long.
const GATHER: Duration = Duration::from_millis(50);

/// How long the end of a stream may take.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Which slot to read, and how.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// The slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Whether logical messages are wanted. Must stay the same as long as stored positions are used.
    pub messages: bool,
    /// What is up to here is known already and is left out.
    pub resume: Option<StreamPosition>,
    /// At most so many changes in a batch.
    pub batch_rows: usize,
    /// About so many bytes in a batch, but one change at least.
    pub batch_bytes: usize,
    /// A change with more bytes than this ends the stream.
    pub largest_change: usize,
}

impl StreamOptions {
    /// The defaults, for this slot and publication.
    pub fn new(slot: impl Into<String>, publication: impl Into<String>) -> Self {
        Self {
            slot: slot.into(),
            publication: publication.into(),
            messages: false,
            resume: None,
            batch_rows: 1000,
            batch_bytes: 8 * 1024 * 1024,
            largest_change: 1024 * 1024 * 1024,
        }
    }
}

/// The place of a change in the stream: the LSN of its commit, and its number within the transaction, from 1. The LSN of the
/// change itself is no place: rows of one COPY share it, and it does not grow from one transaction to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct StreamPosition {
    /// The LSN of the commit.
    pub commit_lsn: u64,
    /// Its number within the transaction.
    pub ordinal: u64,
}

/// A transaction that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Its number.
    pub number: u32,
    /// The LSN of its commit.
    pub commit_lsn: u64,
    /// When it was committed: microseconds since 1970.
    pub committed_at: i64,
}

/// One change of one row, or of a whole table.
#[derive(Debug, Clone)]
pub struct Change {
    /// The table.
    pub relation: Arc<Relation>,
    /// What was done.
    pub operation: Operation,
    /// The LSN of the change.
    pub lsn: u64,
    /// Its transaction.
    pub transaction: Arc<Transaction>,
    /// Its place in the stream.
    pub position: StreamPosition,
}

/// What somebody wrote into the log with `pg_logical_emit_message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalMessage {
    /// What it is about.
    pub prefix: String,
    /// What it says.
    pub content: Bytes,
    /// Its place in the stream.
    pub position: StreamPosition,
}

/// What the stream brings.
#[derive(Debug, Clone)]
pub enum StreamEvent {
    /// A change.
    Change(Change),
    /// A logical message.
    Message(LogicalMessage),
}

/// Some events, in the order of their commits.
#[derive(Debug, Default)]
pub struct ChangeBatch {
    /// The events.
    pub events: Vec<StreamEvent>,
    /// Where the slot may be once these and all before are safe: the end of the last transaction that is here to its end.
    pub confirm: Option<u64>,
    bytes: usize,
}

/// A slot that is read.
#[derive(Debug)]
pub struct ChangeStream {
    batches: mpsc::Receiver<Result<ChangeBatch>>,
    confirmed: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl ChangeStream {
    /// Connects and begins to read. The slot must exist and nobody else may read it.
    pub async fn start(address: &Address, options: StreamOptions) -> Result<Self> {
        let mut connection = ReplicationConnection::connect(address, options.largest_change).await?;
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {}{})",
            quoted(&options.slot),
            literal(&quoted(&options.publication)),
            if options.messages { ", messages 'true'" } else { "" }
        );
        connection.start_copy(&command).await?;
        let (sender, batches) = mpsc::channel(1);
        let (confirmed, confirmations) = watch::channel(0);
        let reader = ChangeReader {
            connection,
            resume: options.resume.unwrap_or_default(),
            rows: options.batch_rows,
            bytes: options.batch_bytes,
            relations: HashMap::new(),
            transaction: None,
            ordinal: 0,
            received: 0,
            batch: ChangeBatch::default(),
        };
        let task = tokio::spawn(reader.run(sender, confirmations));
        Ok(Self { batches, confirmed, task })
    }

    /// The next batch. After an error there is none any more. Nothing is lost if it is dropped before it is done.
    pub async fn next(&mut self) -> Result<ChangeBatch> {
        self.batches.recv().await.unwrap_or(Err(CaptureError::Ended))
    }

    /// All up to here is safe: the server may forget it.
    pub fn confirm(&self, lsn: u64) {
        self.confirmed.send_if_modified(|confirmed| {
            let grows = lsn > *confirmed;
            *confirmed = lsn.max(*confirmed);
            grows
        });
    }

    /// Tells the server what was confirmed last, and ends the stream in good order.
    pub async fn stop(&mut self) {
        self.batches.close();
        let _ = (&mut self.task).await;
    }
}

impl Drop for ChangeStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the connection.
struct ChangeReader {
    connection: ReplicationConnection,
    resume: StreamPosition,
    rows: usize,
    bytes: usize,
    relations: HashMap<u32, Arc<Relation>>,
    transaction: Option<Arc<Transaction>>,
    ordinal: u64,
    /// Where the server is, as far as we heard.
    received: u64,
    batch: ChangeBatch,
}

impl ChangeReader {
    async fn run(mut self, sender: mpsc::Sender<Result<ChangeBatch>>, mut confirmations: watch::Receiver<u64>) {
        let ended = self.read(&sender, &mut confirmations).await;
        match ended {
            Ok(()) => {
                let confirmed = *confirmations.borrow();
                let _ = timeout(LAST_WORDS, self.say_goodbye(confirmed)).await;
            }
            Err(error) => {
                // What came before the error is still good.
                if !self.batch.events.is_empty() {
                    let _ = sender.send(Ok(std::mem::take(&mut self.batch))).await;
                }
                let _ = sender.send(Err(error)).await;
            }
        }
    }

    /// Reads until nobody takes batches any more.
    async fn read(
        &mut self,
        sender: &mpsc::Sender<Result<ChangeBatch>>,
        confirmations: &mut watch::Receiver<u64>,
    ) -> Result<()> {
        let mut status = interval(STATUS);
        status.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        let mut gathering = std::pin::pin!(tokio::time::sleep(GATHER));
        let mut to_confirm = false;
        loop {
            let mut reply = false;
            while !self.is_full()
                && let Some(frame) = self.connection.buffered()?
            {
                match frame.tag {
                    b'd' => reply |= self.take(frame.body)?,
                    b'E' => return Err(server_error(&frame.body)),
                    b'c' => return Err(CaptureError::Ended),
                    _ => {}
                }
            }
            if reply {
                let confirmed = *confirmations.borrow();
                self.send_status(confirmed, false).await?;
            }
            let (has_some, is_full) = (!self.batch.events.is_empty() || self.batch.confirm.is_some(), self.is_full());
            if is_full {
                // It can not be heard while we do not listen.
                heard = Instant::now();
            }
            tokio::select! {
                permit = sender.reserve(), if has_some => match permit {
                    Ok(permit) => permit.send(Ok(std::mem::take(&mut self.batch))),
                    Err(_) => return Ok(()),
                },
                () = sender.closed() => return Ok(()),
                filled = self.connection.fill(), if !is_full => {
                    filled?;
                    heard = Instant::now();
                }
                changed = confirmations.changed(), if !to_confirm => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    to_confirm = true;
                    gathering.as_mut().reset(tokio::time::Instant::now() + GATHER);
                }
                () = &mut gathering, if to_confirm => {
                    to_confirm = false;
                    let confirmed = *confirmations.borrow_and_update();
                    self.send_status(confirmed, false).await?;
                }
                _ = status.tick() => {
                    if heard.elapsed() > SILENCE {
                        return Err(protocol(format!("the server was silent for {SILENCE:?}")));
                    }
                    let confirmed = *confirmations.borrow();
                    self.send_status(confirmed, true).await?;
                }
            }
        }
    }

    fn is_full(&self) -> bool {
        self.batch.events.len() >= self.rows || self.batch.bytes >= self.bytes
    }

    /// Takes one message of the stream; whether the server wants an answer.
    fn take(&mut self, mut body: Bytes) -> Result<bool> {
        let mut reader = Reader(&mut body);
        match reader.u8()? {
            b'k' => {
                let wal_end = reader.u64()?;
                reader.skip(8)?;
                let reply = reader.u8()? == 1;
                self.received = self.received.max(wal_end);
                // All that was committed before has been sent. Nothing of it is open.
                if self.transaction.is_none() {
                    self.may_confirm(wal_end);
                }
                Ok(reply)
            }
            b'w' => {
                let start = reader.u64()?;
                reader.skip(16)?;
                self.received = self.received.max(start);
                self.take_message(start, body)?;
                Ok(false)
            }
            other => Err(protocol(format!("a copied message of the unknown kind {:?}", other as char))),
        }
    }

    fn may_confirm(&mut self, lsn: u64) {
        self.batch.confirm = self.batch.confirm.max(Some(lsn));
    }

    fn take_message(&mut self, lsn: u64, body: Bytes) -> Result<()> {
        match decode(body)? {
            Message::Begin { commit_lsn, committed_at, transaction } => {
                self.transaction = Some(Arc::new(Transaction { number: transaction, commit_lsn, committed_at }));
                self.ordinal = 0;
            }
            Message::Commit { end_lsn } => {
                self.transaction = None;
                self.received = self.received.max(end_lsn);
                self.may_confirm(end_lsn);
            }
            Message::Relation(relation) => {
                self.relations.insert(relation.oid, Arc::new(relation));
            }
            Message::Insert { relation, after } => self.change(lsn, relation, Operation::Insert { after })?,
            Message::Update { relation, before, whole_before, after } => {
                self.change(lsn, relation, Operation::Update { before, whole_before, after })?;
            }
            Message::Delete { relation, before, whole_before } => {
                self.change(lsn, relation, Operation::Delete { before, whole_before })?;
            }
            Message::Truncate { relations } => {
                for relation in relations {
                    self.change(lsn, relation, Operation::Truncate)?;
                }
            }
            Message::Logical { in_transaction, lsn, prefix, content } => {
                let position = match &self.transaction {
                    Some(transaction) if in_transaction => {
                        self.ordinal += 1;
                        StreamPosition { commit_lsn: transaction.commit_lsn, ordinal: self.ordinal }
                    }
                    // Outside of transactions it has a place of its own: where the next record begins, which may be a commit.
                    _ => StreamPosition { commit_lsn: lsn, ordinal: 0 },
                };
                if position > self.resume {
                    self.push(content.len(), StreamEvent::Message(LogicalMessage { prefix, content, position }));
                }
            }
            Message::Other => {}
        }
        Ok(())
    }

    fn change(&mut self, lsn: u64, relation: u32, operation: Operation) -> Result<()> {
        let relation = self.relations.get(&relation);
        let relation = Arc::clone(relation.ok_or_else(|| protocol("a change of a table that was not described"))?);
        let transaction = self.transaction.as_ref().ok_or_else(|| protocol("a change outside of transactions"))?;
        self.ordinal += 1;
        let position = StreamPosition { commit_lsn: transaction.commit_lsn, ordinal: self.ordinal };
        if position > self.resume {
            let transaction = Arc::clone(transaction);
            let change = Change { relation, operation, lsn, transaction, position };
            self.push(change.operation.size(), StreamEvent::Change(change));
        }
        Ok(())
    }

    fn push(&mut self, bytes: usize, event: StreamEvent) {
        self.batch.bytes += bytes;
        self.batch.events.push(event);
    }

    async fn send_status(&mut self, confirmed: u64, ask: bool) -> Result<()> {
        let mut body = BytesMut::with_capacity(34);
        body.put_u8(b'r');
        body.put_u64(self.received.max(confirmed));
        body.put_u64(confirmed);
        body.put_u64(confirmed);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        body.put_i64(i64::try_from(now.as_micros()).unwrap_or(i64::MAX) - EPOCH);
        body.put_u8(ask.into());
        self.connection.send(b'd', &body).await
    }

    async fn say_goodbye(&mut self, confirmed: u64) -> Result<()> {
        self.send_status(confirmed, false).await?;
        self.connection.send(b'c', &[]).await?;
        loop {
            match self.connection.read().await?.tag {
                b'Z' | b'E' => break,
                _ => {}
            }
        }
        self.connection.send(b'X', &[]).await
    }
}
