//! The backlog of a queue: exact, at the same cost however full the queue is, for clients with a role on the service.
#![expect(clippy::unwrap_used, reason = "what can not be unwrapped here fails the test, which is what it is for")]

use relais_tests::app::{Backend, TestApp};
use serde_json::{Value, json};

on_each_store!(the_backlog_counts_pending_and_running_tasks, a_returned_task_counts_as_pending_in_the_backlog);
on_one_store!(the_backlog_is_refused_without_an_authorization, the_backlog_answer_matches_its_snapshot);

const PATH: &str = "/v1/services/resize/backlog";

async fn counts(app: &TestApp, client: &str) -> (u64, u64, u64) {
    let data = app.client(client).get(PATH).await.data();
    let number = |field: &str| data[field].as_u64().unwrap_or_else(|| panic!("{field} is not a number in {data}"));
    (number("queued"), number("running"), number("backlog"))
}

async fn the_backlog_counts_pending_and_running_tasks(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, bob, worker) = (app.client("alice"), app.client("bob"), app.client("worker"));
    assert_eq!(counts(&app, "alice").await, (0, 0, 0));
    // Other clients' tasks count, other services' do not.
    alice.submit("resize", json!({})).await;
    bob.submit("resize", json!({})).await;
    let third = alice.submit("resize", json!({})).await;
    alice.submit("ocr", json!({})).await;
    assert_eq!(counts(&app, "alice").await, (3, 0, 3));
    let first = worker.claim_one("resize").await;
    assert_eq!(counts(&app, "worker").await, (2, 1, 3), "a task that is worked on still needs its worker");
    let id = first["taskId"].as_str().unwrap();
    assert_eq!(worker.report("resize", id, json!({"messageType": "success"})).await, "accepted");
    assert_eq!(counts(&app, "worker").await, (2, 0, 2));
    assert_eq!(alice.delete(&format!("/v1/services/resize/tasks/{third}")).await.status, 200);
    assert_eq!(counts(&app, "bob").await, (1, 0, 1));
}

async fn a_returned_task_counts_as_pending_in_the_backlog(on: Backend) {
    let app = TestApp::start(on).await;
    let worker = app.client("worker");
    app.client("alice").submit("resize", json!({})).await;
    let task = worker.claim_one("resize").await;
    assert_eq!(counts(&app, "worker").await, (0, 1, 1));
    let back = json!({"tasks": [{"taskId": task["taskId"], "attempt": task["attempt"]}]});
    assert_eq!(worker.post("/v1/services/resize/returns", &back).await.status, 200);
    assert_eq!(counts(&app, "worker").await, (1, 0, 1));
}

async fn the_backlog_is_refused_without_an_authorization(on: Backend) {
    let app = TestApp::start(on).await;
    for (caller, path, number) in [
        (app.client("stranger"), PATH, 403001),
        (app.caller(), PATH, 403001),
        (app.caller().basic("alice", "wrong"), PATH, 403001),
        (app.client("worker"), "/v1/services/strict/backlog", 403001),
        (app.client("alice"), "/v1/services/nowhere/backlog", 404001),
    ] {
        let answer = caller.get(path).await;
        let said: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(said["error"]["number"], number, "{path}: {}", answer.text);
    }
}

async fn the_backlog_answer_matches_its_snapshot(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let empty: Value = serde_json::from_str(&alice.get(PATH).await.text).unwrap();
    let zeroes = json!({"queued": 0, "running": 0, "backlog": 0, "oldestPendingSeconds": 0.0});
    assert_eq!(empty, json!({"status": "success", "data": zeroes}));
    alice.submit("resize", json!({})).await;
    let age = |data: &Value| data["oldestPendingSeconds"].as_f64().unwrap();
    // A trailing slash makes no difference, and time goes on.
    let first = age(&alice.get(&format!("{PATH}/")).await.data());
    while age(&alice.get(PATH).await.data()) <= first {}
    assert!(first < 60.0, "{first}");
}
