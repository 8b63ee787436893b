//! A record that is to be written.

use bytes::Bytes;
use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
};

/// The headers of a record: names with values, in their order. A name may be there twice, and a value may be missing.
pub type RecordHeaders = Vec<(String, Option<Bytes>)>;

/// A record that is to be written to a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewRecord {
    /// The topic.
    pub topic: String,
    /// The partition, if it is not the key that decides.
    pub partition: Option<i32>,
    /// What the record is about. Records of a key are in one partition, in their order.
    pub key: Option<Bytes>,
    /// What it says. None is a tombstone.
    pub value: Option<Bytes>,
    /// Its headers.
    pub headers: RecordHeaders,
    /// Milliseconds since 1970; now, unless set.
    pub timestamp: Option<i64>,
}

impl NewRecord {
    /// A record without a key, for this topic.
    pub fn new(topic: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self { topic: topic.into(), value: Some(value.into()), ..Self::default() }
    }

    /// A record that says that the key has no value any more.
    pub fn tombstone(topic: impl Into<String>, key: impl Into<Bytes>) -> Self {
        Self { topic: topic.into(), key: Some(key.into()), ..Self::default() }
    }

    /// Sets what the record is about.
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the partition.
    pub fn with_partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Adds a header.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Sets the time, in milliseconds since 1970.
    pub fn with_timestamp(mut self, milliseconds: i64) -> Self {
        self.timestamp = Some(milliseconds);
        self
    }

    /// As librdkafka takes it. None if librdkafka would end the name of a header early.
    pub(super) fn as_future_record(&self) -> Option<FutureRecord<'_, [u8], [u8]>> {
        let mut record = FutureRecord::to(&self.topic);
        record.partition = self.partition;
        record.key = self.key.as_deref();
        record.payload = self.value.as_deref();
        record.timestamp = self.timestamp;
        if !self.headers.is_empty() {
            let mut headers = OwnedHeaders::new_with_capacity(self.headers.len());
            for (key, value) in &self.headers {
                if key.contains('\0') {
                    return None;
                }
                headers = headers.insert(Header { key, value: value.as_deref() });
            }
            record.headers = Some(headers);
        }
        Some(record)
    }
}
