//! The limit: the same rows into the same table with the same indexes, by nothing but INSERT.
//!
//! The table is a copy of the one that Relais fills, on the same server. PostgreSQL is spoken to with tokio-postgres,
//! which spends the least on one row; all connections live on one thread, like those of the load. SQLite takes one
//! writer at a time however many come, so it gets one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use sqlx::{Connection, SqliteConnection};
use tokio_postgres::{Client, NoTls, types::Type};
use uuid::Uuid;

use crate::{fill::BODY, load::on_one_thread, sample::Sample, world::Kind};

/// Commits of `rows` rows each, one after the other on each of `connections`, for a while.
pub async fn insert(kind: Kind, url: String, connections: usize, rows: usize, time: Duration) -> Result<Sample> {
    match kind {
        Kind::Postgres => on_one_thread(move || postgres(url, connections, rows, time)).await,
        Kind::Sqlite => sqlite(url, rows, time).await,
    }
}

const COLUMNS: &str = "task_id, service_id, client_id, seq, request, callback, correlation_id";

async fn postgres(url: String, connections: usize, rows: usize, time: Duration) -> Result<Sample> {
    let clients = try_join_all((0..connections).map(|_| connect(&url))).await?;
    let single =
        format!("INSERT INTO relais.task ({COLUMNS}) VALUES ($1, $2, $3, $4, $5::text::json, $6::text::json, $7)");
    let many = format!(
        "INSERT INTO relais.task ({COLUMNS})
         SELECT w.task_id, w.service_id, w.client_id, w.seq, w.request::json, w.callback::json, w.correlation_id
         FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::text[], $6::text[], $7::text[])
              AS w ({COLUMNS})"
    );
    let begin = Instant::now();
    let loops = clients.iter().map(|client| {
        let (single, many) = (&single, &many);
        async move {
            let mut latencies = Vec::new();
            let statement = if rows == 1 {
                let types = [Type::UUID, Type::INT4, Type::INT4, Type::INT8, Type::TEXT, Type::TEXT, Type::TEXT];
                client.prepare_typed(single, &types).await?
            } else {
                client.prepare(many).await?
            };
            let none = None::<&str>;
            while begin.elapsed() < time {
                let sent = Instant::now();
                if rows == 1 {
                    client.execute(&statement, &[&Uuid::now_v7(), &1i32, &1i32, &1i64, &BODY, &none, &none]).await?;
                } else {
                    let ids: Vec<Uuid> = (0..rows).map(|_| Uuid::now_v7()).collect();
                    let (ones, numbers, bodies, nones) =
                        (vec![1i32; rows], vec![1i64; rows], vec![BODY; rows], vec![none; rows]);
                    client.execute(&statement, &[&ids, &ones, &ones, &numbers, &bodies, &nones, &nones]).await?;
                }
                latencies.push(sent.elapsed());
            }
            anyhow::Ok(latencies)
        }
    });
    let latencies = try_join_all(loops).await?.concat();
    Ok(Sample::new(latencies.len() * rows, begin.elapsed(), latencies))
}

/// Connects with tokio-postgres.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connect to PostgreSQL")?;
    tokio::spawn(async move {
        // What goes wrong is told to whoever calls.
        let _ = connection.await;
    });
    Ok(client)
}

async fn sqlite(url: String, rows: usize, time: Duration) -> Result<Sample> {
    let mut connection = SqliteConnection::connect(&url).await?;
    sqlx::raw_sql("PRAGMA journal_mode = wal; PRAGMA synchronous = full").execute(&mut connection).await?;
    let insert =
        "INSERT INTO task (task_id, service_id, client_id, seq, request, submitted) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let (begin, mut latencies) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        let sent = Instant::now();
        // One row commits by itself.
        if rows > 1 {
            sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
        }
        for _ in 0..rows {
            let id = Uuid::now_v7().to_string();
            sqlx::query(insert).bind(id).bind(1).bind(1).bind(1).bind(BODY).bind(0).execute(&mut connection).await?;
        }
        if rows > 1 {
            sqlx::query("COMMIT").execute(&mut connection).await?;
        }
        latencies.push(sent.elapsed());
    }
    let sample = Sample::new(latencies.len() * rows, begin.elapsed(), latencies);
    connection.close().await?;
    Ok(sample)
}
