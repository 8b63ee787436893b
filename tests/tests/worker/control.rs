//! Revocations over a broker, in every library.
#![expect(clippy::unwrap_used, reason = "what can not be unwrapped here fails the test, which is what it is for")]

use std::time::Duration;

use anyhow::{Context, Result};
use relais_messaging::rabbitmq::{Broker, Publish};
use relais_testkit::{TcpProxy, TestVhost};
use relais_tests::{amqp, app::DEADLINE};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{SERVICE, World, stage::Stage};

/// The broker that everybody meets at.
fn broker(world: &World) -> Result<(&TestVhost, Broker)> {
    let vhost = world.vhost.as_ref().context("there is no broker")?;
    Ok((vhost, amqp::broker(vhost.url())))
}

/// The way to it for somebody who may work and not hear what is told beside tasks.
pub async fn url_of_who_may_not_listen(world: &World) -> Result<String> {
    let vhost = world.vhost.as_ref().context("there is no broker")?;
    vhost.url_restricted_to(r"^(resize-in|resize-out|amq\.default)$").await
}

async fn cancel(world: &World, task: &str) {
    let path = format!("/v1/services/{SERVICE}/tasks/{task}");
    assert_eq!(world.app.client("alice").delete(&path).await.status, 200);
}

/// Waits until so many tasks are in the queue that nobody was given.
async fn waiting(broker: &Broker, count: u32) -> Result<()> {
    let looking = async {
        while broker.find("resize-in").await?.context("there is no queue")?.messages != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    };
    timeout(DEADLINE, looking).await.with_context(|| format!("there never were {count} tasks in the queue"))?
}

pub async fn a_worker_that_missed_a_cancellation_is_told_when_it_starts_the_task(world: &World) -> Result<()> {
    let (vhost, broker) = broker(world)?;
    let task = world.submit(json!({"do": "wait"})).await;
    waiting(&broker, 1).await?;
    cancel(world, &task).await;
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    stage.stops(1).await;
    let report = worker.stop().await;
    assert_eq!((report.lost, report.done, report.failed, report.returned), (1, 0, 0, 0));
    assert!(vhost.take("resize-in", 1).await?.is_empty());
    Ok(())
}

/// As it is when an attempt has run for too long and the task is tried again.
pub async fn a_revoked_attempt_is_stopped_and_the_next_attempt_is_not(world: &World) -> Result<()> {
    let (vhost, broker) = broker(world)?;
    let stage = Stage::new();
    let worker = stage.run(world.worker().concurrency(2));
    let task = world.submit(json!({"do": "wait"})).await;
    stage.starts(1).await;
    let stop = json!({"outcomes": [{"taskId": "another"}, {"taskId": task, "outcome": "lost", "revision": 5}]});
    let tell = async |what: &Value| {
        broker.publish(Publish::new("resize-control", "", what.to_string()).mandatory(false)).await
    };
    // What is not understood harms nothing.
    for what in [json!(7), json!({"outcomes": 7}), json!({"outcomes": [7, null]}), stop.clone()] {
        tell(&what).await?;
    }
    stage.stops(1).await;
    let again = json!({"taskId": task, "revision": 5, "data": {"messageType": "submission", "body": {"do": "wait"}}});
    broker.publish(Publish::new("", "resize-in", again.to_string())).await?;
    stage.starts(2).await;
    let other = world.submit(json!({"do": "wait"})).await;
    stage.starts(3).await;
    tell(&stop).await?;
    // Said after it, and so heard after it.
    cancel(world, &other).await;
    stage.stops(2).await;
    stage.let_go(1);
    assert_eq!(world.ended(&task).await["status"], "SUCCESS");
    let report = worker.stop().await;
    assert_eq!((report.lost, report.done, report.returned), (2, 1, 0));
    assert!(vhost.take("resize-in", 1).await?.is_empty());
    Ok(())
}

pub async fn a_task_past_its_timeout_is_stopped(world: &World) -> Result<()> {
    let stage = Stage::new();
    let worker = stage.run(world.worker());
    let submission = json!({"body": {"do": "wait"}, "timeout": "300ms"});
    let answer = world.app.client("alice").post(&format!("/v1/services/{SERVICE}/tasks"), &submission).await.data();
    stage.stops(1).await;
    let view = world.ended(answer["taskId"].as_str().unwrap()).await;
    assert_eq!((&view["status"], &view["errorMessage"]), (&json!("FAILURE"), &json!("It ran for longer than it may.")));
    assert_eq!(worker.stop().await.failed, 1);
    Ok(())
}

pub async fn a_cancelled_task_that_does_not_stop_is_not_redelivered(world: &World) -> Result<()> {
    let (vhost, broker) = broker(world)?;
    let stage = Stage::new();
    let hired = world.worker().grace(Duration::ZERO).stop_limit(Duration::from_millis(100)).concurrency(2);
    let worker = stage.run(hired);
    let never = world.submit(json!({"do": "never"})).await;
    let wait = world.submit(json!({"do": "wait"})).await;
    stage.starts(2).await;
    // It keeps its slot, and the broker gives nobody else's to it.
    let next = world.submit(json!({"do": "wait"})).await;
    waiting(&broker, 1).await?;
    cancel(world, &never).await;
    cancel(world, &wait).await;
    stage.stops(1).await;
    assert_eq!(stage.starts(3).await[2].0, next);
    waiting(&broker, 0).await?;
    stage.let_go(1);
    world.ended(&next).await;
    let report = worker.stop().await;
    assert_eq!((report.lost, report.done, report.returned), (2, 1, 0));
    assert!(vhost.take("resize-in", 1).await?.is_empty());
    Ok(())
}

pub async fn a_cancelled_task_that_waits_for_a_slot_is_not_started(world: &World) -> Result<()> {
    let (vhost, broker) = broker(world)?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let stage = Stage::new();
    let hired = world.worker_at(&vhost.url_via(proxy.addr())?);
    let worker = stage.run(hired.grace(Duration::ZERO).stop_limit(Duration::from_millis(100)));
    let task = world.submit(json!({"do": "never"})).await;
    stage.starts(1).await;
    // It is handed out once more, while the slot is still taken by the handler that has lost it.
    proxy.cut().await?;
    waiting(&broker, 1).await?;
    proxy.restore().await?;
    waiting(&broker, 0).await?;
    let next = world.submit(json!({"do": "wait"})).await;
    waiting(&broker, 1).await?;
    cancel(world, &task).await;
    // The broker gives it the next one: so it is done with the one before.
    waiting(&broker, 0).await?;
    let report = worker.stop().await;
    assert_eq!((stage.started(), report.done, report.failed), (1, 0, 0));
    let left = vhost.take("resize-in", 9).await?;
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(serde_json::from_slice::<Value>(&left[0].body)?["taskId"], next);
    Ok(())
}

pub async fn a_worker_without_permission_for_the_control_exchange_still_works(world: &World) -> Result<()> {
    let url = url_of_who_may_not_listen(world).await?;
    let stage = Stage::new();
    let worker = stage.run(world.worker_at(&url));
    let cancelled = world.submit(json!({"do": "wait"})).await;
    stage.starts(1).await;
    cancel(world, &cancelled).await;
    stage.let_go(1);
    // Its result is for nobody.
    let next = world.submit(json!({"do": "double", "n": 21})).await;
    assert_eq!(world.ended(&next).await["response"], 42);
    let report = worker.stop().await;
    assert_eq!((report.done, report.lost, report.failed), (2, 0, 0));
    assert_eq!(world.seen(&cancelled).await["task"]["status"], "CANCELLED");
    Ok(())
}
