//! Change capture of rows that were written before, beside `pg_recvlogical` and Debezium's engine on the same log.

use std::time::Instant;

use anyhow::{Result, ensure};
use relais_capture::{CaptureOptions, Publication};
use sqlx::PgPool;

use super::{
    Place, TABLE, Throughput,
    debezium::Tuning,
    fill,
    peers::{self, Receiver},
    pump::{Kind, Moved, Order, PumpProcess},
};
use crate::{cpu, report::Section};

pub async fn run(place: &Place<'_>, section: &mut Section) -> Result<()> {
    let rows = place.plan.captured;
    let (mut received, mut engine, mut captured, mut marked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..place.plan.rounds {
        let url = place.outbox(&format!("captured_{round}"), false).await?;
        let round = one_round(place, &url, round).await?;
        received.push(round.received);
        engine.extend(round.engine);
        captured.push(round.captured);
        marked.push(round.marked);
    }
    let [received, captured, marked] = [received, captured, marked].map(Throughput::median);
    received.row(section, "pg_recvlogical to /dev/null", rows);
    if !engine.is_empty() {
        let engine = Throughput::median(engine);
        engine.row(section, Tuning::Tuned.name(), rows);
        section.at_least("Debezium's engine: capture of the table, no marks", captured.rate / engine.rate, 1.5);
        section.ratio("Debezium's engine: relay by capture, marks rows", marked.rate / engine.rate);
    }
    captured.row(section, Kind::Table.name(), rows);
    marked.row(section, Kind::Capture.name(), rows);
    section.at_least("pg_recvlogical: capture of the table, no marks", captured.rate / received.rate, 0.6);
    section.ratio("pg_recvlogical: relay by capture, marks rows", marked.rate / received.rate);
    let micros = captured.cpu.as_secs_f64() * 1e6;
    section.below("of CPU a row: capture of the table, no marks", micros, 15.0, " µs");
    for (what, one) in [("capture of the table, no marks", captured), ("relay by capture, marks rows", marked)] {
        section.below(&format!("at most resident: {what}"), one.peak.unwrap_or_default(), 60.0, " MB");
    }
    Ok(())
}

/// What was found in one round.
struct Round {
    received: Throughput,
    engine: Option<Throughput>,
    captured: Throughput,
    marked: Throughput,
}

async fn one_round(place: &Place<'_>, url: &str, round: usize) -> Result<Round> {
    let rows = place.plan.captured as f64;
    let pool = PgPool::connect(url).await?;
    let publication = publish(&pool).await?;
    let [bare, peer, table, relay] = ["bare", "peer", "table", "relay"].map(|name| format!("bench_{name}_{round}"));
    for slot in [&bare, &peer, &table] {
        peers::create_slot(&pool, slot).await?;
    }
    let order = |kind, slot: &str, held| Order {
        kind,
        url: url.to_owned(),
        slot: Some(slot.to_owned()),
        broker: None,
        rows: place.plan.captured as u64,
        held,
    };
    // A relay publishes what is in the table before it captures, so it captures before anything is there.
    let mut relaying = PumpProcess::start(order(Kind::Capture, &relay, true)).await?;
    fill(url, TABLE, place.plan.captured).await?;
    let end: String = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text").fetch_one(&pool).await?;

    let (before, own) = (place.database_cpu()?, cpu::of_process(std::process::id())?);
    let begin = Instant::now();
    Receiver::start(url, &bare, &publication, Some(&end)).await?.ended().await?;
    let received = Throughput {
        rate: rows / begin.elapsed().as_secs_f64(),
        // A child that has ended is counted with its parent.
        cpu: (cpu::of_process(std::process::id())? - own).div_f64(rows),
        database: place.database_cpu()?.saturating_sub(before).div_f64(rows),
        peak: None,
    };
    let mut engine = None;
    if let Some(debezium) = &place.debezium {
        let mut process = debezium.start(url, &peer, &publication, Tuning::Tuned, place.plan.captured as u64).await?;
        engine = Some(throughput(place, place.plan.captured, process.move_all()).await?);
        process.stop().await?;
    }
    let mut capturing = PumpProcess::start(order(Kind::Table, &table, false)).await?;
    let captured = throughput(place, place.plan.captured, capturing.move_all()).await?;
    capturing.stop().await?;
    // Last: its marks are in the log too.
    let marked = throughput(place, place.plan.captured, relaying.move_all()).await?;
    relaying.stop().await?;
    let left = format!("SELECT count(*) FROM {TABLE} WHERE published_at IS NULL");
    let left: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(left)).fetch_one(&pool).await?;
    ensure!(left == 0, "{left} rows are not marked");
    for slot in [bare, peer, table, relay] {
        relais_capture::Slot::new(slot)?.drop(&pool).await?;
    }
    pool.close().await;
    Ok(Round { received, engine, captured, marked })
}

/// What a process of its own comes to, and the database with it.
pub async fn throughput(
    place: &Place<'_>,
    rows: usize,
    moving: impl Future<Output = Result<Moved>>,
) -> Result<Throughput> {
    let rows = rows as f64;
    let before = place.database_cpu()?;
    let moved = moving.await?;
    let database = place.database_cpu()?.saturating_sub(before).div_f64(rows);
    Ok(Throughput {
        rate: rows / moved.time.as_secs_f64(),
        cpu: moved.cpu.div_f64(rows),
        database,
        peak: Some(moved.peak),
    })
}

/// Makes the publication that a capture of the table would make, and that all others read too.
pub async fn publish(pool: &PgPool) -> Result<String> {
    let CaptureOptions { publication: name, tables, .. } = CaptureOptions::new("bench", &[TABLE])?;
    let publication = Publication {
        name,
        tables,
        operations: "insert, update, delete, truncate".to_owned(),
        owner: "capture bench".to_owned(),
    };
    publication.ensure(pool).await?;
    Ok(publication.name)
}
