//! Delayed and retried tasks over the broker: published when they are due.

use std::time::{Duration, Instant};

use relais_tests::app::Backend;
use serde_json::{Value, json};

use crate::stage::{Stage, until};

on_each_store!(
    a_scheduled_task_is_published_when_it_is_due,
    a_retry_is_published_when_it_is_due,
    a_task_retried_by_an_operator_is_published_again,
    a_published_task_carries_its_timeout,
    a_failure_keeps_the_last_progress_over_rabbitmq,
);

async fn submit(stage: &Stage, request: Value) -> String {
    let answer = stage.alice.post("/v1/services/resize/tasks", &request).await;
    answer.data()["taskId"].as_str().unwrap_or_default().to_owned()
}

async fn a_scheduled_task_is_published_when_it_is_due(on: Backend) {
    let stage = Stage::start(on).await;
    let mut listening = stage.worker.listen(10).await;
    let later = submit(&stage, json!({"body": {}, "delay": "1h"})).await;
    let delay = Duration::from_millis(300);
    let begun = Instant::now();
    let soon = submit(&stage, json!({"body": {}, "delay": "300ms", "priority": 9})).await;
    let at_once = submit(&stage, json!({"body": {}})).await;
    let mut taken = Vec::new();
    for _ in 0..2 {
        let job = listening.take().await;
        assert!(job.task_id != soon || begun.elapsed() >= delay, "too soon");
        stage.worker.success(&job.task_id, json!(1)).await;
        listening.ack(&job);
        stage.success(&job.task_id).await;
        taken.push(job.task_id);
    }
    taken.sort();
    assert_eq!(taken, [soon, at_once], "names are in the order of submission");
    assert_eq!(stage.poll(&later).await["status"], "PENDING");
    assert_eq!(stage.app.count("resize", "waiting").await, 1);
}

async fn a_failure_keeps_the_last_progress_over_rabbitmq(on: Backend) {
    let stage = Stage::start(on).await;
    let mut listening = stage.worker.listen(1).await;
    let id = stage.submit(json!({})).await;
    let job = listening.take().await;
    let said = [
        json!({"messageType": "started", "hostName": "pod-1"}),
        json!({"messageType": "progress", "progress": 10.0}),
        json!({"messageType": "progress", "progress": 30.0}),
        json!({"messageType": "failure", "errorMessage": "no paper"}),
    ];
    // All in one message, and so recorded together.
    let said = Value::Array(said.into_iter().map(|data| json!({"taskId": id, "data": data})).collect());
    stage.worker.send(said.to_string()).await;
    let failed = stage.end(&id).await;
    assert_eq!((&failed["status"], &failed["progress"]), (&json!("FAILURE"), &json!(30.0)));
    listening.ack(&job);
}

async fn a_published_task_carries_its_timeout(on: Backend) {
    let stage = Stage::start(on).await;
    let mut listening = stage.worker.listen(10).await;
    // Straight from memory, then by the sweep: what waited for its time.
    let said = [
        (json!({"body": {}}), Value::Null),
        (json!({"body": {}, "timeout": "5m"}), json!(300_000)),
        (json!({"body": {}, "timeout": "1s", "delay": "50ms"}), json!(1000)),
    ];
    for (request, expected) in said {
        let id = submit(&stage, request).await;
        let job = listening.take().await;
        assert_eq!((&job.task_id, &job.message["timeoutMs"]), (&id, &expected));
        listening.ack(&job);
    }
    stage.resize(json!({"timeout": "1s"})).await;
    let id = submit(&stage, json!({"body": {}})).await;
    let job = listening.take().await;
    assert_eq!(job.message["timeoutMs"], 1000);
    stage.worker.started(&id, "pod-1").await;
    assert_eq!(stage.failure(&id).await, "It ran for longer than it may.");
}

async fn a_retry_is_published_when_it_is_due(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"retry": {"limit": 2, "base": "50ms", "factor": 1}})).await;
    let mut listening = stage.worker.listen(1).await;
    let id = stage.submit(json!({})).await;
    for number in 1..=3 {
        let job = listening.take().await;
        assert_eq!(job.task_id, id, "attempt {number}");
        stage.worker.started(&id, &format!("pod-{number}")).await;
        let failure = json!({"messageType": "failure", "errorMessage": format!("no {number}"), "errorKind": "ink"});
        if number < 3 {
            stage.worker.say(&id, failure).await;
        } else {
            stage.worker.success(&id, json!("at last")).await;
        }
        listening.ack(&job);
    }
    assert_eq!(stage.success(&id).await, "at last");
    let shown = stage.app.caller().get(&format!("/admin/tasks/{id}")).await.data();
    let told: Vec<_> = shown["attempts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|attempt| (attempt["outcome"].clone(), attempt["workerHost"].clone(), attempt["errorMessage"].clone()))
        .collect();
    let expected = [
        (json!("failure"), json!("pod-1"), json!("no 1")),
        (json!("failure"), json!("pod-2"), json!("no 2")),
        (json!("success"), json!("pod-3"), Value::Null),
    ];
    assert_eq!(told, expected);
}

async fn a_task_retried_by_an_operator_is_published_again(on: Backend) {
    let stage = Stage::start(on).await;
    let mut listening = stage.worker.listen(1).await;
    let id = stage.submit(json!({})).await;
    for result in 1..=2 {
        let job = listening.take().await;
        assert_eq!(job.task_id, id);
        stage.worker.success(&id, json!(result)).await;
        listening.ack(&job);
        until("the result is there", async || stage.poll(&id).await["response"] == result).await;
        if result == 1 {
            stage.alice.post_nothing(&format!("/v1/services/resize/tasks/{id}/retry")).await.data();
        }
    }
}
