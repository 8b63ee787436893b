//! The event bus from the command line, its metrics and its settings.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use relais_tests::{
    chaos::{Api, SERVICE, consumer, declare},
    instance::{Instance, command},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{Said, relais, sqlite, type_in, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_follow_publish_and_look_from_the_command_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut server = Instance::start(sqlite(folder.path())).await?;
    declare(&server.url(), "60s").await?;
    let said = type_in(&server, "events stats --json")?.data()?;
    ensure!(serde_json::from_str::<Value>(&said)?["transport"] == "memory", "{said}");

    let tail = |arguments: &str| -> Result<_> {
        let mut tail = relais(&server)?
            .args(arguments.split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run relais events tail")?;
        let lines = BufReader::new(tail.stdout.take().context("no stdout")?);
        Ok((tail, lines))
    };
    let (mut people, mut people_read) = tail("events tail")?;
    let (mut programs, mut programs_read) = tail("events tail orders.* task.*.cancelled --json")?;
    let count = |server: &Instance| {
        let said = type_in(server, "events stats --json")?.data()?;
        anyhow::Ok(serde_json::from_str::<Value>(&said)?["subscriptions"].as_u64())
    };
    until("both follow", async || Ok(count(&server)? == Some(2))).await?;

    let said = relais(&server)?.args(["events", "publish", "orders.created", r#"{"number": 7}"#]).output()?;
    let said = Said::of(&said).data()?;
    ensure!(said.contains("delivered 1, failed 0"), "{said}");
    let mut line = String::new();
    programs_read.read_line(&mut line)?;
    let event: Value = serde_json::from_str(&line)?;
    ensure!(event["channel"] == "orders.created" && event["payload"]["number"] == 7, "{event}");

    let client = consumer(&server.url())?;
    let task = client.post(&format!("/v1/services/{SERVICE}/tasks"), &json!({"body": {}})).await?.data()?;
    let task = task["taskId"].as_str().context("no task")?.to_owned();
    line.clear();
    people_read.read_line(&mut line)?;
    ensure!(line.contains(&format!("  task.{SERVICE}.submitted  {{")) && line.contains(&task), "{line}");
    client.request(Method::DELETE, &format!("/v1/services/{SERVICE}/tasks/{task}")).send().await?;
    line.clear();
    programs_read.read_line(&mut line)?;
    ensure!(line.contains(".cancelled") && line.contains(&task), "{line}");

    // A reader that has read enough, as `head` has: the command ends by itself with the next event.
    drop(programs_read);
    until("it has ended", async || {
        type_in(&server, "events publish orders.more 1")?;
        Ok(programs.try_wait()?.is_some())
    })
    .await?;
    // The server stops: the stream ends in good order, and so does the command.
    server.process().terminate()?;
    let status = people.wait()?;
    ensure!(status.success(), "{status}");

    let refused = Said::of(&command()?.args(["events", "publish", "a", "{"]).output()?);
    ensure!(refused.code == 2 && refused.stderr.contains("is not JSON"), "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_of_the_bus_have_their_names_and_the_prefix_that_was_set() -> Result<()> {
    for (prefix, settings) in [("relais_", None), ("acme_", Some("acme_")), ("", None)] {
        // An empty variable counts as not set: the last one is set in a file.
        let folder = tempfile::tempdir()?;
        let mut options = Instance::options(sqlite(folder.path()));
        if let Some(prefix) = settings {
            options = options.env("RELAIS_EVENTS_METRICS_PREFIX", prefix);
        }
        if prefix.is_empty() {
            let file = folder.path().join("relais.toml");
            std::fs::write(&file, "[events]\nmetrics_prefix = ''\n")?;
            options = options.arg("--config").arg(file.display().to_string());
        }
        let server = options.start().await?;
        let api = Api::admin(server.url())?;
        until("it runs", async || Ok(api.get("/admin/eventbus/stats").await?.data()?["state"] == "running")).await?;
        api.post("/admin/eventbus/publish", &json!({"channel": "orders.created", "payload": 1})).await?.data()?;
        let metrics = api.request(Method::GET, "/metrics").send().await?.text().await?;
        for line in [
            "eventbus_published_total{channel=\"orders.created\"} 1",
            "eventbus_delivered_total{channel=\"orders.created\"} 0",
            "eventbus_failed_total{channel=\"orders.created\"} 0",
            "eventbus_dropped_total{channel=\"orders.created\"} 0",
            "eventbus_subscriptions_active 0",
            "eventbus_queue_size 0",
            "eventbus_queue_capacity 0",
        ] {
            let wanted = format!("{prefix}{line}");
            ensure!(metrics.lines().any(|line| line == wanted), "no {wanted} in\n{metrics}");
        }
    }
    Ok(())
}

#[test]
fn usual_variables_are_taken_and_shown_with_where_they_came_from() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut shown = command()?;
    shown.args(["config", "show"]).current_dir(folder.path());
    for (name, value) in [
        ("EVENTBUS_ENABLED", "true"),
        ("EVENTBUS_MODE", "redis"),
        ("EVENTBUS_QUEUE_CAPACITY", "20000"),
        ("EVENTBUS_OFFER_TIMEOUT", "50"),
        ("REDIS_HOST", "cache"),
        ("REDIS_PORT", "6380"),
        ("REDIS_PASSWORD", "hidden"),
        ("REDIS_DB", "2"),
        ("REDIS_TLS", "true"),
        ("RELAIS_REDIS_DB", "3"),
    ] {
        shown.env(name, value);
    }
    let text = Said::of(&shown.output()?).data()?;
    for line in [
        "enabled = true  # EVENTBUS_ENABLED",
        "mode = \"redis\"  # EVENTBUS_MODE",
        "queue_capacity = 20000  # EVENTBUS_QUEUE_CAPACITY",
        "offer_timeout = \"50ms\"  # EVENTBUS_OFFER_TIMEOUT",
        "host = \"cache\"  # REDIS_HOST",
        "port = 6380  # REDIS_PORT",
        "password = \"***\"  # REDIS_PASSWORD",
        "db = 3  # RELAIS_REDIS_DB",
        "tls = true  # REDIS_TLS",
    ] {
        ensure!(text.lines().any(|shown| shown == line), "no {line} in\n{text}");
    }
    let mut refused = command()?;
    refused.args(["serve", "--listen", "127.0.0.1:0"]).env("EVENTBUS_MODE", "postgres").current_dir(folder.path());
    let said = Said::of(&refused.output()?).refusal()?;
    ensure!(said.contains("events.mode is postgres, but the database is SQLite"), "{said}");
    Ok(())
}
