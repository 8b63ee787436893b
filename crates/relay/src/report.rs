//! What a process says of a relay: to the other processes, through the store, and to Prometheus.

use std::sync::{Mutex, PoisonError};

use relais_outbox::{Activity, OutboxBacklog, RelayStats};
use relais_protocol::outbox::{OutboxMode, RelayActivity, RelayState};
use serde::{Deserialize, Serialize};

/// What a process says of a relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RelayFigures {
    pub(crate) activity: RelayActivity,
    pub(crate) partitions: u64,
    pub(crate) relays: u64,
    pub(crate) published: u64,
    pub(crate) failed: u64,
    pub(crate) why_not_capture: Option<String>,
    pub(crate) retained_wal: Option<u64>,
    pub(crate) unconfirmed_wal: Option<u64>,
    pub(crate) trouble: Option<String>,
    /// What the outbox's database said; none if it was not asked, or did not answer.
    pub(crate) backlog: Option<BacklogFigures>,
}

/// What is unpublished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct BacklogFigures {
    pub(crate) unpublished: u64,
    pub(crate) more: bool,
    pub(crate) oldest_seconds: Option<f64>,
    pub(crate) parked: u64,
}

impl From<&OutboxBacklog> for BacklogFigures {
    fn from(backlog: &OutboxBacklog) -> Self {
        Self {
            unpublished: backlog.unpublished,
            more: backlog.more,
            oldest_seconds: backlog.oldest.map(|oldest| oldest.as_secs_f64()),
            parked: backlog.parked,
        }
    }
}

impl RelayFigures {
    pub(crate) fn new(stats: RelayStats, backlog: Option<&OutboxBacklog>) -> Self {
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Self {
            activity: match stats.activity {
                Activity::StandBy => RelayActivity::Standby,
                Activity::Polling => RelayActivity::Polling,
                Activity::CatchingUp => RelayActivity::CatchingUp,
                Activity::Capturing => RelayActivity::Capturing,
            },
            partitions: wide(stats.partitions),
            relays: wide(stats.relays),
            published: stats.published,
            failed: stats.failed,
            why_not_capture: stats.why_not_capture,
            retained_wal: stats.retained_wal,
            unconfirmed_wal: stats.unconfirmed_wal,
            trouble: stats.trouble,
            backlog: backlog.map(BacklogFigures::from),
        }
    }

    /// As operators see it.
    pub(crate) fn state(&self, process: &str) -> RelayState {
        RelayState {
            process: process.to_owned(),
            activity: self.activity,
            partitions: self.partitions,
            published: self.published,
            failed: self.failed,
            why_not_capture: self.why_not_capture.clone(),
            retained_wal: self.retained_wal,
            unconfirmed_wal: self.unconfirmed_wal,
            trouble: self.trouble.clone(),
        }
    }
}

/// The metrics of one relay. Counters go on where a relay before it left off.
#[derive(Default)]
pub(crate) struct Meter(Mutex<(u64, u64)>);

impl Meter {
    pub(crate) fn show(&self, outbox: &str, figures: &RelayFigures) {
        let name = || outbox.to_owned();
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (published, failed) = *counted;
        *counted = (figures.published, figures.failed);
        metrics::counter!("relais_outbox_published_total", "outbox" => name())
            .increment(figures.published.saturating_sub(published));
        metrics::counter!("relais_outbox_failures_total", "outbox" => name())
            .increment(figures.failed.saturating_sub(failed));
        metrics::gauge!("relais_outbox_trouble", "outbox" => name()).set(f64::from(figures.trouble.is_some()));
        metrics::gauge!("relais_outbox_relays", "outbox" => name()).set(figures.relays as f64);
        let captures = matches!(figures.activity, RelayActivity::CatchingUp | RelayActivity::Capturing);
        let polls = figures.activity == RelayActivity::Polling;
        for (mode, is_so) in [(OutboxMode::Polling, polls), (OutboxMode::Capture, captures)] {
            metrics::gauge!("relais_outbox_mode", "outbox" => name(), "mode" => mode.as_str()).set(f64::from(is_so));
        }
        // Only whoever reads the slot looks at it, so that a sum over processes is right.
        let wal = |bytes: Option<u64>| bytes.filter(|_| captures || polls).unwrap_or_default() as f64;
        metrics::gauge!("relais_outbox_retained_wal_bytes", "outbox" => name()).set(wal(figures.retained_wal));
        metrics::gauge!("relais_outbox_unconfirmed_wal_bytes", "outbox" => name()).set(wal(figures.unconfirmed_wal));
        // While the database does not answer, the last figures stay.
        if let Some(backlog) = &figures.backlog {
            metrics::gauge!("relais_outbox_unpublished", "outbox" => name()).set(backlog.unpublished as f64);
            metrics::gauge!("relais_outbox_parked", "outbox" => name()).set(backlog.parked as f64);
            let oldest = backlog.oldest_seconds.unwrap_or_default();
            metrics::gauge!("relais_outbox_oldest_seconds", "outbox" => name()).set(oldest);
        }
    }

    /// This process does not publish it any more: alerts must not go on about what it saw last.
    pub(crate) fn close(&self, outbox: &str) {
        self.show(outbox, &{
            let (published, failed) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let backlog = Some(BacklogFigures::default());
            RelayFigures { published, failed, backlog, ..RelayFigures::default() }
        });
    }
}
