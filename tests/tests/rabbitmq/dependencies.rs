//! Dependencies over the broker: dependents are published when they are released.

use relais_tests::app::Backend;
use serde_json::{Value, json};

use crate::stage::Stage;

on_each_store!(a_task_that_waits_for_another_is_published_when_that_has_ended);

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn a_task_that_waits_for_another_is_published_when_that_has_ended(on: Backend) {
    let stage = Stage::start(on).await;
    let mut listening = stage.worker.listen(10).await;
    let alice = stage.alice.clone().with("traceparent", TRACEPARENT);
    let request = json!({
        "tasks": [
            {"service": "resize", "body": {"n": 1}, "ref": "first"},
            {"service": "resize", "body": {"n": 2}, "ref": "second", "after": {"refs": ["first"]}},
            {"service": "resize", "body": {"n": 3}, "after": {"refs": ["first", "second"]}},
        ],
        "correlationId": "order-1",
    });
    let made = alice.post("/v1/batches", &request).await.data();
    let ids: Vec<&str> =
        made["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].as_str().unwrap()).collect();
    let batch = format!("/v1/batches/{}", made["batchId"].as_str().unwrap());
    // What waits is not published: else it would come before this.
    let marker = stage.submit(json!({"marker": true})).await;
    for (n, id) in (1..).zip(&ids[..2]) {
        let job = listening.take().await;
        assert_eq!((job.task_id.as_str(), job.body()), (*id, &json!({"n": n})));
        assert_eq!(job.message["traceparent"], TRACEPARENT);
        assert_eq!(job.message["correlationId"], "order-1");
        let header = job.delivery.header("traceparent").map(|value| format!("{value:?}")).unwrap_or_default();
        assert!(header.contains(TRACEPARENT), "{header}");
        if n == 1 {
            let other = listening.take().await;
            assert_eq!(other.task_id, marker);
            stage.worker.success(&marker, json!(1)).await;
            listening.ack(&other);
            stage.worker.success(id, json!(1)).await;
        } else {
            stage.worker.say(id, json!({"messageType": "failure", "errorMessage": "no"})).await;
        }
        listening.ack(&job);
    }
    let failed = stage.end(ids[2]).await;
    assert_eq!((&failed["status"], &failed["errorKind"]), (&json!("FAILURE"), &json!("dependency")));
    let ended: Value = stage.alice.get(&batch).await.data();
    assert_eq!((&ended["status"], &ended["success"], &ended["failure"]), (&json!("ENDED"), &json!(1), &json!(2)));
    // One that joins a batch is published with what it gets from it.
    let open = alice.post("/v1/batches", &json!({"open": true, "correlationId": "order-2"})).await.data();
    let joins = json!({"body": {}, "batchId": open["batchId"]});
    stage.alice.post("/v1/services/resize/tasks", &joins).await.data();
    let job = listening.take().await;
    assert_eq!((&job.message["correlationId"], &job.message["traceparent"]), (&json!("order-2"), &json!(TRACEPARENT)));
    listening.ack(&job);
    // By hand it is published now, whatever it waited for.
    stage.alice.post(&format!("/v1/services/resize/tasks/{}/retry", ids[2]), &json!({})).await.data();
    let job = listening.take().await;
    assert_eq!(job.task_id, ids[2]);
    stage.worker.success(ids[2], json!("at last")).await;
    listening.ack(&job);
    assert_eq!(stage.success(ids[2]).await, "at last");
}
