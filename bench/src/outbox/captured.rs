//! Change capture of rows that were written before, beside `pg_recvlogical` on the same log.

use std::time::Instant;

use anyhow::{Result, ensure};
use relais_capture::{CaptureOptions, Publication};
use sqlx::PgPool;

use super::{
    Place, TABLE, Throughput, fill,
    peers::{self, Receiver},
    pump::{Kind, Order, PumpProcess},
};
use crate::{cpu, report::Section};

pub async fn run(place: &Place<'_>, section: &mut Section) -> Result<()> {
    let rows = place.plan.captured;
    let (mut received, mut captured, mut marked) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..place.plan.rounds {
        let url = place.outbox(&format!("captured_{round}"), false).await?;
        let [one, other, third] = one_round(place, &url, round).await?;
        received.push(one);
        captured.push(other);
        marked.push(third);
    }
    let [received, captured, marked] = [received, captured, marked].map(Throughput::median);
    received.row(section, "pg_recvlogical to /dev/null", rows);
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

async fn one_round(place: &Place<'_>, url: &str, round: usize) -> Result<[Throughput; 3]> {
    let rows = place.plan.captured as f64;
    let pool = PgPool::connect(url).await?;
    let publication = publish(&pool).await?;
    let [bare, table, relay] = ["bare", "table", "relay"].map(|name| format!("bench_{name}_{round}"));
    for slot in [&bare, &table] {
        peers::create_slot(&pool, slot).await?;
    }
    let order = |kind, slot: &str, held| Order {
        kind,
        url: url.to_owned(),
        slot: Some(slot.to_owned()),
        amqp: None,
        rows: place.plan.captured as u64,
        held,
    };
    // A relay publishes what is in the table before it captures, so it captures before anything is there.
    let relaying = PumpProcess::start(order(Kind::Capture, &relay, true)).await?;
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
    let capturing = PumpProcess::start(order(Kind::Table, &table, false)).await?;
    let captured = moved(place, capturing).await?;
    // Last: its marks are in the log too.
    let marked = moved(place, relaying).await?;
    let left = format!("SELECT count(*) FROM {TABLE} WHERE published_at IS NULL");
    let left: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(left)).fetch_one(&pool).await?;
    ensure!(left == 0, "{left} rows are not marked");
    for slot in [bare, table, relay] {
        relais_capture::Slot::new(slot)?.drop(&pool).await?;
    }
    pool.close().await;
    Ok([received, captured, marked])
}

async fn moved(place: &Place<'_>, mut process: PumpProcess) -> Result<Throughput> {
    let rows = place.plan.captured as f64;
    let before = place.database_cpu()?;
    let moved = process.move_all().await?;
    let database = place.database_cpu()?.saturating_sub(before).div_f64(rows);
    process.stop().await?;
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
    let publication = Publication { name, tables, operations: "insert, update, delete, truncate".to_owned() };
    publication.ensure(pool).await?;
    Ok(publication.name)
}
