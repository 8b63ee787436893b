//! The event bus, as operators meet it on one server.

#![expect(clippy::unwrap_used, reason = "a test that fails here has found what it looks for")]

use std::time::Duration;

use relais_engine::BusOptions;
use relais_tests::{
    app::{Backend, TestApp},
    tail::Tail,
};
use serde_json::{Value, json};

on_each_store!(every_milestone_of_a_task_is_an_event, a_batch_submission_publishes_an_event_per_task);
on_one_store!(
    no_event_is_published_without_a_follower,
    operators_publish_events_and_see_the_result,
    invalid_channels_and_patterns_are_refused,
    a_slow_event_reader_is_told_how_many_events_it_lost,
    the_stream_ends_when_the_server_stops,
    a_bus_that_is_switched_off_says_so,
);

async fn follow(app: &TestApp, patterns: &[&str]) -> Tail {
    Tail::open(&format!("http://{}", app.address()), patterns).await.unwrap()
}

async fn stats(app: &TestApp) -> Value {
    app.caller().get("/admin/eventbus/stats").await.data()
}

/// Asks until the bus runs: it is started beside the engine.
async fn running(app: &TestApp) {
    let begun = std::time::Instant::now();
    while stats(app).await["state"] != "running" {
        assert!(begun.elapsed() < Duration::from_secs(30), "the bus never runs");
        tokio::task::yield_now().await;
    }
}

async fn started(on: Backend) -> TestApp {
    let app = TestApp::start(on).await;
    running(&app).await;
    app
}

async fn every_milestone_of_a_task_is_an_event(on: Backend) {
    let app = started(on).await;
    app.apply(json!({
        "services": [{"serviceName": "img.scale"}],
        "authorizations": [
            {"clientId": "alice", "serviceName": "img.scale", "roles": ["consume"]},
            {"clientId": "worker", "serviceName": "img.scale", "roles": ["work"]},
        ],
    }))
    .await;
    let mut tail = follow(&app, &["task.>"]).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let submission = json!({"body": {"secret": "body"}, "correlationId": "chain-7"});
    let answer = alice.post("/v1/services/img.scale/tasks", &submission).await.data();
    let id = answer["taskId"].as_str().unwrap().to_owned();
    worker.claim_one("img.scale").await;
    worker.report("img.scale", &id, json!({"messageType": "progress", "progress": 40.0})).await;
    worker.give_back("img.scale", &id, 1).await;
    worker.claim_one("img.scale").await;
    worker.report("img.scale", &id, json!({"messageType": "success", "response": {"secret": "result"}})).await;

    let expected = [
        ("submitted", "PENDING", 0),
        ("started", "IN_PROGRESS", 1),
        ("progress", "IN_PROGRESS", 1),
        ("returned", "PENDING", 1),
        ("started", "IN_PROGRESS", 2),
        ("success", "SUCCESS", 2),
    ];
    let mut last = None;
    for (what, status, attempt) in expected {
        let told = tail.next().await.unwrap().unwrap();
        assert_eq!(told.channel(), format!("task.img~scale.{what}"), "{told:?}");
        let task = told.payload();
        assert_eq!((&task["taskId"], &task["service"]), (&json!(id), &json!("img.scale")));
        assert_eq!((&task["clientId"], &task["correlationId"]), (&json!("alice"), &json!("chain-7")));
        assert_eq!((&task["status"], &task["attempt"]), (&json!(status), &json!(attempt)), "{task}");
        assert_eq!(task["submitionDate"].is_string(), what != "submitted", "{task}");
        assert_eq!(task["endDate"].is_string(), what == "success", "{task}");
        assert_eq!(told.data["metadata"]["key"], json!(id));
        assert!(!told.data.to_string().contains("secret"), "no bodies: {}", told.data);
        assert!(last < task["revision"].as_u64(), "revisions grow: {task}");
        last = task["revision"].as_u64();
    }
    let poll = alice.poll("img.scale", &id).await;
    let id = alice.submit("resize", json!({})).await;
    alice.delete(&format!("/v1/services/resize/tasks/{id}")).await;
    let told = tail.until(|told| told.channel() == "task.resize.cancelled").await.unwrap();
    assert_eq!(told.payload()["taskId"], json!(id));
    assert_eq!(poll["status"], "SUCCESS");
}

async fn a_batch_submission_publishes_an_event_per_task(on: Backend) {
    let app = started(on).await;
    let mut tail = follow(&app, &["task.resize.submitted", "task.*.submitted"]).await;
    let tasks: Vec<Value> = (0..300).map(|_| json!({"body": {}})).collect();
    let answer = app.client("alice").post("/v1/services/resize/tasks/batch", &json!({"tasks": tasks})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let mut told = Vec::new();
    for _ in 0..300 {
        told.push(tail.next().await.unwrap().unwrap().payload()["taskId"].as_str().unwrap().to_owned());
    }
    told.sort_unstable();
    told.dedup();
    assert_eq!(told.len(), 300, "each once, though two patterns match");
    assert!(told.iter().all(|id| answer.text.contains(id.as_str())));
}

async fn no_event_is_published_without_a_follower(on: Backend) {
    let app = started(on).await;
    let alice = app.client("alice");
    alice.submit("resize", json!({})).await;
    let before = stats(&app).await;
    assert_eq!((&before["published"], &before["followed"]), (&json!(0), &json!(false)), "{before}");
    let mut tail = follow(&app, &["*.resize.*"]).await;
    assert_eq!(stats(&app).await["followed"], true);
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(tail.next().await.unwrap().unwrap().payload()["taskId"], json!(id), "and nothing of before");
    let after = stats(&app).await;
    assert_eq!((&after["published"], &after["subscriptions"]), (&json!(1), &json!(1)), "{after}");
}

async fn operators_publish_events_and_see_the_result(on: Backend) {
    let app = started(on).await;
    let mut tail = follow(&app, &["orders.>"]).await;
    let text = r#"{"channel":"orders.eu.created","payload":{"b":1,"a":12345678901234567890123}}"#;
    let answer = app.caller().post_text("/admin/eventbus/publish", text).await.data();
    assert_eq!((&answer["delivered"], &answer["failed"]), (&json!(1), &json!(0)), "{answer}");
    assert!(answer["durationMs"].as_f64().is_some_and(|took| took >= 0.0), "{answer}");
    let told = tail.next().await.unwrap().unwrap();
    assert_eq!((told.channel(), &told.data["id"]), ("orders.eu.created", &answer["eventId"]));
    assert!(told.payload().to_string().contains("12345678901234567890123"), "as it was sent: {}", told.payload());
    let unheard = app.caller().post("/admin/eventbus/publish", &json!({"channel": "other", "payload": null})).await;
    assert_eq!(unheard.data()["delivered"], 0);

    let channels = app.caller().get("/admin/eventbus/channels").await.data();
    let names: Vec<&str> =
        channels["channels"].as_array().unwrap().iter().filter_map(|one| one["channel"].as_str()).collect();
    assert_eq!(names, ["orders.eu.created", "other"]);
    assert_eq!(channels["channels"][0]["delivered"], 1);
    let subscriptions = app.caller().get("/admin/eventbus/subscriptions").await.data();
    let one = &subscriptions["subscriptions"][0];
    assert_eq!((&one["kind"], &one["backpressure"]), (&json!("stream"), &json!("drop")), "{one}");
    assert!(one["patterns"].as_array().unwrap().contains(&json!("orders.>")), "{one}");
    let stats = stats(&app).await;
    assert_eq!((&stats["published"], &stats["delivered"]), (&json!(2), &json!(1)), "{stats}");
    assert_eq!((&stats["transport"], &stats["healthy"]), (&json!("memory"), &json!(true)), "{stats}");
}

async fn invalid_channels_and_patterns_are_refused(on: Backend) {
    let app = started(on).await;
    for channel in ["", "a..b", "a.*", "a b", "dlq.a", "$bus.disconnected", "relais.wakeup"] {
        let answer = app.caller().post("/admin/eventbus/publish", &json!({"channel": channel, "payload": {}})).await;
        assert_eq!(answer.number(), 400_003, "{channel:?}: {}", answer.text);
    }
    for body in [json!({"channel": "a"}), json!({"payload": 1}), json!({"channel": "a", "payload": 1, "more": 2})] {
        assert_eq!(app.caller().post("/admin/eventbus/publish", &body).await.number(), 400_003, "{body}");
    }
    for query in ["channel=a..b", "channel=a.%3E.b", "channel=", "chanel=a", "channel=%ff"] {
        let answer = app.caller().get(&format!("/admin/events?{query}")).await;
        assert_eq!(answer.number(), 400_006, "{query}: {}", answer.text);
    }
    let many = vec!["channel=a"; 101].join("&");
    assert_eq!(app.caller().get(&format!("/admin/events?{many}")).await.number(), 400_006);
}

async fn a_slow_event_reader_is_told_how_many_events_it_lost(on: Backend) {
    const EVENTS: usize = 400;
    let bus = relais_bus::Bus::builder().queue_capacity(8).build();
    let app = TestApp::builder(on).engine(|engine| engine.bus = BusOptions { bus, ..BusOptions::default() });
    let app = app.start().await;
    running(&app).await;
    let mut tail = follow(&app, &["big"]).await;
    // Nobody reads meanwhile: what the sockets hold is not much beside this.
    let body = json!({"channel": "big", "payload": "x".repeat(200_000)}).to_string();
    for _ in 0..EVENTS {
        assert_eq!(app.caller().post_text("/admin/eventbus/publish", body.clone()).await.status, 200);
    }
    let lost = stats(&app).await["dropped"].as_u64().unwrap();
    assert!(lost > 0, "the sockets took it all");
    app.caller().post("/admin/eventbus/publish", &json!({"channel": "small", "payload": 1})).await;
    let (mut read, mut told) = (0, 0);
    while read + told < EVENTS as u64 {
        let event = tail.next().await.unwrap().unwrap();
        match event.name.as_str() {
            "" => read += 1,
            "dropped" => told += event.data["dropped"].as_u64().unwrap(),
            other => panic!("{other}"),
        }
    }
    assert_eq!((told, read), (lost, EVENTS as u64 - lost));
}

async fn the_stream_ends_when_the_server_stops(on: Backend) {
    let app = started(on).await;
    let mut tail = follow(&app, &["task.>"]).await;
    app.engine.begin_stop();
    assert!(tail.next().await.unwrap().is_none(), "in good order");
}

async fn a_bus_that_is_switched_off_says_so(on: Backend) {
    let app = TestApp::builder(on).engine(|engine| engine.bus.enabled = false).start().await;
    let off = stats(&app).await;
    assert_eq!((&off["state"], &off["healthy"]), (&json!("stopped"), &json!(false)), "{off}");
    assert_eq!(app.caller().get("/admin/events").await.number(), 503_005);
    let answer = app.caller().post("/admin/eventbus/publish", &json!({"channel": "a", "payload": 1})).await;
    assert_eq!(answer.number(), 503_005);
    app.client("alice").submit("resize", json!({})).await;
}
