//! How a capture is, for whoever watches it.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

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
    /// How long the last change took from its commit until the sink confirmed it.
    pub lag: Option<Duration>,
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

    pub(crate) fn update(&self, change: impl FnOnce(&mut CaptureStats)) {
        self.0.send_if_modified(|stats| {
            let before = stats.clone();
            change(stats);
            *stats != before
        });
    }
}
