//! A capture of the table and the relay by capture, to Redis streams and to Kafka: beside bare appends to the same server,
//! and `pg_recvlogical`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use relais_testkit::{KAFKA_VARIABLE, RedisServer};
use sqlx::PgPool;

use super::{
    Place, QUEUE, TABLE, Throughput, captured, fill,
    peers::{self, Receiver},
    polled::{BAR, BODY},
    pump::{Broker, Kind, Order, PumpProcess},
};
use crate::{cpu, report::Section, tell};

pub async fn run(place: &Place<'_>, section: &mut Section) -> Result<()> {
    let redis = RedisServer::start().await?;
    Streamed::measure(place, "redis", "Redis", "bare XADD of 500 in a pipeline", &OnRedis(redis))
        .await?
        .report(section);
    #[cfg(feature = "kafka")]
    if relais_testkit::KafkaServer::is_available() {
        let kafka = super::kafka::OnKafka(relais_testkit::KafkaServer::start().await?);
        let what = "bare rdkafka: 500 records, then their answers";
        Streamed::measure(place, "kafka", "Kafka", what, &kafka).await?.report(section);
        return Ok(());
    }
    let left_out = format!("To Kafka was not measured: {KAFKA_VARIABLE} names no broker to start.");
    tell(&left_out);
    section.note(left_out);
    Ok(())
}

/// A server that streams are appended to.
pub trait StreamServer {
    fn broker(&self) -> Broker;

    /// Makes the stream, if it has to be made. What is in it stays.
    async fn prepare(&self) -> Result<()>;

    /// Appends so many messages, batch after batch; how long it took.
    async fn append(&self, messages: usize, body: &str) -> Result<Duration>;

    /// How many messages are in the stream.
    async fn count(&self) -> Result<usize>;
}

struct OnRedis(RedisServer);

impl StreamServer for OnRedis {
    fn broker(&self) -> Broker {
        Broker::Redis(self.0.url())
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn append(&self, messages: usize, body: &str) -> Result<Duration> {
        peers::bare_appending(&self.0.url(), messages, body).await
    }

    async fn count(&self) -> Result<usize> {
        let mut connection = redis::Client::open(self.0.url())?.get_multiplexed_async_connection().await?;
        Ok(redis::cmd("XLEN").arg(QUEUE).query_async(&mut connection).await?)
    }
}

/// What was found for one server.
struct Streamed {
    server: &'static str,
    bare: &'static str,
    rows: usize,
    received: Throughput,
    appended: Throughput,
    captured: Throughput,
    relayed: Throughput,
}

impl Streamed {
    async fn measure(
        place: &Place<'_>,
        name: &str,
        server: &'static str,
        bare: &'static str,
        streams: &impl StreamServer,
    ) -> Result<Self> {
        let rows = place.plan.polled;
        let (mut received, mut appended, mut captured, mut relayed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // The first round warms up.
        for round in 0..=place.plan.rounds {
            let url = place.outbox(&format!("{name}_{round}"), false).await?;
            let found = one_round(place, &url, &format!("bench_{name}_{round}"), streams).await?;
            if round > 0 {
                received.push(found.received);
                appended.push(found.appended);
                captured.push(found.captured);
                relayed.push(found.relayed);
            }
        }
        let [received, appended, captured, relayed] = [received, appended, captured, relayed].map(Throughput::median);
        Ok(Self { server, bare, rows, received, appended, captured, relayed })
    }

    fn report(self, section: &mut Section) {
        let Self { server, bare, rows, received, appended, captured, relayed } = self;
        let names = [Kind::Table, Kind::Capture].map(|kind| format!("{}, to {server}", kind.name()));
        appended.row(section, bare, rows);
        captured.row(section, &names[0], rows);
        relayed.row(section, &names[1], rows);
        let slower = if appended.rate < received.rate { "bare appends" } else { "pg_recvlogical" };
        let [captured, relayed] = [captured, relayed].map(|one| one.rate / appended.rate.min(received.rate));
        section.at_least(&format!("{slower}, the slower side: {}", names[0]), captured, BAR);
        // The slower side writes nothing to the database; this one writes a mark for each row.
        section.ratio(&format!("{slower}, the slower side: {}", names[1]), relayed);
    }
}

/// What was found in one round.
struct Round {
    received: Throughput,
    appended: Throughput,
    captured: Throughput,
    relayed: Throughput,
}

/// `pg_recvlogical`, bare appends, the capture and the relay, one after the other.
async fn one_round(place: &Place<'_>, url: &str, slot: &str, streams: &impl StreamServer) -> Result<Round> {
    let rows = place.plan.polled;
    let pool = PgPool::connect(url).await?;
    let publication = captured::publish(&pool).await?;
    let [bare, table] = ["bare", "table"].map(|name| format!("{slot}_{name}"));
    for slot in [&bare, &table] {
        peers::create_slot(&pool, slot).await?;
    }
    streams.prepare().await?;
    let order = |kind, slot: &str, held| Order {
        kind,
        url: url.to_owned(),
        slot: Some(slot.to_owned()),
        broker: Some(streams.broker()),
        rows: rows as u64,
        held,
    };
    // A relay publishes what is in the table before it captures, so it captures before anything is there.
    let relaying = PumpProcess::start(order(Kind::Capture, slot, true)).await?;
    fill(url, TABLE, rows).await?;
    let end: String = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text").fetch_one(&pool).await?;

    let begin = Instant::now();
    Receiver::start(url, &bare, &publication, Some(&end)).await?.ended().await?;
    let received = alone(rows, begin.elapsed(), Duration::ZERO);
    let own = cpu::of_process(std::process::id())?;
    let time = streams.append(rows, BODY).await?;
    let appended = alone(rows, time, cpu::of_process(std::process::id())?.saturating_sub(own));
    let captured = moved(place, PumpProcess::start(order(Kind::Table, &table, false)).await?, streams).await?;
    // Last: its marks are in the log too.
    let relayed = moved(place, relaying, streams).await?;
    for slot in [&bare, &table, slot] {
        relais_capture::Slot::new(slot)?.drop(&pool).await?;
    }
    pool.close().await;
    Ok(Round { received, appended, captured, relayed })
}

/// What a process comes to that moves all rows into the stream.
async fn moved(place: &Place<'_>, mut process: PumpProcess, streams: &impl StreamServer) -> Result<Throughput> {
    let rows = place.plan.polled;
    let before = streams.count().await?;
    let throughput = captured::throughput(place, rows, process.move_all()).await?;
    process.stop().await?;
    let came = streams.count().await? - before;
    ensure!(came >= rows, "{came} messages came to the stream");
    Ok(throughput)
}

/// What one side comes to without the other.
fn alone(rows: usize, time: Duration, cpu: Duration) -> Throughput {
    let rows = rows as f64;
    Throughput { rate: rows / time.as_secs_f64(), cpu: cpu.div_f64(rows), database: Duration::ZERO, peak: None }
}
