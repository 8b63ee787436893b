//! Dead letters: records that failed for good, with the error in their headers.

use std::{sync::Arc, time::Duration};

use super::{shared::Shared, topics::MissingTopics};
use crate::kafka::{KafkaProducer, KafkaRecord, NewRecord, ProduceError};

/// Names of the headers of a dead letter.
pub mod header {
    /// The topic that the record was read from.
    pub const TOPIC: &str = "dead-letter-topic";
    /// Its partition.
    pub const PARTITION: &str = "dead-letter-partition";
    /// Its offset.
    pub const OFFSET: &str = "dead-letter-offset";
    /// Why it failed.
    pub const ERROR: &str = "dead-letter-error";
    /// How often it was retried.
    pub const RETRIES: &str = "dead-letter-retries";
    /// The group that failed.
    pub const CONSUMER: &str = "dead-letter-consumer";
    /// There if the value was too large with these headers; it stands in its own topic.
    pub const VALUE_LEFT_OUT: &str = "dead-letter-value-left-out";
    /// All of them.
    pub const ALL: [&str; 7] = [TOPIC, PARTITION, OFFSET, ERROR, RETRIES, CONSUMER, VALUE_LEFT_OUT];
}

/// The longest error that is kept, in bytes.
const MAX_ERROR: usize = 4_096;

/// The longest pause between two tries.
const LONGEST: Duration = Duration::from_secs(30);

/// A record as a dead letter.
pub(super) fn dead_letter(record: &KafkaRecord, topic: &str, error: &str, retries: u32, group: &str) -> NewRecord {
    let mut letter = record.copy_to(topic);
    letter.headers.retain(|(name, _)| !header::ALL.contains(&name.as_str()));
    let error = &error[..error.floor_char_boundary(MAX_ERROR)];
    letter
        .with_header(header::TOPIC, record.topic.to_string())
        .with_header(header::PARTITION, record.partition.to_string())
        .with_header(header::OFFSET, record.offset.to_string())
        .with_header(header::ERROR, error.to_owned())
        .with_header(header::RETRIES, retries.to_string())
        .with_header(header::CONSUMER, group.to_owned())
}

/// Writes a dead letter, for as long as that takes: the watermark waits for it. False if the consumer ends before.
pub(super) async fn write(
    shared: &Arc<Shared>,
    producer: &KafkaProducer,
    topics: &MissingTopics,
    record: &KafkaRecord,
    error: &str,
    retries: u32,
) -> bool {
    let group = &*shared.options.group;
    let name = shared.options.dead_letter_topic_of(&record.topic);
    let mut letter = dead_letter(record, &name, error, retries, group);
    let mut pause = Duration::from_millis(100);
    let mut created = false;
    loop {
        let failed = match producer.send(letter.clone()).await {
            Ok(_) => return true,
            Err(ProduceError::Closed) => return false,
            Err(failed) => failed,
        };
        if shared.closing.load(std::sync::atomic::Ordering::Acquire) {
            return false;
        }
        if let ProduceError::Refused { why, .. } = &failed {
            if shared.options.create_topics && !created {
                created = true;
                topics.create_dead_letters(shared, &record.topic).await;
                continue;
            }
            if letter.value.is_some() && is_too_large(why) {
                letter = NewRecord { value: None, ..letter }.with_header(header::VALUE_LEFT_OUT, "too large");
                continue;
            }
        }
        let why = crate::kafka::client::chain(&failed);
        tracing::warn!(
            group,
            topic = name,
            why,
            "a dead letter could not be written; its record waits, and it is tried again"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

fn is_too_large(why: &str) -> bool {
    ["MessageSizeTooLarge", "MessageBatchTooLarge", "RecordListTooLarge"].iter().any(|name| why.contains(name))
}
