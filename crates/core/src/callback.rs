//! Callbacks: messages about a task that Relais sends to its consumer.
//!
//! A callback is stored in the transaction of the change that it reports (an outbox), so it is neither lost nor sent
//! for a change that was rolled back. A [`CallbackSender`] sends one kind of callback; everything else (what is due,
//! lanes, retries) is the same for all kinds.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{Batch, Client, ClientKey, ServiceKey, Status, Task, TaskId, Timestamp, TraceContext};

/// The kind of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallbackType {
    /// A `POST` to an `https` URL.
    Https,
    /// A `POST` to an `http` URL, where the operator allows it.
    Http,
    /// A message to an exchange or a queue of the broker that the operator declared for the client.
    Amqp,
    /// A notification to an audience.
    Notification,
}

impl CallbackType {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Https, Self::Http, Self::Amqp, Self::Notification];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Amqp => "amqp",
            Self::Notification => "notification",
        }
    }

    /// Reads the name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The event that a callback reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallbackEvent {
    /// A worker has started the task.
    Started,
    /// A worker reported progress. Only the latest progress is sent, at intervals.
    Progress,
    /// The task succeeded.
    Success,
    /// The task failed.
    Failure,
    /// The task was cancelled.
    Cancelled,
    /// A batch has ended.
    #[serde(rename = "batch.ended")]
    BatchEnded,
}

impl CallbackEvent {
    /// All events of a task, in the order of their codes.
    pub const ALL: [Self; 5] = [Self::Started, Self::Progress, Self::Success, Self::Failure, Self::Cancelled];
    /// The default: the end of the task, whichever it is.
    pub const ENDS: [Self; 3] = [Self::Success, Self::Failure, Self::Cancelled];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Progress => "progress",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelled => "cancelled",
            Self::BatchEnded => "batch.ended",
        }
    }

    /// Reads the name on the wire of an event of a task.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == text)
    }

    /// The number that stands for it in a row.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Reads the number that stands for it in a row.
    pub fn from_code(code: i16) -> Option<Self> {
        let known = Self::ALL.into_iter().chain([Self::BatchEnded]);
        known.into_iter().find(|event| event.code() == code)
    }

    /// Whether it is the last event.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Success | Self::Failure | Self::Cancelled | Self::BatchEnded)
    }

    /// The event of a final status; none while the task goes on.
    pub const fn of_end(status: Status) -> Option<Self> {
        match status {
            Status::Success => Some(Self::Success),
            Status::Failure => Some(Self::Failure),
            Status::Cancelled => Some(Self::Cancelled),
            Status::Pending | Status::InProgress | Status::Waiting => None,
        }
    }
}

/// The callback that a consumer requested for a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// The kind of callback.
    #[serde(rename = "type")]
    pub kind: CallbackType,
    /// The target: a URL, or the name of a destination that was declared for the client.
    pub target: String,
    /// The events to report.
    pub events: Vec<CallbackEvent>,
    /// Whether the body is to be compressed.
    #[serde(default)]
    pub gzip: bool,
    /// The lane: callbacks of one client to one endpoint share limits and parking; see [`lane`].
    pub lane: i64,
}

impl Callback {
    /// Whether this event is reported.
    pub fn asks_for(&self, event: CallbackEvent) -> bool {
        self.events.contains(&event)
    }

    /// Whether more than one event of a task is reported, so that their order matters.
    pub fn is_chain(&self) -> bool {
        self.events.iter().any(|event| !event.is_end())
    }
}

/// The name of a lane: the callbacks of one client to one endpoint. Lanes do not wait for each other.
pub fn lane(client: ClientKey, endpoint: &str) -> i64 {
    use sha2::{Digest, Sha256};
    let digest = Sha256::new_with_prefix(client.0.to_be_bytes()).chain_update(endpoint).finalize();
    i64::from_be_bytes(std::array::from_fn(|i| digest[i]))
}

/// The status of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CallbackStatus {
    /// It is still to be sent, for the first time or again.
    Pending,
    /// It was delivered.
    Success,
    /// It failed, and its retries are used up.
    Failure,
}

impl CallbackStatus {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Success, Self::Failure];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Success => "SUCCESS",
            Self::Failure => "FAILURE",
        }
    }

    /// Reads the name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// The number that stands for it in a row.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Reads the number that stands for it in a row.
    pub fn from_code(code: i16) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::ALL.get(index).copied())
    }
}

/// The id of a callback on the wire: the same for every retry, so that receivers can drop duplicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallbackId {
    /// The task, or the batch, whose name has the same form.
    pub task_id: TaskId,
    /// The task's revision at the event; zero for a batch.
    pub revision: u64,
}

impl CallbackId {
    /// Reads the name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        let (task_id, revision) = text.rsplit_once('-')?;
        Some(Self { task_id: TaskId::parse(task_id)?, revision: revision.parse().ok()? })
    }
}

impl std::fmt::Display for CallbackId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.task_id, self.revision)
    }
}

/// A stored callback.
#[derive(Debug, Clone)]
pub struct CallbackRecord {
    /// Its row in the store: the order in which callbacks were stored.
    pub row: i64,
    /// Its name on the wire.
    pub id: CallbackId,
    /// The task's service; zero for a batch.
    pub service: ServiceKey,
    /// The client of the task or the batch.
    pub client: ClientKey,
    /// The event.
    pub event: CallbackEvent,
    /// Its status.
    pub status: CallbackStatus,
    /// How many times it was sent in all.
    pub attempts: u32,
    /// When it was stored.
    pub created: Timestamp,
    /// When it is sent next. While it is being sent, when its lease expires. None if it was delivered, has failed, or
    /// waits for the callback before it.
    pub due: Option<Timestamp>,
    /// When it was delivered, or failed for good.
    pub ended: Option<Timestamp>,
    /// The kind and the target.
    pub callback: Callback,
}

/// One try to send a callback.
#[derive(Debug, Clone, PartialEq)]
pub struct CallbackAttempt {
    /// Counted from 1.
    pub number: u32,
    /// When it began.
    pub at: Timestamp,
    /// How long it took.
    pub duration: Duration,
    /// The answer's status, where there was an answer.
    pub status: Option<u16>,
    /// Why it failed.
    pub error: Option<String>,
    /// The first bytes of the answer.
    pub answer: Option<String>,
}

/// A callback that is due and leased to one sender.
#[derive(Debug, Clone)]
pub struct DueCallback {
    /// The stored callback.
    pub record: CallbackRecord,
    /// How many times it was tried since it was last requested.
    pub tries: u32,
    /// What it reports.
    pub about: About,
    /// The database's time.
    pub now: Timestamp,
}

/// The content of a callback.
#[derive(Debug, Clone)]
pub enum About {
    /// A task, as it was at the event.
    Task(Box<Task>),
    /// A batch, as it is now.
    Batch(Box<Batch>),
}

impl About {
    /// The size of the content, roughly.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Task(task) => task.response.as_ref().map_or(0, |response| response.get().len()),
            Self::Batch(_) => 0,
        }
    }

    /// The trace context that it belongs to.
    pub fn trace(&self) -> Option<&TraceContext> {
        match self {
            Self::Task(task) => task.links.trace.as_ref(),
            Self::Batch(batch) => batch.trace.as_ref(),
        }
    }
}

/// The outcome of one try.
#[derive(Debug, Clone)]
pub struct CallbackOutcome {
    /// The callback's row.
    pub row: i64,
    /// The number of the try, as it was taken: an older number changes nothing.
    pub attempt: u32,
    /// Whether the callback reports more than one event of the task ([`Callback::is_chain`]).
    pub chain: bool,
    /// What happens next.
    pub verdict: CallbackVerdict,
    /// The record of the try; none if it was returned without a try.
    pub tried: Option<CallbackAttempt>,
}

/// What happens to a callback after a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallbackVerdict {
    /// It was delivered.
    Delivered,
    /// It failed for good.
    GivenUp,
    /// The endpoint is gone: no other event of this task is sent.
    Gone,
    /// It is retried after this time.
    Again(Duration),
    /// It was not tried, and another sender may take it.
    Returned,
}

/// A change of the parking of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneChange {
    /// The endpoint does not answer: park the lane for `first`, twice as long each time, at most for `most`.
    Park {
        /// The first time.
        first: Duration,
        /// At most.
        most: Duration,
    },
    /// The endpoint asks for no callbacks for so long.
    Wait(Duration),
    /// The lane is tried now, whether its endpoint answers or not.
    Try,
    /// The endpoint answers.
    Open,
}

/// A lane with waiting callbacks.
#[derive(Debug, Clone, Copy)]
pub struct LaneHead {
    /// Its name.
    pub lane: i64,
    /// When its first callback is due.
    pub due: Timestamp,
    /// Until when it is parked. Kept after that time, until the endpoint answers.
    pub parked_until: Option<Timestamp>,
}

/// A page of lanes, in the order of their names.
#[derive(Debug, Clone, Default)]
pub struct CallbackLanePage {
    /// The lanes.
    pub heads: Vec<LaneHead>,
    /// The database's time.
    pub now: Option<Timestamp>,
}

/// Which callbacks to list, the newest first.
#[derive(Debug, Clone, Default)]
pub struct CallbackFilter {
    /// Of this service.
    pub service: Option<ServiceKey>,
    /// Of this client.
    pub client: Option<ClientKey>,
    /// Of this task.
    pub task: Option<TaskId>,
    /// Of this revision of the task.
    pub revision: Option<u64>,
    /// In this status.
    pub status: Option<CallbackStatus>,
    /// Stored at this time or later.
    pub from: Option<Timestamp>,
    /// Before this row: the cursor.
    pub before: Option<i64>,
    /// At most so many.
    pub limit: usize,
}

/// A page of callbacks.
#[derive(Debug, Clone, Default)]
pub struct CallbackPage {
    /// The callbacks. A page reads a bounded number of rows, so it may have fewer than asked for, or none, and a next
    /// page.
    pub records: Vec<CallbackRecord>,
    /// Where the next page begins, if there may be one.
    pub next_before: Option<i64>,
}

/// Which callbacks to send again.
#[derive(Debug, Clone)]
pub enum Resend {
    /// This one, whatever its status.
    One(CallbackId),
    /// All that failed since a time.
    Failed {
        /// Since then.
        since: Timestamp,
        /// Of this service.
        service: Option<ServiceKey>,
        /// Of this client.
        client: Option<ClientKey>,
        /// After this row: where the call before left off.
        after: i64,
    },
}

/// What one call to send again did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resent {
    /// How many are sent again.
    pub count: u64,
    /// Where to go on; none when all is done.
    pub next_after: Option<i64>,
}

/// A callback request: one callback on its way to an endpoint.
#[derive(Debug, Clone)]
pub struct CallbackDelivery {
    /// Its id: the same for every retry.
    pub id: String,
    /// The kind of callback.
    pub kind: CallbackType,
    /// The target: a URL, or the name of a destination that was declared for the client.
    pub target: String,
    /// The client: its signing secrets, its destinations.
    pub client: Arc<Client>,
    /// The content: JSON.
    pub body: String,
    /// Whether the body is to be compressed.
    pub gzip: bool,
    /// The trace context that it belongs to.
    pub trace: Option<TraceContext>,
    /// The database's time.
    pub now: Timestamp,
}

/// The answer of an endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Whether it was delivered.
    pub outcome: ReplyOutcome,
    /// The answer's status, where there was an answer.
    pub status: Option<u16>,
    /// Why it was not delivered, in words for operators and for the client.
    pub error: Option<String>,
    /// The first bytes of the answer.
    pub answer: Option<String>,
}

/// Whether a callback was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// The endpoint accepted it.
    Delivered,
    /// The endpoint answers and refuses it (4xx): a retry may help, parking the lane does not.
    Refused {
        /// How long it asks to wait.
        retry_after: Option<Duration>,
    },
    /// The endpoint is in trouble: no connection, no answer in time, or 5xx.
    Unwell {
        /// How long it asks to wait.
        retry_after: Option<Duration>,
    },
    /// The endpoint is gone for good (410).
    Gone,
    /// The target is forbidden: a retry does not help.
    Forbidden,
}

/// Why a target is forbidden.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAllowed(pub String);

/// The port that sends callbacks of one kind or several.
#[async_trait]
pub trait CallbackSender: Send + Sync + 'static {
    /// Validates the target of a callback when it is requested, and returns its endpoint, e.g.
    /// `https://example.org:443`. Does no I/O.
    fn judge(&self, kind: CallbackType, target: &str, client: &Client) -> Result<String, NotAllowed>;

    /// Sends a callback, with its own timeout. Validates the target again, because settings may have changed.
    async fn send(&self, delivery: &CallbackDelivery) -> Reply;
}
