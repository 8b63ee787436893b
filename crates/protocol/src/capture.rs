//! Captures, as operators declare and are shown them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{admin::SecretDeclaration, outbox::SinkDeclaration};

/// Whether the rows that are there at the beginning are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotMode {
    /// They are, beside the stream.
    #[default]
    Initial,
    /// Only changes are published.
    Never,
}

impl SnapshotMode {
    /// Its name in a declaration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Never => "never",
        }
    }
}

/// What stands in place of a column's values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum MaskDeclaration {
    /// This text, such as `****`.
    Text(String),
    /// A hash of the value.
    Hash(HashMask),
}

/// A hash in place of a column's values: the same value has the same hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HashMask {
    /// The salt of the hash. Either the text itself, or `{env: NAME}`. It is shown as `***`.
    pub hash: SecretDeclaration,
}

/// How `numeric` and `money` are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DecimalName {
    /// The unscaled value in base64.
    #[default]
    Precise,
    /// The digits as text.
    String,
    /// A JSON number, which may lose digits.
    Double,
}

/// How dates and times without a zone are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeName {
    /// Milliseconds up to a precision of 3, else microseconds.
    #[default]
    Adaptive,
    /// Like `adaptive` for timestamps; times are microseconds.
    AdaptiveTimeMicroseconds,
    /// Kafka Connect's own types: milliseconds.
    Connect,
    /// ISO 8601 text.
    #[serde(rename = "isostring")]
    IsoString,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

/// How `bytea` is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BinaryName {
    /// Bytes, which are base64 in JSON.
    #[default]
    Bytes,
    /// Base64 text.
    Base64,
    /// Base64 text with the alphabet for URLs.
    Base64UrlSafe,
    /// Hexadecimal text.
    Hex,
}

/// How `interval` is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum IntervalName {
    /// Microseconds.
    #[default]
    Numeric,
    /// ISO 8601 text.
    String,
}

/// How records look. Names and defaults are Debezium's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CaptureEnvelopeDeclaration {
    /// Whether keys and values carry their schema. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schemas: Option<bool>,
    /// Whether a delete is followed by a record without a value. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tombstones: Option<bool>,
    /// How `numeric` and `money` are published. Default: `precise`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decimal: Option<DecimalName>,
    /// How dates and times without a zone are published. Default: `adaptive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeName>,
    /// How `bytea` is published. Default: `bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<BinaryName>,
    /// How `interval` is published. Default: `numeric`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<IntervalName>,
    /// What stands for a large value that an update did not change. Default: `__debezium_unavailable_value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_value: Option<String>,
}

/// A capture: tables of any PostgreSQL whose changes are published.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CaptureDeclaration {
    /// The name of the capture, as it appears in URLs and in destinations.
    pub capture_name: String,
    /// The database, `postgres://user:password@host/database`. Either the text itself, or `{env: NAME}`. It is shown
    /// without its password. A URL without a password that is otherwise the stored one keeps the stored password.
    pub database_url: SecretDeclaration,
    /// The tables, `name` or `schema.name`.
    pub tables: Vec<String>,
    /// Columns that are published, `schema.table.column`. Tables of which none is named are published whole. Default:
    /// all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_columns: Vec<String>,
    /// Columns that are left out, `schema.table.column`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude_columns: Vec<String>,
    /// What stands in place of values, by `schema.table.column`: a text, or `{hash: SALT}`. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub mask_columns: BTreeMap<String, MaskDeclaration>,
    /// The columns of the key, by `schema.table`. Default: the primary key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub key_columns: BTreeMap<String, Vec<String>>,
    /// Whether the rows that are there at the beginning are published: `initial`, or `never`. Default: `initial`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotMode>,
    /// The replication slot. It is made if it is missing. Default: `relais_` and the capture's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// The publication. It is made if it is missing. Default: the name of the slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publication: Option<String>,
    /// How records look. Default: as Debezium writes them, without schemas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envelope: Option<CaptureEnvelopeDeclaration>,
    /// A template of where a record goes: exchange, stream, topic, URL, channel or service. Its fields are `{capture}`,
    /// `{schema}` and `{table}`. Default: `{capture}.{schema}.{table}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// A template of RabbitMQ's routing key, with the same fields. Other sinks ignore it. Default:
    /// `{capture}.{schema}.{table}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// Where records go: exactly one of the sinks.
    pub sink: SinkDeclaration,
    /// A slot for which the database keeps more bytes of WAL than this is dropped: the database's disk comes first. There
    /// is a gap then, and all tables are read anew. Default: 10737418240 (10 GiB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1_048_576)]
    pub max_retained_wal: Option<u64>,
    /// Whether the capture is paused: nothing is published, and the database keeps its WAL. Default: a new capture is not
    /// paused, an existing one keeps its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// What a process does for a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CaptureActivityName {
    /// Another process reads the slot, or it is not there yet.
    #[default]
    Standby,
    /// It follows the stream, and reads tables beside it.
    Snapshot,
    /// It follows the stream.
    Streaming,
}

impl CaptureActivityName {
    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Snapshot => "snapshot",
            Self::Streaming => "streaming",
        }
    }
}

/// What one process does for a capture.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CaptureProcess {
    /// The process.
    pub process: String,
    /// What it does at present.
    pub activity: CaptureActivityName,
    /// Changes that it published since it began.
    pub changes: u64,
    /// Rows of snapshots that it published since it began.
    pub snapshot_rows: u64,
    /// When the last change that it published was committed, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_committed_ms: Option<i64>,
    /// How long the last change took from its commit until the sink confirmed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<f64>,
    /// Bytes of WAL that the database keeps for the slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retained_wal: Option<u64>,
    /// Bytes of WAL that are not confirmed yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed_wal: Option<u64>,
    /// Why nothing goes on, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// How far a capture is, as its database says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapturePosition {
    /// The commit up to which the sink has confirmed, `0/0` before the first.
    pub commit_lsn: String,
    /// Tables that are still to be read by a snapshot; the first one is being read.
    pub snapshot: Vec<String>,
}

/// A capture, as operators see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptureState {
    /// As it is declared, defaults filled in, without passwords.
    #[serde(flatten)]
    pub declaration: CaptureDeclaration,
    /// The processes that run it, in the order of their names. One of them reads, the others stand by.
    pub processes: Vec<CaptureProcess>,
    /// Changes that these processes published since they began.
    pub changes: u64,
    /// Rows of snapshots that these processes published since they began.
    pub snapshot_rows: u64,
    /// How far it is; absent while nobody knows, and in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<CapturePosition>,
    /// Bytes of WAL that the database keeps for the slot; absent while nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_wal: Option<u64>,
    /// Why nothing goes on, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The captures.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CaptureStates {
    /// In the order of their names.
    pub captures: Vec<CaptureState>,
}

/// Which tables a snapshot is to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SnapshotRequest {
    /// The tables, `name` or `schema.name`. Default: all tables of the capture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<String>,
}
