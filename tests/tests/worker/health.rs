//! The address for the orchestrator's probes.

use std::net::SocketAddr;

use anyhow::Result;
use relais_testkit::free_port;
use relais_tests::app::DEADLINE;
use relais_worker::{Worker, WorkerError};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{World, stage::Stage};

async fn probe(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let response = client.get(format!("http://{address}{path}")).send().await?;
    Ok((response.status().as_u16(), response.text().await?))
}

/// Probes until there is this answer.
pub async fn until(address: SocketAddr, path: &str, wanted: (u16, &str)) {
    let mut last = None;
    let probing = async {
        loop {
            last = probe(address, path).await.ok();
            if last.as_ref().is_some_and(|(status, text)| *status == wanted.0 && text.contains(wanted.1)) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let answered = tokio::time::timeout(DEADLINE, probing).await;
    assert!(answered.is_ok(), "{path} was never {wanted:?}: {last:?}");
}

async fn tells(world: &World) -> Result<()> {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let stage = Stage::new();
    let worker = stage.run(world.remote_worker().health(address));
    until(address, "/readyz", (200, "ready")).await;
    assert_eq!(probe(address, "/livez").await?, (200, "alive\n".to_owned()));
    assert_eq!(probe(address, "/elsewhere").await?.0, 404);
    let failed = world.submit(json!({"do": "fail", "message": "no"})).await;
    world.ended(&failed).await;
    world.submit(json!({"do": "wait"})).await;
    stage.starts(2).await;
    until(address, "/metrics", (200, "relais_worker_failed_total 1\n")).await;
    let metrics = probe(address, "/metrics").await?.1;
    assert!(metrics.contains("# TYPE relais_worker_running gauge\nrelais_worker_running 1\n"), "{metrics}");
    worker.shut_down();
    until(address, "/readyz", (503, "stopping")).await;
    stage.let_go(1);
    assert_eq!(worker.ended().await.done, 1);
    assert!(probe(address, "/livez").await.is_err(), "it ends with the worker");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_over_http_answers_health_checks() -> Result<()> {
    tells(&World::http().await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_on_rabbitmq_answers_health_checks() -> Result<()> {
    tells(&World::rabbitmq_classic().await?).await
}

#[tokio::test]
async fn a_worker_without_its_server_is_alive_and_not_ready() -> Result<()> {
    for worker in [
        Worker::builder("http://127.0.0.1:1", "me", "hush", "resize"),
        Worker::rabbitmq("amqp://127.0.0.1:1", "resize"),
    ] {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let running = Stage::new().run(worker.health(address));
        until(address, "/readyz", (503, "does not answer")).await;
        assert_eq!(probe(address, "/livez").await?.0, 200);
        running.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn an_address_that_is_taken_is_said_at_once() -> Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let worker = Worker::builder("http://127.0.0.1:1", "me", "hush", "resize").health(taken.local_addr()?).build()?;
    let handler = async |_: (), _: relais_worker::Context| Ok::<_, relais_worker::HandlerError>(());
    let error = worker.run(handler, CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, WorkerError::Health { .. }), "{error}");
    Ok(())
}
