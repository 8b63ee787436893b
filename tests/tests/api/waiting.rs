//! `?wait=`: the answer comes when the task ends, or when the time is up.

use std::time::{Duration, Instant};

use relais_tests::app::{Answer, Backend, Caller, TestApp};
use serde_json::json;
use tokio::{task::JoinHandle, time::timeout};

on_each_store!(
    a_waiting_poll_is_answered_when_the_task_ends,
    two_hundred_waiting_polls_are_all_woken,
    a_waiting_poll_times_out_with_the_current_state,
);
on_one_store!(
    a_waiting_poll_of_an_ended_or_missing_task_is_answered_at_once,
    invalid_waits_are_refused,
    waiting_polls_are_answered_when_the_server_stops,
);

/// Far less than anyone waits here, far more than an answer takes.
const AT_ONCE: Duration = Duration::from_secs(10);

fn wait(caller: &Caller, path: &str) -> JoinHandle<Answer> {
    let (caller, path) = (caller.clone(), path.to_owned());
    tokio::spawn(async move { caller.get(&path).await })
}

async fn answered(waiting: JoinHandle<Answer>) -> Answer {
    match timeout(AT_ONCE, waiting).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => panic!("{error}"),
        Err(_) => panic!("no answer within {AT_ONCE:?}"),
    }
}

async fn a_waiting_poll_is_answered_when_the_task_ends(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for ending in ["success", "failure", "cancel"] {
        let id = alice.submit("resize", json!({})).await;
        let path = format!("/v1/services/resize/tasks/{id}");
        let waiting = wait(&alice, &format!("{path}?wait=60s"));
        app.under_way(&path, 1).await;
        worker.claim_one("resize").await;
        assert_eq!(worker.report("resize", &id, json!({"messageType": "progress", "progress": 1})).await, "accepted");
        assert!(!waiting.is_finished(), "neither a start nor progress is an end");
        let expected = match ending {
            "cancel" => {
                assert_eq!(alice.delete(&path).await.status, 200);
                "CANCELLED"
            }
            message => {
                assert_eq!(worker.report("resize", &id, json!({"messageType": message})).await, "accepted");
                if message == "success" { "SUCCESS" } else { "FAILURE" }
            }
        };
        assert_eq!(answered(waiting).await.data()["status"], expected);
    }
}

async fn two_hundred_waiting_polls_are_all_woken(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    let path = format!("/v1/services/resize/tasks/{id}");
    let waiting: Vec<_> = (0..200).map(|_| wait(&alice, &format!("{path}?wait=120s"))).collect();
    app.under_way(&path, 200).await;
    worker.claim_one("resize").await;
    assert_eq!(worker.report("resize", &id, json!({"messageType": "success", "response": 7})).await, "accepted");
    for waiting in waiting {
        assert_eq!(answered(waiting).await.data()["response"], 7);
    }
}

async fn a_waiting_poll_times_out_with_the_current_state(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    let path = format!("/v1/services/resize/tasks/{id}");
    let begun = Instant::now();
    let answer = alice.get(&format!("{path}?wait=300ms")).await;
    assert!(begun.elapsed() >= Duration::from_millis(300), "it waited");
    assert_eq!((answer.status, answer.data()["status"].as_str()), (200, Some("PENDING")));
    let waiting = wait(&alice, &format!("{path}?wait=5s"));
    app.under_way(&path, 1).await;
    worker.claim_one("resize").await;
    assert_eq!(answered(waiting).await.data()["status"], "IN_PROGRESS", "as it is at the end of the wait");
    assert_eq!(alice.get(&format!("{path}?wait=0s")).await.data()["status"], "IN_PROGRESS");
}

async fn a_waiting_poll_of_an_ended_or_missing_task_is_answered_at_once(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let id = alice.submit("resize", json!({})).await;
    let path = format!("/v1/services/resize/tasks/{id}");
    alice.delete(&path).await;
    assert_eq!(answered(wait(&alice, &format!("{path}?wait=60s"))).await.data()["status"], "CANCELLED");
    let none = "/v1/services/resize/tasks/019a0000-0000-7000-8000-000000000000?wait=60s";
    assert_eq!(answered(wait(&alice, none)).await.number(), 404_002);
}

async fn invalid_waits_are_refused(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let id = alice.submit("resize", json!({})).await;
    for absurd in [
        "",
        "30",
        "s",
        "-1s",
        "1.5s",
        "121s",
        "3m",
        "1d",
        "99999999999999999999s",
        "18446744073709551615d",
        "1y",
        "NaN",
        "%00",
        "%ff",
        "1s&wait=1s",
        "1s&other=1",
    ] {
        let answer = alice.get(&format!("/v1/services/resize/tasks/{id}?wait={absurd}")).await;
        assert_eq!(answer.number(), 400_006, "{absurd}");
    }
    for fine in ["0s", "0ms", "1ms", "%30s", "0s&"] {
        let answer = alice.get(&format!("/v1/services/resize/tasks/{id}?wait={fine}")).await;
        assert_eq!(answer.status, 200, "{fine}");
    }
}

async fn waiting_polls_are_answered_when_the_server_stops(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    let path = format!("/v1/services/resize/tasks/{id}");
    let waiting = wait(&alice, &format!("{path}?wait=60s"));
    let claiming = tokio::spawn({
        let worker = worker.clone();
        async move { worker.claim("resize", json!({"wait": "60s"})).await }
    });
    let mut events = alice.follow("resize", &id).await;
    assert_eq!(events.expect().await.data["status"], "IN_PROGRESS");
    app.under_way(&path, 1).await;
    app.under_way("/v1/services/resize/claims", 1).await;
    app.engine.begin_stop();
    assert_eq!(answered(waiting).await.data()["status"], "IN_PROGRESS");
    assert_eq!(timeout(AT_ONCE, claiming).await.ok().and_then(Result::ok), Some(Vec::new()));
    assert!(events.next().await.is_none(), "the stream ends");
}
