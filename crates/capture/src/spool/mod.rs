//! Room on disk for transactions that are streamed while they are open.
//!
//! A server that streams a large transaction before its commit need not spill it to its own disk. What came waits here
//! until the commit, is then read back in order, and goes the same way as any other transaction. Nothing of a spool is
//! needed after a restart: the server sends an open transaction again from its beginning. So nothing is synced to disk.
//!
//! Whatever goes wrong with it (no room, a disk that fails) ends the stream before anything was confirmed. The next
//! stream of that slot then goes without the spool, so that a transaction too large for it comes whole after its
//! commit, by way of the server's own disk. The one after that has the spool again.
//!
//! The folder by file: `folder` keeps files apart and removes what dead processes left, `open` writes the files of open
//! transactions, `replay` reads one back.

mod folder;
mod open;
mod replay;

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use self::{folder::Folder, open::SpooledFile};
pub(crate) use self::{open::OpenTransactions, replay::Replay};
use crate::CaptureError;

type Result<T> = std::result::Result<T, CaptureError>;

/// Where a spool is, and how large it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolOptions {
    /// The directory. It is made if it is missing, for this user only.
    pub directory: PathBuf,
    /// At most so many bytes on disk, for all streams that share the spool.
    pub limit: u64,
}

/// Room on disk for open transactions. Clones share it, and its limit.
#[derive(Debug, Clone)]
pub struct Spool(Arc<Shared>);

/// The same, if they share their room.
impl PartialEq for Spool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Spool {}

#[derive(Debug)]
struct Shared {
    options: SpoolOptions,
    used: AtomicU64,
    /// Streams that go without it the next time.
    suspended: Mutex<HashSet<String>>,
}

impl Spool {
    /// Looks whether the directory can be used, and removes what dead processes have left there.
    pub async fn open(options: SpoolOptions) -> Result<Self> {
        let spool = Self(Arc::new(Shared { options, used: AtomicU64::new(0), suspended: Mutex::default() }));
        spool.folder("check").await?;
        Ok(spool)
    }

    /// How many bytes are on disk.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Begins a stream of this slot.
    pub(crate) async fn begin(&self, slot: &str) -> Result<OpenTransactions> {
        Ok(OpenTransactions::new(self.clone(), Arc::new(self.folder(slot).await?)))
    }

    async fn folder(&self, name: &str) -> Result<Folder> {
        let (directory, name) = (self.0.options.directory.clone(), name.to_owned());
        blocking(move || Folder::create(&directory, &name)).await.map_err(|source| self.failed(source))
    }

    /// Takes some of the room.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let limit = self.0.options.limit;
        let grown = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
        match self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            Ok(_) => Ok(()),
            Err(_) => Err(CaptureError::SpoolFull { limit }),
        }
    }

    fn release(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn failed(&self, source: io::Error) -> CaptureError {
        CaptureError::Spool { directory: self.directory().to_owned(), source }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.0.options.directory
    }

    /// The next stream goes without it.
    pub(crate) fn suspend(&self, stream: &str) {
        self.0.suspended.lock().unwrap_or_else(PoisonError::into_inner).insert(stream.to_owned());
    }

    pub(crate) fn is_suspended(&self, stream: &str) -> bool {
        self.0.suspended.lock().unwrap_or_else(PoisonError::into_inner).contains(stream)
    }

    /// A stream goes without it now: the one after may have it again.
    pub(crate) fn end_suspension(&self, stream: &str) {
        self.0.suspended.lock().unwrap_or_else(PoisonError::into_inner).remove(stream);
    }
}

/// Runs what may wait for a disk, beside the runtime's own threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
