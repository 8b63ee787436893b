//! The sinks that outboxes can be declared with. The one place that names them all.

use std::sync::Arc;

use async_trait::async_trait;
use relais_message::Sink;
use relais_messaging::{
    rabbitmq::{Broker, BrokerOptions, BrokerState, RabbitMqSink},
    redis::{RedisSink, RedisSinkOptions},
};
use relais_protocol::{
    admin::SecretDeclaration,
    outbox::{OutboxDeclaration, RabbitMqSinkDeclaration, RedisSinkDeclaration, SinkDeclaration},
};
use relais_relay::{SinkError, SinkFactory};

/// Makes the sinks of outboxes.
pub struct Sinks {
    broker: BrokerOptions,
}

impl Sinks {
    /// With what the configuration says of certificates.
    pub fn new(broker: BrokerOptions) -> Self {
        Self { broker }
    }

    fn broker(&self, url: &SecretDeclaration) -> Result<Broker, SinkError> {
        let wrong = |message: String| SinkError::Declaration { field: "rabbitmq/url".to_owned(), message };
        Broker::new(text(url), self.broker.clone()).map_err(|error| wrong(error.to_string()))
    }
}

#[async_trait]
impl SinkFactory for Sinks {
    async fn open(&self, outbox: &OutboxDeclaration) -> Result<Arc<dyn Sink>, SinkError> {
        match &outbox.sink {
            SinkDeclaration { rabbitmq: Some(RabbitMqSinkDeclaration { url }), .. } => {
                Ok(Arc::new(RabbitMqSink::new(self.broker(url)?)))
            }
            SinkDeclaration { redis: Some(redis), .. } => Ok(Arc::new(redis_sink(redis)?)),
            other => Err(not_yet(other)),
        }
    }

    async fn check(&self, outbox: &OutboxDeclaration) -> Result<(), SinkError> {
        match &outbox.sink {
            SinkDeclaration { rabbitmq: Some(RabbitMqSinkDeclaration { url }), .. } => {
                match self.broker(url)?.first_attempt().await {
                    BrokerState::Connected { .. } | BrokerState::Blocked { .. } => Ok(()),
                    BrokerState::Away { why, .. } => Err(away("rabbitmq/url", why)),
                    BrokerState::Idle => Err(away("rabbitmq/url", "it did not connect".to_owned())),
                }
            }
            SinkDeclaration { redis: Some(redis), .. } => {
                redis_sink(redis)?.ping().await.map_err(|error| away("redis/url", error.to_string()))
            }
            other => Err(not_yet(other)),
        }
    }
}

fn redis_sink(redis: &RedisSinkDeclaration) -> Result<RedisSink, SinkError> {
    let options = RedisSinkOptions { max_length: redis.max_length, ..RedisSinkOptions::default() };
    RedisSink::new(text(&redis.url), options)
        .map_err(|error| SinkError::Declaration { field: "redis/url".to_owned(), message: error.to_string() })
}

fn not_yet(sink: &SinkDeclaration) -> SinkError {
    let field = sink.kinds().first().copied().unwrap_or_default().to_owned();
    SinkError::Declaration { message: "is not part of this version; use rabbitmq or redis".to_owned(), field }
}

fn away(field: &str, message: String) -> SinkError {
    SinkError::Away { field: field.to_owned(), message }
}

/// Whoever reads a file has resolved it.
fn text(secret: &SecretDeclaration) -> &str {
    match secret {
        SecretDeclaration::Plain(text) => text,
        SecretDeclaration::Env { .. } => "",
    }
}
