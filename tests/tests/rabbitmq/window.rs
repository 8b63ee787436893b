//! A dispatch window bounds how many tasks are at the broker and with workers; the rest waits in the store, and none is
//! lost.

use std::{collections::BTreeSet, time::Duration};

use relais_tests::app::Backend;
use serde_json::json;
use tokio::time::timeout;

use crate::stage::Stage;

on_each_store!(
    a_dispatch_window_limits_published_tasks_and_all_run,
    urgent_tasks_overtake_tasks_that_wait_for_the_dispatch_window,
    a_dispatch_window_is_shown_changed_and_removed,
);

const WINDOW: usize = 3;

/// Long enough for a task to come that should not.
const A_WHILE: Duration = Duration::from_millis(400);

async fn a_dispatch_window_limits_published_tasks_and_all_run(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"dispatchWindow": WINDOW})).await;
    let ids = stage.submit_many(0..12).await;
    // A worker that would take them all.
    let mut listening = stage.worker.listen(100).await;
    let mut jobs = Vec::new();
    for id in &ids[..WINDOW] {
        let job = listening.take().await;
        assert_eq!(job.task_id, *id, "the oldest first");
        jobs.push(job);
    }
    assert!(timeout(A_WHILE, listening.take()).await.is_err(), "more than the window is at the broker");
    stage.worker.started(&ids[0], "pod-1").await;
    stage.running_on(&ids[0], "pod-1").await;
    assert!(timeout(A_WHILE, listening.take()).await.is_err(), "what a worker has is in the window");

    // One that is cancelled before it was published makes no room; one that was makes room for one.
    let cancel = async |id: &str| {
        let answer = stage.alice.delete(&format!("/v1/services/resize/tasks/{id}")).await;
        assert!((200..300).contains(&answer.status), "{}", answer.text);
    };
    cancel(&ids[11]).await;
    cancel(&ids[1]).await;
    let job = listening.take().await;
    assert_eq!(job.task_id, ids[WINDOW]);
    jobs.push(job);
    assert!(timeout(A_WHILE, listening.take()).await.is_err());

    let mut done = BTreeSet::from([ids[1].clone(), ids[11].clone()]);
    while done.len() < ids.len() {
        let job = if jobs.is_empty() { listening.take().await } else { jobs.remove(0) };
        listening.ack(&job);
        if done.contains(&job.task_id) {
            continue;
        }
        stage.worker.success(&job.task_id, json!(null)).await;
        assert!(done.insert(job.task_id));
    }
    for id in ids.iter().filter(|id| ![&ids[1], &ids[11]].contains(id)) {
        stage.success(id).await;
    }
}

async fn urgent_tasks_overtake_tasks_that_wait_for_the_dispatch_window(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"dispatchWindow": 1})).await;
    let mut listening = stage.worker.listen(100).await;
    let mut ids = Vec::new();
    let mut jobs = Vec::new();
    for priority in [4, 4, 1, 9] {
        let answer = stage.alice.post("/v1/services/resize/tasks", &json!({"body": {}, "priority": priority})).await;
        ids.push(answer.data()["taskId"].as_str().unwrap().to_owned());
        if jobs.is_empty() {
            jobs.push(listening.take().await);
        }
    }
    for at in [0, 3, 1, 2] {
        let job = if at == 0 { jobs.remove(0) } else { listening.take().await };
        assert_eq!(job.task_id, ids[at], "the first is at the broker already; then by priority");
        listening.ack(&job);
        stage.worker.success(&job.task_id, json!(null)).await;
    }
}

async fn a_dispatch_window_is_shown_changed_and_removed(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"dispatchWindow": 1})).await;
    let operator = stage.app.caller();
    assert_eq!(operator.get("/admin/services/resize").await.data()["dispatchWindow"], 1);
    let ids = stage.submit_many(0..6).await;
    let mut listening = stage.worker.listen(100).await;
    let mut found = vec![listening.take().await.task_id];
    stage.resize(json!({"dispatchWindow": 2})).await;
    found.push(listening.take().await.task_id);
    assert!(timeout(A_WHILE, listening.take()).await.is_err());
    stage.resize(json!({})).await;
    while found.len() < ids.len() {
        found.push(listening.take().await.task_id);
    }
    assert_eq!(found, ids);
    assert!(operator.get("/admin/services/resize").await.data().get("dispatchWindow").is_none());

    for (window, why) in [(json!(0), "between 1"), (json!(100_001), "between 1")] {
        let declaration = json!({"services": [{"serviceName": "resize", "dispatchWindow": window}]});
        let answer = operator.post("/admin/apply", &declaration).await;
        assert!(answer.number() == 400_010 && answer.text.contains(why), "{}", answer.text);
    }
}
