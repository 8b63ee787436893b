//! An outbox with its defaults publishes what Debezium's outbox event router does (`envelopes-outbox-smt.jsonl` of capture's tests).
//!
//! So there is no router here. The router was recorded with `route.by.field=event_type`, `table.field.event.key=aggregate_id`
//! and `table.fields.additional.placement=event_type:header`.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink, Template};
use relais_outbox::{Mode, Outbox, Relay, RelayOptions};
use relais_testkit::TestDatabase;
use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Gives messages to the test.
struct Forward(mpsc::UnboundedSender<RoutedMessage>);

#[async_trait]
impl Sink for Forward {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let gone = || PublishOutcome::Unknown("the test is over".into());
        batch.into_iter().map(|message| self.0.send(message).map_or(gone(), |()| PublishOutcome::Confirmed)).collect()
    }

    async fn close(&self) {}
}

#[tokio::test]
async fn an_outbox_publishes_what_the_event_router_does() -> Result<()> {
    let recorded = include_str!("../../capture/tests/debezium/envelopes-outbox-smt.jsonl")
        .lines()
        .next()
        .context("no recording")?;
    let recorded: Value = serde_json::from_str(recorded)?;

    let database = TestDatabase::create().await?;
    let mut connection = PgConnection::connect(database.url()).await?;
    // The table and the row of the recording.
    let sql = include_str!("../../capture/tests/debezium/envelopes.sql");
    for start in ["CREATE TABLE outbox ", "INSERT INTO outbox "] {
        connection.execute(sql.lines().find(|line| line.starts_with(start)).context("no such statement")?).await?;
    }

    let (sender, mut arrived) = mpsc::unbounded_channel();
    let mut options = RelayOptions { mode: Mode::Capture, ..RelayOptions::new("orders")? };
    options.headers.push(("event_type".into(), Template::parse("{event_type}")?));
    let store = relais_outbox::open(database.url(), &Outbox::new("outbox")?).await?;
    let stop = CancellationToken::new();
    let relay = Relay::new(store, Arc::new(Forward(sender)), options).await?;
    let running = tokio::spawn(relay.run(stop.clone()));
    let published = tokio::time::timeout(Duration::from_secs(60), arrived.recv()).await?.context("nothing arrived")?;
    stop.cancel();
    running.await?;

    assert_eq!(recorded["topic"], published.destination.as_str());
    // The recording went through a JSON converter; with `StringConverter`, which the router asks for, these are the bytes.
    assert_eq!(recorded["key"].as_str(), published.message.key.as_deref());
    assert_eq!(recorded["value"].as_str().map(str::as_bytes), published.message.payload.as_deref());
    let headers = recorded["headers"].as_array().context("no headers")?;
    assert!(!headers.is_empty());
    for header in headers {
        let (name, value) = (header[0].as_str().context("no name")?, header[1].as_str());
        // The id travels in a header `id` on Kafka, and in the place that each sink has for it elsewhere.
        let ours = if name == "id" { Some(published.message.id.as_str()) } else { published.message.headers.get(name) };
        assert_eq!(ours, value, "{name}");
    }
    Ok(())
}
