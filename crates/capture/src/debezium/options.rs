//! How values are published. Names and defaults are Debezium's.

use std::collections::BTreeMap;

/// What stands for an unchanged TOAST value unless the options say otherwise.
pub const UNAVAILABLE_VALUE: &str = "__debezium_unavailable_value";

/// How changes are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvelopeOptions {
    /// The capture's name, which topics begin with (`topic.prefix`).
    pub name: String,
    /// Whether keys and values carry their schema (`converter.schemas.enable`).
    pub schemas: bool,
    /// Whether a delete is followed by a tombstone (`tombstones.on.delete`).
    pub tombstones: bool,
    /// `decimal.handling.mode`
    pub decimal: DecimalMode,
    /// `time.precision.mode`
    pub time: TimeMode,
    /// `binary.handling.mode`
    pub binary: BinaryMode,
    /// `interval.handling.mode`
    pub interval: IntervalMode,
    /// What stands for an unchanged TOAST value (`unavailable.value.placeholder`).
    pub unavailable_value: String,
    /// The columns of the key, by `schema.table`, where it is not the primary key (`message.key.columns`).
    pub key_columns: BTreeMap<String, Vec<String>>,
}

impl EnvelopeOptions {
    /// Debezium's defaults, without schemas.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            schemas: false,
            tombstones: true,
            decimal: DecimalMode::Precise,
            time: TimeMode::Adaptive,
            binary: BinaryMode::Bytes,
            interval: IntervalMode::Numeric,
            unavailable_value: UNAVAILABLE_VALUE.to_owned(),
            key_columns: BTreeMap::new(),
        }
    }
}

/// How `numeric` and `money` are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecimalMode {
    /// The unscaled value in base64.
    Precise,
    /// The digits as text.
    String,
    /// A JSON number, which may lose digits.
    Double,
}

/// How dates and times without a zone are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeMode {
    /// Milliseconds up to a precision of 3, else microseconds.
    Adaptive,
    /// Like adaptive for timestamps; times are microseconds.
    AdaptiveTimeMicroseconds,
    /// Kafka Connect's own types: milliseconds.
    Connect,
    /// ISO 8601 text.
    IsoString,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds. A timestamp before 1677 or after 2262 is null.
    Nanoseconds,
}

/// How `bytea` is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryMode {
    /// Bytes, which are base64 in JSON.
    Bytes,
    /// Base64 text.
    Base64,
    /// Base64 text with the alphabet for URLs.
    Base64UrlSafe,
    /// Hexadecimal text.
    Hex,
}

/// How `interval` is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntervalMode {
    /// Microseconds, with months of 30.4375 days.
    Numeric,
    /// ISO 8601 text.
    String,
}
