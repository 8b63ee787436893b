//! Records: one that is to be written, and one that was read.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use rdkafka::{
    Message as _, Timestamp,
    message::{BorrowedMessage, Header, Headers as _, OwnedHeaders},
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

/// A record that was read from a topic.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KafkaRecord {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition of the topic.
    pub partition: i32,
    /// Where the record is in the partition.
    pub offset: i64,
    /// Milliseconds since 1970, where the record has a time.
    pub timestamp: Option<i64>,
    /// What it is about.
    pub key: Option<Bytes>,
    /// What it says. None is a tombstone.
    pub value: Option<Bytes>,
    /// Its headers.
    pub headers: RecordHeaders,
    /// How often this consumer has tried it before and failed.
    pub retry_count: u32,
}

impl KafkaRecord {
    /// The value of the last header with this name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let (_, value) = self.headers.iter().rfind(|(known, _)| known == name)?;
        value.as_deref()
    }

    pub(super) fn read(topic: Arc<str>, message: &BorrowedMessage<'_>) -> Self {
        let copy = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let headers = message.headers().map(|headers| {
            headers.iter().map(|header| (header.key.to_owned(), header.value.map(copy))).collect::<Vec<_>>()
        });
        Self {
            topic,
            partition: message.partition(),
            offset: message.offset(),
            timestamp: match message.timestamp() {
                Timestamp::NotAvailable => None,
                Timestamp::CreateTime(time) | Timestamp::LogAppendTime(time) => Some(time),
            },
            key: message.key().map(copy),
            value: message.payload().map(copy),
            headers: headers.unwrap_or_default(),
            retry_count: 0,
        }
    }

    /// The same key, value, headers and time, to be written to another topic.
    pub(super) fn copy_to(&self, topic: &str) -> NewRecord {
        NewRecord {
            topic: topic.to_owned(),
            partition: None,
            key: self.key.clone(),
            value: self.value.clone(),
            headers: self.headers.clone(),
            timestamp: self.timestamp,
        }
    }
}

impl fmt::Debug for KafkaRecord {
    /// Where it is, without what it says: that may be anybody's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaRecord")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .field("retry_count", &self.retry_count)
            .finish_non_exhaustive()
    }
}
