//! Compares captures with Debezium's own engine: both follow the same tables of the same database at the same time.
//!
//! `cargo xtask debezium` installs the engine and runs this. Each side has its slot and its publication. Statements run,
//! and every record is compared field by field: topic, key, value, schemas, headers. What differs on purpose is counted by
//! its reason; anything else fails the run. `RELAIS_SEED` repeats the random part.

#![expect(clippy::print_stdout, reason = "a program that reports")]

#[path = "../../tests/debezium/comparison.rs"]
mod comparison;
mod engine;
mod journal;
mod outbox;
#[path = "../../tests/debezium/script.rs"]
mod script;
mod stage;
mod values;

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context as _, Result, bail, ensure};
use relais_testkit::{PostgresServer, Random};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use comparison::{Comparison, Different, left_out};
use engine::Settings;
use stage::{Published, Stage, payload};

/// What both are called: the beginning of topics.
const NAME: &str = "peer";

/// How many transactions the random part has for each set of settings.
const RANDOM_TRANSACTIONS: usize = 150;

/// Who writes at the same time, and how many transactions each.
const WRITERS: usize = 4;
const TRANSACTIONS: usize = 100;

/// Fields that differ by nature.
const NOT_COMPARED: &[(&str, &str)] = &[
    ("value.source.version", "which program wrote it"),
    ("value.source.sequence", "its first number is the commit of this transaction, not of the one before"),
    ("value.ts_ms", "when it was read"),
    ("value.ts_us", "when it was read"),
    ("value.ts_ns", "when it was read"),
];

/// Fields of rows that were there before, which each side reads by itself.
const NOT_COMPARED_IN_SNAPSHOTS: &[(&str, &str)] = &[
    ("value.source.version", "which program wrote it"),
    ("value.source.sequence", "where in the log the snapshot was taken"),
    ("value.source.ts_ms", "when the snapshot was taken"),
    ("value.source.ts_us", "when the snapshot was taken"),
    ("value.source.ts_ns", "when the snapshot was taken"),
    ("value.source.txId", "the transaction that took the snapshot"),
    ("value.source.lsn", "where in the log the snapshot was taken"),
    ("value.ts_ms", "when it was read"),
    ("value.ts_us", "when it was read"),
    ("value.ts_ns", "when it was read"),
];

/// What differs on purpose, besides what the recordings have.
const DIFFERENT: &[Different] = &[
    ("t_alter", "e", "default of a column, in place of NULL and where `before` has only the key"),
    ("t_alter", "m", "a label that an enum got while it runs: Debezium's schema keeps the old ones"),
    ("t_old", "d", "date[]: before 1582 Debezium counts by the Julian calendar, and BC is lost"),
    ("t_old", "ts", "timestamp[]: before 1582 Debezium counts by the Julian calendar"),
    ("t_old", "tz", "timestamptz[]: BC is lost in Debezium"),
    ("t_old", "m", "enum[]: one NULL makes Debezium's array null"),
];

/// So many differences of the same field are shown.
const SHOWN: usize = 3;

/// The engine's own headers.
const CONTEXT: &str = "__debezium.context.";

const DEFAULTS: &str = "skipped.operations=none\nconverter.schemas.enable=false";
const SCHEMAS: &str = "skipped.operations=none\nconverter.schemas.enable=true";

/// Files of SQL, with settings: the recorded ones, and schema changes that cannot be recorded.
const FILES: &[(&str, &str, &str)] = &[
    ("envelopes", ENVELOPES, DEFAULTS),
    ("envelopes-schemas", ENVELOPES, SCHEMAS),
    ("types", TYPES, include_str!("../../tests/debezium/types.settings")),
    ("types-strings", TYPES, STRINGS),
    ("types-connect", TYPES, CONNECT),
    ("types-micro", TYPES, MICRO),
    ("times-nano", TYPES, include_str!("../../tests/debezium/times-nano.settings")),
    ("required-adaptive", TYPES, include_str!("../../tests/debezium/required-adaptive.settings")),
    ("masks", TYPES, include_str!("../../tests/debezium/masks.settings")),
    ("live", include_str!("../../tests/debezium/live.sql"), SCHEMAS),
];
const ENVELOPES: &str = include_str!("../../tests/debezium/envelopes.sql");
const TYPES: &str = include_str!("../../tests/debezium/types.sql");
const STRINGS: &str = include_str!("../../tests/debezium/types-strings.settings");
const CONNECT: &str = include_str!("../../tests/debezium/types-connect.settings");
const MICRO: &str = include_str!("../../tests/debezium/types-micro.settings");

/// Settings of the random part.
const RANDOM: &[(&str, &str)] =
    &[("random", SCHEMAS), ("random-strings", STRINGS), ("random-connect", CONNECT), ("random-micro", MICRO)];

#[tokio::main]
async fn main() -> Result<()> {
    let begin = Instant::now();
    let only: Vec<String> = std::env::args().skip(1).collect();
    let cases = FILES.iter().map(|(name, ..)| *name).chain(RANDOM.iter().map(|(name, _)| *name));
    let cases: Vec<&str> = cases.chain(["transactions", "outbox"]).collect();
    if let Some(unknown) = only.iter().find(|name| !cases.contains(&name.as_str())) {
        bail!("there is no case {unknown}; there are {}", cases.join(", "));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|word| name == word);
    let server = PostgresServer::start().await?;
    // Prints its seed. Each case begins with the same one, so that it can be repeated alone.
    let seed = Random::new().bits();
    let mut run = Run { server, seed, comparison: Comparison::new(NOT_COMPARED, DIFFERENT) };
    for (name, sql, settings) in FILES.iter().filter(|(name, ..)| wanted(name)) {
        run.file(name, sql, &Settings::parse(settings)?).await.with_context(|| (*name).to_owned())?;
    }
    for (name, settings) in RANDOM.iter().filter(|(name, _)| wanted(name)) {
        run.random(name, &Settings::parse(settings)?).await.with_context(|| (*name).to_owned())?;
    }
    if wanted("transactions") {
        run.transactions().await.context("transactions")?;
    }
    if wanted("outbox") {
        let (records, findings) = (run.comparison.records, run.comparison.findings.len());
        outbox::run(&run.server, Random::from_seed(seed), &mut run.comparison).await.context("outbox")?;
        run.report("outbox", records, findings);
    }
    if only.is_empty() {
        let gone = run.comparison.gone().into_iter().map(|known| format!("{known:?} does not differ any more"));
        run.comparison.findings.extend(gone.collect::<Vec<_>>());
    }
    run.verdict(begin)
}

struct Run {
    server: PostgresServer,
    seed: u64,
    comparison: Comparison,
}

impl Run {
    /// The statements of a file.
    async fn file(&mut self, name: &str, sql: &str, settings: &Settings) -> Result<()> {
        let (mut before, statements) = script::parts(sql)?;
        before.retain(|statement| !statement.starts_with("CREATE PUBLICATION"));
        let mut stage = Stage::open(&self.server, name, &before, settings).await?;
        for statement in statements {
            // Both ask the catalog when they see a change, so it must not be ahead of them.
            if statement.starts_with("ALTER") {
                stage.together().await?;
            }
            stage.execute(&statement).await?;
        }
        self.compare(name, stage.close().await?)
    }

    /// Random values, in transactions that are committed and rolled back.
    async fn random(&mut self, name: &str, settings: &Settings) -> Result<()> {
        let mut stage = Stage::open(&self.server, name, &values::create(), settings).await?;
        let mut statements = values::Statements::new(Random::from_seed(self.seed));
        for _ in 0..RANDOM_TRANSACTIONS {
            stage.execute(&statements.transaction()).await?;
        }
        self.compare(name, stage.close().await?)
    }

    /// Many transactions at once, with savepoints, and a large one.
    async fn transactions(&mut self) -> Result<()> {
        let create = "CREATE TABLE t_busy (writer int, number int, v text, PRIMARY KEY (writer, number))".to_owned();
        let mut stage = Stage::open(&self.server, "transactions", &[create], &Settings::parse(SCHEMAS)?).await?;
        let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(stage.url.clone(), writer))).collect();
        stage.execute("INSERT INTO t_busy SELECT -1, n, repeat('x', 100) FROM generate_series(1, 5000) AS n").await?;
        for writer in writers {
            writer.await??;
        }
        stage.execute("DELETE FROM t_busy WHERE number % 10 = 0").await?;
        self.compare("transactions", stage.close().await?)
    }

    fn compare(&mut self, name: &str, published: Published) -> Result<()> {
        let (records, findings) = (self.comparison.records, self.comparison.findings.len());
        let (read, streamed) = self.prepare(published.debezium);
        let (our_read, our_streamed) = self.prepare(published.relais);
        self.comparison.not_compared = NOT_COMPARED_IN_SNAPSHOTS;
        self.compare_all(&read, &our_read)?;
        self.comparison.not_compared = NOT_COMPARED;
        self.compare_all(&streamed, &our_streamed)?;
        self.report(name, records, findings);
        Ok(())
    }

    /// Leaves out what has no counterpart. Returns what was read at the beginning, in an order that both share, and what was
    /// streamed.
    fn prepare(&mut self, mut records: Vec<Value>) -> (Vec<Value>, Vec<Value>) {
        records.retain(|record| match left_out(record) {
            Some(why) => {
                self.comparison.explain(why);
                false
            }
            None => true,
        });
        for headers in records.iter_mut().filter_map(|record| record["headers"].as_array_mut()) {
            let before = headers.len();
            headers.retain(|header| !header[0].as_str().is_some_and(|name| name.starts_with(CONTEXT)));
            for _ in headers.len()..before {
                self.comparison.explain("headers that tell which connector and run it was");
            }
        }
        let (mut read, streamed): (Vec<Value>, Vec<Value>) =
            records.into_iter().partition(|record| payload(record)["op"] == "r");
        // Which table is read first is not promised.
        read.sort_by_cached_key(|record| (record["topic"].to_string(), record["key"].to_string()));
        (read, streamed)
    }

    fn compare_all(&mut self, debezium: &[Value], relais: &[Value]) -> Result<()> {
        for (theirs, ours) in debezium.iter().zip(relais) {
            if (&theirs["topic"], &payload(theirs)["op"]) != (&ours["topic"], &payload(ours)["op"]) {
                // Whatever follows would be compared with something else.
                let both = [theirs, ours].map(|record| format!("{record:.600}"));
                self.comparison.findings.push(format!("records of different changes: {}", both.join(" and ")));
                return Ok(());
            }
            self.comparison.record(theirs, ours)?;
        }
        if debezium.len() != relais.len() {
            let counts = format!("Debezium published {} records, ours are {}", debezium.len(), relais.len());
            let shorter = debezium.len().min(relais.len());
            let next = debezium.get(shorter).or_else(|| relais.get(shorter)).map(Value::to_string);
            self.comparison.findings.push(format!("{counts}; the next is {:.600}", next.unwrap_or_default()));
        }
        Ok(())
    }

    fn report(&self, name: &str, records: usize, findings: usize) {
        let Comparison { records: all, findings: found, .. } = &self.comparison;
        println!("{name}: {} records, {} unexplained differences", all - records, found.len() - findings);
        let mut places = BTreeMap::<&str, Vec<&str>>::new();
        for finding in &found[findings..] {
            places.entry(place_of(finding)).or_default().push(finding);
        }
        for found in places.values() {
            println!("  {} times:", found.len());
            for finding in found.iter().take(SHOWN) {
                println!("    {finding:.1000}");
            }
        }
    }

    fn verdict(self, begin: Instant) -> Result<()> {
        let Comparison { records, fields, explained, findings, .. } = self.comparison;
        let explained_fields: usize = explained.values().sum();
        println!("explained differences, by reason:");
        for (why, count) in explained {
            println!("  {count:>7}  {why}");
        }
        println!(
            "{records} records, {fields} fields compared, {explained_fields} explained differences, {} unexplained, \
             {:.0} s",
            findings.len(),
            begin.elapsed().as_secs_f64()
        );
        ensure!(findings.is_empty(), "{} differences are not explained", findings.len());
        Ok(())
    }
}

/// The field that a finding is about, whatever the element of an array.
fn place_of(finding: &str) -> &str {
    finding.split([':', '[']).next().unwrap_or(finding)
}

/// Writes in transactions of its own, some with a savepoint that is rolled back.
async fn write(url: String, writer: usize) -> Result<()> {
    let mut connection = PgConnection::connect(&url).await?;
    for number in 0..TRANSACTIONS {
        let insert = format!("INSERT INTO t_busy VALUES ({writer}, {number}, 'a'), ({writer}, {}, 'b')", number + 1000);
        let update = format!("UPDATE t_busy SET v = v || 'c' WHERE writer = {writer} AND number = {}", number / 2);
        let not_done = format!("SAVEPOINT s; DELETE FROM t_busy WHERE writer = {writer}; ROLLBACK TO s");
        let statements = format!("BEGIN; {insert}; {not_done}; {update}; COMMIT");
        connection.execute(AssertSqlSafe(statements)).await?;
    }
    Ok(connection.close().await?)
}
