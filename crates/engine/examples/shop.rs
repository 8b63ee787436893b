//! An axum application that does its own tasks: `cargo run -p relais-engine --example shop`, then `curl -X POST
//! 127.0.0.1:3000/orders -d ann`. An order and the task that sends its receipt are written in one transaction: there is
//! never one without the other.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{net::Ipv4Addr, sync::Arc};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use relais_engine::{Context, HandlerError, Handlers, Tasks, protocol::admin::ServiceDeclaration};
use relais_protocol::retry::RetryDeclaration;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

#[derive(Serialize, Deserialize)]
struct Receipt {
    order: i64,
    customer: String,
}

#[derive(Clone)]
struct Shop {
    database: SqlitePool,
    tasks: Tasks,
}

async fn order(State(shop): State<Shop>, customer: String) -> Result<String, (StatusCode, String)> {
    let place = async {
        let mut transaction = shop.database.begin().await?;
        let order = sqlx::query_scalar("INSERT INTO shop_order (customer) VALUES (?1) RETURNING id").bind(&customer);
        let order: i64 = order.fetch_one(&mut *transaction).await?;
        let receipt = shop.tasks.prepare("receipt", &Receipt { order, customer })?;
        relais_store::enqueue(&mut *transaction, &receipt).await?;
        transaction.commit().await?;
        shop.tasks.collect_submissions();
        Ok::<_, Box<dyn std::error::Error>>(format!("order {order}, its receipt is task {}\n", receipt.task_id))
    };
    place.await.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
}

async fn send_receipt(receipt: Receipt, context: Context) -> Result<(), HandlerError> {
    println!("to {}: thank you for order {} (attempt {:?})", receipt.customer, receipt.order, context.attempt());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");
    let store = relais_store::open(&format!("sqlite:{}", file.display()), &relais_store::Options::default()).await?;
    let handlers = Handlers::new().on("receipt", send_receipt);
    let retried =
        ServiceDeclaration { retry: Some(RetryDeclaration::classic()), ..ServiceDeclaration::named("receipt") };
    let tasks = Tasks::builder(Arc::clone(&store)).client("shop").handlers(handlers).service(retried).start().await?;

    let database = SqlitePool::connect(&format!("sqlite:{}", file.display())).await?;
    sqlx::query("CREATE TABLE shop_order (id INTEGER PRIMARY KEY, customer TEXT NOT NULL)").execute(&database).await?;
    let app = Router::new().route("/orders", post(order)).with_state(Shop { database, tasks: tasks.clone() });
    let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(3000);
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) }).await?;
    println!("{:?}", tasks.stop().await);
    Ok(())
}
