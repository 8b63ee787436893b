//! Who waits for entries is woken by them, whoever wrote them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use relais_core::{Wakeup, WakeupListener};
use relais_notify::{AudienceKey, MembersChange, NotificationStore as _};
use relais_notify_redis::{RedisNotificationOptions, RedisNotifications};
use relais_testkit::RedisServer;
use tokio::sync::watch;

struct Bell {
    rung: watch::Sender<u64>,
    count: AtomicU64,
}

impl WakeupListener for Bell {
    fn wake(&self, wakeup: &Wakeup) {
        if wakeup.notifications {
            self.rung.send_replace(self.count.fetch_add(1, Ordering::SeqCst) + 1);
        }
    }
}

fn open(server: &RedisServer) -> Result<RedisNotifications> {
    Ok(RedisNotifications::new(&server.url(), RedisNotificationOptions::default())?)
}

/// Changes something that an entry tells.
async fn change(store: &RedisNotifications, user: &str) -> Result<()> {
    let added = MembersChange::Add(vec![AudienceKey::user(user)]);
    store.change_members(AudienceKey::new("GROUP", "g"), added).await?;
    Ok(())
}

#[tokio::test]
async fn entries_of_others_wake_whoever_waits_also_after_an_outage_and_a_flush() -> Result<()> {
    let mut server = RedisServer::start().await?;
    let (store, other) = (open(&server)?, open(&server)?);
    let bell = Arc::new(Bell { rung: watch::channel(0).0, count: AtomicU64::new(0) });
    let mut rung = bell.rung.subscribe();
    let following = tokio::spawn(store.follow(Arc::clone(&bell) as _));
    let mut until = async |least: u64| -> Result<u64> {
        let heard = tokio::time::timeout(Duration::from_secs(30), rung.wait_for(|rung| *rung >= least)).await;
        Ok(*heard.context("it was not woken")??)
    };
    // Once when it begins to wait.
    let mut heard = until(1).await?;
    for user in ["ann", "bob", "cem"] {
        change(&other, user).await?;
        heard = until(heard + 1).await?;
    }
    server.kill9()?;
    // It says that the server is away, so that it is known at once.
    heard = until(heard + 1).await?;
    server.restart().await?;
    while change(&other, "dia").await.is_err() {
        tokio::task::yield_now().await;
    }
    heard = until(heard + 1).await?;
    server.tell("FLUSHALL").await?;
    // The new log is shorter than the one that was waited for.
    change(&other, "eve").await?;
    until(heard + 1).await?;
    ensure!(!following.is_finished(), "it never ends");
    following.abort();
    Ok(())
}
