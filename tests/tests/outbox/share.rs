//! Several processes and one outbox: they share it, one is killed, and one without the role still shows it.

use std::time::Instant;

use anyhow::{Result, ensure};
use relais_testkit::TestDatabase;
use serde_json::Value;

use crate::stage::{Stage, done, typed, until};

async fn relays(server: &relais_tests::instance::Instance) -> Result<Vec<Value>> {
    let state = done(server, "GET", "outboxes/orders", None).await?;
    Ok(state["relays"].as_array().cloned().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_share_an_outbox_and_when_one_is_killed_the_other_goes_on() -> Result<()> {
    let (stage, own) = tokio::try_join!(Stage::new(), TestDatabase::create())?;
    stage.init()?;
    let mut one = stage.server(own.url())?.arg("--role").arg("relay,api").start().await?;
    let two = stage.server(own.url())?.arg("--role").arg("relay,api").start().await?;
    let looker = stage.server(own.url())?.arg("--role").arg("api").start().await?;
    // Declared at one server; the others learn of it.
    let mut declaration = stage.declaration()?;
    declaration["mode"] = "polling".into();
    done(&looker, "PUT", "outboxes/orders", Some(&declaration)).await?;
    until("both have a share", async || {
        let relays = relays(&looker).await?;
        Ok(relays.len() == 2 && relays.iter().all(|relay| relay["partitions"] == 8))
    })
    .await?;
    for aggregate in 0..8 {
        stage.insert(&format!("a{aggregate}"), "placed", 0..20).await?;
    }
    ensure!(stage.numbers(160).await?.len() == 160);
    one.kill9()?;
    for aggregate in 0..8 {
        stage.insert(&format!("a{aggregate}"), "placed", 20..22).await?;
    }
    ensure!(stage.numbers(16).await?.len() >= 16, "what the dead one had is taken over");
    until("all partitions are the other's", async || {
        let relays = relays(&two).await?;
        Ok(relays.iter().any(|relay| relay["partitions"] == 16))
    })
    .await?;
    let state = done(&looker, "GET", "outboxes/orders", None).await?;
    ensure!(state["unpublished"] == 0 && state["parked"] == 0, "{state}");
    ensure!(typed(&looker, "outbox parked orders")?.contains("Nothing is parked."));
    // Paused through one, it stops in the other.
    ensure!(typed(&looker, "outbox pause orders")?.contains("paused"));
    until("the other has stopped", async || {
        let relays = relays(&two).await?;
        Ok(relays.iter().all(|relay| relay["partitions"] == 0 || relay["partitions"] == 8))
    })
    .await?;
    Ok(())
}

/// By capture one process reads the slot, and the other stands by.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn when_the_process_that_reads_the_slot_is_killed_the_other_goes_on_within_seconds() -> Result<()> {
    let (stage, own) = tokio::try_join!(Stage::new(), TestDatabase::create())?;
    stage.init()?;
    let one = stage.server(own.url())?.arg("--role").arg("relay,api").start().await?;
    let mut declaration = stage.declaration()?;
    // Longer than the test: who takes over does not wait for it.
    declaration["lease"] = "10m".into();
    done(&one, "PUT", "outboxes/orders", Some(&declaration)).await?;
    until("it captures", async || Ok(relays(&one).await?.iter().any(|relay| relay["activity"] == "capturing"))).await?;
    let two = stage.server(own.url())?.arg("--role").arg("relay,api").start().await?;
    until("the other stands by", async || {
        let relays = relays(&two).await?;
        Ok(relays.len() == 2 && relays.iter().any(|relay| relay["activity"] == "standby"))
    })
    .await?;
    stage.insert("a", "placed", 0..5).await?;
    ensure!(stage.numbers(5).await? == [0, 1, 2, 3, 4]);
    let (mut one, killed) = (one, Instant::now());
    one.kill9()?;
    stage.insert("a", "placed", 5..8).await?;
    // What the dead one had published and not marked comes again.
    let mut rest = stage.numbers(3).await?;
    while !rest.ends_with(&[7]) {
        rest.extend(stage.numbers(1).await?);
    }
    println!("kill -9 of the process that reads the slot: the other went on after {:?}", killed.elapsed());
    ensure!(rest.ends_with(&[5, 6, 7]) && rest.is_sorted(), "in order: {rest:?}");
    until("the other captures", async || Ok(relays(&two).await?.iter().any(|relay| relay["activity"] == "capturing")))
        .await?;
    // Deleted, it leaves nothing behind in the database.
    ensure!(typed(&two, "outbox delete orders --yes")?.contains("deleted"));
    until("the slot is gone", async || {
        let slots: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
                .fetch_one(&stage.pool().await?)
                .await?;
        Ok(slots == 0)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_outbox_that_is_deleted_while_no_relay_runs_leaves_no_slot() -> Result<()> {
    let (stage, own) = tokio::try_join!(Stage::new(), TestDatabase::create())?;
    stage.init()?;
    let mut relay = stage.server(own.url())?.arg("--role").arg("relay,api").start().await?;
    done(&relay, "PUT", "outboxes/orders", Some(&stage.declaration()?)).await?;
    let slots = async || {
        let sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
        anyhow::Ok(sqlx::query_scalar::<_, i64>(sql).fetch_one(&stage.pool().await?).await?)
    };
    until("it is captured", async || Ok(slots().await? == 1)).await?;
    relay.kill9()?;
    let other = stage.server(own.url())?.arg("--role").arg("api").start().await?;
    typed(&other, "outbox delete orders --yes")?;
    until("the slot is gone", async || Ok(slots().await? == 0)).await
}
