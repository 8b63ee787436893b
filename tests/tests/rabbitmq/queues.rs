//! Queues that disappear, and queues that exist already.

use std::{collections::BTreeSet, time::Duration};

use relais_engine::{Options, Trouble};
use relais_testkit::TestVhost;
use relais_tests::{amqp::AmqpWorker, app::Backend};
use serde_json::json;

use crate::stage::{Stage, builder, until};

on_each_store!(
    a_deleted_queue_is_recreated_with_all_unfinished_tasks,
    queues_deleted_under_load_lose_no_task,
    a_purged_queue_is_reported_and_refilled_by_one_call,
);
on_one_store!(
    a_queue_that_a_worker_makes_again_is_filled_again,
    a_queue_that_exists_is_used_as_it_is,
    tasks_lost_from_a_dispatch_window_are_noticed,
    a_service_may_move_to_another_queue
);

/// Takes until each of these was delivered, and returns the order of their first delivery.
async fn all_of(worker: &AmqpWorker, ids: &[String]) -> Vec<String> {
    let mut listening = worker.listen(50).await;
    let mut missing: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let mut order = Vec::new();
    while !missing.is_empty() {
        let job = listening.take().await;
        listening.ack(&job);
        if missing.remove(job.task_id.as_str()) {
            order.push(job.task_id);
        }
    }
    order
}

/// The tasks that the broker has lost, as operators see them.
async fn lost(stage: &Stage) -> Vec<String> {
    let broker = stage.app.caller().get("/admin/broker").await.data();
    broker["lost"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap_or_default().to_owned()).collect()
}

/// A Relais that is impatient, with or without a management API.
async fn impatient(on: Backend, managed: bool) -> Stage {
    let vhost = TestVhost::create().await.unwrap();
    let management = managed.then(|| vhost.management_url());
    let patience = |engine: &mut Options| engine.dispatch.patience = Duration::from_millis(500);
    let app = builder(on, vhost.url(), management).engine(patience).start().await;
    let stage = Stage::with(app, vhost);
    stage.ready("resize").await;
    stage
}

async fn a_purged_queue_is_reported_and_refilled_by_one_call(on: Backend) {
    let stage = impatient(on, on == Backend::Postgres).await;
    let ids = stage.submit_many(0..10).await;
    until("all are at the broker", async || {
        stage.vhost.queue("resize-in").await.is_ok_and(|queue| queue["messages"] == 10)
    })
    .await;
    assert_eq!(lost(&stage).await, [""; 0]);
    stage.vhost.purge_queue("resize-in").await.unwrap();
    until("it is noticed", async || lost(&stage).await == ["resize"]).await;
    let overview = stage.app.engine.overview().await.unwrap();
    assert!(overview.troubles.contains(&Trouble::Lost { service: "resize".to_owned() }), "{:?}", overview.troubles);
    assert_eq!(stage.app.caller().post_nothing("/admin/services/resize/redispatch").await.status, 200);
    until("it is over", async || lost(&stage).await.is_empty()).await;
    assert_eq!(all_of(&stage.worker, &ids).await, ids);
    for id in &ids {
        stage.worker.success(id, json!("done")).await;
        assert_eq!(stage.success(id).await, "done");
    }
}

async fn tasks_lost_from_a_dispatch_window_are_noticed(on: Backend) {
    let stage = impatient(on, false).await;
    stage.resize(json!({"transport": "rabbitmq", "dispatchWindow": 2})).await;
    let ids = stage.submit_many(0..5).await;
    until("the window is full", async || {
        stage.vhost.queue("resize-in").await.is_ok_and(|queue| queue["messages"] == 2)
    })
    .await;
    stage.vhost.purge_queue("resize-in").await.unwrap();
    until("it is noticed", async || lost(&stage).await == ["resize"]).await;
    assert_eq!(stage.app.caller().post_nothing("/admin/services/resize/redispatch").await.status, 200);
    let mut listening = stage.worker.listen(1).await;
    for id in &ids {
        let job = listening.take().await;
        assert_eq!(&job.task_id, id);
        stage.worker.success(id, json!(null)).await;
        stage.success(id).await;
        listening.ack(&job);
    }
    until("it is over", async || lost(&stage).await.is_empty()).await;
}

async fn a_deleted_queue_is_recreated_with_all_unfinished_tasks(on: Backend) {
    let stage = Stage::start(on).await;
    let ids = stage.submit_many(0..30).await;
    let mut listening = stage.worker.listen(3).await;
    let first = listening.take().await;
    stage.worker.started(&first.task_id, "pod-1").await;
    stage.running_on(&first.task_id, "pod-1").await;
    stage.worker.success(&ids[1], json!("done")).await;
    stage.success(&ids[1]).await;
    // Idle, both of them, and twice in a row: the second time before anybody would look by itself.
    for _ in 0..2 {
        for queue in ["resize-out", "resize-in"] {
            stage.vhost.delete_queue(queue).await.unwrap();
        }
        // A task that finds no queue makes Relais look at once.
        stage.submit(json!({})).await;
        stage.ready("resize").await;
    }
    let unfinished: Vec<String> = ids.iter().filter(|id| **id != ids[1]).cloned().collect();
    assert_eq!(all_of(&stage.worker, &unfinished).await, unfinished, "in their order, the running one too");
    for id in &unfinished {
        stage.worker.success(id, json!("again")).await;
        assert_eq!(stage.success(id).await, "again");
    }
    assert_eq!(stage.success(&ids[1]).await, "done");
}

async fn queues_deleted_under_load_lose_no_task(on: Backend) {
    let stage = Stage::start(on).await;
    let mut ids = Vec::new();
    for round in 0..4 {
        ids.extend(stage.submit_many(round * 100..round * 100 + 50).await);
        stage.vhost.delete_queue("resize-in").await.unwrap();
        ids.extend(stage.submit_many(round * 100 + 50..(round + 1) * 100).await);
        stage.ready("resize").await;
    }
    all_of(&stage.worker, &ids).await;
    let done = ids.iter().map(|id| stage.worker.message(id, json!({"messageType": "success"})).to_string());
    stage.worker.send_many(done.collect::<Vec<_>>()).await;
    for id in &ids {
        stage.success(id).await;
    }
}

/// Workers assert their queues: one of them is likely to be faster than Relais.
async fn a_queue_that_a_worker_makes_again_is_filled_again(on: Backend) {
    let stage = Stage::start(on).await;
    let ids = stage.submit_many(0..20).await;
    let mut listening = stage.worker.listen(50).await;
    for id in &ids {
        assert_eq!(&listening.take().await.task_id, id, "the broker has it");
    }
    stage.vhost.delete_queue("resize-in").await.unwrap();
    stage.vhost.declare_queue("resize-in").await.unwrap();
    assert_eq!(all_of(&stage.worker, &ids).await, ids);
}

async fn a_queue_that_exists_is_used_as_it_is(on: Backend) {
    let vhost = relais_testkit::TestVhost::create().await.unwrap();
    let quorum = json!({"x-queue-type": "quorum", "x-max-length": 1000});
    for queue in ["resize-in", "resize-out"] {
        vhost.declare_queue_with(queue, quorum.clone()).await.unwrap();
    }
    let management = Some(vhost.management_url());
    let stage = Stage::with(builder(on, vhost.url(), management).start().await, vhost);
    let id = stage.submit(json!({"n": 1})).await;
    let mut listening = stage.worker.listen(1).await;
    let job = listening.take().await;
    assert_eq!(job.task_id, id);
    stage.worker.started(&id, "pod-1").await;
    stage.running_on(&id, "pod-1").await;
    stage.worker.success(&id, json!(1)).await;
    assert_eq!(stage.success(&id).await, 1);
    listening.ack(&job);
    assert_eq!(stage.vhost.queue("resize-in").await.unwrap()["arguments"], quorum);
    // Declared as a quorum queue, where there is a classic one.
    stage.ready("ocr").await;
    let declared = json!({"services": [{"serviceName": "ocr", "queue": {"type": "quorum"}}]});
    stage.app.apply(declared).await;
    let id = stage.alice.submit("ocr", json!({})).await;
    assert_eq!(AmqpWorker::new(stage.vhost.url(), "ocr").listen(1).await.take().await.task_id, id);
    assert_eq!(stage.vhost.queue("ocr-in").await.unwrap()["arguments"], json!({}));
}

/// Also where the new queue is there already, and nothing seems to be missing.
async fn a_service_may_move_to_another_queue(on: Backend) {
    let stage = Stage::start(on).await;
    let ids = stage.submit_many(0..10).await;
    for queue in ["better-in", "better-out"] {
        stage.vhost.declare_queue(queue).await.unwrap();
    }
    stage.resize(json!({"queueName": "better"})).await;
    let worker = AmqpWorker::new(stage.vhost.url(), "better");
    assert_eq!(all_of(&worker, &ids).await, ids);
    for id in &ids {
        worker.success(id, json!(null)).await;
        stage.success(id).await;
    }
}
