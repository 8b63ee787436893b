//! Actions of operators and consumers on broker services and their tasks.

use relais_tests::{amqp::AmqpWorker, app::Backend};
use serde_json::json;

use crate::stage::{Stage, builder};

on_each_store!(
    a_paused_service_publishes_nothing_until_it_is_resumed,
    a_task_that_is_cancelled_before_its_dispatch_is_not_dispatched,
    a_task_that_is_purged_before_its_dispatch_is_not_dispatched,
    a_service_changes_its_transport_and_back_with_tasks_waiting,
    a_task_gets_a_lease_when_its_service_leaves_the_broker,
);
on_one_store!(
    a_claim_of_a_broker_service_is_refused,
    a_service_of_the_built_in_queue_works_beside_one_of_the_broker,
    a_cancelled_task_that_a_worker_has_stays_cancelled,
);

async fn paused(stage: &Stage, paused: bool) {
    let verb = if paused { "pause" } else { "resume" };
    let answer = stage.app.caller().post_nothing(&format!("/admin/services/resize/{verb}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// The next task that comes is this one.
async fn comes(worker: &AmqpWorker, id: &str) {
    let mut listening = worker.listen(1).await;
    let job = listening.take().await;
    assert_eq!(job.task_id, id);
    worker.success(id, json!(null)).await;
    listening.ack(&job);
    // Whoever listens next does not get it once more: the acknowledgement has arrived.
    drop(listening);
}

async fn a_paused_service_publishes_nothing_until_it_is_resumed(on: Backend) {
    let stage = Stage::start(on).await;
    let before = stage.submit(json!({})).await;
    paused(&stage, true).await;
    let during = stage.submit_many(0..20).await;
    let other = stage.alice.submit("ocr", json!({})).await;
    comes(&AmqpWorker::new(stage.vhost.url(), "ocr"), &other).await;
    let mut listening = stage.worker.listen(50).await;
    let job = listening.take().await;
    assert_eq!(job.task_id, before, "what the broker has is out of reach");
    listening.ack(&job);
    paused(&stage, false).await;
    let order: Vec<String> = listening.take_all(20).await.into_iter().map(|job| job.task_id).collect();
    assert_eq!(order, during);
}

async fn a_task_that_is_cancelled_before_its_dispatch_is_not_dispatched(on: Backend) {
    let stage = Stage::start(on).await;
    paused(&stage, true).await;
    let (cancelled, kept) = (stage.submit(json!({})).await, stage.submit(json!({})).await);
    let answer = stage.alice.delete(&format!("/v1/services/resize/tasks/{cancelled}")).await;
    assert_eq!(answer.data()["status"], "CANCELLED");
    paused(&stage, false).await;
    comes(&stage.worker, &kept).await;
    stage.success(&kept).await;
    assert_eq!(stage.poll(&cancelled).await["status"], "CANCELLED");
}

async fn a_task_that_is_purged_before_its_dispatch_is_not_dispatched(on: Backend) {
    let vhost = relais_testkit::TestVhost::create().await.unwrap();
    // The purge that every process begins with could come first.
    let app = builder(on, vhost.url(), None).engine(|engine| engine.purging = false).start().await;
    let stage = Stage::with(app, vhost);
    stage.ready("resize").await;
    stage.resize(json!({"paused": true, "retention": {"any": "0s"}})).await;
    let gone = stage.submit(json!({})).await;
    let report = stage.app.caller().post("/admin/purge", &json!({})).await;
    assert_eq!(report.status, 200, "{}", report.text);
    assert_eq!(stage.alice.poll_status("resize", &gone).await, 404, "{}", report.text);
    stage.resize(json!({"paused": false})).await;
    let kept = stage.submit(json!({})).await;
    comes(&stage.worker, &kept).await;
    stage.success(&kept).await;
    // A worker that had it would be heard, and its word set aside.
    stage.worker.success(&gone, json!(null)).await;
    assert!(stage.dead_letters(1).await[0]["reason"].as_str().unwrap().contains(&gone));
}

async fn a_service_changes_its_transport_and_back_with_tasks_waiting(on: Backend) {
    let stage = Stage::start(on).await;
    let http = stage.app.client("worker");
    stage.resize(json!({"transport": "builtin"})).await;
    let ids = stage.submit_many(0..10).await;
    let claimed = http.claim_one("resize").await;
    assert_eq!(claimed["taskId"], ids[0]);

    stage.resize(json!({"transport": "rabbitmq"})).await;
    let mut listening = stage.worker.listen(4).await;
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(listening.take().await);
    }
    let order: Vec<&str> = jobs.iter().map(|job| job.task_id.as_str()).collect();
    assert_eq!(order, &ids[1..5], "what waits goes along, what is claimed does not");
    // Who has claimed one finishes it as if nothing had happened.
    let done = json!({"taskId": ids[0], "attempt": 1, "data": {"messageType": "success", "response": "http"}});
    assert_eq!(http.message("resize", done).await, "accepted");
    assert_eq!(stage.success(&ids[0]).await, "http");
    stage.worker.success(&ids[1], json!("amqp")).await;
    assert_eq!(stage.success(&ids[1]).await, "amqp");

    stage.resize(json!({"transport": "builtin"})).await;
    let mut left = Vec::new();
    while left.len() < 8 {
        let claimed = http.claim_one("resize").await;
        let id = claimed["taskId"].as_str().unwrap().to_owned();
        let done = json!({"taskId": id, "attempt": 1, "data": {"messageType": "success", "response": "http"}});
        assert_eq!(http.message("resize", done).await, "accepted");
        left.push(id);
    }
    assert_eq!(left, &ids[2..]);
    assert_eq!(http.claim("resize", json!({})).await.len(), 0);
}

async fn a_task_gets_a_lease_when_its_service_leaves_the_broker(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"lease": "1s"})).await;
    let id = stage.submit(json!({})).await;
    stage.worker.started(&id, "pod-1").await;
    stage.running_on(&id, "pod-1").await;
    stage.resize(json!({"lease": "1s", "transport": "builtin"})).await;
    let claimed = stage.app.client("worker").claim_one("resize").await;
    assert_eq!((&claimed["taskId"], &claimed["attempt"]), (&json!(id), &json!(2)));
}

async fn a_claim_of_a_broker_service_is_refused(on: Backend) {
    let stage = Stage::start(on).await;
    let answer = stage.app.client("worker").post("/v1/services/resize/claims", &json!({"wait": "20s"})).await;
    assert_eq!(answer.number(), 409_003);
    assert!(answer.text.contains("the tasks of resize are handed out by the broker"), "{}", answer.text);
}

async fn a_service_of_the_built_in_queue_works_beside_one_of_the_broker(on: Backend) {
    let stage = Stage::start(on).await;
    stage.app.apply(json!({"services": [{"serviceName": "ocr", "transport": "builtin"}]})).await;
    let operator = stage.app.caller();
    assert_eq!(operator.get("/admin/services/ocr").await.data()["transport"], "builtin");
    assert_eq!(operator.get("/admin/services/resize").await.data()["transport"], "rabbitmq");
    let services = operator.get("/admin/broker").await.data()["services"].clone();
    assert_eq!(services, json!(["resize", "strict"]));
    let (claimed, carried) = (stage.alice.submit("ocr", json!({})).await, stage.submit(json!({})).await);
    let http = stage.app.client("worker");
    assert_eq!(http.claim_one("ocr").await["taskId"], claimed);
    comes(&stage.worker, &carried).await;
    stage.success(&carried).await;
    assert_eq!(http.report("ocr", &claimed, json!({"messageType": "success"})).await, "accepted");
}

async fn a_cancelled_task_that_a_worker_has_stays_cancelled(on: Backend) {
    let stage = Stage::start(on).await;
    let id = stage.submit(json!({})).await;
    let mut listening = stage.worker.listen(1).await;
    let job = listening.take().await;
    stage.worker.started(&id, "pod-1").await;
    stage.running_on(&id, "pod-1").await;
    stage.alice.delete(&format!("/v1/services/resize/tasks/{id}")).await;
    stage.worker.progress(&id, 50.0).await;
    stage.worker.success(&id, json!(1)).await;
    listening.ack(&job);
    stage.heard().await;
    assert_eq!(stage.poll(&id).await["status"], "CANCELLED");
    stage.dead_letters(0).await;
}
