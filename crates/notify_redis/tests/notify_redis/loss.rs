//! When the log keeps its name, and when it gets a new one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use relais_core::StoreError;
use relais_notify::{FillIn, LogHead, NewNotification, NotificationDraft, NotificationLimits, NotificationStore as _};
use relais_notify_redis::{Fsync, RedisNotificationOptions, RedisNotifications};
use relais_testkit::{RedisServer, TcpProxy};

fn open(url: &str) -> Result<RedisNotifications> {
    Ok(RedisNotifications::new(url, RedisNotificationOptions::default())?)
}

fn message() -> Result<NewNotification> {
    let draft: NotificationDraft =
        serde_json::from_value(serde_json::json!({"routing": {"audience": {"type": "USER", "targets": ["ann"]}}}))?;
    let with = FillIn { now: jiff::Timestamp::now(), id: uuid::Uuid::now_v7(), emitter: "test" };
    let notification = draft.fill(&with, &NotificationLimits::default())?;
    Ok(NewNotification { notification, client: None, ack_timeout: Duration::from_secs(60) })
}

/// Emits some, in one call each.
async fn emit(store: &RedisNotifications, count: usize) -> Result<LogHead> {
    for _ in 0..count {
        store.emit_notifications(vec![message()?]).await?;
    }
    Ok(store.log_head().await?)
}

#[tokio::test]
async fn a_server_that_writes_before_it_answers_keeps_the_log() -> Result<()> {
    let mut server = RedisServer::start().await?;
    let store = open(&server.url())?;
    let before = emit(&store, 5).await?;
    ensure!(before.position == 5 && store.inspect().await?.fsync == Fsync::Always);
    server.kill9()?;
    ensure!(matches!(store.emit_notifications(vec![message()?]).await, Err(StoreError::Unavailable(_))));
    server.restart().await?;
    let after = until_there(&store).await?;
    ensure!((&after.epoch, after.position) == (&before.epoch, 5), "{before:?} {after:?}");
    ensure!(store.read_log(0, 10).await?.len() == 5);
    // Another process comes to the same answer.
    ensure!(open(&server.url())?.log_head().await?.epoch == before.epoch);
    Ok(())
}

/// Asks until the pause after a failed try is over.
async fn until_there(store: &RedisNotifications) -> Result<LogHead> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match store.log_head().await {
            Ok(head) => return Ok(head),
            Err(StoreError::Unavailable(_)) if Instant::now() < deadline => tokio::task::yield_now().await,
            Err(error) => return Err(error.into()),
        }
    }
}

#[tokio::test]
async fn a_server_that_may_have_lost_something_gets_a_log_of_another_name() -> Result<()> {
    // Writes later than it answers: perhaps all is there, and nobody knows.
    let mut later =
        RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]).await?;
    let store = open(&later.url())?;
    let before = emit(&store, 3).await?;
    let safety = store.inspect().await?;
    ensure!(safety.fsync == Fsync::Later && safety.warnings().len() == 1, "{safety:?}");
    later.stop().await?;
    later.restart().await?;
    let after = until_there(&store).await?;
    ensure!(after.epoch != before.epoch && after.position == 3, "{before:?} {after:?}");
    ensure!(store.read_log(0, 10).await?.len() == 3, "what is there is kept");
    // Once: others find that it has been done.
    ensure!(
        open(&later.url())?.log_head().await?.epoch == after.epoch && until_there(&store).await?.epoch == after.epoch
    );

    // Keeps nothing.
    let mut never = RedisServer::start_with(&["--appendonly", "no", "--save", ""]).await?;
    let store = open(&never.url())?;
    let before = emit(&store, 3).await?;
    ensure!(store.inspect().await?.fsync == Fsync::Never);
    let key = store.ticket_key().await?;
    never.kill9()?;
    never.restart().await?;
    let after = until_there(&store).await?;
    ensure!(after.epoch != before.epoch && after.position == 0, "{before:?} {after:?}");
    ensure!(store.ticket_key().await? == key && open(&never.url())?.ticket_key().await? == key, "tickets stay good");
    Ok(())
}

#[tokio::test]
async fn a_log_that_was_flushed_or_cut_gets_another_name() -> Result<()> {
    let server = RedisServer::start().await?;
    let (store, other) = (open(&server.url())?, open(&server.url())?);
    let first = emit(&store, 5).await?;
    ensure!(other.log_head().await?.epoch == first.epoch);
    server.tell("FLUSHALL").await?;
    // Whoever writes first makes it, and the other one learns it.
    let second = emit(&other, 7).await?;
    ensure!(second.epoch != first.epoch && second.position == 7);
    ensure!(store.log_head().await?.epoch == second.epoch);
    // Entries are gone, and the server says nothing of it: the log is shorter than it was.
    server.tell("HSET {relais:notifications}:head position 4").await?;
    server.tell("XTRIM {relais:notifications}:log MAXLEN 0").await?;
    server.tell("DEL {relais:notifications}:log").await?;
    let third = store.log_head().await?;
    ensure!(third.epoch != second.epoch && third.position == 4, "{second:?} {third:?}");
    ensure!(other.log_head().await?.epoch == third.epoch);
    // The same, and somebody writes so much that it is longer again before anybody looks.
    server.tell("HSET {relais:notifications}:head position 1").await?;
    server.tell("DEL {relais:notifications}:log").await?;
    store.emit_notifications((0..9).map(|_| message()).collect::<Result<_>>()?).await?;
    ensure!(other.log_head().await?.epoch != third.epoch);
    // An operator says that something is lost.
    let before = store.log_head().await?;
    server.tell("HDEL {relais:notifications}:head epoch").await?;
    let after = emit(&store, 1).await?;
    ensure!(after.epoch != before.epoch && after.position == before.position + 1, "{before:?} {after:?}");
    // Its head alone is lost: what comes is behind what is there.
    server.tell("DEL {relais:notifications}:head").await?;
    ensure!(emit(&store, 1).await?.position == after.position + 1);
    Ok(())
}

#[tokio::test]
async fn a_connection_that_was_cut_loses_nothing() -> Result<()> {
    let server = RedisServer::start().await?;
    let proxy = TcpProxy::start(server.addr()).await?;
    let store = open(&server.url_via(proxy.addr()))?;
    let before = emit(&store, 3).await?;
    proxy.cut().await?;
    ensure!(matches!(store.log_head().await, Err(StoreError::Unavailable(_))));
    proxy.restore().await?;
    let after = until_there(&store).await?;
    ensure!((&after.epoch, after.position) == (&before.epoch, 3));
    Ok(())
}

#[tokio::test]
async fn a_replica_that_is_promoted_gets_a_log_of_another_name() -> Result<()> {
    let mut first = RedisServer::start_with(&["--repl-diskless-sync-delay", "0", "--save", ""]).await?;
    let second = RedisServer::start().await?;
    let store = open(&first.url())?;
    let before = emit(&store, 5).await?;
    second.tell(&format!("REPLICAOF 127.0.0.1 {}", first.addr().port())).await?;
    // It has all that was written so far.
    let deadline = Instant::now() + Duration::from_secs(30);
    while second.tell("HGET {relais:notifications}:head position").await? != "$1" {
        ensure!(Instant::now() < deadline, "the replica does not follow");
        tokio::task::yield_now().await;
    }
    let on_second = open(&second.url())?;
    let refused = on_second.log_head().await;
    ensure!(
        matches!(&refused, Err(StoreError::Unavailable(why)) if why.to_string().contains("replica")),
        "{refused:?}"
    );
    first.kill9()?;
    second.tell("REPLICAOF NO ONE").await?;
    let after = until_there(&on_second).await?;
    ensure!(after.epoch != before.epoch && after.position == 5, "{before:?} {after:?}");
    Ok(())
}

#[tokio::test]
async fn who_is_not_let_in_is_refused_and_not_made_to_wait() -> Result<()> {
    let server = RedisServer::start().await?;
    server.tell("CONFIG SET requirepass secret-1").await?;
    for url in [server.url(), server.url().replace("redis://", "redis://:wrong@")] {
        let error = open(&url)?.inspect().await.err().context("it is not let in")?;
        ensure!(RedisNotifications::is_refused(&error), "{error:?}");
    }
    let store = open(&server.url().replace("redis://", "redis://:secret-1@"))?;
    ensure!(store.log_head().await?.position == 0);
    // What the guide says that an account needs.
    let rights = "~{relais:notifications}:* +@hash +@sortedset +@stream +@scripting +@connection +exists +unlink +time";
    server.tell_with("secret-1", &format!("ACL SETUSER relais on >secret-2 {rights}")).await?;
    let store = open(&server.url().replace("redis://", "redis://relais:secret-2@"))?;
    ensure!(emit(&store, 1).await?.position == 1);
    ensure!(store.purge_notifications(Duration::ZERO, Duration::ZERO, 10).await?.notifications == 0);
    // A server that says nothing about itself can keep a log all the same.
    let limited = RedisServer::start_with(&["--rename-command", "CONFIG", "", "--rename-command", "INFO", ""]).await?;
    let store = open(&limited.url())?;
    let safety = store.inspect().await?;
    ensure!(safety.fsync == Fsync::Unknown && safety.warnings().is_empty(), "{safety:?}");
    ensure!(emit(&store, 1).await?.position == 1);
    Ok(())
}

#[tokio::test]
async fn installations_with_different_prefixes_share_a_server() -> Result<()> {
    let server = RedisServer::start().await?;
    let with = |prefix: &str| {
        let options = RedisNotificationOptions { prefix: prefix.to_owned(), ..RedisNotificationOptions::default() };
        RedisNotifications::new(&server.url(), options)
    };
    let (one, other) = (with("a")?, with("b")?);
    emit(&one, 2).await?;
    ensure!(other.log_head().await?.position == 0 && Arc::new(one).log_head().await?.position == 2);
    Ok(())
}

#[tokio::test]
async fn the_node_of_a_cluster_that_has_the_keys_is_found() -> Result<()> {
    let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--appendonly", "no"];
    let (one, other) = (RedisServer::start_with(&options).await?, RedisServer::start_with(&options).await?);
    one.tell("CLUSTER ADDSLOTSRANGE 0 100").await?;
    other.tell("CLUSTER ADDSLOTSRANGE 101 16383").await?;
    one.tell(&format!("CLUSTER MEET 127.0.0.1 {}", other.addr().port())).await?;
    let store = open(&one.url())?;
    let deadline = Instant::now() + Duration::from_secs(60);
    // Until the nodes know each other, they say that the cluster is down.
    let head = loop {
        match emit(&store, 1).await {
            Ok(head) => break head,
            Err(error) => ensure!(Instant::now() < deadline, "{error:?}"),
        }
        tokio::task::yield_now().await;
    };
    ensure!(head.position == 1);
    ensure!(one.tell("EXISTS {relais:notifications}:head").await?.starts_with("-MOVED"));
    Ok(())
}
