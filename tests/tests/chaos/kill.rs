//! `kill -9`, of servers and of the database under them.

use std::time::Duration;

use anyhow::Result;
use relais_testkit::{PostgresServer, TestDatabase};
use relais_tests::{
    chaos::{Load, LoadOptions, Random, declare, judge, rounds, wait_until_drained},
    instance::Instance,
};

/// As short as a lease gets: what a killed server had handed out comes back soon.
const LEASE: &str = "2s";

/// A task is handed out again after its lease, and a task or two may lose their worker more than once.
const DRAIN: Duration = Duration::from_secs(20);

/// How long it may take until the next tasks are accepted after a fault.
const RECOVERY: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_when_the_server_on_sqlite_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let database = format!("sqlite:{}", folder.path().join("relais.db").display());
    kill_the_server("kill -9 of the server, SQLite", database).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_when_the_server_on_postgresql_is_killed() -> Result<()> {
    let database = TestDatabase::create().await?;
    kill_the_server("kill -9 of the server, PostgreSQL", database.url().to_owned()).await
}

async fn kill_the_server(name: &str, database: String) -> Result<()> {
    let (mut random, faults) = (Random::new(), rounds(5));
    let mut server = Instance::start(database).await?;
    declare(&server.url(), LEASE).await?;
    let mut load = Load::start(&[server.url()], LoadOptions::default())?;
    for _ in 0..faults {
        // A random moment, told by events and not by a clock: in the midst of writing, that is, on any machine.
        load.ledger().more(random.between(50, 250), RECOVERY).await?;
        server.kill9()?;
        server.restart().await?;
    }
    load.ledger().more(100, RECOVERY).await?;
    load.stop_consumers().await?;
    wait_until_drained(&server.url(), DRAIN).await?;
    let ledger = load.stop().await?;
    judge(&server.url(), &ledger, faults).await?.report(name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_when_postgresql_is_killed_under_two_servers() -> Result<()> {
    let (mut random, faults) = (Random::new(), rounds(3));
    let mut postgres = PostgresServer::options().fsync(true).start().await?;
    let (mut one, two) = (Instance::start(postgres.url("postgres")).await?, postgres.url("postgres"));
    let two = Instance::start(two).await?;
    // Both: whoever is only told of it by the other may be asked first.
    declare(&one.url(), LEASE).await?;
    declare(&two.url(), LEASE).await?;
    let mut load = Load::start(&[one.url(), two.url()], LoadOptions::default())?;
    for _ in 0..faults {
        load.ledger().more(random.between(50, 250), RECOVERY).await?;
        postgres.kill9()?;
        postgres.restart().await?;
    }
    load.ledger().more(100, RECOVERY).await?;
    load.stop_consumers().await?;
    wait_until_drained(&one.url(), DRAIN).await?;
    let ledger = load.stop().await?;
    assert!(one.process().is_running()?, "a server does not end because its database did");
    judge(&two.url(), &ledger, faults).await?.report("kill -9 of PostgreSQL, two servers")
}
