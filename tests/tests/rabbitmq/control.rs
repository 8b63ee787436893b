//! Revocations: workers are told to stop tasks.

use relais_messaging::rabbitmq::Consumer;
use relais_testkit::TestVhost;
use relais_tests::{
    amqp,
    app::{Backend, DEADLINE},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::stage::Stage;

on_each_store!(every_cancellation_sends_one_revocation, an_old_revocation_does_not_stop_a_retried_task);

on_one_store!(
    a_worker_that_continues_an_ended_task_gets_another_revocation,
    an_attempt_past_its_timeout_is_revoked_and_its_retry_is_not,
);

/// Hears what is said to the workers of a service, as one of them would.
pub struct Heard(Consumer);

impl Heard {
    pub async fn at(vhost: &TestVhost, service: &str) -> Self {
        let broker = amqp::broker(vhost.url());
        let exchange = format!("{service}-control");
        Self(broker.listen(&exchange, &format!("{exchange}.test")).await.unwrap())
    }

    /// What is said next.
    pub async fn next(&mut self) -> Vec<Value> {
        let said = timeout(DEADLINE, self.0.next()).await.expect("nothing is said").unwrap();
        assert_eq!(said.content_type.as_deref(), Some("application/json"));
        let said: Value = serde_json::from_slice(&said.body).unwrap();
        said["outcomes"].as_array().cloned().unwrap()
    }

    /// What is said of so many tasks, in whatever order, and no other.
    async fn next_of(&mut self, mut ids: Vec<String>, outcome: &str) {
        while !ids.is_empty() {
            for said in self.next().await {
                assert_eq!(said["outcome"], outcome);
                let id = ids.iter().position(|id| *id == said["taskId"]).unwrap_or_else(|| panic!("{said} of {ids:?}"));
                ids.swap_remove(id);
            }
        }
    }
}

async fn cancel(stage: &Stage, id: &str) {
    assert_eq!(stage.alice.delete(&format!("/v1/services/resize/tasks/{id}")).await.status, 200);
}

async fn every_cancellation_sends_one_revocation(on: Backend) {
    let stage = Stage::start(on).await;
    let mut heard = Heard::at(&stage.vhost, "resize").await;
    let mut listening = stage.worker.listen(10).await;

    let running = stage.submit(json!({})).await;
    listening.take().await;
    stage.worker.started(&running, "pod-1").await;
    stage.running_on(&running, "pod-1").await;
    cancel(&stage, &running).await;
    assert_eq!(heard.next().await, [json!({"taskId": running, "outcome": "cancelled", "revision": 2})]);
    // It is cancelled already.
    cancel(&stage, &running).await;

    // One that a worker may have and has not begun.
    let waiting = stage.submit(json!({})).await;
    listening.take().await;
    assert_eq!(stage.app.caller().delete(&format!("/admin/tasks/{waiting}")).await.status, 200);
    heard.next_of(vec![waiting], "cancelled").await;

    let many = stage.submit_many(0..30).await;
    stage.app.caller().post("/admin/tasks/cancel", &json!({"tasks": many})).await.data();
    heard.next_of(many, "cancelled").await;

    let task = json!({"service": "resize", "body": {}});
    let batch = stage.alice.post("/v1/batches", &json!({"tasks": [task, task]})).await.data();
    let of_batch = batch["tasks"].as_array().unwrap().iter().map(|task| {
        let id = task["data"]["taskId"].as_str().or(task["taskId"].as_str());
        id.unwrap_or_else(|| panic!("{batch}")).to_owned()
    });
    let of_batch: Vec<String> = of_batch.collect();
    stage.alice.post_nothing(&format!("/v1/batches/{}/cancel", batch["batchId"].as_str().unwrap())).await.data();
    heard.next_of(of_batch, "cancelled").await;
}

async fn an_old_revocation_does_not_stop_a_retried_task(on: Backend) {
    let stage = Stage::start(on).await;
    let mut heard = Heard::at(&stage.vhost, "resize").await;
    let mut listening = stage.worker.listen(10).await;
    let id = stage.submit(json!({})).await;
    let first = listening.take().await;
    assert_eq!(first.message["revision"], Value::Null, "nothing has happened to it");
    cancel(&stage, &id).await;
    let told = heard.next().await[0]["revision"].as_u64().unwrap();
    assert!(told > 0);
    stage.alice.post_nothing(&format!("/v1/services/resize/tasks/{id}/retry")).await.data();
    let again = listening.take().await;
    assert_eq!(again.task_id, id);
    assert!(again.message["revision"].as_u64().unwrap() >= told, "{}", again.message);
    cancel(&stage, &id).await;
    assert!(heard.next().await[0]["revision"].as_u64() > again.message["revision"].as_u64());
}

async fn a_worker_that_continues_an_ended_task_gets_another_revocation(on: Backend) {
    let stage = Stage::start(on).await;
    let mut listening = stage.worker.listen(10).await;
    let id = stage.submit(json!({})).await;
    listening.take().await;
    cancel(&stage, &id).await;
    // Comes too late to hear of it; then it is told, and told again, but not at every word.
    let mut heard = Heard::at(&stage.vhost, "resize").await;
    stage.worker.started(&id, "pod-1").await;
    let told = [json!({"taskId": id, "outcome": "cancelled", "revision": 1})];
    assert_eq!(heard.next().await, told);
    for percent in 1..=20 {
        stage.worker.progress(&id, f64::from(percent)).await;
    }
    stage.worker.success(&id, json!("for nobody")).await;
    stage.heard().await;
    let other = stage.submit(json!({})).await;
    cancel(&stage, &other).await;
    let mut again = 0;
    while heard.next().await[0]["taskId"] != other {
        again += 1;
    }
    assert!(again <= 3, "it was told {again} times in a moment");

    // Whoever has it after it ended by somebody else's result.
    let done = stage.submit(json!({})).await;
    stage.worker.success(&done, json!(1)).await;
    stage.success(&done).await;
    stage.worker.started(&done, "pod-2").await;
    heard.next_of(vec![done], "ended").await;
}

async fn an_attempt_past_its_timeout_is_revoked_and_its_retry_is_not(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"timeout": "1s", "retry": {"limit": 1, "base": "50ms"}})).await;
    let mut heard = Heard::at(&stage.vhost, "resize").await;
    let mut listening = stage.worker.listen(10).await;
    let id = stage.submit(json!({})).await;
    listening.take().await;
    stage.worker.started(&id, "pod-1").await;
    let told = heard.next().await;
    assert_eq!((&told[0]["taskId"], &told[0]["outcome"]), (&json!(id), &json!("lost")));
    let again = listening.take().await;
    assert!(again.message["revision"].as_u64() >= told[0]["revision"].as_u64(), "{}", again.message);
    stage.worker.started(&id, "pod-2").await;
    assert_eq!(stage.failure(&id).await, "It ran for longer than it may.");
    heard.next_of(vec![id], "ended").await;
}
