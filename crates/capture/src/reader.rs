//! Reads the connection of a stream, decodes, and puts changes into batches.
//!
//! A task of its own does it, so that the server is answered also while nobody takes the batches, or while a
//! transaction is read back from disk. It never holds more than the limits of two batches: then it stops to read, and
//! the server waits.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    CaptureError, Change, ChangeBatch, LogicalMessage, Operation, ReplicationConnection, Spool, StreamEvent,
    StreamOptions, StreamPosition, Transaction,
    connection::{protocol, server_error},
    pgoutput::{BlockMessage, EPOCH, Message, Reader, Relation, decode},
    spool::{OpenTransactions, Replay},
};

type Result<T> = std::result::Result<T, CaptureError>;

/// How often the server is told where we are, and asked whether it is there.
const STATUS: Duration = Duration::from_secs(10);

/// A server that is silent for so long, although it was asked, is away. It may be busy with a large transaction of
/// other tables, and says nothing meanwhile; a host that is gone is found by TCP's own keep-alives.
const SILENCE: Duration = Duration::from_secs(300);

/// A confirmation waits for others for so long.
const GATHER: Duration = Duration::from_millis(50);

/// How long the end of a stream may take.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the connection.
pub(crate) struct ChangeReader {
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
    /// What this stream is called in the spool.
    name: String,
    spool: Option<Spool>,
    /// The transactions that come while they are open, if they do.
    open: Option<OpenTransactions>,
    /// The one that is read back from disk. What comes from the server waits meanwhile.
    replay: Option<Replay>,
}

impl ChangeReader {
    pub(crate) fn new(
        connection: ReplicationConnection,
        options: &StreamOptions,
        open: Option<OpenTransactions>,
        name: String,
    ) -> Self {
        Self {
            connection,
            resume: options.resume.unwrap_or_default(),
            rows: options.batch_rows,
            bytes: options.batch_bytes,
            relations: HashMap::new(),
            transaction: None,
            ordinal: 0,
            received: 0,
            batch: ChangeBatch::default(),
            name,
            spool: options.spool.clone(),
            open,
            replay: None,
        }
    }

    pub(crate) async fn run(
        mut self,
        sender: mpsc::Sender<Result<ChangeBatch>>,
        mut confirmations: watch::Receiver<u64>,
    ) {
        let ended = self.read(&sender, &mut confirmations).await;
        match ended {
            Ok(()) => {
                let confirmed = *confirmations.borrow();
                let _ = timeout(END_TIMEOUT, self.end_copy(confirmed)).await;
            }
            Err(error) => {
                if let (Some(spool), Some(_)) = (&self.spool, &self.open)
                    && error.is_of_spool()
                {
                    spool.suspend(&self.name);
                }
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
            self.take_replay()?;
            if self.take_buffered()? {
                let confirmed = *confirmations.borrow();
                self.send_status(confirmed, false).await?;
            }
            if let Some(open) = self.open.as_mut().filter(|open| open.must_write()) {
                open.write().await?;
                continue;
            }
            let is_replaying = self.replay.is_some();
            let (has_some, is_full) = (!self.batch.events.is_empty() || self.batch.confirm.is_some(), self.is_full());
            if is_full || is_replaying {
                // It can not be heard while we do not listen.
                heard = Instant::now();
            }
            tokio::select! {
                permit = sender.reserve(), if has_some => match permit {
                    Ok(permit) => permit.send(Ok(std::mem::take(&mut self.batch))),
                    Err(_) => return Ok(()),
                },
                () = sender.closed() => return Ok(()),
                filled = self.connection.fill(), if !is_full && !is_replaying => {
                    filled?;
                    heard = Instant::now();
                }
                read = fill(&mut self.replay), if !is_full && is_replaying => read?,
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

    /// Takes the messages that have come, as far as there is room; whether the server wants an answer.
    fn take_buffered(&mut self) -> Result<bool> {
        let mut reply = false;
        while !self.is_full()
            && self.replay.is_none()
            && !self.open.as_ref().is_some_and(OpenTransactions::must_write)
            && let Some(frame) = self.connection.buffered()?
        {
            match frame.tag {
                b'd' => reply |= self.take(frame.body)?,
                b'E' => return Err(server_error(&frame.body)),
                b'c' => return Err(CaptureError::Ended),
                _ => {}
            }
            self.take_replay()?;
        }
        Ok(reply)
    }

    /// Takes what was read back from disk, as far as there is room.
    fn take_replay(&mut self) -> Result<()> {
        while !self.is_full()
            && let Some(replay) = &mut self.replay
        {
            match replay.next()? {
                Some((lsn, message)) => self.take_decoded(lsn, message)?,
                None if replay.is_done() => {
                    let end_lsn = replay.end_lsn;
                    self.replay = None;
                    self.end_transaction(end_lsn);
                }
                None => break,
            }
        }
        Ok(())
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
                // All that was committed before has been sent. A transaction that comes while it is open is committed
                // later, so that the server sends all of it again.
                if self.transaction.is_none() && !self.open.as_ref().is_some_and(OpenTransactions::is_in_block) {
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
        match &mut self.open {
            Some(open) if open.is_in_block() && !BlockMessage::is_stop(&body) => open.keep(lsn, &body),
            _ => self.take_decoded(lsn, decode(body)?),
        }
    }

    fn end_transaction(&mut self, end_lsn: u64) {
        self.transaction = None;
        self.received = self.received.max(end_lsn);
        self.may_confirm(end_lsn);
    }

    fn take_decoded(&mut self, lsn: u64, message: Message) -> Result<()> {
        match message {
            Message::Begin { commit_lsn, committed_at, transaction } => {
                self.transaction = Some(Arc::new(Transaction { number: transaction, commit_lsn, committed_at }));
                self.ordinal = 0;
            }
            Message::Commit { end_lsn } => self.end_transaction(end_lsn),
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
                    // Outside of transactions it has a place of its own: where the next record begins, which may be a
                    // commit.
                    _ => StreamPosition { commit_lsn: lsn, ordinal: 0 },
                };
                if position > self.resume {
                    self.push(content.len(), StreamEvent::Message(LogicalMessage { prefix, content, position }));
                }
            }
            Message::StreamStart { transaction } => self.open()?.start_block(transaction)?,
            Message::StreamStop => self.open()?.stop_block()?,
            Message::StreamAbort { transaction, subtransaction } => self.open()?.abort(transaction, subtransaction)?,
            Message::StreamCommit { transaction, commit_lsn, end_lsn, committed_at } => {
                let transaction = Transaction { number: transaction, commit_lsn, committed_at };
                let replay = self.open()?.commit(transaction, end_lsn)?;
                (self.transaction, self.ordinal) = (Some(Arc::clone(&replay.transaction)), 0);
                self.replay = Some(replay);
            }
            Message::Other => {}
        }
        Ok(())
    }

    fn open(&mut self) -> Result<&mut OpenTransactions> {
        self.open.as_mut().ok_or_else(|| protocol("an open transaction, although none was asked for"))
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

    async fn end_copy(&mut self, confirmed: u64) -> Result<()> {
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

/// Reads more of what is read back; waits for ever if there is nothing.
async fn fill(replay: &mut Option<Replay>) -> Result<()> {
    match replay {
        Some(replay) => replay.fill().await,
        None => std::future::pending().await,
    }
}
