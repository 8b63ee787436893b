//! The Sink conformance suite on notifications that are in Redis: what outboxes and captures emit arrives in order, cut, stall
//! or crash.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_message::{Durability, Message, Sink, Template};
use relais_notify::{
    AudienceMapping, EntryContent, Identities, NotificationOptions, NotificationSink, NotificationSinkOptions,
    NotificationStore as _, NotificationType, Notifications,
};
use relais_notify_redis::{RedisNotificationOptions, RedisNotifications};
use relais_testkit::{
    RedisServer, TcpProxy,
    sink_suite::{Received, SinkHarness},
};
use tokio::sync::Mutex;

/// How long a server that hangs is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

struct OnRedis {
    sink: Arc<NotificationSink>,
    server: Mutex<RedisServer>,
    proxy: TcpProxy,
    _notifications: Notifications,
}

async fn harness() -> Result<OnRedis> {
    let server = RedisServer::start().await?;
    let proxy = TcpProxy::start(server.addr()).await?;
    let options = RedisNotificationOptions { timeout: PATIENCE, ..RedisNotificationOptions::default() };
    let store = RedisNotifications::new(&server.url_via(proxy.addr()), options)?;
    let options = NotificationOptions { timers: false, ..NotificationOptions::default() };
    let notifications = Notifications::start(Arc::new(store), Identities::new(None, None), options);
    let options = NotificationSinkOptions {
        source: "orders".to_owned(),
        audience: Some(AudienceMapping { kind: "USER".to_owned(), targets: vec![Template::parse("{payload.key}")?] }),
        kind: NotificationType::Realtime,
        timeout: PATIENCE,
        durability: Durability::Disk,
    };
    let sink = Arc::new(NotificationSink::new(notifications.clone(), options));
    Ok(OnRedis { sink, server: Mutex::new(server), proxy, _notifications: notifications })
}

#[async_trait(?Send)]
impl SinkHarness for OnRedis {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::<NotificationSink>::clone(&self.sink)
    }

    fn destination(&self) -> String {
        "orders".to_owned()
    }

    fn carries_keys(&self) -> bool {
        false
    }

    fn carries_header(&self, _: &str) -> bool {
        false
    }

    /// The ids are made of those of the messages: which they were, the payload says.
    async fn received(&self) -> Result<Vec<Received>> {
        let store = RedisNotifications::new(&self.server.lock().await.url(), RedisNotificationOptions::default())?;
        let mut received = Vec::new();
        for entry in store.read_log(0, 100_000).await? {
            let EntryContent::Message(_, stored) = entry.content else { continue };
            let payload = stored.notification.payload.get();
            let read: serde_json::Value = serde_json::from_str(payload)?;
            let id = format!("{}-{}", read["key"].as_str().context("a key")?, read["n"]);
            received.push(Received {
                id,
                key: None,
                headers: Default::default(),
                payload: payload.as_bytes().to_vec(),
            });
        }
        Ok(received)
    }

    fn missing(&self) -> Option<String> {
        None
    }

    fn forbidden(&self) -> Option<String> {
        None
    }

    fn enlarge(&self, message: &mut Message) -> bool {
        message.payload = Some(format!(r#"{{"key":"bad","x":"{}"}}"#, "x".repeat(1 << 20)).into());
        true
    }

    async fn cut(&self) -> Result<()> {
        Ok(self.proxy.cut().await?)
    }

    async fn stall(&self) -> Result<()> {
        Ok(self.proxy.stall().await?)
    }

    async fn restore(&self) -> Result<()> {
        Ok(self.proxy.restore().await?)
    }

    async fn crash(&self) -> Result<bool> {
        let mut server = self.server.lock().await;
        server.kill9()?;
        server.restart().await?;
        Ok(true)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

relais_testkit::sink_suite!(harness);
