//! The port: what a relay does in the outbox's own database.

use std::{borrow::Cow, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use relais_message::{Headers, Message, Template, TemplateFields, header};

use crate::{CaptureSource, Layout, OutboxError};

/// Which rows to read.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The name of the outbox.
    pub outbox: String,
    /// The template of a message's key.
    pub key: Template,
    /// The partitions that the relay has leased, and how many there are.
    pub partitions: Vec<i32>,
    /// How many partitions there are.
    pub of: i32,
    /// At most so many rows.
    pub rows: usize,
    /// About so many bytes of payload, but one row at least.
    pub bytes: usize,
    /// After so many failed tries a row is parked, where the table has no column that says so.
    pub limit: u32,
    /// Only rows up to this place in their order: a `sequence`, or a `created_at`. PostgreSQL only.
    pub up_to: Option<String>,
}

/// What a relay wants of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayIntent {
    /// It takes its share.
    Shares,
    /// It wants all partitions, to capture.
    WantsAll,
    /// It has all partitions, and reads the slot.
    Captures,
}

impl RelayIntent {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shares => "shares",
            Self::WantsAll => "wants all",
            Self::Captures => "captures",
        }
    }
}

/// A key with a row that failed and is not published yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedKey {
    /// The key.
    pub key: String,
    /// Whether it is time to try again.
    pub is_due: bool,
}

/// An unpublished row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// The message's id.
    pub id: String,
    /// The message's key, by the template.
    pub key: String,
    /// The column `aggregate_id`.
    pub aggregate_id: String,
    /// The column `event_type`.
    pub event_type: String,
    /// The column `payload`.
    pub payload: Bytes,
    /// The column `created_at`.
    pub created_at: Timestamp,
    /// How often it was tried without success.
    pub retry_count: u32,
    /// The column `aggregate_type`.
    pub aggregate_type: Option<String>,
    /// The column `headers`.
    pub headers: Headers,
    /// The column `destination`.
    pub destination: Option<String>,
    /// The column `schema_version`.
    pub schema_version: Option<String>,
    /// The column `correlation_id`.
    pub correlation_id: Option<String>,
    /// Why its values can not be read, if that is so: it is never published.
    pub unreadable: Option<String>,
}

impl OutboxRow {
    /// A row of which nothing can be read.
    pub(crate) fn unreadable(why: String) -> Self {
        Self {
            id: String::new(),
            key: String::new(),
            aggregate_id: String::new(),
            event_type: String::new(),
            payload: Bytes::new(),
            created_at: Timestamp::UNIX_EPOCH,
            retry_count: 0,
            aggregate_type: None,
            headers: Headers::default(),
            destination: None,
            schema_version: None,
            correlation_id: None,
            unreadable: Some(why),
        }
    }

    /// The message that it is.
    pub fn message(&self) -> Message {
        let mut message = Message::new(self.id.clone(), self.event_type.clone(), self.payload.clone())
            .with_key(self.key.clone())
            .with_time(self.created_at)
            .with_header(header::EVENT_TYPE, self.event_type.clone());
        for (name, value) in
            [(header::SCHEMA_VERSION, &self.schema_version), (header::CORRELATION_ID, &self.correlation_id)]
        {
            if let Some(value) = value {
                message.headers.set(name, value.clone());
            }
        }
        for (name, value) in self.headers.iter() {
            message.headers.set(name, value);
        }
        message
    }
}

impl TemplateFields for OutboxRow {
    fn named(&self, name: &str) -> Option<Cow<'_, str>> {
        let text = match name {
            "id" => Some(self.id.as_str()),
            "key" => Some(self.key.as_str()),
            "aggregate_id" => Some(self.aggregate_id.as_str()),
            "event_type" => Some(self.event_type.as_str()),
            "aggregate_type" => self.aggregate_type.as_deref(),
            "destination" => self.destination.as_deref(),
            "schema_version" => self.schema_version.as_deref(),
            "correlation_id" => self.correlation_id.as_deref(),
            _ => None,
        };
        text.map(Cow::Borrowed)
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.headers.get(name).map(Cow::Borrowed)
    }

    fn payload(&self, path: &[String]) -> Option<String> {
        TemplateFields::payload(&Message::new("", "", self.payload.clone()), path)
    }
}

/// A row that was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRow {
    /// The row.
    pub id: String,
    /// Its key.
    pub key: String,
    /// How often it was tried by now.
    pub retry_count: u32,
    /// Why.
    pub error: String,
    /// When to try again; none means never, until an operator says so: the row is parked.
    pub again: Option<Duration>,
}

/// What a relay has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionLeases {
    /// The partitions that it has.
    pub partitions: Vec<i32>,
    /// How many relays are there.
    pub relays: usize,
}

/// What is unpublished.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxBacklog {
    /// So many rows, counted up to a limit.
    pub unpublished: u64,
    /// Whether there are more than were counted.
    pub more: bool,
    /// How old the oldest of them is.
    pub oldest: Option<Duration>,
    /// So many rows are parked.
    pub parked: u64,
}

/// A row that is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedRow {
    /// The message's id.
    pub id: String,
    /// Its key.
    pub key: String,
    /// What happened.
    pub event_type: String,
    /// How often it was tried.
    pub retry_count: u32,
    /// Why the last try failed.
    pub error: Option<String>,
}

/// What a relay does in the outbox's own database. Times are the database's.
#[async_trait]
pub trait OutboxStore: Send + Sync + 'static {
    /// Looks at the table, and makes what relays keep beside it. An error says what is missing.
    async fn prepare(&self) -> Result<Layout, OutboxError>;

    /// A relay is there for `lease` more. It gets its share of the partitions, and gives up what is not its share any more.
    async fn renew_leases(
        &self,
        outbox: &str,
        relay: &str,
        partitions: i32,
        lease: Duration,
        intent: RelayIntent,
    ) -> Result<PartitionLeases, OutboxError>;

    /// A relay is gone.
    async fn release_leases(&self, outbox: &str, relay: &str) -> Result<(), OutboxError>;

    /// The first unpublished rows, in the order of each key. Keys with a row that is parked or waits for a retry are left out.
    async fn read_unpublished(&self, request: &ReadRequest) -> Result<Vec<OutboxRow>, OutboxError>;

    /// How long until the next row is to be tried again.
    async fn next_retry(&self, outbox: &str) -> Result<Option<Duration>, OutboxError>;

    /// Notes that rows were published, or deletes them; how many there were.
    async fn mark_published(&self, outbox: &str, ids: &[String], delete: bool) -> Result<u64, OutboxError>;

    /// Notes that rows were not published.
    async fn record_failures(&self, outbox: &str, failed: &[FailedRow]) -> Result<(), OutboxError>;

    /// Deletes rows that were published longer ago than this, at most `limit`; how many.
    async fn purge_published(&self, older_than: Duration, limit: usize) -> Result<u64, OutboxError>;

    /// What is unpublished, counted up to `limit`.
    async fn backlog(&self, outbox: &str, limit: u64) -> Result<OutboxBacklog, OutboxError>;

    /// Rows that are parked, at most `limit`.
    async fn list_parked(&self, request: &ReadRequest) -> Result<Vec<ParkedRow>, OutboxError>;

    /// Tries parked rows again; how many there were.
    async fn retry_parked(&self, outbox: &str, ids: &[String]) -> Result<u64, OutboxError>;

    /// Gives up parked rows: they count as published; how many there were.
    async fn skip_parked(&self, outbox: &str, ids: &[String]) -> Result<u64, OutboxError>;

    /// Where the outbox can be captured from; none where there is no log.
    async fn capture_source(&self) -> Result<Option<CaptureSource>, OutboxError> {
        Ok(None)
    }

    /// The relay that says that it captures, and whose lease is not over.
    async fn relay_that_captures(&self, _outbox: &str) -> Result<Option<String>, OutboxError> {
        Ok(None)
    }

    /// Keys with rows that failed and are not published yet, at most `request.rows`.
    async fn failed_keys(&self, _request: &ReadRequest) -> Result<Vec<FailedKey>, OutboxError> {
        Ok(Vec::new())
    }

    /// Waits until somebody says that there are new rows. Never returns where nobody does.
    async fn wait_for_rows(&self);
}
