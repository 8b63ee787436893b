//! Operating outboxes: parked events, pause, metrics, and a process without the role.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{Stage, call, done, typed, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_events_are_shown_retried_and_skipped_by_the_command_line() -> Result<()> {
    let stage = Stage::new().await?;
    stage.init()?;
    let server = stage.server(stage.own())?.start().await?;
    let mut declaration = stage.declaration()?;
    // An exchange that is not there refuses every event.
    declaration["destination"] = json!("missing");
    done(&server, "PUT", "outboxes/orders", Some(&declaration)).await?;
    stage.insert("a", "placed", 0..2).await?;
    stage.insert("b", "placed", 2..3).await?;
    let parked = async || -> Result<Vec<Value>> {
        let parked = done(&server, "GET", "outboxes/orders/parked", None).await?;
        Ok(parked["parked"].as_array().context("a list")?.clone())
    };
    until("the first event of each key is parked", async || Ok(parked().await?.len() == 2)).await?;
    let first = parked().await?[0].clone();
    ensure!(first["retryCount"] == 2 && first["error"].as_str().is_some_and(|why| why.contains("missing")), "{first}");
    let table = typed(&server, "outbox parked orders")?;
    ensure!(table.lines().count() == 3 && table.contains("placed"), "{table}");
    let list = typed(&server, "outbox list --json")?;
    ensure!(serde_json::from_str::<Value>(&list)?["outboxes"][0]["outboxName"] == "orders", "{list}");

    let page = reqwest::get(format!("{}/ui/outboxes/orders", server.url())).await?.text().await?;
    let why = first["error"].as_str().context("why")?.replace('"', "&quot;");
    ensure!(page.contains(first["id"].as_str().context("an id")?) && page.contains(&why), "{page}");
    ensure!(page.contains("/ui/outboxes/orders/retry") && page.contains("/ui/outboxes/orders/skip"), "{page}");

    // The one that is skipped is never published; what waited behind it is tried.
    let id = first["id"].as_str().context("an id")?;
    ensure!(typed(&server, &format!("outbox skip orders {id}"))? == "1 skipped\n");
    ensure!(typed(&server, &format!("outbox skip orders {id}"))? == "0 skipped\n", "it is not parked any more");
    until("the next of its key is parked", async || {
        let parked = parked().await?;
        Ok(parked.len() == 2 && parked.iter().all(|event| event["id"] != id))
    })
    .await?;
    let (status, refusal) = call(&server, "POST", "outboxes/orders/retry", Some(&json!({"ids": ["wombat"]}))).await?;
    ensure!(status == 400 && refusal.to_string().contains("is not an id of this outbox"), "{status} {refusal}");

    declaration["destination"] = json!("shop");
    done(&server, "PUT", "outboxes/orders", Some(&declaration)).await?;
    ensure!(typed(&server, "outbox retry orders --all")? == "2 retried\n");
    let mut numbers = stage.numbers(2).await?;
    numbers.sort_unstable();
    ensure!(numbers == [1, 2], "{numbers:?}");
    let audit = done(&server, "GET", "audit", None).await?.to_string();
    ensure!(audit.contains("outbox.skip") && audit.contains("outbox.retry") && audit.contains(id), "{audit}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_outbox_waits_and_metrics_say_how_far_it_is() -> Result<()> {
    let stage = Stage::new().await?;
    stage.init()?;
    let server = stage.server(stage.own())?.start().await?;
    done(&server, "PUT", "outboxes/orders", Some(&stage.declaration()?)).await?;
    stage.insert("a", "placed", 0..1).await?;
    ensure!(stage.numbers(1).await? == [0]);
    ensure!(typed(&server, "outbox pause orders")?.contains("paused"));
    until("its relay has stopped", async || {
        let state = done(&server, "GET", "outboxes/orders", None).await?;
        Ok(state["relays"].as_array().is_some_and(Vec::is_empty))
    })
    .await?;
    stage.insert("a", "placed", 1..3).await?;
    let state = done(&server, "GET", "outboxes/orders", None).await?;
    ensure!(state["unpublished"] == 2 && state["oldestSeconds"].is_number() && state["paused"] == true, "{state}");
    ensure!(state["trouble"].is_null(), "a paused outbox is in no trouble: {state}");
    // Declared again without a word of it, it stays paused.
    let mut declaration = stage.declaration()?;
    declaration["batchRows"] = json!(7);
    done(&server, "PUT", "outboxes/orders", Some(&declaration)).await?;
    ensure!(done(&server, "GET", "outboxes/orders", None).await?["paused"] == true);
    ensure!(typed(&server, "outbox resume orders")?.contains("unpublished"));
    ensure!(stage.numbers(2).await? == [1, 2]);
    until("the metrics are there", async || {
        let metrics = reqwest::get(format!("{}/metrics", server.url())).await?.text().await?;
        let so = |line: &str| metrics.lines().any(|found| found == line);
        Ok(so("relais_outbox_published_total{outbox=\"orders\"} 3")
            && so("relais_outbox_unpublished{outbox=\"orders\"} 0")
            && so("relais_outbox_parked{outbox=\"orders\"} 0")
            && so("relais_outbox_trouble{outbox=\"orders\"} 0")
            && so("relais_outbox_relays{outbox=\"orders\"} 1")
            && so("relais_outbox_mode{outbox=\"orders\",mode=\"capture\"} 1"))
    })
    .await?;
    Ok(())
}
