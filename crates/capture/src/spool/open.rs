//! The transactions that are open on the server, as far as they were streamed: a file each, written in blocks.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::Write as _,
    path::PathBuf,
    sync::Arc,
};

use bytes::{BufMut as _, Bytes};

use super::{Folder, Replay, Result, Spool, blocking};
use crate::{CaptureError, Transaction, connection::protocol, pgoutput::BlockMessage};

/// So much is written at once.
const WRITE: usize = 256 * 1024;

/// The open transactions of one stream.
#[derive(Debug)]
pub(crate) struct OpenTransactions {
    spool: Spool,
    folder: Arc<Folder>,
    open: HashMap<u32, OpenTransaction>,
    /// The transaction whose block comes now.
    current: Option<u32>,
    /// What of its block is not written yet.
    buffer: Vec<u8>,
    /// Whose it is.
    buffered_of: u32,
}

#[derive(Debug, Default)]
struct OpenTransaction {
    /// There once something is to be kept: a transaction of other tables has empty blocks.
    file: Option<SpooledFile>,
    /// Subtransactions that were rolled back. Their changes stay in the file, and are left out when it is read.
    aborted: HashSet<u32>,
    /// Whether it has logical messages.
    has_messages: bool,
}

impl OpenTransactions {
    pub(super) fn new(spool: Spool, folder: Arc<Folder>) -> Self {
        Self { spool, folder, open: HashMap::new(), current: None, buffer: Vec::new(), buffered_of: 0 }
    }

    /// Whether a block comes now.
    pub(crate) fn is_in_block(&self) -> bool {
        self.current.is_some()
    }

    /// A block begins.
    pub(crate) fn start_block(&mut self, transaction: u32) -> Result<()> {
        if self.current.is_some() {
            return Err(protocol("a block within a block"));
        }
        self.open.entry(transaction).or_default();
        self.current = Some(transaction);
        Ok(())
    }

    /// A block ends.
    pub(crate) fn stop_block(&mut self) -> Result<()> {
        self.current.take().map(drop).ok_or_else(|| protocol("the end of a block that did not begin"))
    }

    /// Keeps one message of the block.
    pub(crate) fn keep(&mut self, lsn: u64, body: &Bytes) -> Result<()> {
        let transaction = self.current.ok_or_else(|| protocol("a message of a block outside of blocks"))?;
        let head = BlockMessage::read(&mut body.clone())?;
        if head.transaction.is_none() {
            return Ok(());
        }
        let known = self.open.entry(transaction).or_default();
        known.has_messages |= head.kind == b'M';
        self.buffered_of = transaction;
        self.buffer.put_u64(lsn);
        self.buffer.put_u32(u32::try_from(body.len()).map_err(|_| protocol("a message that is too long"))?);
        self.buffer.extend_from_slice(body);
        Ok(())
    }

    /// A transaction, or a part of it, was rolled back.
    pub(crate) fn abort(&mut self, transaction: u32, subtransaction: u32) -> Result<()> {
        if transaction == subtransaction {
            self.open.remove(&transaction);
            return Ok(());
        }
        let known = self.open.entry(transaction).or_default();
        // PostgreSQL names the whole transaction in a message of a part of it. So nobody knows whether it was rolled
        // back too.
        if known.has_messages {
            return Err(CaptureError::SpoolUnclear { transaction });
        }
        known.aborted.insert(subtransaction);
        Ok(())
    }

    /// A transaction was committed: what was kept of it.
    pub(crate) fn commit(&mut self, transaction: Transaction, end_lsn: u64) -> Result<Replay> {
        if self.must_write() || self.current.is_some() {
            return Err(protocol("a commit within a block"));
        }
        let known = self.open.remove(&transaction.number).unwrap_or_default();
        Ok(Replay::new(self.spool.clone(), transaction, end_lsn, known.file, known.aborted))
    }

    /// Whether it is time to write. The buffer is of one block.
    pub(crate) fn must_write(&self) -> bool {
        self.buffer.len() >= WRITE || (self.current.is_none() && !self.buffer.is_empty())
    }

    /// Writes what is buffered.
    pub(crate) async fn write(&mut self) -> Result<()> {
        let Self { spool, folder, open, buffer, buffered_of, .. } = self;
        let Some(known) = open.get_mut(buffered_of) else {
            buffer.clear();
            return Ok(());
        };
        let bytes = buffer.len() as u64;
        spool.reserve(bytes)?;
        let (made, transaction, mut block) = (known.file.take(), *buffered_of, std::mem::take(buffer));
        let (spool, folder) = (spool.clone(), Arc::clone(folder));
        let reserved = Reserved { spool: spool.clone(), bytes };
        let written = blocking(move || {
            let mut spooled = match made {
                Some(spooled) => spooled,
                None => {
                    let (file, path) = folder.create_file(transaction)?;
                    let reserved = Reserved { spool: reserved.spool.clone(), bytes: 0 };
                    SpooledFile { file: Arc::new(file), path, reserved, _folder: folder }
                }
            };
            spooled.file.as_ref().write_all(&block)?;
            spooled.reserved.add(reserved);
            block.clear();
            // One very large change must not be paid for ever.
            block.shrink_to(2 * WRITE);
            Ok((spooled, block))
        });
        let (spooled, block) = written.await.map_err(|source| spool.failed(source))?;
        (known.file, *buffer) = (Some(spooled), block);
        Ok(())
    }
}

/// Some of the room of a spool, given back when it is dropped.
#[derive(Debug)]
struct Reserved {
    spool: Spool,
    bytes: u64,
}

impl Reserved {
    fn add(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.spool.release(self.bytes);
    }
}

/// The file of one transaction. Removed when it is dropped.
#[derive(Debug)]
pub(super) struct SpooledFile {
    pub(super) file: Arc<File>,
    path: PathBuf,
    reserved: Reserved,
    _folder: Arc<Folder>,
}

impl SpooledFile {
    /// How many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        self.reserved.bytes
    }
}

impl Drop for SpooledFile {
    fn drop(&mut self) {
        let removal = Removal {
            path: std::mem::take(&mut self.path),
            _reserved: Reserved { spool: self.reserved.spool.clone(), bytes: std::mem::take(&mut self.reserved.bytes) },
            _folder: Arc::clone(&self._folder),
        };
        // Large files take a while.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(removal))),
            Err(_) => drop(removal),
        }
    }
}

/// Removes a file when it is dropped; then its room is free, and then the folder may go.
struct Removal {
    path: PathBuf,
    _reserved: Reserved,
    _folder: Arc<Folder>,
}

impl Drop for Removal {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove a file of the spool");
        }
    }
}
