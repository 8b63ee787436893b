//! The stream of one task as server-sent events.

use relais_tests::app::{Backend, TestApp};
use serde_json::json;

on_each_store!(
    a_task_stream_sends_milestones_in_order_and_ends_with_the_task,
    a_task_stream_shows_a_returned_task_as_pending,
    a_task_stream_sends_changes_of_position,
);
on_one_store!(
    a_reconnected_stream_gets_only_newer_events,
    an_unknown_last_event_id_is_ignored,
    the_stream_of_an_ended_task_sends_one_event,
    a_stream_of_a_missing_task_is_refused,
    a_response_with_line_breaks_arrives_whole,
);

async fn a_task_stream_sends_milestones_in_order_and_ends_with_the_task(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    let mut events = alice.follow("resize", &id).await;
    assert_eq!((events.status, events.content_type.as_str()), (200, "text/event-stream"));
    let pending = events.expect().await;
    assert_eq!(pending.name, "status");
    assert_eq!((&pending.data["status"], &pending.data["taskPosition"]), (&json!("PENDING"), &json!(1)));
    assert_eq!(pending.data, alice.poll("resize", &id).await, "the data is the poll's");

    worker.claim_one("resize").await;
    let running = events.expect().await;
    assert_eq!((running.name.as_str(), running.data["status"].as_str()), ("status", Some("IN_PROGRESS")));
    let mut last = running.id;
    for progress in [10.0, 55.5] {
        worker.report("resize", &id, json!({"messageType": "progress", "progress": progress})).await;
        let event = events.expect().await;
        assert_eq!((event.name.as_str(), event.data["progress"].as_f64()), ("progress", Some(progress)));
        assert!(event.id > last, "ids grow");
        last = event.id;
    }
    worker.report("resize", &id, json!({"messageType": "success", "response": {"ok": true}})).await;
    let end = events.expect().await;
    assert_eq!((end.name.as_str(), &end.data["response"]), ("status", &json!({"ok": true})));
    assert!(end.id > last);
    assert_eq!(end.data, alice.poll("resize", &id).await);
    assert!(events.next().await.is_none(), "nothing comes after the end");
}

async fn a_task_stream_shows_a_returned_task_as_pending(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    let mut events = alice.follow("resize", &id).await;
    assert_eq!(events.expect().await.data["status"], "IN_PROGRESS");
    assert_eq!(worker.give_back("resize", &id, 1).await, "accepted");
    let event = events.expect().await;
    assert_eq!((event.name.as_str(), event.data["status"].as_str()), ("status", Some("PENDING")));
    alice.delete(&format!("/v1/services/resize/tasks/{id}")).await;
    assert_eq!(events.expect().await.data["status"], "CANCELLED");
    assert!(events.next().await.is_none());
}

async fn a_task_stream_sends_changes_of_position(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    alice.submit("resize", json!({})).await;
    let id = alice.submit("resize", json!({})).await;
    let mut events = alice.follow("resize", &id).await;
    let first = events.expect().await;
    assert_eq!(first.data["taskPosition"], 2);
    worker.claim_one("resize").await;
    let moved = events.expect().await;
    assert_eq!((moved.name.as_str(), &moved.data["taskPosition"]), ("position", &json!(1)));
    assert_eq!(moved.id, first.id, "the task itself has not changed");
}

async fn a_reconnected_stream_gets_only_newer_events(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    let seen = alice.follow("resize", &id).await.expect().await.id;
    let resume = |id: u64| alice.clone().with("last-event-id", &id.to_string());

    let mut waiting = resume(seen).follow("resize", &id).await;
    worker.claim_one("resize").await;
    let running = waiting.expect().await;
    assert_eq!(running.data["status"], "IN_PROGRESS", "what was seen is not repeated");
    worker.report("resize", &id, json!({"messageType": "progress", "progress": 50})).await;
    let missed = resume(seen).follow("resize", &id).await.expect().await;
    assert_eq!(missed.data["progress"].as_f64(), Some(50.0), "what was missed comes first, as it is now");

    worker.report("resize", &id, json!({"messageType": "failure", "errorMessage": "x"})).await;
    let end = resume(missed.id).follow("resize", &id).await.expect().await;
    assert_eq!(end.data["status"], "FAILURE");
    assert!(resume(end.id).follow("resize", &id).await.next().await.is_none(), "all was seen");
}

async fn an_unknown_last_event_id_is_ignored(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let id = alice.submit("resize", json!({})).await;
    for strange in ["", "abc", "-1", "1.5", "999999", "18446744073709551615", "99999999999999999999999"] {
        let mut events = alice.clone().with("last-event-id", strange).follow("resize", &id).await;
        assert_eq!(events.expect().await.data["status"], "PENDING", "{strange:?}");
    }
}

async fn the_stream_of_an_ended_task_sends_one_event(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let id = alice.submit("resize", json!({})).await;
    alice.delete(&format!("/v1/services/resize/tasks/{id}")).await;
    let mut events = alice.follow("resize", &id).await;
    assert_eq!(events.expect().await.data["status"], "CANCELLED");
    assert!(events.next().await.is_none());
}

async fn a_stream_of_a_missing_task_is_refused(on: Backend) {
    let app = TestApp::start(on).await;
    let id = app.client("alice").submit("resize", json!({})).await;
    let path = |id: &str| format!("/v1/services/resize/tasks/{id}/events");
    let unknown = "019a0000-0000-7000-8000-000000000000";
    assert_eq!(app.client("alice").get(&path(unknown)).await.number(), 404_002);
    assert_eq!(app.client("bob").get(&path(&id)).await.number(), 404_002);
    assert_eq!(app.client("worker").get(&path(&id)).await.number(), 403_001);
}

/// Line breaks between the tokens of JSON are carried like the rest, and are what separates the lines of a stream.
async fn a_response_with_line_breaks_arrives_whole(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for white_space in ["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"] {
        let id = alice.submit("resize", json!({})).await;
        let response = format!(r#"{{{white_space}"a":{white_space}"b\n\r"}}"#);
        let message = format!(r#"{{"taskId":"{id}","data":{{"messageType":"success","response":{response}}}}}"#);
        assert_eq!(worker.post_text("/v1/services/resize/messages", message).await.status, 200);
        let mut events = alice.follow("resize", &id).await;
        assert_eq!(events.expect().await.data["response"], json!({"a": "b\n\r"}), "{white_space:?}");
        assert!(events.next().await.is_none());
    }
}
