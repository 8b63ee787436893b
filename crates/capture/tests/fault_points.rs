//! A capture is killed at each point between reading a change, publishing it, its confirmation, the stored position and the
//! confirmation to the slot, while it follows the log and while it reads a snapshot. No change is lost, and the versions of a
//! row arrive in order.
//!
//! Prints one line for each point: `changes N, lost N, out of order N, repeats N`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use futures::future::try_join_all;
use relais_capture::{Capture, CaptureActivity, CaptureOptions, CapturedDatabase};
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use relais_testkit::TestDatabase;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// For whatever should happen soon, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// So many rows, each changed so often.
const ROWS: usize = 40;
const VERSIONS: usize = 6;

/// Where a capture can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// The sink was called, and has nothing yet.
    BeforePublish,
    /// The sink has the messages, and has not said so.
    Arrived,
    /// The sink has confirmed; the position is not stored.
    BeforeStore,
    /// The position is stored; the slot was perhaps not told.
    Stored,
    /// The slot was told.
    SlotConfirmed,
}

/// A sink that remembers what arrived, and can stop whoever calls it.
struct Memory {
    arrived: Mutex<Vec<RoutedMessage>>,
    changed: Notify,
    holds_at: watch::Sender<Option<Point>>,
    reached: Notify,
}

impl Memory {
    fn arrived(&self) -> MutexGuard<'_, Vec<RoutedMessage>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pass(&self, point: Point) {
        let mut holds_at = self.holds_at.subscribe();
        if *holds_at.borrow() == Some(point) {
            self.reached.notify_one();
            let _ = holds_at.wait_for(|at| *at != Some(point)).await;
        }
    }

    /// The versions of each row, in the order of their first arrivals; and how many came again.
    fn versions(&self) -> (BTreeMap<i64, Vec<i64>>, usize) {
        let (mut versions, mut seen, mut repeats) = (BTreeMap::<i64, Vec<i64>>::new(), BTreeSet::new(), 0);
        for outgoing in self.arrived().iter() {
            let payload = outgoing.message.payload.as_ref().expect("no row is deleted");
            let value: Value = serde_json::from_slice(payload).expect("JSON");
            let number = |name: &str| value["after"][name].as_i64().expect("a number");
            match seen.insert((number("id"), number("version"))) {
                true => versions.entry(number("id")).or_default().push(number("version")),
                false => repeats += 1,
            }
        }
        (versions, repeats)
    }

    async fn until(&self, done: impl Fn(&BTreeMap<i64, Vec<i64>>) -> bool) -> Result<()> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if done(&self.versions().0) {
                    return;
                }
                changed.await;
            }
        };
        timeout(DEADLINE, waiting).await.with_context(|| format!("arrived: {:?}", self.versions()))
    }
}

#[async_trait]
impl Sink for Memory {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        self.pass(Point::BeforePublish).await;
        let outcomes = vec![PublishOutcome::Confirmed; batch.len()];
        self.arrived().extend(batch);
        self.changed.notify_waiters();
        self.pass(Point::Arrived).await;
        outcomes
    }

    async fn close(&self) {}
}

struct World {
    database: TestDatabase,
    pool: PgPool,
    sink: Arc<Memory>,
    options: CaptureOptions,
}

impl World {
    async fn new() -> Result<Self> {
        let database = TestDatabase::create().await?;
        let pool = PgPool::connect(database.url()).await?;
        // Small batches and chunks, so that there is something before and behind each point.
        let options =
            CaptureOptions { batch_rows: 7, chunk_rows: 9, ..CaptureOptions::new(database.name(), &["orders"])? };
        let sink = Arc::new(Memory {
            arrived: Mutex::default(),
            changed: Notify::new(),
            holds_at: watch::Sender::new(None),
            reached: Notify::new(),
        });
        let world = Self { database, pool, sink, options };
        world.execute("CREATE TABLE orders (id integer PRIMARY KEY, version integer NOT NULL)").await?;
        Ok(world)
    }

    async fn execute(&self, statements: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&self.pool).await?;
        Ok(())
    }

    async fn insert(&self) -> Result<()> {
        self.execute(&format!("INSERT INTO orders SELECT n, 0 FROM generate_series(1, {ROWS}) n")).await
    }

    /// Changes every row, in a transaction for each version.
    async fn change(&self, versions: std::ops::Range<usize>) -> Result<()> {
        for version in versions {
            self.execute(&format!("UPDATE orders SET version = {version}")).await?;
        }
        Ok(())
    }

    async fn start(&self) -> Result<(JoinHandle<()>, CancellationToken, relais_capture::CaptureHandle)> {
        let database = CapturedDatabase::connect(self.database.url()).await?;
        let capture = Capture::new(database, Arc::<Memory>::clone(&self.sink), self.options.clone());
        let (stop, handle) = (CancellationToken::new(), capture.handle());
        Ok((tokio::spawn(capture.run(stop.clone())), stop, handle))
    }

    /// Waits until a query says true.
    async fn until(&self, query: &'static str) -> Result<()> {
        let asked = async {
            while !sqlx::query_scalar::<_, bool>(query).fetch_one(&self.pool).await? {
                tokio::task::yield_now().await;
            }
            anyhow::Ok(())
        };
        timeout(DEADLINE, asked).await.with_context(|| query)?
    }
}

/// Waits until a capture is at the point while it publishes the changes of `work`, and kills it there.
async fn kill_at(
    world: &World,
    point: Point,
    capture: JoinHandle<()>,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    match point {
        Point::BeforePublish | Point::Arrived => {
            world.sink.holds_at.send_replace(Some(point));
            work.await?;
            timeout(DEADLINE, world.sink.reached.notified()).await.with_context(|| format!("{point:?}"))?;
            capture.abort();
            let _ = capture.await;
            world.sink.holds_at.send_replace(None);
        }
        Point::BeforeStore => {
            let mut lock = PgConnection::connect(world.database.url()).await?;
            sqlx::raw_sql("BEGIN; LOCK TABLE relais_capture IN EXCLUSIVE MODE").execute(&mut lock).await?;
            work.await?;
            world
                .until(
                    "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE relation = 'relais_capture'::regclass AND NOT granted)",
                )
                .await?;
            capture.abort();
            let _ = capture.await;
            // What a dead process has asked for must not be done after all.
            let end = "SELECT bool_and(pg_terminate_backend(pid, 5000)) FROM pg_locks
                       WHERE relation = 'relais_capture'::regclass AND NOT granted";
            sqlx::query(end).execute(&mut lock).await?;
            lock.close().await?;
        }
        Point::Stored | Point::SlotConfirmed => {
            world.execute("CREATE TABLE before AS SELECT commit_lsn, ordinal, after_key FROM relais_capture").await?;
            work.await?;
            world
                .until("SELECT (r.commit_lsn, r.ordinal) > (b.commit_lsn, b.ordinal) FROM relais_capture r, before b")
                .await?;
            if point == Point::SlotConfirmed {
                world
                    .until(
                        "SELECT s.confirmed_flush_lsn > b.commit_lsn AND s.confirmed_flush_lsn > '0/0'
                         FROM pg_replication_slots s, before b WHERE s.database = current_database()",
                    )
                    .await?;
            }
            capture.abort();
            let _ = capture.await;
        }
    }
    Ok(())
}

/// Kills a capture at a point, and says what became of the changes.
async fn break_at(point: Point, in_snapshot: bool) -> Result<String> {
    let world = World::new().await?;
    if in_snapshot {
        world.insert().await?;
    }
    let (capture, _, handle) = world.start().await?;
    if in_snapshot {
        // The first chunk is published before it is killed.
        world.sink.until(|versions| !versions.is_empty()).await?;
        kill_at(&world, point, capture, async { world.change(1..2).await }).await?;
    } else {
        timeout(DEADLINE, handle.until(|stats| stats.activity == CaptureActivity::Streaming)).await?;
        world.insert().await?;
        world.sink.until(|versions| versions.len() == ROWS).await?;
        kill_at(&world, point, capture, async { world.change(1..2).await }).await?;
    }
    world.change(2..VERSIONS).await?;
    let (capture, stop, _) = world.start().await?;
    let last = i64::try_from(VERSIONS)? - 1;
    world
        .sink
        .until(|versions| versions.len() == ROWS && versions.values().all(|of_row| of_row.contains(&last)))
        .await?;
    stop.cancel();
    timeout(DEADLINE, capture).await.context("the capture stops")??;

    let (versions, repeats) = world.sink.versions();
    // A row that a snapshot reads late begins with a later version; what follows is complete.
    let lost = versions.values().map(|of_row| {
        let first = of_row.first().copied().filter(|_| in_snapshot).unwrap_or_default();
        (first..=last).filter(|version| !of_row.contains(version)).count()
    });
    let (lost, late) = (lost.sum::<usize>(), versions.values().filter(|of_row| !of_row.is_sorted()).count());
    let told = format!(
        "{point:?}, {}: changes {}, lost {lost}, out of order {late}, repeats {repeats}",
        if in_snapshot { "in a snapshot" } else { "in the stream" },
        ROWS * VERSIONS
    );
    ensure!(lost == 0 && late == 0, "{told}");
    Ok(told)
}

const POINTS: [Point; 5] =
    [Point::BeforePublish, Point::Arrived, Point::BeforeStore, Point::Stored, Point::SlotConfirmed];

#[tokio::test]
async fn no_change_is_lost_when_a_capture_is_killed_at_any_point_of_the_stream() -> Result<()> {
    let told = try_join_all(POINTS.map(|point| break_at(point, false))).await?;
    println!("{}", told.join("\n"));
    Ok(())
}

#[tokio::test]
async fn no_row_is_lost_when_a_capture_is_killed_at_any_point_of_a_snapshot() -> Result<()> {
    let told = try_join_all(POINTS.map(|point| break_at(point, true))).await?;
    println!("{}", told.join("\n"));
    Ok(())
}
