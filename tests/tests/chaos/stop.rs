//! SIGTERM: an orderly end under load, and a quick one for who insists.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use relais_testkit::TestDatabase;
use relais_tests::{
    chaos::{Api, Load, LoadOptions, consumer, declare, judge, wait_until_drained},
    instance::Instance,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// The default of `server.shutdown_grace`. Nothing here should need it.
const GRACE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_under_load_answers_everybody_and_loses_nothing() -> Result<()> {
    let database = TestDatabase::create().await?;
    let mut server = Instance::start(database.url()).await?;
    declare(&server.url(), "2s").await?;
    // A service without workers, for those who wait in vain.
    let quiet = json!({
        "services": [{"serviceName": "quiet"}, {"serviceName": "idle"}],
        "authorizations": [
            {"clientId": "chaos-client", "serviceName": "quiet", "roles": ["consume", "work"]},
            {"clientId": "chaos-client", "serviceName": "idle", "roles": ["consume", "work"]},
        ],
    });
    let admin = Api::admin(server.url())?;
    admin.post("/admin/apply", &quiet).await?.data()?;
    let client = consumer(&server.url())?;
    let task = client.post("/v1/services/quiet/tasks", &json!({"body": {}})).await?.data()?;
    let waiting = format!("/v1/services/quiet/tasks/{}?wait=60s", task["taskId"].as_str().context("no name")?);
    let polls: Vec<_> = (0..5)
        .map(|_| {
            let (client, waiting) = (client.clone(), waiting.clone());
            tokio::spawn(async move { client.get(&waiting).await })
        })
        .collect();
    let claims: Vec<_> = (0..5)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.post("/v1/services/idle/claims", &json!({"wait": "60s"})).await })
        })
        .collect();
    let mut load = Load::start(&[server.url()], LoadOptions::default())?;
    load.ledger().more(200, PATIENCE).await?;

    let begun = Instant::now();
    server.process().terminate()?;
    let status = server.process().wait_exit(GRACE + Duration::from_secs(5)).await?;
    let took = begun.elapsed();
    assert_eq!(status.code(), Some(0), "{}", server.process().stderr()?);
    for poll in polls {
        let view = timeout(PATIENCE, poll).await??.context("a long poll was cut off")?.data()?;
        assert_eq!(view["status"], "PENDING");
    }
    for claim in claims {
        let data = timeout(PATIENCE, claim).await??.context("a claim was cut off")?.data()?;
        assert_eq!(data["tasks"], json!([]));
    }
    println!("SIGTERM under load: ended after {took:?}");
    assert!(took < GRACE, "it took {took:?}");

    server.restart().await?;
    load.ledger().more(50, PATIENCE).await?;
    load.stop_consumers().await?;
    wait_until_drained(&server.url(), Duration::from_secs(20)).await?;
    let ledger = load.stop().await?;
    judge(&server.url(), &ledger, 1).await?.report("SIGTERM under load")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_ends_at_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut server = Instance::start(format!("sqlite:{}", folder.path().join("relais.db").display())).await?;
    declare(&server.url(), "2s").await?;
    // A request that never ends keeps the server waiting for as long as it is patient.
    let mut slow = TcpStream::connect(server.url().trim_start_matches("http://")).await?;
    slow.write_all(
        b"POST /admin/apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
          Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n",
    )
    .await?;
    let mut answer = [0; 12];
    timeout(PATIENCE, slow.read_exact(&mut answer)).await??;
    assert_eq!(&answer, b"HTTP/1.1 100", "it waits for the rest");

    server.process().terminate()?;
    let begun = Instant::now();
    while !server.process().stderr()?.contains("told to stop") {
        assert!(begun.elapsed() < PATIENCE, "it does not hear");
        tokio::task::yield_now().await;
    }
    assert!(server.process().is_running()?, "it waits for the request under way");
    let begun = Instant::now();
    server.process().terminate()?;
    let status = server.process().wait_exit(PATIENCE).await?;
    let took = begun.elapsed();
    assert_eq!(status.code(), Some(1));
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    Ok(())
}
