//! The stream of changes from a slot, in batches, each change with its place in the stream.
//!
//! With a spool, the server sends large transactions while they are open. They wait on disk, and come here after their
//! commit like any other, with the same positions. So a position that was stored with a spool can be used without one,
//! and the other way round.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    Address, CaptureError, Operation, ReplicationConnection, Spool,
    connection::{literal, quoted},
    pgoutput::Relation,
    reader::ChangeReader,
};

type Result<T> = std::result::Result<T, CaptureError>;

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
    /// Where large transactions wait for their commit. Without it the server keeps them, and sends them after it.
    pub spool: Option<Spool>,
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
            spool: None,
        }
    }
}

/// The place of a change in the stream: the LSN of its commit, and its number within the transaction, from 1. The LSN
/// of the change itself is no place: rows of one COPY share it, and it does not grow from one transaction to the next.
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
    /// Where the slot may be once these and all before are safe: the end of the last transaction that is here to its
    /// end.
    pub confirm: Option<u64>,
    pub(crate) bytes: usize,
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
        let name = format!("{address:?} {}", options.slot);
        let spool = options.spool.as_ref().filter(|spool| !spool.is_suspended(&name));
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 ({}, publication_names {}{})",
            quoted(&options.slot),
            if spool.is_some() { "proto_version '2', streaming 'on'" } else { "proto_version '1'" },
            literal(&quoted(&options.publication)),
            if options.messages { ", messages 'true'" } else { "" }
        );
        connection.start_copy(&command).await?;
        let open = match spool {
            Some(spool) => Some(spool.begin(&options.slot).await.inspect_err(|_| spool.suspend(&name))?),
            None => None,
        };
        if let (Some(spool), None) = (&options.spool, &open) {
            tracing::info!(slot = options.slot, "a stream of changes goes without the spool, because it failed before");
            spool.end_suspension(&name);
        }
        let (sender, batches) = mpsc::channel(1);
        let (confirmed, confirmations) = watch::channel(0);
        let reader = ChangeReader::new(connection, &options, open, name);
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
