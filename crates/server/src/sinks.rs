//! The sinks that outboxes and captures can be declared with. The one place that names them all.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use relais_bus::{Bus, BusSink, BusSinkOptions};
use relais_callback::{HttpSenderOptions, HttpSink, HttpSinkOptions};
use relais_engine::{Engine, TaskSink, TaskSinkOptions};
use relais_message::{Durability, Sink, Template};
use relais_messaging::{
    rabbitmq::{Broker, BrokerOptions, BrokerState, RabbitMqSink},
    redis::{RedisSink, RedisSinkOptions},
};
use relais_notify::{AudienceMapping, NotificationSink, NotificationSinkOptions, NotificationType, Notifications};
use relais_protocol::{
    admin::SecretDeclaration,
    outbox::{
        HttpSinkDeclaration, KafkaSinkDeclaration, NotificationAudienceDeclaration, NotificationSinkDeclaration,
        RabbitMqSinkDeclaration, RedisSinkDeclaration, SinkDeclaration,
    },
};
use relais_relay::{SinkError, SinkFactory};

/// How long a batch of messages may take to become notifications.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(10);

/// What sinks need of the server.
pub struct SinkOptions {
    /// Connections to RabbitMQ, and certificates.
    pub broker: BrokerOptions,
    /// Where requests may go, as for callbacks.
    pub http: HttpSenderOptions,
    /// The server's event bus.
    pub bus: Bus,
    /// The largest body of a task.
    pub max_body_bytes: usize,
    /// Notifications, if this process has them.
    pub notifications: Option<(Notifications, Durability)>,
}

/// Makes the sinks of outboxes and captures.
pub struct Sinks {
    options: SinkOptions,
    /// Tasks are its business. It starts later than this is made.
    engine: OnceLock<Engine>,
}

impl Sinks {
    /// With what the configuration says.
    pub fn new(options: SinkOptions) -> Self {
        Self { options, engine: OnceLock::new() }
    }

    /// From now on messages can become tasks.
    pub fn set_engine(&self, engine: Engine) {
        // There is one engine.
        let _ = self.engine.set(engine);
    }

    fn broker(&self, url: &SecretDeclaration) -> Result<Broker, SinkError> {
        Broker::new(text(url), self.options.broker.clone()).map_err(|error| wrong("rabbitmq/url", error))
    }

    fn http(&self, http: &HttpSinkDeclaration) -> Result<HttpSink, SinkError> {
        let options = HttpSinkOptions {
            http: self.options.http.clone(),
            signing_secrets: http.signing_secret.iter().map(|secret| text(secret).to_owned()).collect(),
            ..HttpSinkOptions::default()
        };
        HttpSink::new(options).map_err(|error| wrong("http/signingSecret", error))
    }

    fn notifications(
        &self,
        declared: &NotificationSinkDeclaration,
        source: &str,
    ) -> Result<NotificationSink, SinkError> {
        let Some((notifications, durability)) = &self.options.notifications else {
            return Err(away(
                "notifications",
                "this process has neither the role `api` nor `notifications`".to_owned(),
            ));
        };
        let mapping = |audience: &NotificationAudienceDeclaration| {
            let targets = audience.targets.iter().map(|text| Template::parse(text)).collect::<Result<_, _>>();
            targets.map(|targets| AudienceMapping { kind: audience.kind.clone(), targets })
        };
        let audience = declared.audience.as_ref().map(mapping).transpose();
        let options = NotificationSinkOptions {
            source: source.to_owned(),
            audience: audience.map_err(|error| wrong("notifications/audience/targets", error))?,
            kind: match declared.kind.as_deref() {
                None | Some("REALTIME") => NotificationType::Realtime,
                Some("SYSTEM") => NotificationType::System,
                Some("NOTIFICATION") => NotificationType::Notification,
                Some(_) => return Err(wrong("notifications/type", "must be REALTIME, SYSTEM or NOTIFICATION")),
            },
            timeout: NOTIFICATION_TIMEOUT,
            durability: *durability,
        };
        Ok(NotificationSink::new(notifications.clone(), options))
    }

    fn task(&self, client_id: &str, source: &str) -> Result<TaskSink, SinkError> {
        let Some(engine) = self.engine.get() else {
            return Err(away("task", "the server is starting".to_owned()));
        };
        let options =
            TaskSinkOptions { max_body_bytes: self.options.max_body_bytes, ..TaskSinkOptions::new(client_id, source) };
        TaskSink::new(engine.clone(), options).map_err(|error| wrong("task", error))
    }
}

#[async_trait]
impl SinkFactory for Sinks {
    async fn open(&self, source: &str, sink: &SinkDeclaration) -> Result<Arc<dyn Sink>, SinkError> {
        match sink {
            SinkDeclaration { rabbitmq: Some(RabbitMqSinkDeclaration { url }), .. } => {
                Ok(Arc::new(RabbitMqSink::new(self.broker(url)?)))
            }
            SinkDeclaration { redis: Some(redis), .. } => Ok(Arc::new(redis_sink(redis)?)),
            SinkDeclaration { kafka: Some(kafka), .. } => kafka_sink(kafka),
            SinkDeclaration { http: Some(http), .. } => Ok(Arc::new(self.http(http)?)),
            SinkDeclaration { bus: Some(_), .. } => {
                Ok(Arc::new(BusSink::new(self.options.bus.clone(), BusSinkOptions::default())))
            }
            SinkDeclaration { notifications: Some(declared), .. } => {
                Ok(Arc::new(self.notifications(declared, source)?))
            }
            SinkDeclaration { task: Some(task), .. } => Ok(Arc::new(self.task(&task.client_id, source)?)),
            _ => Err(wrong("", "there is no sink")),
        }
    }

    async fn check(&self, source: &str, sink: &SinkDeclaration) -> Result<(), SinkError> {
        match sink {
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
            // These have no server that could be asked, or it is told by the first message.
            _ => self.open(source, sink).await.map(drop),
        }
    }
}

fn redis_sink(redis: &RedisSinkDeclaration) -> Result<RedisSink, SinkError> {
    let options = RedisSinkOptions { max_length: redis.max_length, ..RedisSinkOptions::default() };
    RedisSink::new(text(&redis.url), options).map_err(|error| wrong("redis/url", error))
}

#[cfg(feature = "kafka")]
fn kafka_sink(kafka: &KafkaSinkDeclaration) -> Result<Arc<dyn Sink>, SinkError> {
    use relais_messaging::kafka::{KafkaSink, KafkaSinkOptions};
    let mut options = KafkaSinkOptions::new(&kafka.brokers);
    for (name, value) in &kafka.settings {
        options = options.setting(name, text(value));
    }
    Ok(Arc::new(KafkaSink::new(&options).map_err(|error| wrong("kafka", error))?))
}

#[cfg(not(feature = "kafka"))]
fn kafka_sink(_: &KafkaSinkDeclaration) -> Result<Arc<dyn Sink>, SinkError> {
    Err(wrong("kafka", "this program was built without Kafka: build it with `--features kafka`"))
}

fn wrong(field: &str, message: impl std::fmt::Display) -> SinkError {
    SinkError::Declaration { field: field.to_owned(), message: message.to_string() }
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
