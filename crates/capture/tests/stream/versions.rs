//! The same log with and without a spool: whatever was done, the same events at the same positions.

use anyhow::{Context as _, Result};
use relais_capture::{ChangeStream, Publication, Slot, Spool, SpoolOptions, StreamEvent, StreamOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::timeout;

use crate::{DEADLINE, World, show};

/// Connections that work at once, each on a table of its own, so that none waits for another.
const CONNECTIONS: usize = 3;

/// What ends the log.
const END: &str = "the end";

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A connection with a transaction that may be open, and its savepoints.
struct Worker {
    connection: PgConnection,
    table: String,
    is_open: bool,
    savepoints: Vec<u64>,
    next: u64,
}

impl Worker {
    async fn run(&mut self, sql: &str) -> Result<()> {
        let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut self.connection).await;
        done.with_context(|| sql.to_owned())?;
        Ok(())
    }

    /// Does something that may happen in a transaction, or out of one.
    async fn step(&mut self, random: &mut Random, messages: bool) -> Result<()> {
        let table = self.table.clone();
        self.next += 1;
        let number = self.next;
        let sql = match random.below(20) {
            0..=6 => {
                let rows = [1, 20, 300, 900][usize::try_from(random.below(4))?];
                format!("INSERT INTO {table} (state) SELECT repeat('z', 80) FROM generate_series(1, {rows})")
            }
            7 => format!("UPDATE {table} SET state = 'step {number}' WHERE id % 7 = {}", random.below(7)),
            8 => format!("DELETE FROM {table} WHERE id % 11 = {}", random.below(11)),
            9 => format!("INSERT INTO {table} (state) SELECT repeat(md5(n::text), 200) FROM generate_series(1, 5) n"),
            10 if random.below(3) == 0 => format!("TRUNCATE {table}"),
            11 if random.below(3) == 0 => format!("ALTER TABLE {table} ADD c{number} integer DEFAULT {number}"),
            12 if messages => format!("SELECT pg_logical_emit_message({}, 'm', '{number}')", random.below(3) > 0),
            13 | 14 if self.is_open => {
                self.savepoints.push(number);
                format!("SAVEPOINT s{number}")
            }
            15 if !self.savepoints.is_empty() => {
                let place = usize::try_from(random.below(self.savepoints.len() as u64))?;
                let name = self.savepoints[place];
                self.savepoints.truncate(place + 1);
                format!("ROLLBACK TO s{name}")
            }
            16 if !self.savepoints.is_empty() => {
                let place = usize::try_from(random.below(self.savepoints.len() as u64))?;
                let name = self.savepoints[place];
                self.savepoints.truncate(place);
                format!("RELEASE s{name}")
            }
            17 | 18 if self.is_open => {
                (self.is_open, self.savepoints) = (false, Vec::new());
                if random.below(4) == 0 { "ROLLBACK" } else { "COMMIT" }.to_owned()
            }
            _ if !self.is_open => {
                self.is_open = true;
                "BEGIN".to_owned()
            }
            _ => return Ok(()),
        };
        self.run(&sql).await
    }
}

/// All events up to the end, each as a text; begins again where a spool failed.
async fn events(world: &World, options: StreamOptions) -> Result<(Vec<String>, u32)> {
    let (mut found, mut failures, mut resume) = (Vec::new(), 0, None);
    let mut stream = start(world, &options).await?;
    loop {
        let batch = match timeout(DEADLINE, stream.next()).await.context("the end comes")? {
            Ok(batch) => batch,
            Err(error) if error.is_passing() => {
                failures += 1;
                stream = start(world, &StreamOptions { resume, ..options.clone() }).await?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for event in batch.events {
            let (text, position) = match event {
                StreamEvent::Change(change) => {
                    let columns = change.relation.columns.len();
                    let (transaction, position) = (&change.transaction, change.position);
                    let name = &change.relation.name;
                    let text = format!("{name} {columns} {} {:x} {transaction:?}", show(&change), change.lsn);
                    (text, position)
                }
                StreamEvent::Message(message) => {
                    if message.content == END {
                        stream.stop().await;
                        return Ok((found, failures));
                    }
                    (format!("{message:?}"), message.position)
                }
            };
            anyhow::ensure!(resume < Some(position), "{text} at {position:?} comes again or too late");
            resume = Some(position);
            found.push(format!("{position:?} {text}"));
        }
    }
}

/// Starts a stream as soon as nobody reads the slot.
async fn start(world: &World, options: &StreamOptions) -> Result<ChangeStream> {
    let starting = async {
        loop {
            match ChangeStream::start(&world.address()?, options.clone()).await {
                Err(error) if error.is_in_use() => tokio::task::yield_now().await,
                started => return anyhow::Ok(started?),
            }
        }
    };
    timeout(DEADLINE, starting).await.context("the slot is free")?
}

async fn compare(seed: u64, messages: bool, limit: u64) -> Result<()> {
    let world = World::with_little_memory().await?;
    let mut workers = Vec::new();
    for number in 0..CONNECTIONS {
        let table = format!("work_{number}");
        world.execute(&format!("CREATE TABLE {table} (id serial PRIMARY KEY, state text)")).await?;
        world.execute(&format!("ALTER TABLE {table} ALTER state SET STORAGE EXTERNAL")).await?;
        let connection = PgConnection::connect(world.database.url()).await?;
        workers.push(Worker { connection, table, is_open: false, savepoints: Vec::new(), next: 0 });
    }
    let tables = workers.iter().map(|worker| ("public".to_owned(), worker.table.clone())).collect();
    let operations = "insert, update, delete, truncate".to_owned();
    Publication { name: "work".to_owned(), tables, operations, owner: "test".to_owned() }.ensure(&world.pool).await?;
    let live = Slot::new(format!("{}_live", world.slot.name()))?;
    let without = Slot::new(format!("{}_without", world.slot.name()))?;
    live.create(&world.address()?).await?;
    without.create(&world.address()?).await?;
    world.slot.drop(&world.pool).await?;
    world.slot.create(&world.address()?).await?;
    let directory = tempfile::tempdir()?;
    let spool = Spool::open(SpoolOptions { directory: directory.path().to_owned(), limit }).await?;
    let options = |slot: &Slot, spool: Option<Spool>| StreamOptions {
        messages: true,
        batch_rows: 100,
        spool,
        ..StreamOptions::new(slot.name(), "work")
    };
    let work = async {
        let mut random = Random(seed);
        for _ in 0..150 {
            let worker = usize::try_from(random.below(CONNECTIONS as u64))?;
            workers[worker].step(&mut random, messages).await?;
        }
        for worker in &mut workers {
            if worker.is_open {
                worker.run("COMMIT").await?;
            }
        }
        world.execute(&format!("SELECT pg_logical_emit_message(false, 'm', '{END}')")).await
    };
    // One follows while it happens, the others come later.
    let (during, done) = tokio::join!(events(&world, options(&live, Some(spool.clone()))), work);
    done?;
    let (during, failures) = during?;
    let (expected, _) = events(&world, options(&without, None)).await?;
    let (later, later_failures) = events(&world, options(&world.slot, Some(spool.clone()))).await?;
    let first_other = |found: &[String]| {
        let place = found.iter().zip(&expected).position(|(one, other)| one != other);
        place.map(|place| (found[place].clone(), expected[place].clone()))
    };
    assert_eq!(first_other(&during), None, "seed {seed}");
    assert_eq!(first_other(&later), None, "seed {seed}");
    assert_eq!((during.len(), later.len()), (expected.len(), expected.len()), "seed {seed}");
    assert!(expected.len() > 1000, "seed {seed} does too little");
    if limit < 100_000 {
        assert!(failures + later_failures > 0, "seed {seed} never needs more room");
    } else if !messages {
        assert_eq!((failures, later_failures), (0, 0), "seed {seed}");
        // The server counts a little later than it sends.
        let counted = async {
            while world.streamed_and_spilled().await?.0 == 0 {
                tokio::task::yield_now().await;
            }
            anyhow::Ok(())
        };
        timeout(DEADLINE, counted).await.with_context(|| format!("seed {seed} streams nothing"))??;
    }
    live.drop(&world.pool).await?;
    without.drop(&world.pool).await?;
    world.end().await
}

#[tokio::test]
async fn a_spool_changes_no_event_and_no_position() -> Result<()> {
    for seed in seeds() {
        compare(seed, false, 1 << 30).await?;
    }
    Ok(())
}

#[tokio::test]
async fn logical_messages_among_them_change_nothing() -> Result<()> {
    for seed in seeds() {
        compare(seed + 100, true, 1 << 30).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_spool_that_is_too_small_changes_nothing() -> Result<()> {
    for seed in seeds() {
        compare(seed + 200, true, 50_000).await?;
    }
    Ok(())
}

/// Three, or as many as `RELAIS_CHAOS_ROUNDS` says.
fn seeds() -> std::ops::Range<u64> {
    let rounds = std::env::var("RELAIS_CHAOS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    1..1 + rounds.unwrap_or(3)
}
