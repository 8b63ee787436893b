//! Capacity is exact under concurrency, and a pause holds tasks without refusing them.

use relais_tests::app::{Backend, Caller, DEADLINE, TestApp};
use serde_json::json;
use tokio::{task::JoinSet, time::timeout};

on_each_store!(
    a_thousand_concurrent_submissions_fill_a_capacity_of_a_hundred_exactly,
    a_client_capacity_leaves_the_rest_to_others,
    freed_capacity_is_available_at_once,
    a_paused_service_accepts_submissions_and_gives_none_to_claims,
);

const TASKS: &str = "/v1/services/resize/tasks";

/// Submits so many at once, and counts those that were taken and those that were refused with this number.
async fn storm(caller: &Caller, submissions: usize, refusal: u64) -> (usize, usize) {
    let mut storm = JoinSet::new();
    for n in 0..submissions {
        let caller = caller.clone();
        storm.spawn(async move { caller.post(TASKS, &json!({"body": {"n": n}})).await });
    }
    let answers = storm.join_all().await;
    let taken = answers.iter().filter(|answer| answer.status == 201).count();
    let refused = answers.iter().filter(|answer| answer.status == 429);
    let refused = refused.inspect(|answer| assert!(answer.header("retry-after").is_some()));
    (taken, refused.filter(|answer| answer.number() == refusal).count())
}

async fn a_thousand_concurrent_submissions_fill_a_capacity_of_a_hundred_exactly(on: Backend) {
    let app = TestApp::start(on).await;
    app.apply(json!({"services": [{"serviceName": "resize", "capacity": 100}]})).await;
    assert_eq!(storm(&app.client("alice"), 1000, 429_001).await, (100, 900));
    assert_eq!(app.pending("resize").await, 100);
}

async fn a_client_capacity_leaves_the_rest_to_others(on: Backend) {
    let app = TestApp::start(on).await;
    app.apply(json!({
        "services": [{"serviceName": "resize", "capacity": 15}],
        "authorizations": [{"clientId": "alice", "serviceName": "resize", "capacity": 10}],
    }))
    .await;
    assert_eq!(storm(&app.client("alice"), 100, 429_002).await, (10, 90));
    assert_eq!(storm(&app.client("bob"), 100, 429_001).await, (5, 95));
    let both_full = app.client("alice").post(TASKS, &json!({"body": {}})).await;
    assert_eq!(both_full.number(), 429_001, "the service is looked at first");
}

async fn freed_capacity_is_available_at_once(on: Backend) {
    let app = TestApp::start(on).await;
    app.apply(json!({"services": [{"serviceName": "resize", "capacity": 1}]})).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let request = json!({"body": {}});
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(alice.post(TASKS, &request).await.number(), 429_001);
    worker.claim_one("resize").await;
    let second = alice.submit("resize", json!({})).await;
    assert_eq!(alice.post(TASKS, &request).await.number(), 429_001, "a task that is given back may be one too many");
    assert_eq!(worker.give_back("resize", &id, 1).await, "accepted", "but is not refused");
    assert_eq!(app.pending("resize").await, 2);
    for id in [id, second] {
        assert_eq!(alice.post(TASKS, &request).await.number(), 429_001);
        assert_eq!(alice.delete(&format!("{TASKS}/{id}")).await.status, 200);
    }
    alice.submit("resize", json!({})).await;
    app.apply(json!({"services": [{"serviceName": "resize"}]})).await;
    alice.submit("resize", json!({"without": "a limit"})).await;
}

async fn a_paused_service_accepts_submissions_and_gives_none_to_claims(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let running = alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    app.caller().post_nothing("/admin/services/resize/pause").await.data();
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(alice.get("/v1/services/resize").await.data()["paused"], true);
    assert!(worker.claim("resize", json!({"max": 10})).await.is_empty());
    assert!(worker.claim("resize", json!({"wait": "200ms"})).await.is_empty());
    assert_eq!(worker.report("resize", &running, json!({"messageType": "success"})).await, "accepted", "goes on");

    let mut id = id;
    // Many times, because a resume may fall into any moment of a claim.
    for _ in 0..20 {
        let claiming = tokio::spawn({
            let worker = worker.clone();
            async move { worker.claim_one("resize").await }
        });
        app.under_way("/v1/services/resize/claims", 1).await;
        app.caller().post_nothing("/admin/services/resize/resume").await.data();
        let claimed = timeout(DEADLINE, claiming).await.ok().and_then(Result::ok);
        assert_eq!(claimed.map(|task| task["taskId"] == id.as_str()), Some(true), "it was told, and need not look");
        app.caller().post_nothing("/admin/services/resize/pause").await.data();
        id = alice.submit("resize", json!({})).await;
    }
}
