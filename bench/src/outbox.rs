//! The outbox beside what it could have been: a bare loop over the table, bare publishing with confirms,
//! `pg_recvlogical` and Debezium's engine on the same log; how long a row takes from its commit to the sink; and what the
//! outbox costs whoever writes into it.

mod arrival;
mod captured;
mod debezium;
#[cfg(feature = "kafka")]
mod kafka;
mod peers;
mod polled;
mod pump;
mod streamed;
mod writer;

use std::time::Duration;

use anyhow::Result;
use relais_outbox::{AggregateId, Outbox};
use relais_testkit::PostgresServer;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{
    Plan, cpu,
    report::Section,
    sample::{Sample, number},
    tell,
    world::{create_database, postgres},
};

use debezium::Debezium;
pub use pump::run as run_pump;

/// The table of the outbox.
const TABLE: &str = "outbox";

/// Where RabbitMQ takes messages.
const EXCHANGE: &str = "amq.topic";

/// The queue of RabbitMQ, the stream of Redis or the topic of Kafka that gets all messages.
const QUEUE: &str = "bench";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = ["what", "rows", "rows/s", "p50 ms", "p99 ms", "µs CPU a row", "database", "peak MB"];
    let mut section =
        Section::new("outbox", "the outbox beside bare loops, pg_recvlogical and Debezium, PostgreSQL", &header);
    let (server, first) = postgres(plan).await?;
    let debezium = if plan.alone { None } else { Debezium::prepare().await? };
    if debezium.is_none() && !plan.alone {
        let left_out = format!("Debezium's engine was not measured: {} names no libraries of it.", debezium::VARIABLE);
        tell(&left_out);
        section.note(left_out);
    }
    let place = Place { plan, server, first, debezium };
    // First: after the load the disk is busy for a while with what it left.
    arrival::run(&place, &mut section).await?;
    writer::run(&place, &mut section).await?;
    polled::run(&place, &mut section).await?;
    captured::run(&place, &mut section).await?;
    streamed::run(&place, &mut section).await?;
    section.note(
        "Rows have a payload of about 200 bytes and 10,000 aggregates. Each relay and capture runs in a process of its own with \
         its defaults, and its processor time and memory are that process's; bare loops are part of the load. Arrivals are timed \
         from the moment when COMMIT is sent until the sink has the message, one row at a time. `database` is the processor \
         time of all of PostgreSQL for one row.",
    );
    Ok(section)
}

/// Where it is measured.
struct Place<'a> {
    plan: &'a Plan,
    server: PostgresServer,
    /// PostgreSQL's first process.
    first: u32,
    /// The engine to compare with, if it is there.
    debezium: Option<Debezium>,
}

impl Place<'_> {
    /// A new database with an outbox in it.
    async fn outbox(&self, name: &str, notify: bool) -> Result<String> {
        let url = create_database(&self.server, name).await?;
        relais_outbox::init(&url, Outbox::new(TABLE)?.table(), AggregateId::Uuid, notify).await?;
        Ok(url)
    }

    fn database_cpu(&self) -> Result<Duration> {
        cpu::of_family(self.first)
    }
}

async fn execute(url: &str, sql: &str) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
    Ok(connection.close().await?)
}

/// Writes so many rows, in transactions of 10,000.
async fn fill(url: &str, table: &str, rows: usize) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    let sql = format!(
        "INSERT INTO {table} (id, aggregate_id, event_type, payload, aggregate_type, headers, schema_version, correlation_id)
         SELECT gen_random_uuid(), ('00000000-0000-4000-8000-' || lpad(floor(random() * 10000)::text, 12, '0'))::uuid,
                'order.placed', jsonb_build_object('order', n, 'customer', md5(n::text), 'note', repeat('x', 120)),
                'order', '{{\"tenant\": \"bench\"}}', '1', 'c-' || n
         FROM generate_series($1::bigint, $2::bigint) AS n"
    );
    let mut done = 0;
    while done < rows {
        let next = (done + 10_000).min(rows);
        let insert = sqlx::query(AssertSqlSafe(sql.clone())).bind(done as i64 + 1).bind(next as i64);
        insert.execute(&mut connection).await?;
        done = next;
    }
    Ok(connection.close().await?)
}

/// One measurement of a throughput.
#[derive(Debug, Clone, Copy)]
struct Throughput {
    rate: f64,
    /// Processor time for one row: whoever moves it, and the database.
    cpu: Duration,
    database: Duration,
    /// The most memory, in MB, where it is a process of its own.
    peak: Option<f64>,
}

impl Throughput {
    fn median(mut rounds: Vec<Self>) -> Self {
        rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        rounds[rounds.len() / 2]
    }

    fn row(&self, section: &mut Section, what: &str, rows: usize) {
        let micros = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
        let peak = self.peak.map_or_else(String::new, |peak| format!("{peak:.1}"));
        let (cpu, database) = (micros(self.cpu), micros(self.database));
        tell(&format!("outbox: {what}: {} rows/s, {cpu} and {database} µs a row, {peak} MB", number(self.rate)));
        section.row([
            what.to_owned(),
            number(rows as f64),
            number(self.rate),
            String::new(),
            String::new(),
            cpu,
            database,
            peak,
        ]);
    }
}

/// Times of single rows, as a row of the table.
fn row_of_times(section: &mut Section, what: &str, sample: &Sample, rate: bool) {
    let shares = [0.5, 0.99].map(|share| crate::sample::ms(sample.percentile(share)));
    let rate = if rate { number(sample.rate) } else { String::new() };
    tell(&format!("outbox: {what}: {rate} {shares:?}"));
    section.row([what.to_owned(), number(sample.len() as f64), rate].into_iter().chain(shares));
}
