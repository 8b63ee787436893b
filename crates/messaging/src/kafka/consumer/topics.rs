//! Topics that a consumer needs beside those that it reads: made where they are missing.

use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::Consumer as _,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};

use super::shared::Shared;
use crate::kafka::client::blocking;

const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Parked records stay until they are done, and what is done goes soon.
const PARKED: [(&str, &str); 3] =
    [("cleanup.policy", "compact"), ("segment.ms", "600000"), ("min.cleanable.dirty.ratio", "0.1")];

pub(super) struct MissingTopics {
    config: ClientConfig,
}

impl MissingTopics {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self { config }
    }

    /// The topic of parked records, or the partitions that it lacks.
    pub(super) async fn create_parked(&self, shared: &Shared, topic: &str) {
        self.create(shared, topic, &shared.options.parked_topic_of(topic), &PARKED).await;
    }

    /// The topic of dead letters.
    pub(super) async fn create_dead_letters(&self, shared: &Shared, topic: &str) {
        self.create(shared, topic, &shared.options.dead_letter_topic_of(topic), &[]).await;
    }

    /// Whether it worked shows when it is written to.
    async fn create(&self, shared: &Shared, topic: &str, name: &str, settings: &[(&str, &str)]) {
        match self.try_create(shared, topic, name, settings).await {
            Ok(()) => tracing::info!(topic = name, "a topic was created"),
            Err(error) => tracing::warn!(topic = name, %error, "a topic could not be created"),
        }
    }

    async fn try_create(&self, shared: &Shared, topic: &str, name: &str, settings: &[(&str, &str)]) -> KafkaResult<()> {
        let client = shared.client().ok_or(KafkaError::Canceled)?;
        let model = topic.to_owned();
        let (partitions, replicas) = blocking(move || {
            let metadata = client.fetch_metadata(Some(&model), LIMIT)?;
            let found = metadata.topics().iter().find(|found| found.name() == model);
            let partitions = found.map_or(&[][..], |found| found.partitions());
            Ok((partitions.len().max(1), partitions.first().map_or(1, |first| first.replicas().len().max(1))))
        })
        .await?;
        let admin: AdminClient<DefaultClientContext> = self.config.create()?;
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        // As many as there are of the topic itself: far fewer than these types could hold.
        let count = i32::try_from(partitions).unwrap_or(i32::MAX);
        let replicas = TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(1));
        let new = settings.iter().fold(NewTopic::new(name, count, replicas), |new, (key, value)| new.set(key, value));
        for answer in admin.create_topics(&[new], &options).await? {
            match answer {
                Ok(_) => {}
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {
                    let more = NewPartitions::new(name, partitions);
                    // It has them already, in most cases.
                    admin.create_partitions(&[more], &options).await?;
                }
                Err((_, code)) => return Err(KafkaError::AdminOp(code)),
            }
        }
        Ok(())
    }
}
