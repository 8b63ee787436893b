//! A relay is killed, or stands still while another takes over, at each point between reading a row, publishing it, its
//! confirmation, its mark and the confirmation to the slot. No message is lost at any of them, and order per key is kept.
//!
//! Prints one line for each point: `messages N, lost N, out of order N, never committed N, repeats N`.

mod world;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use futures::future::try_join_all;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use relais_outbox::{
    CaptureOptions, CaptureSource, FailedKey, FailedRow, Layout, Mode, OutboxBacklog, OutboxError, OutboxRow,
    OutboxStore, ParkedRow, PartitionLeases, ReadRequest, RelayIntent, RelayOptions,
};
use tokio::sync::{Notify, watch};

use world::{DEADLINE, RunningRelay, TestSink, World};

type Stored<T> = Result<T, OutboxError>;

/// Where a relay can be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    BeforeRead,
    AfterRead,
    /// The sink was called, and has nothing yet.
    BeforePublish,
    /// The sink has the messages, and has not said so.
    Arrived,
    BeforeMark,
    AfterMark,
    /// The server was told that the slot's reader needs the rows no more.
    SlotConfirmed,
}

/// Holds a relay at a point.
struct Trap {
    point: Point,
    /// Passes that are left until it closes.
    left: AtomicUsize,
    reached: Notify,
    open: watch::Sender<bool>,
}

impl Trap {
    fn new(point: Point, passes: usize) -> Arc<Self> {
        let (left, open) = (AtomicUsize::new(passes), watch::Sender::new(false));
        Arc::new(Self { point, left, reached: Notify::new(), open })
    }

    async fn pass(&self, point: Point) {
        let count_down = |left: usize| left.checked_sub(1);
        if point == self.point
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_down) == Err(0)
            && !*self.open.borrow()
        {
            self.reached.notify_one();
            let _ = self.open.subscribe().wait_for(|open| *open).await;
        }
    }

    async fn until_reached(&self) -> Result<()> {
        tokio::time::timeout(DEADLINE, self.reached.notified()).await.with_context(|| format!("{:?}", self.point))
    }
}

/// A sink with a trap.
struct TrappedSink {
    sink: Arc<TestSink>,
    trap: Arc<Trap>,
}

#[async_trait]
impl Sink for TrappedSink {
    fn durability(&self) -> Durability {
        self.sink.durability()
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        self.trap.pass(Point::BeforePublish).await;
        let outcomes = self.sink.publish(batch).await;
        self.trap.pass(Point::Arrived).await;
        outcomes
    }

    async fn close(&self) {
        self.sink.close().await;
    }
}

/// A store with a trap.
struct TrappedStore {
    store: Arc<dyn OutboxStore>,
    trap: Arc<Trap>,
}

#[async_trait]
impl OutboxStore for TrappedStore {
    async fn prepare(&self) -> Stored<Layout> {
        self.store.prepare().await
    }

    async fn renew_leases(
        &self,
        outbox: &str,
        relay: &str,
        partitions: i32,
        lease: Duration,
        intent: RelayIntent,
    ) -> Stored<PartitionLeases> {
        self.store.renew_leases(outbox, relay, partitions, lease, intent).await
    }

    async fn release_leases(&self, outbox: &str, relay: &str) -> Stored<()> {
        self.store.release_leases(outbox, relay).await
    }

    async fn read_unpublished(&self, request: &ReadRequest) -> Stored<Vec<OutboxRow>> {
        if request.rows == 0 {
            // The relay tries its statement before it runs.
            return self.store.read_unpublished(request).await;
        }
        self.trap.pass(Point::BeforeRead).await;
        let rows = self.store.read_unpublished(request).await?;
        if !rows.is_empty() {
            self.trap.pass(Point::AfterRead).await;
        }
        Ok(rows)
    }

    async fn next_retry(&self, outbox: &str) -> Stored<Option<Duration>> {
        self.store.next_retry(outbox).await
    }

    async fn mark_published(&self, outbox: &str, ids: &[String], delete: bool) -> Stored<u64> {
        self.trap.pass(Point::BeforeMark).await;
        let marked = self.store.mark_published(outbox, ids, delete).await?;
        self.trap.pass(Point::AfterMark).await;
        Ok(marked)
    }

    async fn record_failures(&self, outbox: &str, failed: &[FailedRow]) -> Stored<()> {
        self.store.record_failures(outbox, failed).await
    }

    async fn purge_published(&self, older_than: Duration, limit: usize) -> Stored<u64> {
        self.store.purge_published(older_than, limit).await
    }

    async fn backlog(&self, outbox: &str, limit: u64) -> Stored<OutboxBacklog> {
        self.store.backlog(outbox, limit).await
    }

    async fn list_parked(&self, request: &ReadRequest) -> Stored<Vec<ParkedRow>> {
        self.store.list_parked(request).await
    }

    async fn retry_parked(&self, outbox: &str, ids: &[String]) -> Stored<u64> {
        self.store.retry_parked(outbox, ids).await
    }

    async fn skip_parked(&self, outbox: &str, ids: &[String]) -> Stored<u64> {
        self.store.skip_parked(outbox, ids).await
    }

    async fn capture_source(&self) -> Stored<Option<CaptureSource>> {
        self.store.capture_source().await
    }

    async fn relay_that_captures(&self, outbox: &str) -> Stored<Option<String>> {
        self.store.relay_that_captures(outbox).await
    }

    async fn failed_keys(&self, request: &ReadRequest) -> Stored<Vec<FailedKey>> {
        self.store.failed_keys(request).await
    }

    async fn wait_for_rows(&self) {
        self.store.wait_for_rows().await;
    }
}

const KEYS: usize = 5;

/// Writes messages that nobody else has written, some in one transaction; and some that are rolled back.
async fn write(world: &World, from: usize, to: usize) -> Result<()> {
    for key in 0..KEYS {
        let key = format!("k{key}");
        world.add_and_roll_back(&key, 1000 + from).await?;
        world.add_together(&key, from..from + 2).await?;
        for number in from + 2..to {
            world.add(&key, number).await?;
        }
    }
    Ok(())
}

/// What happens to a relay that has reached the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is killed.
    Killed,
    /// It stands still until another has taken over, then goes on as if nothing had been.
    StandsStill,
}

fn options(mode: Mode) -> Result<RelayOptions> {
    // Small batches, so that a point is passed with messages before and behind.
    let capture = CaptureOptions { retry: Duration::from_millis(200), ..CaptureOptions::default() };
    let (lease, poll) = (Duration::from_secs(1), Duration::from_millis(50));
    Ok(RelayOptions { batch_rows: 7, lease, poll, mode, capture, ..RelayOptions::new("orders")? })
}

/// Breaks a relay, and says what became of its messages.
async fn break_at(point: Point, passes: usize, mode: Mode, fate: Fate) -> Result<String> {
    const MESSAGES: usize = 12;
    let world = World::postgres().await?;
    world.create().await?;
    let trap = Trap::new(point, passes);
    let sink = Arc::new(TrappedSink { sink: Arc::clone(&world.sink), trap: Arc::clone(&trap) });
    let store = Arc::new(TrappedStore { store: world.open().await?, trap: Arc::clone(&trap) });
    if mode == Mode::Polling {
        write(&world, 0, MESSAGES / 2).await?;
    }
    let broken = world.relay_with(store, sink, options(mode)?).await?;
    if mode != Mode::Polling {
        broken.until(|stats| stats.activity == relais_outbox::Activity::Capturing).await?;
        write(&world, 0, MESSAGES / 2).await?;
    }
    match point {
        Point::SlotConfirmed => world.until_slot_confirmed().await?,
        _ => trap.until_reached().await?,
    }
    let standing: Option<RunningRelay> = match fate {
        Fate::Killed => {
            broken.kill();
            None
        }
        Fate::StandsStill => Some(broken),
    };
    let other = world.relay_in_mode(world.url(), mode, options(mode)?).await?;
    write(&world, MESSAGES / 2, MESSAGES).await?;
    world.sink.until(KEYS * MESSAGES).await?;
    trap.open.send_replace(true);
    if let Some(standing) = standing {
        standing.stop().await?;
    }
    world.until_published().await?;
    other.stop().await?;

    let arrived = world.sink.arrived();
    let uncommitted = arrived.iter().filter(|outgoing| world::number(outgoing) >= 1000).count();
    let (distinct, late) = (world.sink.distinct(), world.sink.out_of_order());
    let (lost, repeats) = (KEYS * MESSAGES - (distinct - uncommitted).min(KEYS * MESSAGES), arrived.len() - distinct);
    let told = format!(
        "{mode:?}, {point:?}, pass {passes}, {fate:?}: messages {}, lost {lost}, out of order {late}, never committed \
         {uncommitted}, repeats {repeats}",
        KEYS * MESSAGES
    );
    ensure!(lost == 0 && late == 0 && uncommitted == 0, "{told}");
    Ok(told)
}

#[tokio::test]
async fn nothing_is_lost_when_a_polling_relay_is_killed_at_any_point() -> Result<()> {
    use Point::*;
    let points = [BeforeRead, AfterRead, BeforePublish, Arrived, BeforeMark, AfterMark];
    let all = points.into_iter().flat_map(|point| [(point, 0), (point, 2)]);
    let told = try_join_all(all.map(|(point, passes)| break_at(point, passes, Mode::Polling, Fate::Killed))).await?;
    println!("{}", told.join("\n"));
    Ok(())
}

#[tokio::test]
async fn nothing_is_lost_when_a_capturing_relay_is_killed_at_any_point() -> Result<()> {
    use Point::*;
    let points = [BeforePublish, Arrived, BeforeMark, AfterMark, SlotConfirmed];
    let told = try_join_all(points.map(|point| break_at(point, 2, Mode::Capture, Fate::Killed))).await?;
    println!("{}", told.join("\n"));
    Ok(())
}

#[tokio::test]
async fn a_relay_that_stood_still_while_another_took_over_breaks_no_order() -> Result<()> {
    use Point::*;
    let polling = [AfterRead, BeforePublish, Arrived, BeforeMark, AfterMark].map(|point| (point, Mode::Polling));
    let auto = [BeforePublish, Arrived, BeforeMark, AfterMark].map(|point| (point, Mode::Auto));
    let all = polling.into_iter().chain(auto);
    let told = try_join_all(all.map(|(point, mode)| break_at(point, 2, mode, Fate::StandsStill))).await?;
    println!("{}", told.join("\n"));
    Ok(())
}

/// A sink that was slow leaves rows that are old and on their way.
#[tokio::test]
async fn a_stream_that_is_behind_brings_its_rows_itself() -> Result<()> {
    let world = World::postgres().await?;
    world.create().await?;
    // The sink is held for a while. A relay that reads rows from the table never comes back.
    let (held, reads) = (Trap::new(Point::BeforePublish, 0), Trap::new(Point::BeforeRead, 0));
    let sink = Arc::new(TrappedSink { sink: Arc::clone(&world.sink), trap: Arc::clone(&held) });
    let store = Arc::new(TrappedStore { store: world.open().await?, trap: Arc::clone(&reads) });
    let sweep = Duration::from_millis(300);
    let capture = CaptureOptions { sweep, ..CaptureOptions::default() };
    let options = RelayOptions { capture, ..options(Mode::Capture)? };
    let relay = world.relay_with(store, sink, options).await?;
    relay.until(|stats| stats.activity == relais_outbox::Activity::Capturing).await?;
    write(&world, 0, 12).await?;
    held.until_reached().await?;
    world.until_older_than(10 * sweep).await?;
    held.open.send_replace(true);
    relay.until(|stats| stats.published == 12 * KEYS as u64).await?;
    relay.stop().await
}
