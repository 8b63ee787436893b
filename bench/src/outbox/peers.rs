//! What the outbox is held against: `pg_recvlogical`, a bare loop over the table, bare publishing with confirms, and bare
//! appends to a stream.

use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use lapin::{
    BasicProperties, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::{
    process::{Child, Command},
    time::timeout,
};
use uuid::Uuid;

use super::{EXCHANGE, PATIENCE, QUEUE};
use crate::bare::connect;

/// So many rows or messages at once, as a relay takes.
pub const BATCH: usize = 500;

/// Headers like those of an event.
const HEADERS: &str =
    r#"{"tenant":"bench","event-type":"order.placed","schema-version":"1","correlation-id":"c-123456"}"#;

/// Takes rows and marks them, one batch after the other, until there is none. How many there were, and how long it took.
pub async fn bare_loop(url: String, table: &'static str) -> Result<(usize, Duration)> {
    let mut client = connect(&url).await?;
    let select = format!(
        "SELECT id, aggregate_id, event_type, payload::text, aggregate_type, headers::text, schema_version, correlation_id
         FROM {table} WHERE published_at IS NULL AND parked_at IS NULL ORDER BY sequence LIMIT {BATCH}
         FOR UPDATE SKIP LOCKED"
    );
    let select = client.prepare(&select).await?;
    let update = client.prepare(&format!("UPDATE {table} SET published_at = now() WHERE id = ANY($1)")).await?;
    let (begin, mut done) = (Instant::now(), 0);
    loop {
        let transaction = client.transaction().await?;
        let rows = transaction.query(&select, &[]).await?;
        let mut bytes = 0;
        let ids: Vec<Uuid> = rows
            .iter()
            .map(|row| {
                bytes += row.get::<_, &str>(3).len();
                row.get(0)
            })
            .collect();
        std::hint::black_box(bytes);
        if ids.is_empty() {
            return Ok((done, begin.elapsed()));
        }
        transaction.execute(&update, &[&ids]).await?;
        transaction.commit().await?;
        done += ids.len();
    }
}

/// Publishes persistent messages with lapin, and waits for the confirms of each batch.
pub async fn bare_publishing(url: &str, messages: usize, body: &str) -> Result<Duration> {
    let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let (begin, mut done) = (Instant::now(), 0);
    while done < messages {
        let batch = BATCH.min(messages - done);
        let mut confirms = Vec::with_capacity(batch);
        for number in 0..batch {
            let id: ShortString = (done + number).to_string().into();
            let properties = BasicProperties::default().with_delivery_mode(2).with_message_id(id);
            let publish =
                channel.basic_publish(EXCHANGE.into(), "order.placed".into(), options, body.as_bytes(), properties);
            confirms.push(publish.await?);
        }
        for confirmation in try_join_all(confirms).await? {
            ensure!(matches!(confirmation, Confirmation::Ack(None)), "not confirmed: {confirmation:?}");
        }
        done += batch;
    }
    let time = begin.elapsed();
    connection.close(200, "done".into()).await?;
    Ok(time)
}

/// Appends entries to a stream of Redis, a batch in one pipeline after the other. They have the fields of an event, so
/// that as much goes to the disk.
pub async fn bare_appending(url: &str, messages: usize, body: &str) -> Result<Duration> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let (begin, mut done) = (Instant::now(), 0);
    while done < messages {
        let batch = BATCH.min(messages - done);
        let mut pipeline = redis::Pipeline::with_capacity(batch);
        for number in 0..batch {
            let mut command = redis::cmd("XADD");
            let id = Uuid::from_u128((done + number) as u128).to_string();
            command.arg(QUEUE).arg("*").arg("id").arg(&id).arg("type").arg("order.placed");
            command.arg("time").arg("2026-01-01T00:00:00.123456Z").arg("content_type").arg("application/json");
            command.arg("key").arg(&id).arg("headers").arg(HEADERS).arg("payload").arg(body);
            pipeline.add_command(command);
        }
        let ids: Vec<String> = pipeline.query_async(&mut connection).await?;
        ensure!(ids.len() == batch, "{} of {batch} entries were appended", ids.len());
        done += batch;
    }
    Ok(begin.elapsed())
}

/// `pg_recvlogical` on a slot of its own, to nowhere; ended when dropped.
pub struct Receiver {
    child: Child,
}

impl Receiver {
    /// Starts it; it ends by itself at `end`.
    pub async fn start(url: &str, slot: &str, publication: &str, end: Option<&str>) -> Result<Self> {
        let mut connection = PgConnection::connect(url).await?;
        let directory: String = sqlx::query_scalar("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        let mut command = Command::new(PathBuf::from(directory).join("pg_recvlogical"));
        command.args(["-d", url, "-S", slot, "--start", "-f", "/dev/null", "--no-loop", "-o", "proto_version=1", "-o"]);
        command.arg(format!("publication_names={publication}")).args(end.map(|end| format!("--endpos={end}")));
        command.stdin(Stdio::null()).kill_on_drop(true);
        Ok(Self { child: command.spawn().context("start pg_recvlogical")? })
    }

    /// Waits until it has ended.
    pub async fn ended(mut self) -> Result<()> {
        let ended = timeout(PATIENCE, self.child.wait()).await.context("pg_recvlogical does not end")??;
        ensure!(ended.success(), "pg_recvlogical failed: {ended}");
        Ok(())
    }

    /// Ends it.
    pub async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Makes a slot.
pub async fn create_slot(pool: &PgPool, name: &str) -> Result<()> {
    sqlx::query("SELECT pg_create_logical_replication_slot($1, 'pgoutput')").bind(name).execute(pool).await?;
    Ok(())
}

/// Waits until somebody reads a slot.
pub async fn until_read(pool: &PgPool, slot: &str) -> Result<()> {
    until_active(pool, slot, true).await
}

/// Waits until nobody reads a slot.
pub async fn until_free(pool: &PgPool, slot: &str) -> Result<()> {
    until_active(pool, slot, false).await
}

async fn until_active(pool: &PgPool, slot: &str, wanted: bool) -> Result<()> {
    let begin = Instant::now();
    let active = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
    while sqlx::query_scalar::<_, bool>(active).bind(slot).fetch_one(pool).await? != wanted {
        ensure!(begin.elapsed() < PATIENCE, "the slot {slot} is read: {}", !wanted);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
