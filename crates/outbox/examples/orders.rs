//! An order service with an outbox in an SQLite file: `cargo run -p relais-outbox --example orders`.
//!
//! It places three orders, rolls one of them back, and prints what the relay publishes.

use std::sync::Arc;

use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use relais_outbox::{Outbox, OutboxEvent, Relay, RelayOptions};
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A sink that prints. A real one is `relais_messaging::rabbitmq::RabbitMqSink`.
struct Printer(CancellationToken);

#[async_trait]
impl Sink for Printer {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        for RoutedMessage { destination, message, .. } in &batch {
            let payload = String::from_utf8_lossy(message.payload.as_deref().unwrap_or_default());
            #[expect(clippy::print_stdout, reason = "it is what the example shows")]
            {
                println!("{destination}: {payload}");
            }
        }
        self.0.cancel();
        vec![PublishOutcome::Confirmed; batch.len()]
    }

    async fn close(&self) {}
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}?mode=rwc", folder.path().join("shop.db").display());
    let mut connection = SqliteConnection::connect(&url).await?;
    sqlx::query("CREATE TABLE orders (id TEXT PRIMARY KEY, total INTEGER)").execute(&mut connection).await?;
    let outbox = Outbox::new("outbox")?;
    outbox.create(&mut connection).await?;

    for total in [12, 5, 40] {
        let order = Uuid::now_v7();
        let mut transaction = connection.begin().await?;
        sqlx::query("INSERT INTO orders VALUES (?1, ?2)")
            .bind(order.to_string())
            .bind(total)
            .execute(&mut *transaction)
            .await?;
        let placed = OutboxEvent::new(order, "order.placed", &json!({ "order": order, "total": total }))?;
        outbox.add(&mut *transaction, &placed).await?;
        // Nobody is told of an order that was not placed.
        if total < 10 {
            transaction.rollback().await?;
        } else {
            transaction.commit().await?;
        }
    }

    let stop = CancellationToken::new();
    let mut options = RelayOptions::new("orders")?;
    options.destination = "shop.{event_type}".parse()?;
    let store = relais_outbox::open(&url, &outbox).await?;
    Relay::new(store, Arc::new(Printer(stop.clone())), options).await?.run(stop).await;
    Ok(())
}
