//! The relay by polling, to a sink that only counts and to RabbitMQ with confirms.

use anyhow::{Result, ensure};
use relais_messaging::rabbitmq::{Broker, BrokerOptions, Queue, QueueKind};
use relais_testkit::{RabbitMqServer, TestVhost};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{
    EXCHANGE, Place, QUEUE, TABLE, Throughput, execute, fill, peers,
    pump::{self, Kind, Order, PumpProcess},
};
use crate::{cpu, load::on_one_thread, report::Section, tell};

/// As large as the payload of a row.
pub const BODY: &str = concat!(
    r#"{"note": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"#,
    r#"xxxxxxxxxxxxxxxxxxxx", "order": 123456, "customer": "e10adc3949ba59abbe56e057f20f883e"}"#
);

/// The bar: half of what can be done.
pub const BAR: f64 = 0.5;

pub async fn run(place: &Place<'_>, section: &mut Section) -> Result<()> {
    let rows = place.plan.polled;
    let url = place.outbox("polled", false).await?;
    let node = RabbitMqServer::start().await?;
    let (mut bare, mut counted, mut published, mut confirmed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // In turns, so that what disturbs one disturbs the others too; the first round warms up.
    for round in 0..=place.plan.rounds {
        let keep = |list: &mut Vec<Throughput>, one: Throughput| {
            if round > 0 {
                list.push(one);
            }
        };
        keep(&mut bare, bare_loop(place, &url).await?);
        keep(&mut counted, relay(place, &url, None).await?);
        keep(&mut confirmed, bare_publishing(place, &vhost(&node).await?).await?);
        keep(&mut published, relay(place, &url, Some(vhost(&node).await?)).await?);
    }
    let [bare, counted, published, confirmed] = [bare, counted, published, confirmed].map(Throughput::median);
    bare.row(section, "bare loop: SELECT … SKIP LOCKED of 500, UPDATE", rows);
    counted.row(section, "relay by polling", rows);
    confirmed.row(section, "bare lapin: 500 messages, then their confirms", rows);
    published.row(section, "relay by polling, to RabbitMQ", rows);
    section.at_least("the bare loop: relay by polling", counted.rate / bare.rate, BAR);
    let slower = bare.rate.min(confirmed.rate);
    let what = if confirmed.rate < bare.rate { "bare publishing" } else { "the bare loop" };
    let what = format!("{what}, the slower side: relay by polling, to RabbitMQ");
    section.at_least(&what, published.rate / slower, BAR);
    Ok(())
}

/// A place in RabbitMQ with one durable queue that gets everything.
async fn vhost(node: &RabbitMqServer) -> Result<TestVhost> {
    let vhost = node.vhost().await?;
    let broker = Broker::new(vhost.url(), BrokerOptions::default())?;
    broker.declare(&Queue { name: QUEUE.to_owned(), kind: QueueKind::Classic }).await?;
    vhost.bind(EXCHANGE, QUEUE, "order.#").await?;
    Ok(vhost)
}

/// Puts the table into the state in which each round begins.
async fn refill(place: &Place<'_>, url: &str) -> Result<()> {
    execute(url, &format!("TRUNCATE {TABLE}")).await?;
    fill(url, TABLE, place.plan.polled).await?;
    execute(url, &format!("VACUUM ANALYZE {TABLE}")).await
}

/// How many rows were tried more than once, and why one of them was. A confirmation that is late makes one.
async fn retries(url: &str) -> Result<(i64, Option<String>)> {
    let mut connection = PgConnection::connect(url).await?;
    let sql = format!("SELECT count(*), max(last_error) FROM {TABLE} WHERE retry_count > 0");
    Ok(sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&mut connection).await?)
}

async fn bare_loop(place: &Place<'_>, url: &str) -> Result<Throughput> {
    refill(place, url).await?;
    let rows = place.plan.polled as f64;
    let (before, own) = (place.database_cpu()?, cpu::of_process(std::process::id())?);
    let looping = url.to_owned();
    let (done, time) = on_one_thread(move || peers::bare_loop(looping, TABLE)).await?;
    ensure!(done == place.plan.polled, "the bare loop took {done} rows");
    Ok(Throughput {
        rate: rows / time.as_secs_f64(),
        cpu: (cpu::of_process(std::process::id())? - own).div_f64(rows),
        database: (place.database_cpu()?.saturating_sub(before)).div_f64(rows),
        peak: None,
    })
}

async fn bare_publishing(place: &Place<'_>, vhost: &TestVhost) -> Result<Throughput> {
    let rows = place.plan.polled;
    let own = cpu::of_process(std::process::id())?;
    let time = peers::bare_publishing(vhost.url(), rows, BODY).await?;
    Ok(Throughput {
        rate: rows as f64 / time.as_secs_f64(),
        cpu: (cpu::of_process(std::process::id())? - own).div_f64(rows as f64),
        database: std::time::Duration::ZERO,
        peak: None,
    })
}

async fn relay(place: &Place<'_>, url: &str, vhost: Option<TestVhost>) -> Result<Throughput> {
    refill(place, url).await?;
    let rows = place.plan.polled as f64;
    let order = Order {
        kind: Kind::Polling,
        url: url.to_owned(),
        slot: None,
        broker: vhost.as_ref().map(|vhost| pump::Broker::RabbitMq(vhost.url().to_owned())),
        rows: place.plan.polled as u64,
        held: false,
    };
    let mut process = PumpProcess::start(order).await?;
    let before = place.database_cpu()?;
    let moved = process.move_all().await?;
    let database = place.database_cpu()?.saturating_sub(before).div_f64(rows);
    process.stop().await?;
    if let Some(vhost) = &vhost {
        let broker = Broker::new(vhost.url(), BrokerOptions::default())?;
        let there = broker.find(QUEUE).await?.map_or(0, |queue| queue.messages);
        ensure!(there as usize >= place.plan.polled, "{there} messages are in the queue");
        if there as usize > place.plan.polled {
            let (retried, why) = retries(url).await?;
            tell(&format!("outbox: {there} messages are in the queue: {retried} rows were retried ({why:?})"));
        }
    }
    Ok(Throughput {
        rate: rows / moved.time.as_secs_f64(),
        cpu: moved.cpu.div_f64(rows),
        database,
        peak: Some(moved.peak),
    })
}
