//! What a call costs does not grow with what is stored for others: counted in commands of the server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use relais_notify::{
    AckChoice, Acknowledgement, AudienceKey, FillIn, ListFilter, ListRequest, MembersChange, NewNotification,
    NotificationDraft, NotificationFilter, NotificationLimits, NotificationStore as _, Retry,
};
use relais_notify_redis::{RedisNotificationOptions, RedisNotifications};
use relais_testkit::RedisServer;

fn message(user: &str, ack_required: bool) -> Result<NewNotification> {
    let draft: NotificationDraft =
        serde_json::from_value(serde_json::json!({"routing": {"audience": {"type": "USER", "targets": [user]}}}))?;
    let with = FillIn { now: jiff::Timestamp::now(), id: uuid::Uuid::now_v7(), emitter: "test" };
    let mut notification = draft.fill(&with, &NotificationLimits::default())?;
    notification.routing.retry = Retry { ack_required, ..Retry::default() };
    Ok(NewNotification { notification, client: Some("shop".to_owned()), ack_timeout: Duration::from_secs(3600) })
}

/// All commands that the server has done, those of scripts too, and the time that it took for them.
async fn commands(server: &RedisServer) -> Result<u64> {
    let statistics = server.tell_all("INFO stats").await?;
    let line = statistics.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(line.context("the server counts commands")?.trim().parse()?)
}

/// What each kind of call costs a user who has a few messages.
async fn measure(server: &RedisServer, store: &RedisNotifications) -> Result<Vec<(&'static str, u64)>> {
    let group = AudienceKey::new("GROUP", "of-ann");
    let mut costs = Vec::new();
    macro_rules! cost {
        ($name:literal, $call:expr) => {{
            let before = commands(server).await?;
            let answer = $call;
            costs.push(($name, commands(server).await? - before));
            answer
        }};
    }
    let new = message("ann", true)?;
    let id = new.notification.metadata.id;
    cost!("emit", store.emit_notifications(vec![new]).await?);
    let joined = MembersChange::Set(vec![AudienceKey::user("ann")]);
    cost!("change members", store.change_members(group.clone(), joined).await?);
    let scope = cost!("scope", store.scopes_of(vec!["ann".to_owned()]).await?).remove("ann").context("a scope")?;
    cost!("count", store.count_of_user(&scope).await?);
    let list = ListRequest { scope: scope.clone(), filter: ListFilter::Unacknowledged, before: None, limit: 10 };
    cost!("list", store.list_of_user(list).await?);
    let head = cost!("head", store.log_head().await?);
    cost!("read", store.read_log(head.position - 2, 10).await?);
    cost!("read for a user", store.read_log_of(&scope, head.position - 2, head.position, 10).await?);
    let choice = AckChoice::These(vec![id]);
    cost!("acknowledge", store.acknowledge(vec![Acknowledgement { scope: scope.clone(), choice }]).await?);
    cost!("ledger", store.find_notification(id, 10).await?);
    let all = NotificationFilter { client: Some("shop".to_owned()), limit: 10, ..NotificationFilter::default() };
    cost!("list all", store.list_notifications(all).await?);
    cost!("timers", store.fire_notification_timers(100).await?);
    cost!("purge", store.purge_notifications(Duration::from_secs(3600), Duration::from_secs(3600), 100).await?);
    cost!("withdraw", store.withdraw(id, None, None).await?);
    store.change_members(group, MembersChange::Set(Vec::new())).await?;
    Ok(costs)
}

#[tokio::test]
async fn the_messages_of_others_cost_nothing() -> Result<()> {
    // What it is about is what it does, and not the disk.
    let server = RedisServer::start_with(&["--appendonly", "no", "--save", ""]).await?;
    let store = RedisNotifications::new(&server.url(), RedisNotificationOptions::default())?;
    let some = (0..20).map(|number| message(&format!("v{number}"), true)).collect::<Result<_>>()?;
    store.emit_notifications(some).await?;
    // Scripts are known after this.
    measure(&server, &store).await?;
    let few = measure(&server, &store).await?;
    for some in 0..10 {
        let others = (0..500).map(|number| message(&format!("u{}", (some * 500 + number) % 97), number % 2 == 0));
        store.emit_notifications(others.collect::<Result<_>>()?).await?;
    }
    let many = measure(&server, &store).await?;
    ensure!(few == many, "with few messages {few:?}, with 5,000 more {many:?}");
    println!("commands of the server: {many:?}");
    Ok(())
}
