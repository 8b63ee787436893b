//! An outbox beside Debezium's outbox event router, on the same table.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink, Template};
use relais_outbox::{Activity, AggregateId, Mode, Outbox, Relay, RelayOptions};
use relais_testkit::{PostgresServer, Random};
use serde_json::{Value, json};
use sqlx::Connection as _;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    CONTEXT,
    comparison::Comparison,
    engine::{Engine, Settings},
    journal::{DEADLINE, Journal},
    stage::{create_database, until_read},
    values,
};

const TABLE: &str = "outbox";

/// So many events of so many aggregates.
const EVENTS: usize = 300;
const AGGREGATES: usize = 20;

const SETTINGS: &str = "\
converter.schemas.enable=false
transforms=outbox
transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
transforms.outbox.table.field.event.key=aggregate_id
transforms.outbox.table.field.event.type=event_type
transforms.outbox.table.field.event.payload=payload
transforms.outbox.route.by.field=event_type
transforms.outbox.table.fields.additional.placement=event_type:header,correlation_id:header:correlation-id
transforms.outbox.table.op.invalid.behavior=warn";

/// Writes messages into a journal in the router's form: texts instead of JSON.
struct RouterSink(Arc<Journal>);

#[async_trait]
impl Sink for RouterSink {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        self.0.push(batch.iter().map(|RoutedMessage { destination, message, .. }| {
            // The id travels in a header `id` on Kafka, and in the place that each sink has for it elsewhere.
            let id = json!(["id", message.id]);
            let headers: Vec<Value> = message.headers.iter().map(|header| json!(header)).chain([id]).collect();
            let payload = message.payload.as_deref().map(String::from_utf8_lossy);
            json!({"topic": destination, "key": message.key, "value": payload, "headers": headers})
        }));
        vec![PublishOutcome::Confirmed; batch.len()]
    }

    async fn close(&self) {}
}

/// Compares what both publish: topic, key, value, and every header that the router sets; in order for each aggregate.
pub async fn run(server: &PostgresServer, mut random: Random, comparison: &mut Comparison) -> Result<()> {
    let (url, mut connection) = create_database(server, "router").await?;
    let outbox = Outbox::new(TABLE)?;
    relais_outbox::init(&url, outbox.table(), AggregateId::Uuid, false).await?;
    let (debezium, relais) = (Arc::<Journal>::default(), Arc::<Journal>::default());
    let engine = Engine::start(&url, &[TABLE.to_owned()], &Settings::parse(SETTINGS)?, Arc::clone(&debezium))?;
    let mut options = RelayOptions { mode: Mode::Capture, ..RelayOptions::new("orders")? };
    options.headers.push(("event_type".into(), Template::parse("{event_type}")?));
    let store = relais_outbox::open(&url, &outbox).await?;
    let relay = Relay::new(store, Arc::new(RouterSink(Arc::clone(&relais))), options).await?;
    let (stop, handle) = (CancellationToken::new(), relay.handle());
    let relay = tokio::spawn(relay.run(stop.clone()));
    timeout(DEADLINE, handle.until(|stats| stats.activity == Activity::Capturing)).await.context("no relay")?;
    until_read(&mut connection, "router", &engine).await?;

    for number in 0..EVENTS {
        let insert = "INSERT INTO outbox (id, aggregate_id, event_type, payload, correlation_id) \
                      VALUES (gen_random_uuid(), lpad($1::text, 32, '0')::uuid, $2, $3::jsonb, $4)";
        let insert = sqlx::query(insert).bind(random.below(AGGREGATES).to_string());
        let insert = insert.bind(["order.placed", "order.paid", "customer"][random.below(3)]);
        insert.bind(values::json(&mut random, 3)).bind(format!("c-{number}")).execute(&mut connection).await?;
    }
    // The last one, of an aggregate of its own.
    let last = "INSERT INTO outbox (id, aggregate_id, event_type, payload) \
                VALUES (gen_random_uuid(), gen_random_uuid(), 'last', '{}')";
    sqlx::query(last).execute(&mut connection).await?;
    let is_last = |record: &Value| record["topic"] == "outbox.event.last";
    relais.until("the relay", is_last).await?;
    debezium.until("the router", is_last).await.with_context(|| engine.log())?;
    // Messages of other aggregates may still be on their way.
    timeout(DEADLINE, handle.until(|stats| stats.published > EVENTS as u64)).await.context("not all are published")?;
    stop.cancel();
    timeout(DEADLINE, relay).await??;
    engine.stop().await?;
    connection.close().await?;

    comparison.not_compared = &[];
    let [theirs, ours] = [by_key(&debezium), by_key(&relais)];
    for (key, theirs) in &theirs {
        let ours = ours.get(key).map(Vec::as_slice).unwrap_or_default();
        if theirs.len() != ours.len() {
            let counts = format!("{key}: the router published {} events, we {}", theirs.len(), ours.len());
            comparison.findings.push(counts);
        }
        for (theirs, ours) in theirs.iter().zip(ours) {
            compare(comparison, theirs, ours)?;
        }
    }
    Ok(())
}

fn by_key(journal: &Journal) -> BTreeMap<String, Vec<Value>> {
    let mut found = BTreeMap::<String, Vec<Value>>::new();
    for record in journal.records().iter() {
        found.entry(record["key"].to_string()).or_default().push(record.clone());
    }
    found
}

fn compare(comparison: &mut Comparison, theirs: &Value, ours: &Value) -> Result<()> {
    let mut theirs = theirs.clone();
    let headers = theirs["headers"].as_array_mut().context("no headers")?;
    headers.retain(|header| !header[0].as_str().is_some_and(|name| name.starts_with(CONTEXT)));
    headers.retain(|header| !header[1].is_null());
    // A message of ours has more headers. Those of the router are looked up.
    let own = ours["headers"].as_array().context("no headers")?;
    let same_names = |header: &Value| own.iter().find(|own| own[0] == header[0]).cloned().unwrap_or_default();
    let mut ours = ours.clone();
    ours["headers"] = headers.iter().map(same_names).collect();
    comparison.record(&theirs, &ours)
}
