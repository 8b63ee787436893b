//! Declared captures: what they keep on their server when they are changed, deleted and declared again.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use relais_core::{RelayChange, RelayDeclarations, RelayKind, RelayRecord, RelayReport, StoreError};
use relais_engine::{CaptureRelays as _, RelayCheck};
use relais_message::{RoutedMessage, Sink};
use relais_protocol::{
    capture::{CaptureActivityName, CaptureDeclaration},
    outbox::SinkDeclaration,
};
use relais_relay::{Captures, RelayResources, SinkError, SinkFactory};
use relais_testkit::{MemorySink, TestDatabase};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

/// For whatever should happen soon, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// What is declared, as one process sees it.
#[derive(Default)]
struct Declared {
    records: Mutex<Vec<RelayRecord>>,
    away: AtomicBool,
    /// The call after so many others fails.
    fails_in: AtomicI64,
}

impl Declared {
    fn records(&self) -> MutexGuard<'_, Vec<RelayRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl RelayDeclarations for Declared {
    async fn list_relays(&self, _: RelayKind) -> Result<Vec<RelayRecord>, StoreError> {
        let fails = self.fails_in.fetch_sub(1, Ordering::SeqCst) == 1;
        match fails || self.away.load(Ordering::SeqCst) {
            true => Err(StoreError::Failed("the store is away".into())),
            false => Ok(self.records().clone()),
        }
    }

    async fn report_relays(&self, _: RelayKind, _: String, _: Vec<RelayReport>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list_reports(&self, _: RelayKind, _: Duration) -> Result<Vec<RelayReport>, StoreError> {
        Ok(Vec::new())
    }
}

/// Whatever is declared, it is this sink.
struct Sinks(Arc<MemorySink>);

#[async_trait]
impl SinkFactory for Sinks {
    async fn open(&self, _: &str, _: &SinkDeclaration) -> Result<Arc<dyn Sink>, SinkError> {
        Ok(Arc::<MemorySink>::clone(&self.0))
    }

    async fn check(&self, _: &str, _: &SinkDeclaration) -> Result<(), SinkError> {
        Ok(())
    }
}

/// A database with a table, and where its changes go.
struct World {
    database: TestDatabase,
    pool: PgPool,
    sink: Arc<MemorySink>,
    next: Mutex<i64>,
}

/// A process that runs what is declared.
struct Process {
    captures: Captures,
    declared: Arc<Declared>,
    changes: watch::Sender<i64>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl World {
    async fn new() -> Result<Self> {
        let database = TestDatabase::create().await?;
        let pool = PgPool::connect(database.url()).await?;
        sqlx::raw_sql("CREATE TABLE orders (id integer PRIMARY KEY)").execute(&pool).await?;
        Ok(Self { database, pool, sink: Arc::default(), next: Mutex::new(0) })
    }

    /// A capture without snapshots: what its slot does not bring is missed.
    fn declaration(&self, change: Value) -> Result<CaptureDeclaration> {
        let mut whole = json!({
            "captureName": "shop", "databaseUrl": self.database.url(), "tables": ["orders"], "snapshot": "never",
            "slot": self.database.name(), "sink": {"redis": {"url": "redis://nowhere"}},
        });
        whole.as_object_mut().context("an object")?.extend(change.as_object().cloned().unwrap_or_default());
        Ok(serde_json::from_value(whole)?)
    }

    fn process(&self) -> Process {
        let declared = Arc::<Declared>::default();
        let sinks = Arc::new(Sinks(Arc::clone(&self.sink)));
        let captures = Captures::new(
            Arc::<Declared>::clone(&declared),
            RelayResources { sinks, spool: None, events: None },
            "one".to_owned(),
        );
        let (changes, seen) = watch::channel(0);
        let stop = CancellationToken::new();
        let task = tokio::spawn(captures.clone().run(seen, stop.clone()));
        Process { captures, declared, changes, stop, task }
    }

    /// A row, and that it arrives: whoever captures reads on.
    async fn row_arrives(&self) -> Result<()> {
        let id = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next
        };
        let sql = AssertSqlSafe(format!("INSERT INTO orders VALUES ({id})"));
        sqlx::raw_sql(sql).execute(&self.pool).await?;
        self.sink.until("the row arrives", |arrived| arrived.iter().any(|message| id_of(message) == Some(id))).await
    }

    /// How many slots, publications and captures the database knows.
    async fn objects(&self) -> Result<i64> {
        let sql = "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())
                        + (SELECT count(*) FROM pg_publication)";
        let made: i64 = sqlx::query_scalar(sql).fetch_one(&self.pool).await?;
        let known: i64 = sqlx::query_scalar("SELECT count(*) FROM relais_capture").fetch_one(&self.pool).await?;
        Ok(made + known)
    }

    async fn slots(&self) -> Result<Vec<String>> {
        let sql = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()";
        Ok(sqlx::query_scalar(sql).fetch_all(&self.pool).await?)
    }

    /// Waits until there are as many.
    async fn until_objects(&self, number: i64) -> Result<()> {
        let counted = async {
            while self.objects().await? != number {
                tokio::task::yield_now().await;
            }
            anyhow::Ok(())
        };
        timeout(DEADLINE, counted).await.with_context(|| format!("there are {number} slots and the like"))?
    }

    /// The process that sends the slot, none while nobody reads it.
    async fn reader(&self) -> Result<Option<i32>> {
        let sql = "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()";
        Ok(sqlx::query_scalar::<_, Option<i32>>(sql).fetch_optional(&self.pool).await?.flatten())
    }
}

impl Process {
    /// Stores what is declared, as the engine does.
    async fn declare(&self, declaration: CaptureDeclaration) -> Result<RelayRecord> {
        let plan = self.captures.plan(&[declaration], false, RelayCheck::Declaration).await?;
        ensure!(plan.problems.is_empty(), "{:?}", plan.problems);
        for change in plan.changes {
            if let RelayChange::Put { relay, .. } = change {
                self.declared.records().retain(|record| record.name != relay.name);
                self.declared.records().push(*relay);
            }
        }
        self.changes.send_modify(|number| *number += 1);
        Ok(self.captures.record("shop").await?)
    }

    /// Waits until this process follows the stream.
    async fn streams(&self) -> Result<()> {
        let looked = async {
            loop {
                let state = self.captures.state("shop").await?;
                if state.processes.iter().any(|process| process.activity == CaptureActivityName::Streaming) {
                    return anyhow::Ok(());
                }
            }
        };
        timeout(DEADLINE, looked).await.context("the capture streams")?
    }

    fn delete(&self) {
        self.declared.records().clear();
        self.changes.send_modify(|number| *number += 1);
    }

    async fn stop(self) -> Result<()> {
        self.stop.cancel();
        Ok(timeout(DEADLINE, self.task).await.context("the process stops")??)
    }
}

fn id_of(message: &RoutedMessage) -> Option<i64> {
    let payload = message.message.payload.as_ref()?;
    serde_json::from_slice::<Value>(payload).ok()?["after"]["id"].as_i64()
}

#[tokio::test]
async fn another_password_keeps_the_slot_and_what_it_has() -> Result<()> {
    let world = World::new().await?;
    let process = world.process();
    let with_password = |password: &str| world.database.url().replace("postgres@", &format!("postgres:{password}@"));
    process.declare(world.declaration(json!({"databaseUrl": with_password("old")}))?).await?;
    process.streams().await?;
    world.row_arrives().await?;
    for password in ["new", "newer"] {
        process.declare(world.declaration(json!({"databaseUrl": with_password(password)}))?).await?;
        // One that was missed would never come: there are no snapshots.
        world.row_arrives().await?;
    }
    ensure!(process.captures.in_trouble().is_empty(), "{:?}", process.captures.in_trouble());
    process.stop().await?;
    ensure!(world.objects().await? == 3, "all of it is still there");
    Ok(())
}

#[tokio::test]
async fn a_late_release_leaves_alone_what_is_declared_again() -> Result<()> {
    let world = World::new().await?;
    let process = world.process();
    let deleted = process.declare(world.declaration(json!({}))?).await?;
    process.streams().await?;
    world.row_arrives().await?;
    process.delete();
    world.until_objects(0).await?;
    process.declare(world.declaration(json!({}))?).await?;
    process.streams().await?;
    world.row_arrives().await?;
    let reader = world.reader().await?.context("somebody reads the slot")?;
    // Of whoever was told to delete it, and had to wait for the database.
    process.captures.release(&deleted).await?;
    ensure!(world.objects().await? == 3, "it was dropped");
    ensure!(world.reader().await? == Some(reader), "whoever reads it was sent away");
    world.row_arrives().await?;
    // Declared again with another slot, the old one is nobody's.
    process.delete();
    world.until_objects(0).await?;
    let other = format!("other_{}", world.database.name());
    process.declare(world.declaration(json!({"slot": other}))?).await?;
    process.streams().await?;
    world.row_arrives().await?;
    let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    sqlx::query(sql).bind(world.database.name()).execute(&world.pool).await?;
    process.captures.release(&deleted).await?;
    ensure!(world.slots().await? == [other.as_str()], "{:?}", world.slots().await?);
    world.row_arrives().await?;
    process.stop().await
}

#[tokio::test]
async fn a_renamed_slot_is_dropped_and_the_new_one_is_read() -> Result<()> {
    let world = World::new().await?;
    let process = world.process();
    process.declare(world.declaration(json!({"snapshot": "initial"}))?).await?;
    process.streams().await?;
    world.row_arrives().await?;
    let other = format!("other_{}", world.database.name());
    process.declare(world.declaration(json!({"snapshot": "initial", "slot": other}))?).await?;
    world.row_arrives().await?;
    let waiting = async {
        while world.slots().await? != [other.as_str()] {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    timeout(DEADLINE, waiting).await.context("the old slot is gone")??;
    process.stop().await
}

/// A process that does not hear of it makes anew what the others have dropped, and drops it once it hears.
#[tokio::test]
async fn a_deleted_capture_leaves_nothing_behind_once_every_process_knows() -> Result<()> {
    let world = World::new().await?;
    let (away, there) = (world.process(), world.process());
    let record = away.declare(world.declaration(json!({}))?).await?;
    away.streams().await?;
    world.row_arrives().await?;
    // Pruned by another process. The one that reads is away from the store.
    away.declared.away.store(true, Ordering::SeqCst);
    away.declared.records().clear();
    there.captures.release(&record).await?;
    // It comes back to its slot, which it makes anew.
    world.until_objects(3).await?;
    away.declared.away.store(false, Ordering::SeqCst);
    away.delete();
    world.until_objects(0).await?;
    away.stop().await?;
    there.stop().await
}

/// The process that ran it is gone, and no other one runs captures: whoever prunes it drops what it had.
#[tokio::test]
async fn a_capture_that_is_pruned_while_nobody_runs_it_leaves_nothing_behind() -> Result<()> {
    let world = World::new().await?;
    let gone = world.process();
    let record = gone.declare(world.declaration(json!({}))?).await?;
    gone.streams().await?;
    world.row_arrives().await?;
    gone.stop().await?;
    ensure!(world.objects().await? == 3, "the slot waits for the next process");
    let there = world.process();
    there.captures.release(&record).await?;
    ensure!(world.objects().await? == 0, "{} are left", world.objects().await?);
    there.stop().await
}

#[tokio::test]
async fn a_slot_is_dropped_also_if_the_store_was_away_when_it_was_asked() -> Result<()> {
    let world = World::new().await?;
    let process = world.process();
    process.declare(world.declaration(json!({}))?).await?;
    process.streams().await?;
    // The first one tells that it is deleted, the second one whether it still is.
    process.declared.fails_in.store(2, Ordering::SeqCst);
    process.delete();
    world.until_objects(0).await?;
    process.stop().await
}
