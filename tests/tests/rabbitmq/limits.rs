//! The broker's policies: rejected, expired and too often delivered tasks fail, and a full queue makes the rest wait.

use relais_testkit::RabbitMqServer;
use relais_tests::app::Backend;
use serde_json::json;

use crate::stage::{Stage, builder, until};

on_each_store!(
    a_task_that_a_worker_rejects_fails_and_says_so,
    a_task_that_expires_fails_and_says_so,
    tasks_beyond_the_queue_length_wait_in_the_store,
);
on_one_store!(
    a_quorum_queue_dead_letters_a_task_over_its_delivery_limit,
    without_policies_a_rejected_task_can_be_published_again,
    a_task_that_is_too_large_for_the_broker_fails_alone,
);

/// Returns when the policy of the queue of tasks is in force, and has this key.
async fn in_force(stage: &Stage, key: &str) {
    until(&format!("the policy with {key} is in force"), async || {
        let queue = stage.vhost.queue("resize-in").await.unwrap_or_default();
        !queue["effective_policy_definition"][key].is_null()
    })
    .await;
}

async fn a_task_that_a_worker_rejects_fails_and_says_so(on: Backend) {
    let stage = Stage::managed(on).await;
    in_force(&stage, "dead-letter-exchange").await;
    let id = stage.submit(json!({})).await;
    let mut listening = stage.worker.listen(1).await;
    let job = listening.take().await;
    listening.reject(&job);
    let why = stage.failure(&id).await;
    assert!(why.contains("rejected"), "{why}");
    // One that has ended stays as it is.
    let done = stage.submit(json!({})).await;
    let job = listening.take().await;
    stage.worker.success(&done, json!(1)).await;
    stage.success(&done).await;
    listening.reject(&job);
    let marker = stage.submit(json!({})).await;
    let job = listening.take().await;
    listening.reject(&job);
    stage.failure(&marker).await;
    assert_eq!(stage.success(&done).await, 1);
}

async fn a_task_that_expires_fails_and_says_so(on: Backend) {
    let stage = Stage::managed(on).await;
    stage.resize(json!({"queue": {"messageTtl": "200ms"}})).await;
    in_force(&stage, "message-ttl").await;
    let id = stage.submit(json!({})).await;
    let why = stage.failure(&id).await;
    assert!(why.contains("expired"), "{why}");
}

async fn tasks_beyond_the_queue_length_wait_in_the_store(on: Backend) {
    let stage = Stage::managed(on).await;
    stage.resize(json!({"queue": {"maxLength": 5}})).await;
    in_force(&stage, "max-length").await;
    let ids = stage.submit_many(0..12).await;
    let mut listening = stage.worker.listen(3).await;
    let mut done = std::collections::BTreeSet::new();
    while done.len() < ids.len() {
        let job = listening.take().await;
        listening.ack(&job);
        stage.worker.success(&job.task_id, json!(null)).await;
        done.insert(job.task_id);
    }
    for id in &ids {
        assert!(done.contains(id), "not lost");
        stage.success(id).await;
    }
}

async fn a_quorum_queue_dead_letters_a_task_over_its_delivery_limit(on: Backend) {
    let stage = Stage::managed(on).await;
    stage
        .app
        .apply(json!({"services": [
        {"serviceName": "heavy", "deliveryLimit": 2, "queue": {"type": "quorum"}},
        {"serviceName": "resize"},
    ], "authorizations": [{"clientId": "alice", "serviceName": "heavy", "roles": ["consume"]}]}))
        .await;
    stage.ready("heavy").await;
    assert_eq!(stage.vhost.queue("heavy-in").await.unwrap()["arguments"]["x-queue-type"], "quorum");
    until("its policy is in force", async || {
        let queue = stage.vhost.queue("heavy-in").await.unwrap();
        queue["effective_policy_definition"]["delivery-limit"] == 2
    })
    .await;
    let id = stage.alice.submit("heavy", json!({})).await;
    let worker = relais_tests::amqp::AmqpWorker::new(stage.vhost.url(), "heavy");
    // None of them gets as far as a word.
    let mut listening = worker.listen(1).await;
    for _ in 0..3 {
        let job = listening.take().await;
        assert_eq!(job.task_id, id);
        listening.give_back(&job);
    }
    let task = stage.seen(&id, "over", |task| task["task"]["endDate"].is_string()).await;
    assert_eq!(task["task"]["status"], "FAILURE");
    let why = task["task"]["errorMessage"].as_str().unwrap();
    assert!(why.contains("Delivered") && why.contains("without a result"), "{why}");
}

async fn without_policies_a_rejected_task_can_be_published_again(on: Backend) {
    let stage = Stage::start(on).await;
    let id = stage.submit(json!({})).await;
    let mut listening = stage.worker.listen(1).await;
    let job = listening.take().await;
    listening.reject(&job);
    assert_eq!(stage.poll(&id).await["status"], "PENDING");
    assert_eq!(stage.app.caller().post_nothing("/admin/services/resize/redispatch").await.status, 200);
    let job = listening.take().await;
    assert_eq!(job.task_id, id);
    stage.worker.success(&id, json!(null)).await;
    stage.success(&id).await;
    listening.ack(&job);
}

async fn a_task_that_is_too_large_for_the_broker_fails_alone(on: Backend) {
    let server = RabbitMqServer::options().set("max_message_size", "50000").start().await.unwrap();
    let vhost = server.vhost().await.unwrap();
    let app = builder(on, vhost.url(), None).start().await;
    let stage = Stage::with(app, vhost);
    stage.ready("resize").await;
    let tasks =
        [json!({"n": 1}), json!({"text": "x".repeat(60_000)}), json!({"n": 2})].map(|body| json!({"body": body}));
    let answer = stage.alice.post("/v1/services/resize/tasks/batch", &json!({"tasks": tasks})).await.data();
    let ids: Vec<&str> = (0..3).map(|at| answer["tasks"][at]["data"]["taskId"].as_str().unwrap()).collect();
    let why = stage.failure(ids[1]).await;
    assert!(why.contains("broker") && why.contains("size"), "{why}");
    let mut listening = stage.worker.listen(10).await;
    let mut left = vec![ids[0], ids[2]];
    while !left.is_empty() {
        let job = listening.take().await;
        listening.ack(&job);
        stage.worker.success(&job.task_id, json!(null)).await;
        left.retain(|id| *id != job.task_id);
    }
    for id in [ids[0], ids[2]] {
        stage.success(id).await;
    }
}
