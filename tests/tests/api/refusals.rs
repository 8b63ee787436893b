//! Every number of a refusal, provoked and kept as a snapshot. A number that nothing provokes fails the test.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::stream;
use relais_broker::{RabbitMq, RabbitMqOptions};
use relais_engine::{Credentials, OperatorRole, Options};
use relais_notify::{AckTokens, PushOptions};
use relais_protocol::ErrorNumber;
use relais_tests::app::{Answer, Backend, TestApp, redacted, world};
use reqwest::Method;
use serde_json::{Value, json};

on_one_store!(every_error_number_matches_its_snapshot);

const TASKS: &str = "/v1/services/resize/tasks";

/// Keeps an answer under the number that it is expected to have.
fn keep(met: &mut BTreeSet<u64>, number: u64, answer: &Answer) {
    assert_eq!(answer.number(), number, "{}", answer.text);
    insta::assert_snapshot!(number.to_string(), redacted(answer));
    met.insert(number);
}

async fn every_error_number_matches_its_snapshot(on: Backend) {
    let mut met = BTreeSet::new();
    requests(on, &mut met).await;
    operators(on, &mut met).await;
    notifications(on, &mut met).await;
    conditions(on, &mut met).await;
    limits(on, &mut met).await;
    let all: BTreeSet<u64> = ErrorNumber::ALL.iter().map(|number| u64::from(number.number())).collect();
    assert_eq!(met, all);
}

/// What is wrong with a request.
async fn requests(on: Backend, met: &mut BTreeSet<u64>) {
    let app = TestApp::builder(on).api(|api| api.max_body_bytes = 2000).start().await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let body = |body: Value| json!({"body": body});
    let deep = format!(r#"{{"body":{{"a":{}{}}}}}"#, "[".repeat(100), "]".repeat(100));
    let callback = |kind: &str, url: &str| json!({"body": {}, "callback": {"type": kind, "url": url}});

    keep(met, 400_001, &alice.post("/v1/services/strict/tasks", &body(json!({"sleep": 11}))).await);
    keep(met, 400_002, &alice.post_text(TASKS, r#"{"body":"#).await);
    keep(met, 400_003, &alice.post(TASKS, &json!({"bodi": {}})).await);
    keep(met, 400_004, &alice.post(TASKS, &callback("amqp", "https://example.org")).await);
    keep(met, 400_005, &alice.post(TASKS, &callback("https", "http://example.org")).await);
    keep(met, 400_006, &alice.get(&format!("{TASKS}?stauts=PENDING")).await);
    keep(met, 400_007, &alice.clone().with("idempotency-key", "two words").post(TASKS, &body(json!({}))).await);
    keep(met, 400_008, &alice.post_text(TASKS, deep).await);
    keep(met, 400_009, &alice.post(&format!("{TASKS}/batch"), &json!({"tasks": []})).await);
    keep(met, 403_001, &alice.clone().basic("alice", "wrong").post(TASKS, &body(json!({}))).await);
    keep(met, 404_001, &alice.post("/v1/services/nowhere/tasks", &body(json!({}))).await);
    keep(met, 404_002, &alice.get(&format!("{TASKS}/019a0000-0000-7000-8000-000000000000")).await);
    keep(met, 404_003, &alice.get("/v2/services").await);
    keep(met, 405_001, &alice.call(Method::PATCH, TASKS).await);
    keep(met, 413_001, &alice.post(TASKS, &body(json!({"long": "x".repeat(2000)}))).await);
    keep(met, 415_001, &alice.call_text(Method::POST, TASKS, "text/plain", r#"{"body":{}}"#).await);

    let keyed = alice.clone().with("idempotency-key", "order-7");
    assert_eq!(keyed.post(TASKS, &body(json!({"n": 1}))).await.status, 201);
    keep(met, 409_001, &keyed.post(TASKS, &body(json!({"n": 2}))).await);
    let id = worker.claim_one("resize").await["taskId"].as_str().unwrap_or_default().to_owned();
    worker.report("resize", &id, json!({"messageType": "success"})).await;
    keep(met, 409_002, &alice.delete(&format!("{TASKS}/{id}")).await);

    let nowhere = "019a0000-0000-7000-8000-000000000000";
    keep(met, 400_011, &alice.post(TASKS, &json!({"body": {}, "after": {"tasks": [nowhere]}})).await);
    keep(met, 400_012, &alice.post(TASKS, &json!({"body": {}, "parentId": nowhere})).await);
    keep(met, 404_009, &alice.get(&format!("/v1/batches/{nowhere}")).await);
    let batch = alice.post("/v1/batches", &json!({"open": true})).await.data()["batchId"].clone();
    let close = format!("/v1/batches/{}/close", batch.as_str().unwrap_or_default());
    alice.post(&close, &json!({})).await.data();
    keep(met, 409_004, &alice.post(TASKS, &json!({"body": {}, "batchId": batch})).await);
}

/// What is wrong with what operators ask for.
async fn operators(on: Backend, met: &mut BTreeSet<u64>) {
    let app = TestApp::start(on).await;
    let operator = app.caller();
    let bad = json!({"serviceName": "resize", "lease": "10ms", "deliveryLimit": 0, "queueName": "a b"});
    keep(met, 400_010, &operator.put("/admin/services/resize", &bad).await);
    keep(met, 403_002, &operator.clone().with("x-forwarded-for", "192.0.2.7").get("/admin/services").await);
    let rita = Credentials::default().with("rita", OperatorRole::ReadOnly, "the token of rita").expect("one operator");
    let guarded = TestApp::builder(on).api(|api| api.operators = rita).start().await;
    let rita = guarded.caller().with("authorization", "Bearer the token of rita");
    keep(met, 403_003, &rita.post_nothing("/admin/services/resize/pause").await);
    keep(met, 404_004, &operator.delete("/admin/clients/nobody").await);
    keep(met, 404_005, &operator.delete("/admin/authorizations/stranger/resize").await);
    keep(met, 404_006, &operator.get("/admin/callbacks/nothing").await);
    keep(met, 404_007, &operator.get("/admin/deadletters/resize/nothing").await);
    keep(met, 404_008, &operator.get("/admin/schedules/nothing").await);
    keep(met, 404_011, &operator.get("/admin/outboxes/nothing").await);
    let away = json!({"outboxName": "away", "databaseUrl": "sqlite:/nowhere/outbox.db", "sink": {"bus": {}}});
    operator.put("/admin/outboxes/away?check=false", &away).await.data();
    keep(met, 503_008, &operator.get("/admin/outboxes/away/parked").await);
    keep(met, 404_012, &operator.get("/admin/captures/nothing").await);
    keep(met, 404_018, &operator.get("/admin/notification-sources/nothing").await);
    keep(met, 404_017, &operator.get("/admin/audiences/GROUP/nothing").await);
    let away = json!({
        "captureName": "away", "databaseUrl": "postgres://127.0.0.1:1/db", "tables": ["t"], "sink": {"bus": {}},
    });
    operator.put("/admin/captures/away?check=false", &away).await.data();
    keep(met, 503_009, &operator.post("/admin/captures/away/snapshot", &json!({})).await);
    let decision = json!({"decision": "fail"});
    keep(met, 404_010, &operator.post("/admin/instances/nobody/resolve", &decision).await);
    app.client("alice").submit("resize", json!({})).await;
    keep(met, 409_003, &operator.delete("/admin/services/resize").await);
}

/// What is wrong with what emitters and users of notifications ask for.
async fn notifications(on: Backend, met: &mut BTreeSet<u64>) {
    const NOTIFICATIONS: &str = "/v1/notifications";
    let rights = json!({"emit": ["USER", "GROUP"], "audience": ["GROUP"], "ticket": true});
    let shop = json!({"clientId": "shop", "clientSecret": "of the shop", "notifications": rights});
    let app = TestApp::builder(on).declaring(json!({"clients": [shop]}));
    let app = app.notifications(|options| options.hub.links_per_user = 1);
    let app = app.push(PushOptions { per_user: 1, ..PushOptions::default() }).start().await;
    let shop = app.caller().basic("shop", "of the shop");
    let to = |kind: &str, target: &str| json!({"routing": {"audience": {"type": kind, "targets": [target]}}});
    keep(met, 400_015, &shop.post(NOTIFICATIONS, &to("USER", "")).await);
    let mut required = to("GROUP", "empty");
    required["routing"]["retry"] = json!({"ack_required": true});
    keep(met, 400_016, &shop.post(NOTIFICATIONS, &required).await);
    let itself = json!({"members": [{"type": "GROUP", "target": "club"}]});
    keep(met, 400_017, &shop.put("/v1/audiences/GROUP/club/members", &itself).await);
    keep(met, 401_001, &app.caller().with("authorization", "Bearer x").get(NOTIFICATIONS).await);
    let nowhere = "019a0000-0000-7000-8000-000000000000";
    keep(met, 404_013, &shop.delete(&format!("{NOTIFICATIONS}/{nowhere}")).await);
    let mut named = to("USER", "ann");
    named["metadata"] = json!({"id": nowhere});
    shop.post(NOTIFICATIONS, &named).await.data();
    named["payload"] = json!("other");
    keep(met, 409_005, &shop.post(NOTIFICATIONS, &named).await);
    let resend = format!("/admin/notifications/{nowhere}/resend");
    keep(met, 409_006, &app.caller().post_nothing(&resend).await);
    // The key of tickets is read while the process starts.
    let ticket = loop {
        let answer = shop.post("/v1/notifications/tickets", &json!({"user": "ann"})).await;
        if answer.status == 201 {
            break answer.data()["ticket"].as_str().unwrap_or_default().to_owned();
        }
        assert_eq!(answer.number(), 503_001);
    };
    let ann = app.caller().with("authorization", &format!("Bearer {ticket}"));
    keep(met, 404_014, &ann.post_nothing(&format!("{NOTIFICATIONS}/links/{nowhere}/token")).await);
    let push = |path: &str| format!("{NOTIFICATIONS}/push/{path}");
    let subscription = |name: &str, auth: &str| {
        let p256dh = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
        json!({"endpoint": format!("https://push.example.org/{name}"), "keys": {"p256dh": p256dh, "auth": auth}})
    };
    let (one, other) = ("BTBZMqHH6r4Tts7J_aSIgg", "AAAAAAAAAAAAAAAAAAAAAA");
    keep(met, 400_018, &ann.post(&push("subscriptions"), &subscription("a", "short")).await);
    keep(met, 404_016, &ann.delete(&push(&format!("subscriptions/{nowhere}"))).await);
    ann.post(&push("subscriptions"), &subscription("a", one)).await.data();
    keep(met, 429_006, &ann.post(&push("subscriptions"), &subscription("b", one)).await);
    let ticket = shop.post("/v1/notifications/tickets", &json!({"user": "bob"})).await.data()["ticket"].clone();
    let bob = app.caller().with("authorization", &format!("Bearer {}", ticket.as_str().unwrap_or_default()));
    keep(met, 409_008, &bob.post(&push("subscriptions"), &subscription("a", other)).await);
    let id = shop.post(NOTIFICATIONS, &to("USER", "ann")).await.data()["id"].clone();
    let id = id.as_str().and_then(|id| id.parse().ok()).unwrap_or_default();
    ann.post_nothing(&format!("{NOTIFICATIONS}/{id}/ack")).await.data();
    let tokens = AckTokens::new(&app.notification_store.ticket_key().await.expect("the key"));
    let token = tokens.issue("ann", id, jiff::Timestamp::MAX);
    keep(met, 409_007, &app.caller().post(&push("ack"), &json!({"token": token})).await);
    let off = TestApp::start(on).await;
    keep(met, 404_015, &off.caller().get(&push("key")).await);
    let _link = ann.open("/v1/notifications/stream").await;
    keep(met, 429_005, &ann.get("/v1/notifications/stream").await);
}

/// What would cost too much.
async fn limits(on: Backend, met: &mut BTreeSet<u64>) {
    const STRICT: &str = "/v1/services/strict/tasks";
    let fine = json!({"body": {"sleep": 1}});
    let app = TestApp::start(on).await;
    keep(met, 400_013, &app.client("alice").post_text(STRICT, r#"{"body":{"sleep":1e9000}}"#).await);

    let busy = TestApp::builder(on).engine(|engine| engine.validation.waiting = 0).start().await;
    // A small body would be judged without waiting.
    let large = json!({"body": {"sleep": 1, "filling": "x".repeat(300_000)}});
    keep(met, 503_007, &busy.client("alice").post(STRICT, &large).await);

    // Validating this takes seconds, and may take a part of one.
    let mut slow = world();
    slow["services"][2]["jsonSchema"] = json!({"properties": {"n": {"allOf": vec![json!({"uniqueItems": true}); 12]}}});
    let short = |engine: &mut Options| engine.validation.timeout = Duration::from_millis(500);
    let slow = TestApp::builder(on).declaring(slow).engine(short).start().await;
    let numbers: Vec<String> = (0..20_000).map(|n| format!("1.{n:040}")).collect();
    let body = format!(r#"{{"body":{{"n":[{}]}}}}"#, numbers.join(","));
    keep(met, 400_014, &slow.client("alice").post_text(STRICT, body).await);

    let none = TestApp::builder(on).api(|api| api.max_requests_per_client = 0).start().await;
    keep(met, 429_003, &none.client("alice").post(STRICT, &fine).await);

    // Each check takes long enough for all guesses to be there at once.
    let guarded = TestApp::builder(on).engine(|engine| engine.auth.bcrypt_cost = 12).start().await;
    let guess = async |n: usize| guarded.caller().basic("alice", &format!("guess {n}")).post(STRICT, &fine).await;
    let guesses = futures::future::join_all((0..40).map(guess)).await;
    let refused = guesses.iter().find(|answer| answer.status == 429).expect("forty guesses at once are too many");
    keep(met, 429_004, refused);
}

/// What is right, at the wrong time.
async fn conditions(on: Backend, met: &mut BTreeSet<u64>) {
    let request = json!({"body": {}});
    let app = TestApp::builder(on)
        .api(|api| api.request_timeout = Duration::from_millis(100))
        .engine(|engine| engine.batching.queue = 1)
        .metrics(|| panic!("a fault of ours"))
        .start()
        .await;
    let alice = app.client("alice");
    let never = reqwest::Body::wrap_stream(stream::pending::<std::io::Result<Vec<u8>>>());
    keep(met, 408_001, &alice.post_text(TASKS, never).await);
    keep(met, 500_001, &app.caller().get("/metrics").await);
    keep(met, 503_002, &alice.post(&format!("{TASKS}/batch"), &json!({"tasks": [request, request]})).await);

    let mut full = world();
    full["services"][0]["capacity"] = json!(0);
    full["authorizations"][1]["capacity"] = json!(0);
    app.apply(full).await;
    keep(met, 429_001, &alice.post(TASKS, &request).await);
    keep(met, 429_002, &alice.post("/v1/services/ocr/tasks", &request).await);

    app.engine.begin_stop();
    keep(met, 503_003, &app.caller().get("/readyz").await);

    // Nobody listens there, and the port is nobody's to use.
    let task_broker = RabbitMq::new("amqp://127.0.0.1:1", RabbitMqOptions::default());
    let task_broker = task_broker.unwrap_or_else(|error| panic!("{error}"));
    let alone =
        TestApp::builder(on).engine(|engine| engine.dispatch.task_broker = Some(Arc::new(task_broker))).start().await;
    keep(met, 503_004, &alone.caller().get("/admin/deadletters/resize/nothing").await);

    let silent = TestApp::builder(on).engine(|engine| engine.bus.enabled = false).start().await;
    keep(met, 503_005, &silent.caller().get("/admin/events").await);
    let waits = silent.engine.not_ready("the declarations were not applied yet");
    keep(met, 503_006, &silent.caller().get("/readyz").await);
    drop(waits);

    let early = TestApp::builder(on).unmigrated().start().await;
    keep(met, 503_001, &early.client("alice").post(TASKS, &request).await);
}
