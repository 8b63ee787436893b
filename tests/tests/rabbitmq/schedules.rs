//! Scheduled tasks go to the broker like all others, at once.

use relais_tests::app::Backend;
use serde_json::json;

use crate::stage::Stage;

on_each_store!(a_scheduled_task_is_published_when_it_is_due);

async fn a_scheduled_task_is_published_when_it_is_due(on: Backend) {
    let stage = Stage::start(on).await;
    let mut listening = stage.worker.listen(10).await;
    let schedule = json!({
        "scheduleName": "tick", "serviceName": "resize", "clientId": "alice", "cron": "* * * * * *", "body": {"n": 7},
    });
    let answer = stage.app.caller().put("/admin/schedules/tick", &schedule).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    for _ in 0..2 {
        let job = listening.take().await;
        assert_eq!(job.body()["n"], 7);
        listening.ack(&job);
        stage.worker.success(&job.task_id, json!("done")).await;
        assert_eq!(stage.success(&job.task_id).await, "done");
        let task = stage.task(&job.task_id).await;
        assert!(task["task"]["correlationId"].as_str().is_some_and(|id| id.starts_with("tick@")), "{task}");
    }
    let run = stage.app.caller().post_nothing("/admin/schedules/tick/run").await;
    assert_eq!(run.status, 201, "{}", run.text);
}
