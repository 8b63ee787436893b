//! Every answer to consumers and workers, as a committed snapshot: HTTP status, headers, fields, order and all.

use std::collections::BTreeSet;

use relais_tests::app::{Backend, TestApp, redacted};
use serde_json::{Value, json};

on_each_store!(
    a_task_that_succeeds_is_answered_in_each_status,
    a_task_that_fails_keeps_the_progress_it_reached,
    cancelling_a_task_is_idempotent,
    a_task_that_loses_all_its_workers_fails_with_the_reason,
    a_listing_is_newest_first_and_its_cursor_leads_on,
    each_task_of_a_batch_has_its_own_answer,
    outcomes_come_in_the_order_of_the_request,
);
on_one_store!(
    each_status_has_exactly_its_fields,
    a_client_sees_its_services_with_their_schemas,
    a_position_gets_an_estimated_start_once_the_pace_is_known,
    health_and_documentation_need_no_credentials,
);

fn id_of(answer: &Value) -> String {
    answer["taskId"].as_str().unwrap_or_else(|| panic!("no taskId in {answer}")).to_owned()
}

async fn a_task_that_succeeds_is_answered_in_each_status(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let request = json!({"body": {"width": 10}, "correlationId": "order 7"});
    let submitted = alice.post("/v1/services/resize/tasks", &request).await;
    insta::assert_snapshot!("submit", redacted(&submitted));
    let id = id_of(&submitted.data());
    let poll = format!("/v1/services/resize/tasks/{id}");
    insta::assert_snapshot!("poll_pending", redacted(&alice.get(&poll).await));

    let claim = json!({"max": 5, "hostName": "pod-1", "lease": "90s"});
    insta::assert_snapshot!("claim", redacted(&worker.post("/v1/services/resize/claims", &claim).await));
    let none = worker.post("/v1/services/resize/claims", &json!({})).await;
    insta::assert_snapshot!("claim_nothing", redacted(&none));

    let progress = json!({"taskId": id, "attempt": 1, "data": {"messageType": "progress", "progress": 12.5}});
    insta::assert_snapshot!("message", redacted(&worker.post("/v1/services/resize/messages", &progress).await));
    insta::assert_snapshot!("poll_in_progress", redacted(&alice.get(&poll).await));

    let success = json!({"messageType": "success", "response": {"url": "https://example.org/7.png"}});
    assert_eq!(worker.report("resize", &id, success).await, "accepted");
    insta::assert_snapshot!("poll_success", redacted(&alice.get(&poll).await));
}

async fn a_task_that_fails_keeps_the_progress_it_reached(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    worker.report("resize", &id, json!({"messageType": "progress", "progress": 40})).await;
    worker.report("resize", &id, json!({"messageType": "failure", "errorMessage": "no such picture"})).await;
    let polled = alice.get(&format!("/v1/services/resize/tasks/{id}")).await;
    insta::assert_snapshot!("poll_failure", redacted(&polled));
}

async fn cancelling_a_task_is_idempotent(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let pending = format!("/v1/services/resize/tasks/{}", alice.submit("resize", json!({})).await);
    let cancelled = alice.delete(&pending).await;
    insta::assert_snapshot!("cancel_pending", redacted(&cancelled));
    assert_eq!(alice.delete(&pending).await.text, cancelled.text, "again");
    assert_eq!(alice.get(&pending).await.text, cancelled.text, "polled");

    let running = format!("/v1/services/resize/tasks/{}", alice.submit("resize", json!({})).await);
    worker.claim_one("resize").await;
    insta::assert_snapshot!("cancel_in_progress", redacted(&alice.delete(&running).await));
}

async fn a_task_that_loses_all_its_workers_fails_with_the_reason(on: Backend) {
    let app = TestApp::start(on).await;
    app.apply(json!({"services": [{"serviceName": "resize", "deliveryLimit": 1}]})).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(worker.claim("resize", json!({"lease": "1s", "hostName": "pod-1"})).await.len(), 1);
    let polled = alice.get(&format!("/v1/services/resize/tasks/{id}?wait=20s")).await;
    insta::assert_snapshot!("poll_failure_of_a_lost_task", redacted(&polled));
}

async fn a_listing_is_newest_first_and_its_cursor_leads_on(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(alice.submit("resize", json!({"n": n})).await);
    }
    app.client("bob").submit("resize", json!({})).await;
    alice.submit("ocr", json!({})).await;
    worker.claim_one("resize").await;
    worker.report("resize", &ids[0], json!({"messageType": "success", "response": {"big": "x"}})).await;
    let page = alice.get("/v1/services/resize/tasks").await;
    insta::assert_snapshot!("list", redacted(&page));
    insta::assert_snapshot!("list_nothing", redacted(&alice.get("/v1/services/strict/tasks").await));

    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = alice.get(&format!("/v1/services/resize/tasks?limit=2{cursor}")).await.data();
        seen.extend(page["tasks"].as_array().into_iter().flatten().map(id_of));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    ids.reverse();
    assert_eq!(seen, ids);
    let only = alice.get("/v1/services/resize/tasks?status=SUCCESS,FAILURE").await.data();
    assert_eq!(only["tasks"].as_array().map(Vec::len), Some(1));
    let future = alice.get("/v1/services/resize/tasks?from=2999-01-01T00:00:00Z").await.data();
    assert_eq!(future["tasks"], json!([]));
    let past = alice.get("/v1/services/resize/tasks?before=2999-01-01T00:00:00%2B01:00").await.data();
    assert_eq!(past["tasks"].as_array().map(Vec::len), Some(3));
}

async fn each_task_of_a_batch_has_its_own_answer(on: Backend) {
    let app = TestApp::start(on).await;
    app.apply(json!({"services": [{"serviceName": "resize", "capacity": 3}]})).await;
    let batch = json!({"tasks": [
        {"body": {"n": 1}},
        {"body": "no object"},
        {"body": {"n": 2}, "callback": {"type": "pigeon", "url": "https://example.org"}},
        7,
        {"body": {"n": 3}},
        {"body": {"n": 4}, "correlationId": "a\u{0}b"},
        {"body": {"n": 5}, "callback": {"type": "https", "url": "https://example.org/done"}},
        {"body": {"n": 6}},
    ]});
    let answer = app.client("alice").post("/v1/services/resize/tasks/batch", &batch).await;
    insta::assert_snapshot!("batch", redacted(&answer));
    assert_eq!(app.pending("resize").await, 3);
}

async fn outcomes_come_in_the_order_of_the_request(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let mut held = Vec::new();
    for n in 0..3 {
        held.push(alice.submit("resize", json!({"n": n})).await);
    }
    assert_eq!(worker.claim("resize", json!({"max": 3})).await.len(), 3);
    let waiting = alice.submit("resize", json!({})).await;
    assert_eq!(alice.delete(&format!("/v1/services/resize/tasks/{}", held[1])).await.status, 200);
    worker.report("resize", &held[2], json!({"messageType": "success"})).await;
    let tasks = json!({"tasks": [
        {"taskId": held[0], "attempt": 1},
        {"taskId": held[0], "attempt": 7},
        {"taskId": held[1], "attempt": 1},
        {"taskId": held[2], "attempt": 1},
        {"taskId": waiting},
        {"taskId": "019a0000-0000-7000-8000-000000000000", "attempt": 1},
        {"taskId": "no uuid"},
    ]});
    insta::assert_snapshot!("heartbeats", redacted(&worker.post("/v1/services/resize/heartbeats", &tasks).await));
    insta::assert_snapshot!("returns", redacted(&worker.post("/v1/services/resize/returns", &tasks).await));
    let messages = json!({"messages": [
        {"taskId": held[0], "attempt": 1, "data": {"messageType": "started"}},
        {"taskId": held[1], "data": {"messageType": "progress", "progress": 3}},
        {"taskId": held[2], "data": {"messageType": "failure", "errorMessage": "late"}},
        {"taskId": "019a0000-0000-7000-8000-000000000000", "data": {"messageType": "started"}},
        {"taskId": held[0], "data": {"messageType": "dance"}},
        {"data": {"messageType": "started"}},
        12,
        {"taskId": waiting, "data": {"messageType": "success", "response": [1]}},
    ]});
    insta::assert_snapshot!("messages", redacted(&worker.post("/v1/services/resize/messages", &messages).await));
}

async fn each_status_has_exactly_its_fields(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(alice.submit("resize", json!({"n": n})).await);
        worker.claim_one("resize").await;
    }
    ids.push(alice.submit("resize", json!({})).await);
    worker.report("resize", &ids[1], json!({"messageType": "success"})).await;
    worker.report("resize", &ids[2], json!({"messageType": "failure"})).await;
    let promised = [
        ("IN_PROGRESS", "taskId status submitionDate startDate progress"),
        ("SUCCESS", "taskId status submitionDate startDate progress endDate response"),
        ("FAILURE", "taskId status submitionDate startDate progress endDate errorMessage"),
        ("PENDING", "taskId status taskPosition submitionDate"),
    ];
    for (id, (status, fields)) in ids.iter().zip(promised) {
        let polled = alice.poll("resize", id).await;
        assert_eq!(polled["status"], status);
        let there: BTreeSet<&str> = polled.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        assert_eq!(there, fields.split(' ').collect(), "{status}");
    }
    assert_eq!(alice.poll("resize", &ids[1]).await["progress"].to_string(), "100.0");
    assert_eq!(alice.poll("resize", &ids[1]).await["response"], Value::Null, "a worker that gave none");
    assert_eq!(alice.poll("resize", &ids[2]).await["errorMessage"], "");
}

async fn a_client_sees_its_services_with_their_schemas(on: Backend) {
    let app = TestApp::start(on).await;
    insta::assert_snapshot!("services", redacted(&app.client("alice").get("/v1/services").await));
    insta::assert_snapshot!("services_of_a_stranger", redacted(&app.client("stranger").get("/v1/services").await));
    insta::assert_snapshot!("service", redacted(&app.client("worker").get("/v1/services/ocr").await));
    assert_eq!(app.client("worker").get("/v1/services/strict").await.number(), 403_001);
}

/// A look at the queues is what takes a sample of the pace.
async fn a_position_gets_an_estimated_start_once_the_pace_is_known(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for _ in 0..2 {
        alice.submit("resize", json!({})).await;
        worker.claim_one("resize").await;
        app.engine.observe().await.expect("the store answers");
    }
    let submitted = alice.post("/v1/services/resize/tasks", &json!({"body": {}})).await;
    insta::assert_snapshot!("submit_with_an_estimate", redacted(&submitted));
    let poll = format!("/v1/services/resize/tasks/{}", id_of(&submitted.data()));
    insta::assert_snapshot!("poll_pending_with_an_estimate", redacted(&alice.get(&poll).await));
}

async fn health_and_documentation_need_no_credentials(on: Backend) {
    let app = TestApp::start(on).await;
    let anyone = app.caller();
    for (path, content_type) in [
        ("/healthz", "application/json"),
        ("/readyz", "application/json"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
        ("/openapi.json", "application/json"),
        ("/docs", "text/html; charset=utf-8"),
    ] {
        let answer = anyone.get(path).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(content_type)), "{path}");
    }
    assert_eq!(anyone.get("/readyz").await.json(), json!({"status": "ok"}));
}
