//! Notification sources: events of the bus become notifications, each one once.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use relais_testkit::TestDatabase;
use relais_tests::{
    app::{Backend, TestApp, secret},
    chaos::Api,
    instance::Instance,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    link::Link,
    stage::{Stage, declaration, text, until},
};

on_each_store! {
    events_that_are_meant_become_notifications,
}

on_one_store! {
    a_changed_source_is_taken_over_and_a_paused_one_is_silent,
    what_can_not_become_a_notification_is_counted_and_holds_up_nothing,
    a_source_that_can_not_work_is_refused_with_the_place,
}

const PATIENCE: Duration = Duration::from_secs(60);

async fn stage(on: Backend) -> Stage {
    Stage::start(TestApp::builder(on).notifications(|_| {}).hearing_sources()).await
}

fn source(change: Value) -> Value {
    let mut whole = json!({
        "sourceName": "orders",
        "bus": {"channels": ["orders.*"]},
        "audience": {"type": "USER", "targets": ["{payload.user}"]},
    });
    if let (Some(whole), Value::Object(change)) = (whole.as_object_mut(), change) {
        whole.extend(change);
    }
    whole
}

async fn declare(stage: &Stage, source: &Value) {
    stage.app.caller().put("/admin/notification-sources/orders", source).await.data();
    listening(stage).await;
}

/// How many workers of the source there are: two while one takes over from another.
async fn workers(stage: &Stage) -> usize {
    let subscriptions = stage.app.caller().get("/admin/eventbus/subscriptions").await.data();
    let names = subscriptions["subscriptions"].as_array().into_iter().flatten();
    names.filter(|one| one["name"] == "notification-source/orders").count()
}

async fn state(stage: &Stage) -> Value {
    stage.app.caller().get("/admin/notification-sources/orders").await.data()
}

/// Until this process hears what is declared now.
async fn listening(stage: &Stage) {
    until("the source listens", async || {
        let state = state(stage).await;
        let mut processes = state["processes"].as_array().into_iter().flatten();
        processes.any(|one| one["listening"] == true) && workers(stage).await == 1
    })
    .await;
}

async fn publish(stage: &Stage, channel: &str, payload: Value) -> String {
    let event = json!({"channel": channel, "payload": payload});
    text(&stage.app.caller().post("/admin/eventbus/publish", &event).await.data()["eventId"])
}

async fn events_that_are_meant_become_notifications(on: Backend) {
    let stage = stage(on).await;
    let mut ann = stage.link("ann").await;
    let payload = json!({"title": "{payload.what} ({channel})", "order": "{payload.order}"});
    let rule = json!({
        "when": {"{payload.status}": ["paid", "sent"]}, "payload": payload, "type": "{payload.kind}", "priority": "HIGH",
        "operation": "update", "retry": {"ackRequired": true, "limit": 2, "backoff": "FIXED"},
    });
    declare(&stage, &source(rule)).await;
    let event = |status: &str, user: Value| {
        json!({
            "user": user, "status": status, "what": "Order 7", "kind": "NOTIFICATION", "order": {"lines": [1, 2]},
        })
    };
    publish(&stage, "orders.changed", event("new", json!("ann"))).await;
    publish(&stage, "payments.changed", event("paid", json!("ann"))).await;
    publish(&stage, "orders.changed", event("paid", Value::Null)).await;
    publish(&stage, "orders.changed", event("paid", json!(["ann", "bob"]))).await;
    let sent = ann.expect("notification").await;
    assert_eq!(sent.payload(), &json!({"title": "Order 7 (orders.changed)", "order": {"lines": [1, 2]}}));
    let (metadata, routing) = (&sent.data["metadata"], &sent.data["routing"]);
    assert_eq!(metadata["type"], "NOTIFICATION");
    assert_eq!((&metadata["priority"], &metadata["operation"]), (&json!("HIGH"), &json!("update")));
    assert_eq!((&metadata["emitter"], &metadata["topic"]), (&json!("orders"), &json!("orders.changed")));
    assert_eq!(routing["audience"], json!({"type": "USER", "targets": ["ann", "bob"]}));
    let retry = json!({"ack_required": true, "enabled": true, "attempts": 0, "limit": 2, "backoff": "FIXED"});
    assert_eq!(routing["retry"], retry);
    publish(&stage, "orders.changed", event("sent", json!("ann"))).await;
    ann.expect("notification").await;
    until("both are counted", async || state(&stage).await["emitted"] == 2).await;
    let state = state(&stage).await;
    assert_eq!((&state["failed"], &state["processes"][0]["passedOver"]), (&json!(0), &json!(2)), "{state}");
    // Without an audience, an event is a whole notification.
    declare(&stage, &json!({"sourceName": "orders", "bus": {"channels": ["notices.>"]}})).await;
    let whole = json!({"metadata": {"type": "SYSTEM"}, "payload": 1, "routing": {"audience": {"type": "USER", "targets": ["ann"]}}});
    publish(&stage, "notices.of.all", whole).await;
    let sent = ann.expect_payload(&json!(1)).await;
    assert_eq!(
        (&sent.data["metadata"]["type"], &sent.data["metadata"]["emitter"]),
        (&json!("SYSTEM"), &json!("orders"))
    );
}

async fn a_changed_source_is_taken_over_and_a_paused_one_is_silent(on: Backend) {
    let stage = stage(on).await;
    let mut ann = stage.link("ann").await;
    declare(&stage, &source(json!({}))).await;
    publish(&stage, "orders.new", json!({"user": "ann", "number": 1})).await;
    ann.expect_payload(&json!({"user": "ann", "number": 1})).await;
    let changed = json!({"notificationSources": [source(json!({"priority": "LOW"}))]});
    let dry = stage.app.caller().post("/admin/apply?dryRun=true", &changed).await;
    assert_eq!(dry.data()["applied"][0]["action"], "updated");
    declare(&stage, &source(json!({"bus": {"channels": ["bills.*"]}, "payload": "{payload.number}"}))).await;
    publish(&stage, "orders.new", json!({"user": "ann", "number": 2})).await;
    publish(&stage, "bills.new", json!({"user": "ann", "number": 3})).await;
    ann.expect_payload(&json!(3)).await;
    let paused = stage.app.caller().post_nothing("/admin/notification-sources/orders/pause").await.data();
    assert_eq!(paused["paused"], true);
    until("the source is silent", async || workers(&stage).await == 0).await;
    publish(&stage, "bills.new", json!({"user": "ann", "number": 4})).await;
    stage.app.caller().post_nothing("/admin/notification-sources/orders/resume").await.data();
    listening(&stage).await;
    publish(&stage, "bills.new", json!({"user": "ann", "number": 5})).await;
    ann.expect_payload(&json!(5)).await;
    let deleted = stage.app.caller().delete("/admin/notification-sources/orders").await.data();
    assert_eq!(deleted["applied"][0]["kind"], "notification source");
    assert_eq!(stage.app.caller().get("/admin/notification-sources/orders").await.number(), 404018);
}

async fn what_can_not_become_a_notification_is_counted_and_holds_up_nothing(on: Backend) {
    let stage = stage(on).await;
    let mut ann = stage.link("ann").await;
    declare(&stage, &source(json!({"type": "{payload.kind}"}))).await;
    publish(&stage, "orders.new", json!({"user": "ann", "kind": "URGENT"})).await;
    until("it is counted", async || state(&stage).await["failed"] == 1).await;
    let trouble = text(&state(&stage).await["trouble"]);
    assert!(trouble.contains(r#"`type` is "URGENT""#), "{trouble}");
    publish(&stage, "orders.new", json!({"user": "ann", "kind": "SYSTEM"})).await;
    ann.expect("notification").await;
    until("the trouble is over", async || state(&stage).await.get("trouble").is_none()).await;
}

async fn a_source_that_can_not_work_is_refused_with_the_place(on: Backend) {
    let stage = stage(on).await;
    let kafka = json!({"bus": null, "kafka": {"brokers": "h:9092", "topics": ["orders"]}});
    let unknown = json!({"audience": {"type": "CLASS", "targets": ["1b"]}});
    for (change, place, said) in [
        (kafka, "/notificationSources/0/kafka", "has no Kafka consumers"),
        (unknown.clone(), "/notificationSources/0/audience/type", "there is no type of audience \"CLASS\""),
        (json!({"priority": "URGENT"}), "/notificationSources/0/priority", "must be one of LOW, NORMAL, HIGH"),
    ] {
        let answer = stage
            .app
            .caller()
            .post("/admin/apply?dryRun=true", &json!({"notificationSources": [source(change.clone())]}))
            .await;
        assert_eq!(answer.number(), 400010, "{change}");
        let details = answer.json()["error"]["details"].clone();
        let found = details.as_array().into_iter().flatten();
        let mut found = found.filter(|detail| detail["path"] == place);
        assert!(found.any(|detail| text(&detail["message"]).contains(said)), "{change}: {details}");
    }
    // Declared together, it is known.
    let both = json!({"audiences": [{"type": "CLASS"}], "notificationSources": [source(unknown)]});
    stage.app.apply(both).await;
}

/// The real binary, twice, on one PostgreSQL.
struct Pair {
    instances: [Instance; 2],
    apis: [Api; 2],
}

impl Pair {
    async fn start(url: &str) -> Result<Self> {
        let instances = [Instance::start(url).await?, Instance::start(url).await?];
        let apis = [Api::admin(instances[0].url())?, Api::admin(instances[1].url())?];
        Ok(Self { instances, apis })
    }

    async fn state(&self, api: usize) -> Result<Value> {
        self.apis[api].get("/admin/notification-sources/ends").await?.data()
    }

    /// Until both processes hear events: each says so of itself, and the other one of it.
    async fn listen(&self) -> Result<()> {
        let begun = Instant::now();
        for api in 0..2 {
            loop {
                let state = self.state(api).await?;
                let processes = state["processes"].as_array().into_iter().flatten();
                if processes.filter(|process| process["listening"] == true).count() >= 2 {
                    break;
                }
                ensure!(begun.elapsed() < PATIENCE, "they never both listen: {state}");
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Submits a task and ends it, by way of one of the two.
    async fn end_a_task(&self, api: usize) -> Result<String> {
        let client = self.apis[api].with("alice", &secret("alice"));
        let submitted = client.post("/v1/services/resize/tasks", &json!({"body": {}})).await?.data()?;
        let claimed = client.post("/v1/services/resize/claims", &json!({"wait": "20s"})).await?.data()?;
        let task = &claimed["tasks"][0];
        ensure!(task["taskId"] == submitted["taskId"], "{claimed}");
        let message = json!({
            "taskId": task["taskId"], "attempt": task["attempt"],
            "data": {"messageType": "success", "response": {}},
        });
        let outcomes = client.post("/v1/services/resize/messages", &message).await?.data()?;
        ensure!(outcomes["outcomes"][0]["outcome"] == "accepted", "{outcomes}");
        Ok(text(&submitted["taskId"]))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_is_one_notification_with_two_processes_and_one_killed() -> Result<()> {
    const EACH: usize = 30;
    let database = TestDatabase::create().await?;
    let mut pair = Pair::start(database.url()).await?;
    let mut file = declaration();
    file["services"] = json!([{"serviceName": "resize"}]);
    let clients = file["clients"].as_array_mut().context("no clients")?;
    clients.push(json!({"clientId": "alice", "clientSecret": secret("alice")}));
    file["authorizations"] = json!([{"clientId": "alice", "serviceName": "resize", "roles": ["consume", "work"]}]);
    file["audiences"] = json!([{"type": "GROUP", "target": "operators", "members": [{"target": "ann"}]}]);
    file["notificationSources"] = json!([{
        "sourceName": "ends", "bus": {"channels": ["task.resize.>"]}, "when": {"{payload.status}": "SUCCESS"},
        "audience": {"type": "GROUP", "targets": ["operators"]}, "payload": "{payload.taskId}",
    }]);
    pair.apis[0].post("/admin/apply", &file).await?.data()?;
    pair.listen().await?;
    let shop = pair.apis[1].with("shop", &secret("shop"));
    let ticket = shop.post("/v1/notifications/tickets", &json!({"user": "ann"})).await?.data()?;
    let path = format!("/v1/notifications/stream?ticket={}", text(&ticket["ticket"]));
    let page = pair.apis[1].request(Method::GET, &path).timeout(2 * PATIENCE).send().await?;
    let (mut page, mut seen) = (Link::begin(page).await, BTreeMap::<String, usize>::new());
    let mut expected = Vec::new();
    // Both end tasks; what one has ended is on the page before it is killed, so that its events were published.
    for number in 0..EACH {
        expected.push(pair.end_a_task(number % 2).await?);
    }
    while seen.len() < expected.len() {
        *seen.entry(text(page.expect("notification").await.payload())).or_default() += 1;
    }
    for number in 0..EACH {
        expected.push(pair.end_a_task(1).await?);
        if number == EACH / 3 {
            pair.instances[0].kill9()?;
        }
    }
    pair.instances[0].restart().await?;
    pair.listen().await?;
    for number in 0..EACH {
        expected.push(pair.end_a_task(number % 2).await?);
    }
    while seen.len() < expected.len() {
        *seen.entry(text(page.expect("notification").await.payload())).or_default() += 1;
    }
    // Each process has heard the last events: one of them has emitted each, and the other one knows it.
    let begun = Instant::now();
    for api in 0..2 {
        loop {
            let state = pair.state(api).await?;
            let heard =
                |process: &Value| process["emitted"].as_u64().unwrap_or(0) + process["known"].as_u64().unwrap_or(0);
            let processes = state["processes"].as_array().into_iter().flatten();
            if processes.map(heard).filter(|heard| *heard >= EACH as u64).count() >= 2 {
                ensure!(state["failed"] == 0, "{state}");
                break;
            }
            ensure!(begun.elapsed() < PATIENCE, "they never heard all: {state}");
            tokio::task::yield_now().await;
        }
    }
    let last = json!({"payload": "last", "routing": {"audience": {"type": "GROUP", "targets": ["operators"]}}});
    shop.post("/v1/notifications", &last).await?.data()?;
    loop {
        let payload = text(page.expect("notification").await.payload());
        if payload == "last" {
            break;
        }
        *seen.entry(payload).or_default() += 1;
    }
    let lost: Vec<_> = expected.iter().filter(|task| !seen.contains_key(*task)).collect();
    let doubled: Vec<_> = seen.iter().filter(|(_, times)| **times != 1).collect();
    ensure!(
        lost.is_empty() && doubled.is_empty() && seen.len() == expected.len(),
        "lost {lost:?}, doubled {doubled:?}"
    );
    Ok(())
}
