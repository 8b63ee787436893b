//! What every transport promises.
#![expect(clippy::unwrap_used, reason = "what can not be unwrapped here fails the test, which is what it is for")]

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::{Way, World, foreign::Language, stage::Stage};

/// For workers that are to hear soon, or to be missed soon.
const BRIEF: Duration = Duration::from_secs(1);

pub async fn a_result_comes_back_with_the_host_that_made_it(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let task = world.submit(json!({"do": "double", "n": 21})).await;
    let view = world.ended(&task).await;
    assert_eq!((&view["status"], &view["response"], &view["progress"]), (&json!("SUCCESS"), &json!(42), &json!(100.0)));
    assert_eq!(world.seen(&task).await["workerHost"], "pod-1");
    let report = worker.stop().await;
    assert_eq!((report.done, report.failed, report.returned, report.lost, report.unsent), (1, 0, 0, 0, 0));
    Ok(())
}

pub async fn a_handler_knows_its_task(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let alice = world.app.client("alice");
    let submission = json!({"body": {"do": "know"}, "correlationId": "chain-7"});
    let answer = alice.post(&format!("/v1/services/{}/tasks", crate::SERVICE), &submission).await.data();
    let task = answer["taskId"].as_str().unwrap();
    let known = world.ended(task).await["response"].clone();
    // Over RabbitMQ nobody counts.
    let attempt = if world.way == Way::RabbitMq { json!(null) } else { json!(1) };
    assert_eq!(
        known,
        json!({"taskId": task, "attempt": attempt, "redelivered": false, "correlationId": "chain-7", "deadline": false})
    );
    worker.stop().await;
    Ok(())
}

pub async fn a_failure_comes_back_with_its_message(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let task = world.submit(json!({"do": "fail", "message": "no \"paper\""})).await;
    let view = world.ended(&task).await;
    assert_eq!((&view["status"], &view["errorMessage"]), (&json!("FAILURE"), &json!("no \"paper\"")));
    assert_eq!(worker.stop().await.failed, 1);
    Ok(())
}

pub async fn a_panic_fails_its_task_and_no_other(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let panicked = world.submit(json!({"do": "panic"})).await;
    let other = world.submit(json!({"do": "double", "n": 1})).await;
    let message = match world.language {
        None => "the handler panicked: told to",
        Some(Language::Python) => "RuntimeError: told to",
        Some(Language::JavaScript) => "told to",
    };
    assert_eq!(world.ended(&panicked).await["errorMessage"], message);
    assert_eq!(world.ended(&other).await["response"], 2);
    let report = worker.stop().await;
    assert_eq!((report.done, report.failed), (1, 1));
    Ok(())
}

pub async fn a_body_of_another_shape_fails_its_task(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let task = world.submit(json!({"do": "dance"})).await;
    let view = world.ended(&task).await;
    let begins = match world.language {
        None => "the body is not what the handler expects: unknown variant `dance`",
        Some(Language::Python) => "the body is not what the handler expects: /do is not one of 'double', ",
        // What shape a body has, only the function knows that parses it.
        Some(Language::JavaScript) => "there is no order dance",
    };
    let message = view["errorMessage"].as_str().unwrap();
    assert!(message.starts_with(begins), "{message}");
    assert_eq!((worker.stop().await.failed, stage.started()), (1, 0));
    Ok(())
}

pub async fn progress_is_reported_and_a_flood_of_it_is_limited(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let task = world.submit(json!({"do": "progress", "percent": 42})).await;
    world.until(&task, "at 42 %", |seen| seen["task"]["progress"] == 42.0).await;
    stage.let_go(1);
    assert_eq!(world.ended(&task).await["progress"], 100.0);
    worker.stop().await;
    Ok(())
}

pub async fn a_cancelled_task_is_stopped(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker().lease(BRIEF));
    let task = world.submit(json!({"do": "wait"})).await;
    stage.starts(1).await;
    let path = format!("/v1/services/{}/tasks/{task}", crate::SERVICE);
    assert_eq!(world.app.client("alice").delete(&path).await.status, 200);
    stage.stops(1).await;
    let report = worker.stop().await;
    assert_eq!((report.lost, report.done, report.failed, report.returned), (1, 0, 0, 0));
    assert_eq!(world.seen(&task).await["task"]["status"], "CANCELLED");
    if let Some(vhost) = &world.vhost {
        assert!(vhost.take("resize-in", 1).await?.is_empty(), "it comes back to nobody");
    }
    Ok(())
}

pub async fn a_worker_runs_as_many_tasks_as_it_has_slots(world: &World) -> Result<()> {
    let stage = Stage::new();
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(world.submit(json!({"do": "wait"})).await);
    }
    let worker = stage.run(world.worker().concurrency(3));
    stage.starts(3).await;
    stage.let_go(1);
    stage.starts(4).await;
    stage.let_go(4);
    for task in &tasks {
        assert_eq!(world.ended(task).await["status"], "SUCCESS");
    }
    assert_eq!((stage.most(), stage.started()), (3, 5));
    assert_eq!(worker.stop().await.done, 5);
    Ok(())
}

pub async fn many_tasks_run_once_each(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker().concurrency(20));
    let bodies: Vec<_> = (0..200).map(|n| json!({"body": {"do": "double", "n": n}})).collect();
    let alice = world.app.client("alice");
    let path = format!("/v1/services/{}/tasks/batch", crate::SERVICE);
    let answer = alice.post(&path, &json!({"tasks": bodies})).await.data();
    for (n, task) in answer["tasks"].as_array().unwrap().iter().enumerate() {
        let view = world.ended(task["data"]["taskId"].as_str().unwrap_or_else(|| panic!("{task}"))).await;
        assert_eq!(view["response"], 2 * n);
    }
    let report = worker.stop().await;
    assert_eq!((report.done, report.lost, report.unsent, stage.started()), (200, 0, 0, 200));
    Ok(())
}

pub async fn a_stopping_worker_lets_tasks_finish(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let tasks = [world.submit(json!({"do": "wait"})).await, world.submit(json!({"do": "wait"})).await];
    let first = stage.starts(1).await.remove(0).0;
    worker.shut_down();
    stage.let_go(1);
    let report = worker.ended().await;
    assert_eq!((report.done, report.returned, report.lost), (1, 0, 0));
    assert_eq!(world.ended(&first).await["status"], "SUCCESS");
    let other = tasks.iter().find(|task| **task != first).unwrap();
    assert_eq!((stage.started(), &world.seen(other).await["task"]["status"]), (1, &json!("PENDING")));
    Ok(())
}

pub async fn a_stopping_worker_returns_unfinished_tasks(world: &World) -> Result<()> {
    given_back(world, "wait").await
}

pub async fn a_stopping_worker_returns_tasks_whose_handler_does_not_stop(world: &World) -> Result<()> {
    given_back(world, "never").await
}

async fn given_back(world: &World, order: &str) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker().grace(Duration::ZERO).stop_limit(Duration::from_millis(100)));
    let task = world.submit(json!({"do": order})).await;
    stage.starts(1).await;
    world.until(&task, "in progress", |seen| seen["task"]["status"] == "IN_PROGRESS").await;
    let report = worker.stop().await;
    assert_eq!((report.done, report.returned, report.lost), (0, 1, 0));
    let seen = world.until(&task, "back in its queue", |seen| seen["task"]["status"] == "PENDING").await;
    assert_eq!(seen["losses"], 0, "nobody was lost: {seen}");
    if order == "wait" {
        let worker = stage.run(world.worker());
        stage.starts(2).await;
        stage.let_go(1);
        assert_eq!(world.ended(&task).await["response"], json!({"redelivered": true}));
        assert_eq!(world.seen(&task).await["losses"], 0);
        worker.stop().await;
    }
    Ok(())
}

pub async fn a_worker_with_once_runs_exactly_one_task(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker().concurrency(5).once());
    let tasks = [world.submit(json!({"do": "wait"})).await, world.submit(json!({"do": "wait"})).await];
    stage.starts(1).await;
    stage.let_go(2);
    let report = worker.ended().await;
    assert_eq!((report.done, report.returned, stage.started()), (1, 0, 1));
    let first = stage.starts(1).await.remove(0).0;
    assert_eq!(world.ended(&first).await["status"], "SUCCESS");
    let other = tasks.iter().find(|task| **task != first).unwrap();
    assert_eq!(world.seen(other).await["task"]["status"], "PENDING");
    let worker = stage.run(world.worker().once());
    assert_eq!(world.ended(other).await["status"], "SUCCESS");
    assert_eq!((worker.ended().await.done, stage.started()), (1, 2));
    Ok(())
}

pub async fn a_worker_with_once_can_be_stopped(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker().once().grace(Duration::ZERO));
    let task = world.submit(json!({"do": "wait"})).await;
    stage.starts(1).await;
    assert_eq!(worker.stop().await.returned, 1);
    let worker = stage.run(world.worker().once());
    stage.let_go(1);
    assert_eq!(world.ended(&task).await["status"], "SUCCESS");
    assert_eq!(worker.ended().await.done, 1);
    // One that never got a task has nothing to wait for.
    let worker = stage.run(world.worker().once());
    assert_eq!(worker.stop().await.done, 0);
    Ok(())
}

pub async fn a_task_is_retried_after_its_backoff(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let task = world.submit(json!({"do": "again"})).await;
    let view = world.ended(&task).await;
    assert_eq!((&view["status"], &view["response"]), (&json!("SUCCESS"), &json!(2)));
    let starts = stage.starts(2).await;
    // Of another process it is known here a little later when it began than there.
    let least = if world.language.is_none() { 500 } else { 250 };
    assert!(starts[1].1 - starts[0].1 >= Duration::from_millis(least), "it came back at once");
    assert_eq!(world.seen(&task).await["losses"], 0);
    let report = worker.stop().await;
    assert_eq!((report.done, report.returned, report.failed), (1, 1, 0));
    Ok(())
}

pub async fn a_task_of_a_crashed_worker_is_run_by_another(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker().lease(BRIEF));
    let task = world.submit(json!({"do": "wait"})).await;
    stage.starts(1).await;
    worker.kill().await;
    let worker = stage.run(world.worker().lease(BRIEF));
    stage.starts(2).await;
    stage.let_go(1);
    let view = world.ended(&task).await;
    assert_eq!((&view["status"], &view["response"]), (&json!("SUCCESS"), &json!({"redelivered": true})));
    worker.stop().await;
    Ok(())
}
