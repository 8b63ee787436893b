//! Callbacks: telling whoever waits what became of a task, without being asked.
//!
//! What is to be told is written with the change that it tells of (an outbox), so it is neither lost nor told of something
//! that never was. A [`CallbackSender`] carries one kind of callback; everything else (what is due, what shares an endpoint, when to
//! try again) is the same for all kinds.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{Batch, Client, ClientKey, ServiceKey, Status, Task, TaskId, Timestamp, TraceContext};

/// How whoever waits wants to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallbackType {
    /// A `POST` to an `https` URL.
    Https,
    /// A `POST` to an `http` URL, where the operator allows it.
    Http,
    /// A message to an exchange or a queue of the broker that the operator declared for the client.
    Amqp,
}

impl CallbackType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Https, Self::Http, Self::Amqp];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Amqp => "amqp",
        }
    }

    /// Reads the name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Something that whoever waits can be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallbackEvent {
    /// A worker has begun.
    Started,
    /// A worker said how far it is. Not each time: the latest, now and then.
    Progress,
    /// The task ended well.
    Success,
    /// The task ended badly.
    Failure,
    /// The task was given up.
    Cancelled,
    /// A batch has ended.
    #[serde(rename = "batch.ended")]
    BatchEnded,
}

impl CallbackEvent {
    /// All that can be told of a task, in the order of their codes.
    pub const ALL: [Self; 5] = [Self::Started, Self::Progress, Self::Success, Self::Failure, Self::Cancelled];
    /// What is told unless something else is asked for: the end, whichever it is.
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

    /// Reads the name on the wire of something that can be told of a task.
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

    /// Whether it is the last thing that is told.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Success | Self::Failure | Self::Cancelled | Self::BatchEnded)
    }

    /// The end that a final status is; none while the task goes on.
    pub const fn of_end(status: Status) -> Option<Self> {
        match status {
            Status::Success => Some(Self::Success),
            Status::Failure => Some(Self::Failure),
            Status::Cancelled => Some(Self::Cancelled),
            Status::Pending | Status::InProgress | Status::Waiting => None,
        }
    }
}

/// Where to tell what becomes of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// The kind of callback.
    #[serde(rename = "type")]
    pub kind: CallbackType,
    /// Where to: a URL, or the name of a destination that was declared for the client.
    pub target: String,
    /// What is to be told.
    pub events: Vec<CallbackEvent>,
    /// Whether the body is to be compressed.
    #[serde(default)]
    pub gzip: bool,
    /// What shares its endpoint and its client shares its limits and its fate; see [`lane`].
    pub lane: i64,
}

impl Callback {
    /// Whether this is to be told.
    pub fn asks_for(&self, event: CallbackEvent) -> bool {
        self.events.contains(&event)
    }

    /// Whether more than one thing is to be told of a task, so that their order matters.
    pub fn is_chain(&self) -> bool {
        self.events.iter().any(|event| !event.is_end())
    }
}

/// Names a lane: the deliveries of one client to one endpoint. Lanes do not wait for each other.
pub fn lane(client: ClientKey, endpoint: &str) -> i64 {
    use sha2::{Digest, Sha256};
    let digest = Sha256::new_with_prefix(client.0.to_be_bytes()).chain_update(endpoint).finalize();
    i64::from_be_bytes(std::array::from_fn(|i| digest[i]))
}

/// What became of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CallbackStatus {
    /// It is to be told, for the first time or again.
    Pending,
    /// It was told.
    Success,
    /// It could not be told, and is not tried any more.
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

/// The name of a callback on the wire: the same however often it is sent, so that receivers can drop doubles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallbackId {
    /// The task; or the batch, whose name is like one.
    pub task_id: TaskId,
    /// The task's revision when it happened; zero for a batch.
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

/// A callback, as it is kept.
#[derive(Debug, Clone)]
pub struct CallbackRecord {
    /// Its row in the store: the order in which callbacks came to be.
    pub row: i64,
    /// Its name on the wire.
    pub id: CallbackId,
    /// The task's service; a batch has none, which is zero.
    pub service: ServiceKey,
    /// The client of the task or the batch.
    pub client: ClientKey,
    /// What is told.
    pub event: CallbackEvent,
    /// What became of it.
    pub status: CallbackStatus,
    /// How many times it was sent, ever.
    pub attempts: u32,
    /// When it came to be.
    pub created: Timestamp,
    /// When it is to be sent next; while it is being sent, when it will be sent again if nothing is heard. None if it has
    /// ended, or waits for the one before it.
    pub due: Option<Timestamp>,
    /// When it was told, or given up.
    pub ended: Option<Timestamp>,
    /// Where to.
    pub callback: Callback,
}

/// One try to tell.
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
    /// Why it did not succeed.
    pub error: Option<String>,
    /// The first bytes of the answer.
    pub answer: Option<String>,
}

/// A callback that is to be sent now, and that nobody else sends meanwhile.
#[derive(Debug, Clone)]
pub struct DueCallback {
    /// What is kept of it.
    pub record: CallbackRecord,
    /// How many times it was tried before, since it was last asked for.
    pub tries: u32,
    /// What it tells of.
    pub about: About,
    /// The database's time.
    pub now: Timestamp,
}

/// What a callback tells of.
#[derive(Debug, Clone)]
pub enum About {
    /// A task, as it was when this happened.
    Task(Box<Task>),
    /// A batch, as it is.
    Batch(Box<Batch>),
}

impl About {
    /// How much there is to be told, roughly.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Task(task) => task.response.as_ref().map_or(0, |response| response.get().len()),
            Self::Batch(_) => 0,
        }
    }

    /// Whose trace it is part of.
    pub fn trace(&self) -> Option<&TraceContext> {
        match self {
            Self::Task(task) => task.links.trace.as_ref(),
            Self::Batch(batch) => batch.trace.as_ref(),
        }
    }
}

/// What became of one try.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The callback's row.
    pub row: i64,
    /// The number of the try, as it was handed out: an older one changes nothing.
    pub attempt: u32,
    /// Whether more is told of the task ([`Callback::is_chain`]).
    pub chain: bool,
    /// What follows from it.
    pub verdict: CallbackVerdict,
    /// What is kept of it; nothing if it was given back untried.
    pub tried: Option<CallbackAttempt>,
}

/// What follows from a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallbackVerdict {
    /// It was told.
    Delivered,
    /// It is not to be tried again.
    GivenUp,
    /// Nobody lives there any more: nothing else is to be told of this task.
    Gone,
    /// It is to be tried again, after so long.
    Again(Duration),
    /// It was not tried: somebody else may.
    Returned,
}

/// What became of the endpoint of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneChange {
    /// It does not answer: leave it alone for `first`, twice as long each time, `most` at most.
    Park {
        /// The first time.
        first: Duration,
        /// At most.
        most: Duration,
    },
    /// It asks to be left alone for so long.
    Wait(Duration),
    /// It is to be tried now, whether it answers or not.
    Try,
    /// It answers.
    Open,
}

/// A lane in which something waits.
#[derive(Debug, Clone, Copy)]
pub struct LaneHead {
    /// Its name.
    pub lane: i64,
    /// When its first callback is due.
    pub due: Timestamp,
    /// Until when its endpoint is left alone; kept when that time has passed, until it answers.
    pub parked_until: Option<Timestamp>,
}

/// Some lanes, in the order of their names.
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
    /// That came to be at this time or later.
    pub from: Option<Timestamp>,
    /// Before this row: the cursor.
    pub before: Option<i64>,
    /// At most so many.
    pub limit: usize,
}

/// A page of callbacks.
#[derive(Debug, Clone, Default)]
pub struct CallbackPage {
    /// The callbacks. There may be fewer than asked for, or none, and yet a next page: a page looks at so many, not at all.
    pub records: Vec<CallbackRecord>,
    /// Where the next page begins, if there may be one.
    pub next_before: Option<i64>,
}

/// Which callbacks to send again.
#[derive(Debug, Clone)]
pub enum Resend {
    /// This one, whatever became of it.
    One(CallbackId),
    /// All that failed since then.
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
    /// So many will be sent again.
    pub count: u64,
    /// Where to go on; none when all is done.
    pub next_after: Option<i64>,
}

/// A callback that is to be sent to an endpoint.
#[derive(Debug, Clone)]
pub struct CallbackDelivery {
    /// Its name: the same each time it is sent.
    pub id: String,
    /// The kind of callback.
    pub kind: CallbackType,
    /// Where to: a URL, or the name of a destination that was declared for the client.
    pub target: String,
    /// The client: its signing secrets, its destinations.
    pub client: Arc<Client>,
    /// What is told: JSON.
    pub body: String,
    /// Whether the body is to be compressed.
    pub gzip: bool,
    /// Whose trace it is part of.
    pub trace: Option<TraceContext>,
    /// The database's time.
    pub now: Timestamp,
}

/// What an endpoint answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Whether it was taken.
    pub outcome: ReplyOutcome,
    /// The answer's status, where there was an answer.
    pub status: Option<u16>,
    /// Why it was not taken, in words for operators and for the client.
    pub error: Option<String>,
    /// The first bytes of the answer.
    pub answer: Option<String>,
}

/// Whether a callback was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// It was.
    Delivered,
    /// The endpoint is alive and says no (4xx): trying again may help, leaving it alone does not.
    Refused {
        /// It asks to be left alone for so long.
        retry_after: Option<Duration>,
    },
    /// The endpoint does not answer as it should (no connection, no answer in time, 5xx): it may be in trouble.
    Unwell {
        /// It asks to be left alone for so long.
        retry_after: Option<Duration>,
    },
    /// Nobody lives there any more, and nobody will (410).
    Gone,
    /// It may not be sent there: trying again does not help.
    Forbidden,
}

/// Why something may not be sent somewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAllowed(pub String);

/// Sends one kind of callback, or several.
#[async_trait]
pub trait CallbackSender: Send + Sync + 'static {
    /// Judges where a callback is to go, when it is asked for: whatever can be seen to be wrong is refused here. Tells the
    /// endpoint, e.g. `https://example.org:443`. Does no I/O.
    fn judge(&self, kind: CallbackType, target: &str, client: &Client) -> Result<String, NotAllowed>;

    /// Sends it, within a time of its own. Judges again: what is allowed may have changed.
    async fn send(&self, delivery: &CallbackDelivery) -> Reply;
}
