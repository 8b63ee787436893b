//! Ends without a stop: an idle worker, a worker that is refused, and a task that times out.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use relais_messaging::rabbitmq::BrokerState;
use relais_testkit::{TestVhost, free_port};
use relais_tests::{amqp, app::DEADLINE};
use relais_worker::{Context, HandlerError, Worker, WorkerError};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{World, health, rabbitmq, stage::Stage};

/// One that takes one task, and one that takes all there are.
async fn gives_up(world: &World) -> Result<()> {
    let stage = Stage::new();
    for once in [true, false] {
        let worker = stage.run(world.remote_worker().once(once).idle(Duration::from_millis(100)));
        let report = worker.ended().await;
        assert_eq!((report.done, report.lost, stage.started()), (0, 0, 0));
    }
    // What comes in time is done.
    let task = world.submit(json!({"do": "double", "n": 1})).await;
    let worker = stage.run(world.remote_worker().once(true).idle(DEADLINE));
    assert_eq!(world.ended(&task).await["response"], 2);
    assert_eq!(worker.ended().await.done, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_over_http_ends() -> Result<()> {
    gives_up(&World::http().await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_on_rabbitmq_ends() -> Result<()> {
    gives_up(&World::rabbitmq_classic().await?).await
}

#[tokio::test]
async fn a_broker_that_does_not_let_a_worker_in_ends_it() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let elsewhere = vhost.url().replace(vhost.name(), "no-such-host");
    for (url, word) in [(vhost.url_with_password("wrong")?, "ACCESS_REFUSED"), (elsewhere, "no-such-host")] {
        let handler = async |_: (), _: Context| Ok::<_, HandlerError>(());
        let running = Worker::rabbitmq(url, "q").build()?.run(handler, CancellationToken::new());
        let error = timeout(DEADLINE, running).await.context("it tries for ever")?.unwrap_err();
        assert!(matches!(&error, WorkerError::BrokerRefused { why } if why.contains(word)), "{error}");
        assert!(error.to_string().starts_with("the broker refused the worker: "), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_broker_that_let_a_worker_in_once_is_waited_for() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let url = vhost.url().to_owned();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let worker = Stage::new().run(Worker::rabbitmq(&url, "q").health(address));
    health::until(address, "/readyz", (200, "ready")).await;
    vhost.drop_now().await?;
    health::until(address, "/readyz", (503, "does not answer")).await;
    // Somebody else, who is refused for as long as it takes to be sure of it.
    let other = amqp::broker(&url);
    let refused = |state: &BrokerState| matches!(state, BrokerState::Away { why, .. } if why.contains("NOT_ALLOWED"));
    tokio::time::timeout(DEADLINE, other.until(refused)).await?;
    health::until(address, "/livez", (200, "alive")).await;
    worker.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_task_that_takes_longer_than_it_may_is_stopped_and_fails() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = rabbitmq::queues(&vhost).await?;
    let stage = Stage::new();
    let worker = Worker::rabbitmq(vhost.url(), "q").stop_limit(Duration::from_millis(100));
    let worker = stage.run(worker);
    // One that stops when it is told to, and one that has to be dropped.
    for order in ["wait", "never"] {
        let data = json!({"messageType": "submission", "body": {"do": order}});
        other.publish(json!({"taskId": order, "timeoutMs": 50, "data": data}).to_string()).await?;
        let messages = other.results(1).await?;
        let failure = &messages.last().context("nothing")?["data"];
        assert_eq!(
            (&failure["messageType"], &failure["errorMessage"], &failure["errorKind"]),
            (&json!("failure"), &json!("It ran for longer than it may."), &json!("timeout"))
        );
    }
    stage.stops(1).await;
    // What is done in time is not disturbed, and knows until when.
    let data = json!({"messageType": "submission", "body": {"do": "know"}});
    other.publish(json!({"taskId": "know", "timeoutMs": 60_000, "data": data}).to_string()).await?;
    let messages = other.results(1).await?;
    assert_eq!(messages.last().context("nothing")?["data"]["response"]["deadline"], true);
    let report = worker.stop().await;
    assert_eq!((report.done, report.failed, report.lost), (1, 2, 0));
    assert!(vhost.take("q-in", 1).await?.is_empty(), "they were acknowledged");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_may_give_its_tasks_less_time() -> Result<()> {
    let world = World::http().await?;
    let stage = Stage::new();
    let worker = stage.run(world.remote_worker().time_limit(Duration::from_millis(50)));
    let task = world.submit(json!({"do": "wait"})).await;
    let view = world.ended(&task).await;
    assert_eq!((&view["status"], &view["errorMessage"]), (&json!("FAILURE"), &json!("It ran for longer than it may.")));
    stage.stops(1).await;
    worker.stop().await;
    Ok(())
}
