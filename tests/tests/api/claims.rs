//! Claims: each task goes to one worker, under a lease, and no task is lost with a worker that disconnects.

use std::{collections::BTreeSet, time::Duration};

use relais_tests::app::{Backend, DEADLINE, TestApp, basic, secret};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

on_each_store!(
    a_waiting_claim_gets_a_task_when_it_is_submitted,
    a_hundred_concurrent_claims_never_get_the_same_task,
    a_returned_task_can_be_claimed_by_another_worker_at_once,
    a_task_with_an_expired_lease_goes_to_another_worker,
    a_heartbeat_extends_the_lease_and_says_when_a_task_is_lost_or_cancelled,
    a_disconnected_waiting_claim_loses_no_task,
);
on_one_store!(claims_get_the_oldest_tasks_and_no_more_than_requested, invalid_claims_are_refused);

const CLAIMS: &str = "/v1/services/resize/claims";

fn id(task: &Value) -> &str {
    task["taskId"].as_str().unwrap_or_else(|| panic!("no taskId in {task}"))
}

async fn a_waiting_claim_gets_a_task_when_it_is_submitted(on: Backend) {
    let app = TestApp::start(on).await;
    let worker = app.client("worker");
    let claiming = tokio::spawn(async move { worker.claim_one("resize").await });
    app.under_way(CLAIMS, 1).await;
    let submitted = app.client("alice").submit("resize", json!({"n": 1})).await;
    let task = timeout(DEADLINE, claiming).await.ok().and_then(Result::ok).unwrap_or_default();
    assert_eq!(id(&task), submitted);
    assert_eq!((&task["task_id"], &task["attempt"]), (&task["taskId"], &json!(1)));
    assert_eq!(task["data"], json!({"messageType": "submission", "message_type": "submission", "body": {"n": 1}}));
}

async fn a_hundred_concurrent_claims_never_get_the_same_task(on: Backend) {
    let app = TestApp::start(on).await;
    let mut workers = JoinSet::new();
    for _ in 0..100 {
        let worker = app.client("worker");
        workers.spawn(async move { worker.claim("resize", json!({"max": 3, "wait": "20s"})).await });
    }
    app.under_way(CLAIMS, 100).await;
    let tasks: Vec<Value> = (0..100).map(|n| json!({"body": {"n": n}})).collect();
    for part in tasks.chunks(25) {
        app.client("alice").post("/v1/services/resize/tasks/batch", &json!({"tasks": part})).await.data();
    }
    // Some get three, so some get none: they are let go.
    let mut handed_out = Vec::new();
    while handed_out.len() < 100 {
        let claimed = timeout(Duration::from_secs(30), workers.join_next()).await;
        let Ok(Some(Ok(claimed))) = claimed else { panic!("only {} tasks were handed out", handed_out.len()) };
        handed_out.extend(claimed.iter().map(|task| id(task).to_owned()));
    }
    assert_eq!(handed_out.iter().collect::<BTreeSet<_>>().len(), 100);
    assert_eq!((app.pending("resize").await, app.count("resize", "inProgress").await), (0, 100));
}

async fn a_returned_task_can_be_claimed_by_another_worker_at_once(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let submitted = alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    worker.report("resize", &submitted, json!({"messageType": "progress", "progress": 80})).await;
    let another = app.client("worker");
    let claiming = tokio::spawn(async move { another.claim_one("resize").await });
    app.under_way(CLAIMS, 1).await;
    assert_eq!(worker.give_back("resize", &submitted, 1).await, "accepted");
    let task = timeout(DEADLINE, claiming).await.ok().and_then(Result::ok).unwrap_or_default();
    assert_eq!((id(&task), &task["attempt"]), (submitted.as_str(), &json!(2)));
    assert_eq!(alice.poll("resize", &submitted).await["progress"].as_f64(), Some(0.0), "from the beginning");
    assert_eq!(worker.give_back("resize", &submitted, 1).await, "lost", "it is not the first worker's to give back");
    let shown = app.caller().get(&format!("/admin/tasks/{submitted}")).await.data();
    assert_eq!(shown["losses"], 0, "nothing is held against it");
}

async fn a_task_with_an_expired_lease_goes_to_another_worker(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let submitted = alice.submit("resize", json!({})).await;
    let first = worker.claim("resize", json!({"lease": "1s", "hostName": "pod-1"})).await;
    assert_eq!(first.len(), 1);
    let second = worker.claim_one("resize").await;
    assert_eq!((id(&second), &second["attempt"]), (submitted.as_str(), &json!(2)));

    // The first worker is not dead after all: its heartbeat says that it lost the task, and it changes nothing.
    assert_eq!(worker.heartbeat("resize", &submitted, 1).await, "lost");
    let stale = json!({"taskId": submitted, "attempt": 1, "data": {"messageType": "success", "response": "stale"}});
    assert_eq!(worker.message("resize", stale).await, "lost");
    let fresh = json!({"taskId": submitted, "attempt": 2, "data": {"messageType": "success", "response": "fresh"}});
    assert_eq!(worker.message("resize", fresh).await, "accepted");
    assert_eq!(alice.poll("resize", &submitted).await["response"], "fresh");
    assert_eq!(app.caller().get(&format!("/admin/tasks/{submitted}")).await.data()["losses"], 1);
}

async fn a_heartbeat_extends_the_lease_and_says_when_a_task_is_lost_or_cancelled(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let submitted = alice.submit("resize", json!({})).await;
    let task = worker.claim_one("resize").await;
    let renewal = json!({"tasks": [{"taskId": submitted, "attempt": 1}], "lease": "2h"});
    let outcome = worker.post("/v1/services/resize/heartbeats", &renewal).await.data()["outcomes"][0].clone();
    assert_eq!(outcome["outcome"], "accepted");
    assert!(outcome["leaseExpires"].as_str() > task["leaseExpires"].as_str(), "{outcome}");
    assert_eq!(worker.heartbeat("resize", &submitted, 2).await, "lost");
    alice.delete(&format!("/v1/services/resize/tasks/{submitted}")).await;
    assert_eq!(worker.heartbeat("resize", &submitted, 1).await, "cancelled");
    assert_eq!(worker.report("resize", &submitted, json!({"messageType": "success"})).await, "cancelled");
    assert_eq!(worker.give_back("resize", &submitted, 1).await, "cancelled");
    let ended = alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    worker.report("resize", &ended, json!({"messageType": "failure"})).await;
    assert_eq!(worker.heartbeat("resize", &ended, 1).await, "ended");
    let pending = alice.submit("resize", json!({})).await;
    assert_eq!(worker.heartbeat("resize", &pending, 0).await, "lost", "nobody holds it");
}

async fn a_disconnected_waiting_claim_loses_no_task(on: Backend) {
    let app = TestApp::start(on).await;
    let credentials = basic("worker", &secret("worker"));
    let mut gone = Vec::new();
    for _ in 0..5 {
        let mut wire = app.wire().await;
        wire.send(format!(
            "POST {CLAIMS} HTTP/1.1\r\nhost: relais\r\nauthorization: {credentials}\r\n\
             content-type: application/json\r\ncontent-length: 14\r\n\r\n{{\"wait\":\"60s\"}}"
        ))
        .await;
        gone.push(wire);
    }
    app.under_way(CLAIMS, 5).await;
    for wire in gone {
        assert_eq!(wire.hang_up().await, "", "no answer");
    }
    app.under_way(CLAIMS, 0).await;
    let submitted = app.client("alice").submit("resize", json!({})).await;
    let claimed = timeout(DEADLINE, app.client("worker").claim_one("resize")).await;
    let task = claimed.unwrap_or_else(|_| panic!("the task went to somebody who hung up"));
    assert_eq!(id(&task), submitted);
}

async fn claims_get_the_oldest_tasks_and_no_more_than_requested(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for n in 0..5 {
        alice.submit("resize", json!({"n": n})).await;
    }
    let numbers = |tasks: Vec<Value>| -> Vec<i64> {
        tasks.iter().map(|task| task["data"]["body"]["n"].as_i64().unwrap_or(-1)).collect()
    };
    assert_eq!(numbers(worker.claim("resize", json!({})).await), [0], "one, unless it says otherwise");
    assert_eq!(numbers(worker.claim("resize", json!({"max": 2})).await), [1, 2]);
    assert!(worker.claim("ocr", json!({"max": 9})).await.is_empty(), "another service has its own queue");
    assert_eq!(
        numbers(worker.claim("resize", json!({"max": 1000, "wait": "60s"})).await),
        [3, 4],
        "does not wait for more"
    );
}

async fn invalid_claims_are_refused(on: Backend) {
    let app = TestApp::start(on).await;
    let worker = app.client("worker");
    app.client("alice").submit("resize", json!({})).await;
    for absurd in [
        json!({"max": 0}),
        json!({"max": 1001}),
        json!({"max": -1}),
        json!({"max": 1.5}),
        json!({"max": "1"}),
        json!({"wait": "121s"}),
        json!({"wait": 30}),
        json!({"wait": "soon"}),
        json!({"lease": "999ms"}),
        json!({"lease": "25h"}),
        json!({"lease": "0s"}),
        json!({"hostName": ""}),
        json!({"hostName": "a\u{0}b"}),
        json!({"hostName": "a\nb"}),
        json!({"hostName": "x".repeat(256)}),
        json!({"hostName": 7}),
        json!({"hosts": "pod"}),
        json!([1]),
        json!(null),
        json!("claim"),
    ] {
        let answer = worker.post(CLAIMS, &absurd).await;
        assert_eq!(answer.number(), 400_003, "{absurd}: {}", answer.text);
    }
    assert_eq!(app.pending("resize").await, 1, "none of them took it");
}
