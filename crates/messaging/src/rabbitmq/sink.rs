//! A RabbitMQ exchange as a sink: confirms, `mandatory`, one message of a key at a time.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink, in_waves};

use super::{Broker, Publish, PublishError};

/// After this time no further wave begins: a batch whose messages are all of one key takes a round trip each.
const WAVES: Duration = Duration::from_secs(5);

/// Publishes to exchanges: the destination is the exchange, and the routing key is the message's. With the default exchange
/// (an empty destination) the routing key is the name of a queue.
///
/// The message's id is AMQP's `message_id`, its type is AMQP's header `event-type`, and its key is the header `key`. A
/// correlation id is AMQP's own as well. A tombstone is a message without a body.
#[derive(Debug)]
pub struct RabbitMqSink {
    broker: Broker,
    closed: AtomicBool,
}

impl RabbitMqSink {
    /// A sink on a broker. Take a broker that nobody consumes with; see [`super`].
    pub fn new(broker: Broker) -> Self {
        Self { broker, closed: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn durability(&self) -> Durability {
        // Every message is persistent; a queue that is durable has it on disk when it confirms.
        Durability::Disk
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if self.closed.load(Ordering::Acquire) {
            return vec![PublishOutcome::Refused("the sink is closed".to_owned()); batch.len()];
        }
        in_waves(batch, WAVES, |wave| async {
            let messages = wave.into_iter().map(to_publish).collect();
            self.broker.publish_all(messages).await.into_iter().map(outcome).collect()
        })
        .await
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

fn to_publish(outgoing: RoutedMessage) -> Publish {
    let RoutedMessage { destination, routing_key, message } = outgoing;
    let body = message.payload.map(Vec::from).unwrap_or_default();
    let mut publish = Publish::new(destination, routing_key, body).message_id(message.id);
    if !message.content_type.is_empty() {
        publish = publish.content_type(message.content_type);
    }
    if let Some(id) = message.headers.get(relais_message::header::CORRELATION_ID) {
        publish = publish.correlation_id(id);
    }
    if let Some(key) = message.key {
        publish = publish.header("key", key);
    }
    message.headers.iter().fold(publish, |publish, (name, value)| publish.header(name, value))
}

fn outcome(answer: Result<(), PublishError>) -> PublishOutcome {
    match answer {
        Ok(()) => PublishOutcome::Confirmed,
        Err(error) if error.is_away() => PublishOutcome::Unknown(error.to_string()),
        Err(error) => PublishOutcome::Refused(error.to_string()),
    }
}
