//! Existing workers, unchanged: both spellings, plain queues, a connection per message, messages in any order.

use relais_tests::{
    amqp::Spelling,
    app::{Backend, TestApp},
};
use serde_json::{Value, json};

use crate::stage::Stage;

on_each_store!(
    a_consumer_follows_a_task_in_either_spelling,
    an_error_message_may_be_any_json,
    early_late_and_duplicate_messages_are_harmless,
    a_result_that_names_its_host_needs_no_start,
    several_messages_may_come_in_one,
);
on_one_store!(
    a_published_task_has_the_documented_format,
    workers_can_declare_the_queues_without_arguments,
    a_message_over_http_counts_as_well,
);

/// The names of what is there.
fn fields(task: &Value) -> Vec<&str> {
    let mut fields: Vec<&str> = task.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}

async fn a_consumer_follows_a_task_in_either_spelling(on: Backend) {
    let stage = Stage::start(on).await;
    for spelling in [Spelling::Camel, Spelling::Snake] {
        let worker = stage.worker.clone().spelling(spelling);
        let first = stage.submit(json!({"n": 1})).await;
        let second = stage.submit(json!({"n": 2})).await;
        let pending = stage.poll(&second).await;
        assert_eq!((pending["status"].as_str(), pending["taskPosition"].as_u64()), (Some("PENDING"), Some(2)));
        assert_eq!(fields(&pending), ["status", "submitionDate", "taskId", "taskPosition"]);

        let mut listening = worker.listen(1).await;
        let job = listening.take().await;
        assert_eq!((job.task_id.as_str(), job.body()), (first.as_str(), &json!({"n": 1})), "the oldest comes first");
        worker.started(&first, "myjob-d49t6").await;
        let task = stage.running_on(&first, "myjob-d49t6").await;
        assert_eq!((task["attempt"].as_u64(), task["leaseExpires"].as_str()), (Some(1), None), "the broker watches");
        let running = stage.poll(&first).await;
        assert_eq!((running["status"].as_str(), running["progress"].as_f64()), (Some("IN_PROGRESS"), Some(0.0)));
        assert_eq!(fields(&running), ["progress", "startDate", "status", "submitionDate", "taskId"]);
        assert_eq!(stage.poll(&second).await["taskPosition"], 1, "the other one moves up");

        worker.progress(&first, 42.5).await;
        stage.seen(&first, "at 42.5", |task| task["task"]["progress"] == 42.5).await;
        worker.success(&first, json!({"big": 12345678901234567890u64})).await;
        let done = stage.end(&first).await;
        assert_eq!((done["status"].as_str(), done["progress"].as_f64()), (Some("SUCCESS"), Some(100.0)));
        assert_eq!(done["response"], json!({"big": 12345678901234567890u64}));
        assert_eq!(done["startDate"], running["startDate"]);
        assert_eq!(
            fields(&done),
            ["endDate", "progress", "response", "startDate", "status", "submitionDate", "taskId"]
        );
        listening.ack(&job);

        let job = listening.take().await;
        assert_eq!(job.task_id, second);
        worker.started(&second, "myjob-d49t6").await;
        worker.progress(&second, 30.0).await;
        worker.say(&second, json!({"messageType": "failure", "errorMessage": "no paper"})).await;
        let failed = stage.end(&second).await;
        assert_eq!((failed["status"].as_str(), failed["progress"].as_f64()), (Some("FAILURE"), Some(30.0)));
        assert_eq!(failed["errorMessage"], "no paper");
        listening.ack(&job);
    }
}

async fn a_published_task_has_the_documented_format(on: Backend) {
    let stage = Stage::start(on).await;
    let request = json!({"body": {"file": "a.png"}, "correlationId": "basket-3"});
    let id = stage.alice.post("/v1/services/resize/tasks", &request).await.data()["taskId"].clone();
    let job = stage.worker.listen(1).await.take().await;
    assert_eq!(
        job.message,
        json!({
            "taskId": id, "task_id": id, "correlationId": "basket-3",
            "data": {"messageType": "submission", "message_type": "submission", "body": {"file": "a.png"}},
        })
    );
    assert_eq!(job.delivery.message_id.as_deref(), id.as_str());
    assert_eq!(job.delivery.correlation_id.as_deref(), Some("basket-3"));
    assert_eq!(job.delivery.content_type.as_deref(), Some("application/json"));
    let taken = {
        let id = stage.submit(json!({})).await;
        let mut taken = Vec::new();
        crate::stage::until("it is in the queue", async || {
            taken = stage.vhost.take("resize-in", 2).await.unwrap();
            taken.iter().any(|message| message.properties["message_id"] == id)
        })
        .await;
        taken.remove(taken.len() - 1)
    };
    assert_eq!(taken.properties["delivery_mode"], 2, "it survives a restart of the broker");
}

/// With policies and without: they are no arguments, and so no worker's business.
async fn workers_can_declare_the_queues_without_arguments(on: Backend) {
    for stage in [Stage::start(on).await, Stage::managed(on).await] {
        for queue in ["resize-in", "resize-out"] {
            stage.vhost.declare_queue(queue).await.unwrap();
            let known = stage.vhost.queue(queue).await.unwrap();
            assert_eq!((&known["durable"], &known["arguments"]), (&json!(true), &json!({})), "{known}");
        }
    }
}

async fn an_error_message_may_be_any_json(on: Backend) {
    let stage = Stage::start(on).await;
    for (said, shown) in [
        (json!({"code": 7, "why": ["a", "b"]}), r#"{"code":7,"why":["a","b"]}"#),
        (json!(42), "42"),
        (json!(null), ""),
        (json!("a\u{0}b"), "a\u{fffd}b"),
    ] {
        let id = stage.submit(json!({})).await;
        stage.worker.say(&id, json!({"messageType": "failure", "errorMessage": said})).await;
        assert_eq!(stage.failure(&id).await, shown);
    }
}

async fn early_late_and_duplicate_messages_are_harmless(on: Backend) {
    let stage = Stage::start(on).await;
    let worker = &stage.worker;
    let id = stage.submit(json!({})).await;
    // Before its start.
    worker.progress(&id, 20.0).await;
    stage.seen(&id, "at 20", |task| task["task"]["progress"] == 20.0).await;
    worker.started(&id, "pod-1").await;
    let named = stage.running_on(&id, "pod-1").await;
    assert_eq!((&named["task"]["progress"], &named["losses"], &named["attempt"]), (&json!(20.0), &json!(0), &json!(1)));
    // Twice, and back in time.
    for progress in [60.0, 60.0, 50.0] {
        worker.progress(&id, progress).await;
    }
    stage.seen(&id, "at 50", |task| task["task"]["progress"] == 50.0).await;
    worker.success(&id, json!("first")).await;
    let done = stage.end(&id).await;
    // After the end.
    worker.success(&id, json!("second")).await;
    worker.say(&id, json!({"messageType": "failure", "errorMessage": "third"})).await;
    worker.started(&id, "pod-2").await;
    worker.progress(&id, 1.0).await;
    worker.say(&id, json!({"messageType": "returned", "hostName": "pod-1"})).await;
    stage.heard().await;
    assert_eq!(stage.poll(&id).await, done, "it stays as it ended");
    assert_eq!(stage.task(&id).await["workerHost"], "pod-1");

    // The result comes before anything else.
    let id = stage.submit(json!({})).await;
    worker.success(&id, json!({"ok": true})).await;
    let done = stage.end(&id).await;
    assert_eq!((&done["response"], done["startDate"].is_string()), (&json!({"ok": true}), true));
    worker.started(&id, "pod-1").await;
    worker.progress(&id, 99.0).await;
    stage.heard().await;
    assert_eq!(stage.poll(&id).await, done);
    assert!(stage.dead_letters(0).await.is_empty(), "nothing of this is an operator's concern");
}

async fn a_result_that_names_its_host_needs_no_start(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"deliveryLimit": 1})).await;
    let (short, taken_over) = (stage.submit(json!({})).await, stage.submit(json!({})).await);
    stage.worker.say(&short, json!({"messageType": "success", "response": 1, "hostName": "pod-1"})).await;
    assert_eq!(stage.success(&short).await, 1);
    assert_eq!(stage.task(&short).await["workerHost"], "pod-1");

    stage.worker.started(&taken_over, "pod-1").await;
    stage.running_on(&taken_over, "pod-1").await;
    // Progress of whoever lost it does not take it back.
    stage.worker.say(&taken_over, json!({"messageType": "progress", "progress": 5, "hostName": "pod-9"})).await;
    stage.seen(&taken_over, "at 5", |task| task["task"]["progress"] == 5.0).await;
    assert_eq!(stage.task(&taken_over).await["workerHost"], "pod-1");
    // Another worker has the result: that there were too many losses is of no interest any more.
    stage.worker.say(&taken_over, json!({"messageType": "success", "response": 2, "hostName": "pod-2"})).await;
    assert_eq!(stage.success(&taken_over).await, 2);
    assert_eq!(stage.task(&taken_over).await["workerHost"], "pod-2");
}

async fn several_messages_may_come_in_one(on: Backend) {
    let stage = Stage::start(on).await;
    let ids = stage.submit_many(0..3).await;
    stage
        .worker
        .say_all([
            (ids[0].as_str(), json!({"messageType": "started", "hostName": "pod-1"})),
            (&ids[1], json!({"messageType": "started", "hostName": "pod-1"})),
            (&ids[0], json!({"messageType": "progress", "progress": 10})),
            (&ids[0], json!({"messageType": "success", "response": "a"})),
            ("not a task", json!({"messageType": "success"})),
            (&ids[1], json!({"messageType": "failure", "errorMessage": "b"})),
            (&ids[2], json!({"messageType": "progress", "progress": 33})),
        ])
        .await;
    assert_eq!(stage.success(&ids[0]).await, "a");
    assert_eq!(stage.failure(&ids[1]).await, "b");
    stage.seen(&ids[2], "at 33", |task| task["task"]["progress"] == 33.0).await;
    assert_eq!(stage.dead_letters(1).await[0]["reason"], "taskId is not a UUID", "one of them alone is set aside");
    // As many as there may be.
    let ids = stage.submit_many(0..1000).await;
    stage.worker.say_all(ids.iter().map(|id| (id.as_str(), json!({"messageType": "success"})))).await;
    for id in &ids {
        assert_eq!(stage.success(id).await, json!(null));
    }
}

async fn a_message_over_http_counts_as_well(on: Backend) {
    let stage = Stage::start(on).await;
    let id = stage.submit(json!({})).await;
    let app: &TestApp = &stage.app;
    let worker = app.client("worker");
    assert_eq!(worker.report("resize", &id, json!({"messageType": "success", "response": 7})).await, "accepted");
    assert_eq!(stage.success(&id).await, 7);
}
