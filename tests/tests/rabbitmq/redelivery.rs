//! Redelivery: workers that are lost, and workers that return tasks.

use relais_messaging::rabbitmq::ConsumeOptions;
use relais_tests::{
    amqp::{self, AmqpWorker},
    app::Backend,
};
use serde_json::json;

use crate::stage::{Stage, until};

on_each_store!(
    a_task_of_a_crashed_worker_is_redelivered_as_a_new_attempt,
    a_task_returned_with_a_message_is_pending_and_no_loss,
    a_task_returned_without_a_message_is_one_loss,
    a_task_that_crashes_its_workers_fails,
    a_redelivered_failure_counts_once,
);

async fn a_task_of_a_crashed_worker_is_redelivered_as_a_new_attempt(on: Backend) {
    let stage = Stage::start(on).await;
    let id = stage.submit(json!({})).await;
    let mut first = stage.worker.listen(1).await;
    assert!(!first.take().await.redelivered);
    stage.worker.started(&id, "pod-1").await;
    stage.worker.progress(&id, 80.0).await;
    let before = stage.seen(&id, "at 80", |task| task["task"]["progress"] == 80.0).await;
    drop(first);

    let mut second = stage.worker.listen(1).await;
    let job = second.take().await;
    assert_eq!((job.task_id.as_str(), job.redelivered), (id.as_str(), true));
    stage.worker.started(&id, "pod-2").await;
    let after = stage.running_on(&id, "pod-2").await;
    assert_eq!((&after["task"]["progress"], &after["task"]["status"]), (&json!(0.0), &json!("IN_PROGRESS")));
    let date = |task: &serde_json::Value| task["task"]["startDate"].as_str().unwrap().to_owned();
    assert!(date(&after) > date(&before), "{before} {after}");
    assert_eq!((&after["attempt"], &after["losses"]), (&json!(2), &json!(1)));
    stage.worker.success(&id, json!("done")).await;
    assert_eq!(stage.success(&id).await, "done");
    second.ack(&job);
}

async fn a_task_returned_with_a_message_is_pending_and_no_loss(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"deliveryLimit": 1})).await;
    let id = stage.submit(json!({})).await;
    for round in 1..=3 {
        let host = format!("pod-{round}");
        let mut listening = stage.worker.listen(1).await;
        let job = listening.take().await;
        stage.worker.started(&id, &host).await;
        stage.worker.progress(&id, 10.0).await;
        stage.running_on(&id, &host).await;
        stage.worker.say(&id, json!({"messageType": "returned", "hostName": host})).await;
        listening.give_back(&job);
        let back = stage.seen(&id, "pending", |task| task["task"]["status"] == "PENDING").await;
        assert_eq!((&back["losses"], &back["attempt"]), (&json!(0), &json!(round)));
        assert_eq!(back["workerHost"], json!(null));
        assert_eq!(stage.poll(&id).await["taskPosition"], 1);
    }
    let mut listening = stage.worker.listen(2).await;
    let job = listening.take().await;
    assert!(job.redelivered, "it is the same message: Relais did not publish it again");
    // Somebody else's word does not take it away.
    stage.worker.started(&id, "pod-4").await;
    stage.running_on(&id, "pod-4").await;
    stage.worker.say(&id, json!({"messageType": "returned", "hostName": "pod-3"})).await;
    stage.heard().await;
    assert_eq!(stage.task(&id).await["workerHost"], "pod-4");
    stage.worker.success(&id, json!(null)).await;
    stage.success(&id).await;
    listening.ack(&job);
}

async fn a_task_returned_without_a_message_is_one_loss(on: Backend) {
    let stage = Stage::start(on).await;
    let id = stage.submit(json!({})).await;
    let mut listening = stage.worker.listen(1).await;
    let job = listening.take().await;
    stage.worker.started(&id, "pod-1").await;
    stage.running_on(&id, "pod-1").await;
    listening.give_back(&job);
    let job = listening.take().await;
    assert!(job.redelivered);
    // On the same host: nothing but the second start tells that it was lost.
    stage.worker.started(&id, "pod-1").await;
    let task = stage.seen(&id, "started again", |task| task["attempt"] == 2).await;
    assert_eq!((&task["losses"], &task["task"]["status"]), (&json!(1), &json!("IN_PROGRESS")));
    stage.worker.success(&id, json!(null)).await;
    stage.success(&id).await;
    listening.ack(&job);
}

async fn a_task_that_crashes_its_workers_fails(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"deliveryLimit": 2})).await;
    let id = stage.submit(json!({})).await;
    for round in 1..=2 {
        let mut listening = stage.worker.listen(1).await;
        listening.take().await;
        stage.worker.started(&id, "pod-1").await;
        stage.seen(&id, "started", |task| task["attempt"] == round).await;
    }
    let mut last = stage.worker.listen(1).await;
    let job = last.take().await;
    stage.worker.started(&id, "pod-1").await;
    let why = stage.failure(&id).await;
    assert!(why.contains("2 times"), "{why}");
    // Whoever has it is none the wiser, and changes nothing.
    stage.worker.success(&id, json!(null)).await;
    last.ack(&job);
    stage.heard().await;
    assert_eq!(stage.failure(&id).await, why);
}

/// As after a crash between what was recorded and what was acknowledged, when the task has been published again since.
async fn a_redelivered_failure_counts_once(on: Backend) {
    let stage = Stage::start(on).await;
    let retry = json!({"limit": 1, "base": "50ms", "factor": 1});
    stage.resize(json!({"retry": retry})).await;
    let id = stage.submit(json!({})).await;
    let mut listening = stage.worker.listen(10).await;
    let failure = json!({"messageType": "failure", "errorMessage": "no"});
    listening.take_all(1).await;
    stage.worker.started(&id, "pod-1").await;
    stage.worker.say(&id, failure.clone()).await;
    listening.take_all(1).await;

    // Relais listens elsewhere for a while. Meanwhile somebody takes the message, and dies.
    stage.resize(json!({"retry": retry, "queueName": "elsewhere"})).await;
    stage.ready("elsewhere").await;
    let marker = stage.submit(json!({})).await;
    AmqpWorker::new(stage.vhost.url(), "elsewhere").success(&marker, json!(null)).await;
    stage.success(&marker).await;
    let broker = amqp::broker(stage.vhost.url());
    until("nobody follows the old queue", async || {
        broker.find("resize-out").await.is_ok_and(|queue| queue.is_some_and(|queue| queue.consumers == 0))
    })
    .await;
    stage.worker.say(&id, failure).await;
    let mut other = broker.consume("resize-out", ConsumeOptions::default()).await.unwrap();
    assert!(!other.next().await.unwrap().redelivered);
    drop(other);

    stage.resize(json!({"retry": retry})).await;
    stage.heard().await;
    let task = stage.task(&id).await;
    assert_eq!(task["task"]["status"], "PENDING", "it was counted twice: {task}");
    // It is published once more, in case that nobody has it.
    let again = loop {
        let job = listening.take().await;
        listening.ack(&job);
        if job.task_id == id {
            break job;
        }
    };
    stage.worker.started(&again.task_id, "pod-2").await;
    stage.worker.success(&id, json!("done")).await;
    assert_eq!(stage.success(&id).await, "done");
}
