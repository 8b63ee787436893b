//! The conformance suite, on Redis and on Valkey.

use anyhow::Result;
use relais_notify_redis::{RedisNotificationOptions, RedisNotifications};
use relais_testkit::{RedisServer, notification_suite::NotificationHarness};

async fn harness_on(server: RedisServer) -> Result<NotificationHarness> {
    let store = RedisNotifications::new(&server.url(), RedisNotificationOptions::default())?;
    Ok(NotificationHarness { store: std::sync::Arc::new(store), keep: Box::new(server) })
}

mod redis {
    use super::*;

    async fn harness() -> Result<NotificationHarness> {
        harness_on(RedisServer::start().await?).await
    }

    relais_testkit::notification_suite!(harness);
}

mod valkey {
    use super::*;

    async fn harness() -> Result<NotificationHarness> {
        harness_on(RedisServer::start_valkey().await?).await
    }

    relais_testkit::notification_suite!(harness);
}
