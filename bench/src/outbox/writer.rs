//! What the outbox costs whoever writes into it: single-row commits beside the same into a table with nothing but a primary
//! key; and beside those who read the log.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use sqlx::PgPool;
use tokio_postgres::{Client, Statement, types::Type};
use uuid::Uuid;

use super::{
    Place, TABLE, captured, execute,
    peers::{self, Receiver},
    pump::{Kind, Order, PumpProcess},
    row_of_times,
};
use crate::{bare::connect, load::on_one_thread, report::Section, sample::Sample};

/// So many write at once.
const CONNECTIONS: usize = 16;

/// An outbox whose trigger notifies.
const NOTIFYING: &str = "outbox_notifying";

/// The same columns and a primary key.
const BARE: &str = "bare";

const PAYLOAD: &str = r#"{"order": 123456, "customer": "e10adc3949ba59abbe56e057f20f883e", "note": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#;

/// A connection that writes rows.
pub struct Writer {
    pub client: Client,
    insert: Statement,
}

impl Writer {
    pub async fn open(url: &str, table: &str) -> Result<Self> {
        let client = connect(url).await?;
        let sql = format!(
            "INSERT INTO {table} (id, aggregate_id, event_type, payload, aggregate_type, headers, schema_version, correlation_id)
             VALUES ($1, $2, $3, $4::text::jsonb, $5, $6::text::jsonb, $7, $8)"
        );
        let text = Type::TEXT;
        let types = [&Type::UUID, &Type::UUID, &text, &text, &text, &text, &text, &text].map(Clone::clone);
        let insert = client.prepare_typed(&sql, &types).await?;
        Ok(Self { client, insert })
    }

    /// Writes one row, which commits by itself unless a transaction is open.
    pub async fn insert(&self) -> Result<()> {
        let (id, aggregate) = (Uuid::now_v7(), Uuid::now_v7());
        let texts = ["order.placed", PAYLOAD, "order", r#"{"tenant": "bench"}"#, "1", "c-123456"];
        let [kind, payload, of, headers, version, correlation] = &texts;
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
            [&id, &aggregate, kind, payload, of, headers, version, correlation];
        self.client.execute(&self.insert, &values).await?;
        Ok(())
    }
}

/// Single-row commits on all connections, for a while.
async fn write(url: &str, table: &'static str, time: Duration) -> Result<Sample> {
    execute(url, &format!("TRUNCATE {table}")).await?;
    let url = url.to_owned();
    on_one_thread(move || async move {
        let writers = try_join_all((0..CONNECTIONS).map(|_| Writer::open(&url, table))).await?;
        let begin = Instant::now();
        let loops = writers.iter().map(|writer| async move {
            let mut latencies = Vec::new();
            while begin.elapsed() < time {
                let sent = Instant::now();
                writer.insert().await?;
                latencies.push(sent.elapsed());
            }
            anyhow::Ok(latencies)
        });
        let latencies = try_join_all(loops).await?.concat();
        Ok(Sample::new(latencies.len(), begin.elapsed(), latencies))
    })
    .await
}

pub async fn run(place: &Place<'_>, section: &mut Section) -> Result<()> {
    let url = place.outbox("written", false).await?;
    let notifying = relais_outbox::Outbox::new(NOTIFYING)?;
    relais_outbox::init(&url, notifying.table(), relais_outbox::AggregateId::Uuid, true).await?;
    let like = format!("CREATE TABLE {BARE} (LIKE {TABLE} INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (id))");
    execute(&url, &like).await?;
    alone(place, &url, section).await?;
    let woken = place.outbox("woken", true).await?;
    beside(place, &url, &woken, section).await
}

async fn alone(place: &Place<'_>, url: &str, section: &mut Section) -> Result<()> {
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=place.plan.rounds {
        for (table, found) in [BARE, TABLE, NOTIFYING].into_iter().zip(&mut found) {
            let sample = write(url, table, place.plan.time).await?;
            if round > 0 {
                found.push(sample);
            }
        }
    }
    let [bare, plain, notifying] = found.map(Sample::median);
    row_of_times(section, "writers: bare table", &bare, true);
    row_of_times(section, "writers: outbox", &plain, true);
    row_of_times(section, "writers: outbox with NOTIFY", &notifying, true);
    section.below("the time of a bare table: writers", bare.rate / plain.rate, 1.3, " ×");
    section.below("the time of a bare table: writers, with NOTIFY", bare.rate / notifying.rate, 1.3, " ×");
    Ok(())
}

/// Who works while rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Receiver,
    Pump(Kind),
    /// The relay by polling, which the outbox's trigger wakes.
    Woken,
}

impl Other {
    const ALL: [Self; 5] =
        [Self::Receiver, Self::Pump(Kind::Table), Self::Pump(Kind::Capture), Self::Pump(Kind::Polling), Self::Woken];

    fn name(self) -> &'static str {
        match self {
            Self::Receiver => "pg_recvlogical",
            Self::Pump(kind) => kind.name(),
            Self::Woken => "relay by polling, woken by NOTIFY",
        }
    }
}

/// `woken` is a database whose outbox notifies.
async fn beside(place: &Place<'_>, url: &str, woken: &str, section: &mut Section) -> Result<()> {
    let pool = PgPool::connect(url).await?;
    let publication = captured::publish(&pool).await?;
    let mut found = Other::ALL.map(|_| Vec::new());
    for round in 0..=place.plan.rounds {
        for (number, (other, found)) in Other::ALL.into_iter().zip(&mut found).enumerate() {
            let slot = format!("beside_{round}_{number}");
            let sample = match other {
                Other::Receiver => {
                    peers::create_slot(&pool, &slot).await?;
                    let receiver = Receiver::start(url, &slot, &publication, None).await?;
                    peers::until_read(&pool, &slot).await?;
                    let sample = write(url, TABLE, place.plan.time).await?;
                    receiver.stop().await?;
                    sample
                }
                Other::Pump(_) | Other::Woken => {
                    let (kind, url) = match other {
                        Other::Pump(kind) => (kind, url),
                        _ => (Kind::Polling, woken),
                    };
                    // A capture that has begun goes on where it was; its name is new to it each time.
                    execute(url, "DROP TABLE IF EXISTS relais_capture").await?;
                    // A relay publishes what is in the table before it captures.
                    execute(url, &format!("TRUNCATE {TABLE}")).await?;
                    let slot = Some(slot.clone());
                    let order = Order { kind, url: url.to_owned(), slot, broker: None, rows: 0, held: true };
                    let mut process = PumpProcess::start(order).await?;
                    process.go().await?;
                    let sample = write(url, TABLE, place.plan.time).await?;
                    process.stop().await?;
                    sample
                }
            };
            relais_capture::Slot::new(slot)?.drop(&pool).await?;
            if round > 0 {
                found.push(sample);
            }
        }
    }
    pool.close().await;
    let found = found.map(Sample::median);
    for (other, sample) in Other::ALL.into_iter().zip(&found) {
        row_of_times(section, &format!("writers beside {}", other.name()), sample, true);
    }
    let [receiver, table, relay, polling, woken] = found;
    section.at_least("writers beside pg_recvlogical: beside capture of the table", table.rate / receiver.rate, 1.0);
    section.ratio("writers beside pg_recvlogical: beside the relay by capture", relay.rate / receiver.rate);
    section.ratio("writers beside pg_recvlogical: beside the relay by polling", polling.rate / receiver.rate);
    section.ratio("writers beside the relay by polling: if NOTIFY wakes it", woken.rate / polling.rate);
    Ok(())
}
