//! From the commit of one row to the sink, while nothing else happens.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use sqlx::PgPool;
use tokio::{sync::mpsc, time::timeout};

use super::{
    PATIENCE, Place, TABLE, captured,
    debezium::{Debezium, Tuning},
    peers,
    pump::{Kind, Order, Pump},
    row_of_times,
    writer::Writer,
};
use crate::{load::on_one_thread, report::Section, sample::Sample};

/// The first ones connect and warm up.
const WARM: usize = 10;

/// A sink that says when a message came.
struct Arrivals(mpsc::UnboundedSender<Instant>);

#[async_trait]
impl Sink for Arrivals {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let now = Instant::now();
        for _ in &batch {
            let _ = self.0.send(now);
        }
        vec![PublishOutcome::Confirmed; batch.len()]
    }

    async fn close(&self) {}
}

pub async fn run(place: &Place<'_>, section: &mut Section) -> Result<()> {
    let mut commits = Vec::new();
    for (kind, name) in [(Kind::Polling, "idle_polling"), (Kind::Capture, "idle_capture"), (Kind::Table, "idle_table")]
    {
        let (sample, own) = arrivals(place, kind, name).await?;
        commits.extend(own);
        let how = if kind == Kind::Polling { ", with NOTIFY" } else { "" };
        let what = format!("commit to arrival: {}{how}", kind.name());
        row_of_times(section, &what, &sample, false);
        for (share, said, bar) in [(0.5, "p50", 3.0), (0.99, "p99", 10.0)] {
            section.below(&format!("at {said}: {what}"), sample.percentile(share).as_secs_f64() * 1000.0, bar, " ms");
        }
    }
    if let Some(debezium) = &place.debezium {
        for (tuning, name) in [(Tuning::Tuned, "idle_tuned"), (Tuning::Defaults, "idle_defaults")] {
            let (sample, own) = arrivals_at_debezium(place, debezium, tuning, name).await?;
            commits.extend(own);
            row_of_times(section, &format!("commit to arrival: {}", tuning.name()), &sample, false);
        }
    }
    let commits = Sample::new(commits.len(), Duration::from_secs(1), commits);
    row_of_times(section, "commit alone, until it is answered", &commits, false);
    Ok(())
}

/// From commits to arrivals, and how long the commits themselves took.
async fn arrivals(place: &Place<'_>, kind: Kind, name: &str) -> Result<(Sample, Vec<Duration>)> {
    let url = place.outbox(name, kind == Kind::Polling).await?;
    let (sender, arrived) = mpsc::unbounded_channel();
    let order = Order { kind, url: url.clone(), slot: None, broker: None, rows: 0, held: false };
    let running = Pump::new(&order, Arc::new(Arrivals(sender))).await?.start();
    running.until_active().await?;
    let measured = measure(url, arrived, place.plan.samples).await?;
    running.stop().await?;
    Ok(measured)
}

/// The same for Debezium's engine. By default it takes half a second, so that fewer are timed.
async fn arrivals_at_debezium(
    place: &Place<'_>,
    debezium: &Debezium,
    tuning: Tuning,
    name: &str,
) -> Result<(Sample, Vec<Duration>)> {
    let url = place.outbox(name, false).await?;
    let pool = PgPool::connect(&url).await?;
    let publication = captured::publish(&pool).await?;
    peers::create_slot(&pool, name).await?;
    let engine = debezium.start(&url, name, &publication, tuning, 0).await?;
    let (arrived, engine) = engine.report(&pool, name).await?;
    let samples = if tuning == Tuning::Defaults { place.plan.samples.min(100) } else { place.plan.samples };
    let measured = measure(url, arrived, samples).await?;
    engine.stop().await?;
    peers::until_free(&pool, name).await?;
    relais_capture::Slot::new(name)?.drop(&pool).await?;
    pool.close().await;
    Ok(measured)
}

/// Writes rows one at a time, and waits for each to arrive.
async fn measure(
    url: String,
    mut arrived: mpsc::UnboundedReceiver<Instant>,
    samples: usize,
) -> Result<(Sample, Vec<Duration>)> {
    let (latencies, commits) = on_one_thread(move || async move {
        let writer = Writer::open(&url, TABLE).await?;
        let (mut latencies, mut commits) = (Vec::with_capacity(samples), Vec::with_capacity(samples));
        for round in 0..samples + WARM {
            // What came before is over by then, and this is in no step with anything else.
            tokio::time::sleep(Duration::from_millis(20 + (round * 7 % 13) as u64)).await;
            writer.client.batch_execute("BEGIN").await?;
            writer.insert().await?;
            let sent = Instant::now();
            writer.client.batch_execute("COMMIT").await?;
            let answered = sent.elapsed();
            let arrival = timeout(PATIENCE, arrived.recv()).await?.context("the sink is gone")?;
            if round >= WARM {
                latencies.push(arrival - sent);
                commits.push(answered);
            }
        }
        Ok((latencies, commits))
    })
    .await?;
    Ok((Sample::new(samples, Duration::from_secs(1), latencies), commits))
}
