//! Reads a committed transaction back from its file, a chunk at a time.

use std::{collections::HashSet, io, os::unix::fs::FileExt as _, sync::Arc};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::task::JoinHandle;

use super::{Result, Spool, SpooledFile};
use crate::{
    Transaction,
    pgoutput::{BlockMessage, Message, decode_rest},
};

/// So much is read at once, and more only for a larger change.
const READ: usize = 256 * 1024;

/// LSN and length, before each message.
const HEAD: usize = 12;

/// A committed transaction that is read back.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) transaction: Arc<Transaction>,
    /// Where its commit ends.
    pub(crate) end_lsn: u64,
    spool: Spool,
    spooled: Option<SpooledFile>,
    aborted: HashSet<u32>,
    /// How much was read.
    offset: u64,
    buffer: BytesMut,
    /// Kept here, so that nothing is lost if somebody stops to wait for it.
    reading: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

impl Replay {
    pub(super) fn new(
        spool: Spool,
        transaction: Transaction,
        end_lsn: u64,
        spooled: Option<SpooledFile>,
        aborted: HashSet<u32>,
    ) -> Self {
        let transaction = Arc::new(transaction);
        let (buffer, reading) = (BytesMut::new(), None);
        Self { transaction, end_lsn, spool, spooled, aborted, offset: 0, buffer, reading }
    }

    fn unread(&self) -> u64 {
        self.spooled.as_ref().map_or(0, SpooledFile::bytes).saturating_sub(self.offset)
    }

    /// Whether all of it was taken.
    pub(crate) fn is_done(&self) -> bool {
        self.buffer.is_empty() && self.unread() == 0
    }

    /// How many bytes the next message has with its head, as far as is known.
    fn wanted(&self) -> usize {
        match self.buffer.get(8..HEAD) {
            Some(length) => HEAD + (&mut &*length).get_u32() as usize,
            None => HEAD,
        }
    }

    /// The next message that was not rolled back and its LSN, if it was read already.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Message)>> {
        while self.buffer.len() >= HEAD && self.buffer.len() >= self.wanted() {
            let mut entry = self.buffer.split_to(self.wanted()).freeze();
            let lsn = entry.get_u64();
            entry.advance(4);
            if let Some(message) = self.message(entry)? {
                return Ok(Some((lsn, message)));
            }
        }
        Ok(None)
    }

    fn message(&self, mut body: Bytes) -> Result<Option<Message>> {
        let head = BlockMessage::read(&mut body)?;
        match head.transaction {
            Some(transaction) if self.aborted.contains(&transaction) => Ok(None),
            _ => decode_rest(head.kind, body).map(Some),
        }
    }

    /// Reads more. Nothing is lost if it is dropped before it is done.
    pub(crate) async fn fill(&mut self) -> Result<()> {
        let unread = self.unread();
        let Some(spooled) = &self.spooled else { return Ok(()) };
        let missing = self.wanted().saturating_sub(self.buffer.len());
        if unread < missing.max(1) as u64 {
            let damaged = io::Error::new(io::ErrorKind::InvalidData, "a file ends in the middle of a change");
            return Err(self.spool.failed(damaged));
        }
        let reading = self.reading.get_or_insert_with(|| {
            let (file, offset) = (Arc::clone(&spooled.file), self.offset);
            let bytes = usize::try_from(unread.min(missing.max(READ) as u64)).unwrap_or(READ);
            tokio::task::spawn_blocking(move || {
                let mut chunk = vec![0; bytes];
                file.read_exact_at(&mut chunk, offset)?;
                Ok(chunk)
            })
        });
        let read = reading.await;
        self.reading = None;
        let chunk = read.map_err(io::Error::other).flatten().map_err(|source| self.spool.failed(source))?;
        self.offset += chunk.len() as u64;
        self.buffer.extend_from_slice(&chunk);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, atomic::AtomicU64};

    use bytes::BufMut as _;
    use proptest::prelude::any;

    use super::*;
    use crate::{
        SpoolOptions,
        spool::{Shared, Spool},
    };

    fn replay(content: &[u8], aborted: &[u32]) -> Replay {
        let options = SpoolOptions { directory: "/nowhere".into(), limit: 0 };
        let spool = Spool(Arc::new(Shared { options, used: AtomicU64::new(0), suspended: Mutex::default() }));
        let transaction = Transaction { number: 7, commit_lsn: 1, committed_at: 0 };
        let mut replay = Replay::new(spool, transaction, 2, None, aborted.iter().copied().collect());
        replay.buffer.extend_from_slice(content);
        replay
    }

    fn entry(lsn: u64, message: &[u8]) -> Vec<u8> {
        let mut entry = Vec::new();
        entry.put_u64(lsn);
        entry.put_u32(u32::try_from(message.len()).unwrap());
        entry.extend_from_slice(message);
        entry
    }

    #[test]
    fn parts_that_were_rolled_back_are_left_out() {
        let truncate = |transaction: u8| vec![b'T', 0, 0, 0, transaction, 0, 0, 0, 1, 0, 0, 0, 0, transaction];
        let content = [entry(1, &truncate(7)), entry(2, &truncate(8)), entry(3, &truncate(9))].concat();
        let mut replay = replay(&content, &[8]);
        let mut relations = Vec::new();
        while let Some((lsn, message)) = replay.next().unwrap() {
            relations.push((lsn, message));
        }
        let truncated = |relation| Message::Truncate { relations: vec![relation] };
        assert_eq!(relations, [(1, truncated(7)), (3, truncated(9))]);
        assert!(replay.is_done());
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_on_disk_is_read_or_an_error(content in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut raw = replay(&content, &[]);
            while let Ok(Some(_)) = raw.next() {}
            let mut framed = replay(&entry(1, &content), &[]);
            while let Ok(Some(_)) = framed.next() {}
        }
    }
}
