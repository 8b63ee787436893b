//! Many messages at once.

use std::time::{Duration, Instant};

use relais_tests::app::Backend;
use serde_json::json;

use crate::stage::Stage;

on_each_store!(a_flood_of_progress_delays_no_result, every_task_of_many_runs_once);

async fn a_flood_of_progress_delays_no_result(on: Backend) {
    const FLOOD: usize = 5000;
    let stage = Stage::start(on).await;
    let (loud, quiet) = (stage.submit(json!({})).await, stage.submit(json!({})).await);
    stage.worker.started(&loud, "pod-1").await;
    let before = stage.running_on(&loud, "pod-1").await;
    let mut events = stage.alice.follow("resize", &loud).await;
    let progress = |n: usize| json!({"messageType": "progress", "progress": n as f64 * 100.0 / FLOOD as f64});
    let mut flood: Vec<String> = (0..FLOOD).map(|n| stage.worker.message(&loud, progress(n)).to_string()).collect();
    flood.push(stage.worker.message(&quiet, json!({"messageType": "success"})).to_string());
    flood.push(stage.worker.message(&loud, json!({"messageType": "success", "response": "loud"})).to_string());
    stage.worker.send_many(flood).await;
    let sent = Instant::now();
    stage.success(&quiet).await;
    assert_eq!(stage.success(&loud).await, "loud");
    assert!(sent.elapsed() < Duration::from_secs(20), "{:?}", sent.elapsed());
    let first = events.expect().await;
    let mut last = first.clone();
    while let Some(event) = events.next().await {
        last = event;
    }
    assert_eq!(last.data["status"], "SUCCESS");
    // Each change has a number.
    assert!(last.id - first.id < FLOOD as u64 / 10, "{} changes for {FLOOD} messages", last.id - first.id);
    assert_eq!(stage.task(&loud).await["attempt"], before["attempt"]);
}

async fn every_task_of_many_runs_once(on: Backend) {
    const TASKS: usize = 600;
    let stage = Stage::start(on).await;
    let mut listening = stage.worker.listen(100).await;
    let ids = stage.submit_many(0..TASKS).await;
    let jobs = listening.take_all(TASKS).await;
    let order: Vec<&str> = jobs.iter().map(|job| job.task_id.as_str()).collect();
    assert_eq!(order, ids, "each once, in the order of arrival");
    let results = jobs.iter().flat_map(|job| {
        let result = json!({"messageType": "success", "response": job.body()["n"]});
        [json!({"messageType": "started", "hostName": "pod-1"}), result]
            .map(|data| stage.worker.message(&job.task_id, data).to_string())
    });
    stage.worker.send_many(results.collect::<Vec<_>>()).await;
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(stage.success(id).await, n);
    }
    assert_eq!((stage.app.pending("resize").await, stage.app.count("resize", "inProgress").await), (0, 0));
}
