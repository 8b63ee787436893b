//! How a relay works.

use std::time::Duration;

use relais_capture::Spool;
use relais_message::{Envelope, Template};

use crate::OutboxError;

/// How the pauses between tries grow, and when to give up.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// After so many failed tries a message is parked.
    pub limit: u32,
    /// The first pause.
    pub base: Duration,
    /// Each pause is so many times the one before.
    pub factor: f64,
    /// The longest pause.
    pub cap: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { limit: 10, base: Duration::from_secs(1), factor: 2.0, cap: Duration::from_secs(300) }
    }
}

impl Retry {
    /// The pause after so many failed tries.
    pub(crate) fn pause(&self, failed: u32) -> Duration {
        let grown = self.base.as_secs_f64() * self.factor.powi(i32::try_from(failed.saturating_sub(1)).unwrap_or(64));
        Duration::try_from_secs_f64(grown.min(self.cap.as_secs_f64())).unwrap_or(self.cap)
    }
}

/// How a relay learns of new rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// By capture where the database allows it, by polling otherwise.
    #[default]
    Auto,
    /// By reading the table.
    Polling,
    /// From PostgreSQL's write-ahead log. Where that is not possible, nothing is published.
    Capture,
}

/// How an outbox is captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureOptions {
    /// The replication slot; made of the database's and the outbox's name if there is none.
    pub slot: Option<String>,
    /// The publication; named like the slot if there is none.
    pub publication: Option<String>,
    /// A slot for which the server keeps more WAL than this is dropped: its disk comes first. The relay polls then.
    pub max_retained_wal: u64,
    /// With more keys than this that have a failed message, the outbox is polled: while it is captured, they are kept in memory.
    pub max_failed_keys: usize,
    /// How long a relay polls before it tries again to capture.
    pub retry: Duration,
    /// How old an unpublished row must be to be looked for in the table although the stream should have brought it; and how
    /// often that happens while the stream is quiet.
    pub sweep: Duration,
    /// Where large transactions wait for their commit. Without it the server keeps them.
    pub spool: Option<Spool>,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            slot: None,
            publication: None,
            max_retained_wal: 1 << 30,
            max_failed_keys: 10_000,
            retry: Duration::from_secs(30),
            sweep: Duration::from_secs(10),
            spool: None,
        }
    }
}

/// How a relay works, and where messages go.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// The name of the outbox: relays of one name share its work.
    pub outbox: String,
    /// What this relay is called. No two may have the same name.
    pub relay: String,
    /// How it learns of new rows.
    pub mode: Mode,
    /// How the outbox is captured.
    pub capture: CaptureOptions,
    /// A message's key. Order is kept per key.
    pub key: Template,
    /// Where a message goes, unless its row names a destination.
    pub destination: Template,
    /// RabbitMQ's routing key.
    pub routing_key: Template,
    /// Headers that every message gets.
    pub headers: Vec<(String, Template)>,
    /// How payloads are wrapped.
    pub envelope: Envelope,
    /// What comes before CloudEvents' names in headers; see [`Envelope::wrap`].
    pub header_prefix: String,
    /// At most so many rows at once.
    pub batch_rows: usize,
    /// About so many bytes of payload at once.
    pub batch_bytes: usize,
    /// How often to look where nobody says that there are new rows.
    pub poll: Duration,
    /// How long the partitions of a relay that died stay its own.
    pub lease: Duration,
    /// Into how many partitions keys are divided. The same for all relays of an outbox.
    pub partitions: i32,
    /// How long the sink may take for one batch.
    pub publish_timeout: Duration,
    /// Retries and parking.
    pub retry: Retry,
    /// Whether published rows are deleted at once instead of marked.
    pub delete_published: bool,
    /// How long published rows are kept.
    pub retention: Duration,
}

impl RelayOptions {
    /// The defaults, for an outbox of this name. The relay gets a name that nobody else has.
    pub fn new(outbox: impl Into<String>) -> Result<Self, OutboxError> {
        Ok(Self {
            outbox: outbox.into(),
            relay: uuid::Uuid::now_v7().to_string(),
            mode: Mode::default(),
            capture: CaptureOptions::default(),
            key: Template::parse("{aggregate_id}")?,
            destination: Template::parse("outbox.event.{event_type}")?,
            routing_key: Template::parse("{event_type}")?,
            headers: Vec::new(),
            envelope: Envelope::Bare,
            header_prefix: "ce-".to_owned(),
            batch_rows: 500,
            batch_bytes: 8 * 1024 * 1024,
            poll: Duration::from_millis(500),
            lease: Duration::from_secs(15),
            partitions: 16,
            publish_timeout: Duration::from_secs(30),
            retry: Retry::default(),
            delete_published: false,
            retention: Duration::from_secs(7 * 24 * 3600),
        })
    }
}
