//! `Idempotency-Key`: a submission can be repeated safely.

use std::collections::BTreeSet;

use relais_tests::app::{Backend, TestApp};
use serde_json::json;
use tokio::task::JoinSet;

on_each_store!(
    a_repeated_idempotency_key_gets_the_same_answer_and_no_duplicate_task,
    an_idempotency_key_of_another_request_is_refused,
    idempotency_keys_are_per_client_and_service,
    fifty_concurrent_submissions_with_one_idempotency_key_make_one_task,
    a_refused_submission_does_not_use_up_its_idempotency_key,
    a_batch_repeated_under_its_idempotency_key_is_the_same_batch,
);
on_one_store!(idempotency_keys_are_one_to_two_hundred_visible_ascii_characters);

const TASKS: &str = "/v1/services/resize/tasks";

async fn a_repeated_idempotency_key_gets_the_same_answer_and_no_duplicate_task(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    alice.submit("resize", json!({"first": "in the queue"})).await;
    let keyed = alice.clone().with("idempotency-key", "order-7");
    let request = json!({"body": {"n": 1}, "correlationId": "c"});
    let first = keyed.post(TASKS, &request).await;
    assert_eq!((first.status, first.header("idempotency-replayed")), (201, None));
    assert_eq!(first.data()["taskPosition"], 2);

    // Also after the task has moved on, and when there would be no room for another.
    assert_eq!(worker.claim("resize", json!({"max": 2})).await.len(), 2);
    app.apply(json!({"services": [{"serviceName": "resize", "capacity": 0}]})).await;
    for _ in 0..3 {
        let again = keyed.post(TASKS, &request).await;
        assert_eq!((again.status, again.header("idempotency-replayed")), (201, Some("true")));
        assert_eq!(again.text, first.text);
    }
    assert_eq!((app.pending("resize").await, app.count("resize", "inProgress").await), (0, 2));
}

async fn an_idempotency_key_of_another_request_is_refused(on: Backend) {
    let app = TestApp::start(on).await;
    let keyed = app.client("alice").with("idempotency-key", "order-7");
    assert_eq!(keyed.post(TASKS, &json!({"body": {"n": 1}})).await.status, 201);
    for other in [json!({"body": {"n": 2}}), json!({"body": {"n": 1}, "correlationId": "x"})] {
        assert_eq!(keyed.post(TASKS, &other).await.number(), 409_001);
    }
    assert_eq!(keyed.post(TASKS, &json!({"body": {"n": 1}})).await.status, 201, "the first one still stands");
    assert_eq!(app.pending("resize").await, 1);
}

async fn idempotency_keys_are_per_client_and_service(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, bob) = (app.client("alice"), app.client("bob"));
    let mut ids = BTreeSet::new();
    for (caller, service, key) in
        [(&alice, "resize", "k"), (&bob, "resize", "k"), (&alice, "ocr", "k"), (&alice, "resize", "K")]
    {
        let keyed = caller.clone().with("idempotency-key", key);
        let answer = keyed.post(&format!("/v1/services/{service}/tasks"), &json!({"body": {}})).await;
        assert_eq!((answer.status, answer.header("idempotency-replayed")), (201, None));
        ids.insert(answer.data()["taskId"].to_string());
    }
    assert_eq!(ids.len(), 4);
}

async fn fifty_concurrent_submissions_with_one_idempotency_key_make_one_task(on: Backend) {
    let app = TestApp::start(on).await;
    let keyed = app.client("alice").with("idempotency-key", "order-7");
    let mut submissions = JoinSet::new();
    for _ in 0..50 {
        let keyed = keyed.clone();
        submissions.spawn(async move { keyed.post(TASKS, &json!({"body": {"n": 1}})).await });
    }
    let answers = submissions.join_all().await;
    assert!(answers.iter().all(|answer| answer.status == 201));
    assert_eq!(answers.iter().map(|answer| answer.text.as_str()).collect::<BTreeSet<_>>().len(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.header("idempotency-replayed").is_none()).count(), 1);
    assert_eq!(app.pending("resize").await, 1);
}

async fn a_refused_submission_does_not_use_up_its_idempotency_key(on: Backend) {
    let app = TestApp::start(on).await;
    let keyed = app.client("alice").with("idempotency-key", "order-7");
    let (strict, request) = ("/v1/services/strict/tasks", json!({"body": {"sleep": 1}}));
    let capacity = |capacity: u32| {
        let authorization = json!({"clientId": "alice", "serviceName": "strict", "capacity": capacity});
        json!({"authorizations": [authorization]})
    };
    assert_eq!(keyed.post_text(strict, "{").await.number(), 400_002);
    assert_eq!(keyed.post(strict, &json!({"body": {}})).await.number(), 400_001);
    app.apply(capacity(0)).await;
    assert_eq!(keyed.post(strict, &request).await.number(), 429_002);
    app.apply(capacity(1)).await;
    let taken = keyed.post(strict, &request).await;
    assert_eq!((taken.status, taken.header("idempotency-replayed")), (201, None));
    assert_eq!(keyed.post(strict, &request).await.header("idempotency-replayed"), Some("true"));
}

async fn a_batch_repeated_under_its_idempotency_key_is_the_same_batch(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, bob) = (app.client("alice"), app.client("bob"));
    let keyed = alice.clone().with("idempotency-key", "album-7");
    let request = json!({"tasks": [
        {"service": "resize", "ref": "a", "body": {}},
        {"service": "ocr", "body": {}, "after": {"refs": ["a"]}},
    ]});
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let (keyed, request) = (keyed.clone(), request.clone());
        calls.spawn(async move { keyed.post("/v1/batches", &request).await });
    }
    let answers = calls.join_all().await;
    assert!(
        answers.iter().all(|answer| answer.status == 201),
        "{:?}",
        answers.iter().map(|a| &a.text).collect::<Vec<_>>()
    );
    let texts: BTreeSet<&str> = answers.iter().map(|answer| answer.text.as_str()).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert_eq!(answers.iter().filter(|answer| answer.header("idempotency-replayed").is_none()).count(), 1);
    assert_eq!(
        (app.pending("resize").await, alice.get("/v1/batches").await.data()["batches"][0]["total"].clone()),
        (1, json!(2))
    );
    assert_eq!(alice.get("/v1/batches").await.data()["batches"].as_array().map(Vec::len), Some(1));

    // Also after its end, and when there would be no room for another.
    let batch = answers[0].data()["batchId"].as_str().unwrap_or_default().to_owned();
    assert_eq!(alice.post_nothing(&format!("/v1/batches/{batch}/cancel")).await.status, 200);
    let other = json!({"tasks": [{"service": "resize", "body": {}}]});
    let bobs = bob.with("idempotency-key", "album-7").post("/v1/batches", &other).await;
    assert_eq!((bobs.status, bobs.header("idempotency-replayed")), (201, None), "another client's key is another key");
    app.apply(json!({"services": [{"serviceName": "resize", "capacity": 0}]})).await;
    let again = keyed.post("/v1/batches", &request).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed"), &again.text),
        (201, Some("true"), &answers[0].text)
    );

    // Another request, another key.
    assert_eq!(keyed.post("/v1/batches", &other).await.number(), 409_001);
    let refused = alice.clone().with("idempotency-key", "album-8");
    assert_eq!(refused.post("/v1/batches", &request).await.number(), 429_001);
    app.apply(json!({"services": [{"serviceName": "resize"}]})).await;
    let taken = refused.post("/v1/batches", &request).await;
    assert_eq!((taken.status, taken.header("idempotency-replayed")), (201, None), "a refusal does not use up its key");
    let bad = alice.clone().with("idempotency-key", "two words").post("/v1/batches", &other).await;
    assert_eq!(bad.number(), 400_007);
}

async fn idempotency_keys_are_one_to_two_hundred_visible_ascii_characters(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let request = json!({"body": {}});
    for bad in ["", " ", "two words", "é", "a\tb", &"x".repeat(201)] {
        let answer = alice.clone().with("idempotency-key", bad).post(TASKS, &request).await;
        assert_eq!(answer.number(), 400_007, "{bad:?}");
    }
    let twice = alice.clone().with("idempotency-key", "a").with("idempotency-key", "a");
    assert_eq!(twice.post(TASKS, &request).await.number(), 400_007);
    assert_eq!(app.pending("resize").await, 0);
    for good in ["a", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "';DROP/**/TABLE/**/task;--", &"x".repeat(200)] {
        assert_eq!(alice.clone().with("idempotency-key", good).post(TASKS, &request).await.status, 201, "{good:?}");
    }
    assert_eq!(app.pending("resize").await, 4);
}
