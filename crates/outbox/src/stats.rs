//! How a relay is, for whoever watches it.

use std::sync::Arc;

use tokio::sync::watch;

/// What a relay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activity {
    /// It waits until it has its share of the work.
    #[default]
    StandBy,
    /// It reads the table.
    Polling,
    /// It reads what is left in the table, before it captures.
    CatchingUp,
    /// It reads PostgreSQL's write-ahead log.
    Capturing,
}

/// What a relay has done so far, and how it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Messages that the sink confirmed.
    pub published: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Messages that were parked.
    pub parked: u64,
    /// Partitions that it has.
    pub partitions: usize,
    /// Relays of the same outbox that are there.
    pub relays: usize,
    /// What it does.
    pub activity: Activity,
    /// Why it does not capture, if it should.
    pub why_not_capture: Option<String>,
    /// How much WAL the server keeps for the outbox's slot, in bytes, where there is one.
    pub retained_wal: Option<u64>,
    /// How much WAL is not confirmed yet, in bytes, where the outbox is captured.
    pub unconfirmed_wal: Option<u64>,
    /// Why nothing goes on, if that is so: the sink or the database is away.
    pub trouble: Option<String>,
}

/// Sees how a relay is, from anywhere.
#[derive(Debug, Clone, Default)]
pub struct RelayHandle(Arc<watch::Sender<RelayStats>>);

impl RelayHandle {
    /// What it has done so far, and how it is.
    pub fn stats(&self) -> RelayStats {
        self.0.borrow().clone()
    }

    /// Waits until it is as wanted.
    pub async fn until(&self, wanted: impl FnMut(&RelayStats) -> bool) {
        // An error would say that nobody can change it any more; this handle can.
        let _ = self.0.subscribe().wait_for(wanted).await;
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut RelayStats)) {
        self.0.send_if_modified(|stats| {
            let before = stats.clone();
            change(stats);
            *stats != before
        });
    }
}
