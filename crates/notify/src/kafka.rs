//! Records of Kafka topics as notifications: the mapping alone. There is no consumer here.
//!
//! A record's value is a whole notification, or anything else with a mapping: Debezium's envelopes, with and without their
//! schemas, for example. The id is the same each time a record is read, whoever reads it.

use std::borrow::Cow;

use relais_message::TemplateFields;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    NotificationDraft, NotificationMapping,
    mapping::{Mapped, MappingError, part_as_text, without_schema},
    service::id_of,
};

/// What templates may name of a record, beside `headers.NAME` and `payload.NAME`.
pub const KAFKA_FIELDS: [&str; 4] = ["topic", "partition", "offset", "key"];

/// The header with the id that a message has on every transport.
const ID_HEADER: &str = "id";

/// A record of a topic, as it is read.
#[derive(Debug, Clone, Copy)]
pub struct KafkaRecord<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition of the topic.
    pub partition: i32,
    /// Where the record is in the partition.
    pub offset: i64,
    /// What it is about.
    pub key: Option<&'a [u8]>,
    /// Names with values. A name may be there twice; the last one counts.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// What it says; none is a tombstone.
    pub value: Option<&'a [u8]>,
}

/// The fields of a record, read once.
struct RecordFields<'a> {
    record: &'a KafkaRecord<'a>,
    value: Option<Value>,
}

impl KafkaRecord<'_> {
    /// The notification of this record: none if it is a tombstone, is for nobody, or is not meant by the mapping. `source` names
    /// whoever reads the topic.
    pub fn notification(
        &self,
        source: &str,
        mapping: &NotificationMapping,
    ) -> Result<Option<NotificationDraft>, MappingError> {
        let payload = self.value.and_then(without_schema);
        let value = payload.and_then(|payload| serde_json::from_slice(payload).ok());
        mapping.draft(Mapped {
            fields: &RecordFields { record: self, value },
            id: self.notification_id(),
            emitter: source,
            source: None,
            topic: Some(self.topic.to_owned()),
            payload,
        })
    }

    /// The id of the record's notification. A message that was published twice has one, by its header `id`; other records have
    /// one each, by topic, partition and offset.
    pub fn notification_id(&self) -> Uuid {
        match self.header(ID_HEADER) {
            Some(id) => id.parse().unwrap_or_else(|_| id_of(&format!("kafka/{}", self.topic), &id, 0)),
            None => id_of(&format!("kafka/{}", self.topic), &format!("{}/{}", self.partition, self.offset), 0),
        }
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let (_, value) = self.headers.iter().rfind(|(known, _)| *known == name)?;
        Some(String::from_utf8_lossy(value))
    }
}

impl TemplateFields for RecordFields<'_> {
    fn named(&self, name: &str) -> Option<Cow<'_, str>> {
        match name {
            "topic" => Some(self.record.topic.into()),
            "partition" => Some(self.record.partition.to_string().into()),
            "offset" => Some(self.record.offset.to_string().into()),
            "key" => self.record.key.map(String::from_utf8_lossy),
            _ => None,
        }
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.record.header(name)
    }

    fn payload(&self, path: &[String]) -> Option<String> {
        part_as_text(self.value.as_ref()?, path)
    }
}
