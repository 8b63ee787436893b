//! Chaos: writers commit and roll back while relays, the database, its connections, its slot and the sink fail, and the outbox
//! changes between capture and polling. Every committed message arrives and no other; first arrivals are in order per key.
//!
//! Ends with one line, `messages N, faults N, lost N, out of order N, never committed N, repeats N`.
//! `RELAIS_CHAOS_MESSAGES` and `RELAIS_CHAOS_FAULTS` make it longer, `RELAIS_SEED` repeats one: `cargo xtask chaos` does all.

mod world;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use relais_outbox::{CaptureOptions, Mode, Outbox, RelayOptions, Retry};
use relais_testkit::{PostgresServer, TcpProxy};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;
use world::{RunningRelay, World};

/// Keys of a writer.
const KEYS: usize = 6;

/// Writers that commit at once, and those that take their time.
const WRITERS: usize = 3;
const SLOW_WRITERS: usize = 1;

/// However long it takes until all that was committed has arrived.
const SETTLED: Duration = Duration::from_secs(180);

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Chance that can be repeated.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % limit
    }

    fn millis(&mut self, limit: usize) -> Duration {
        Duration::from_millis(self.below(limit) as u64)
    }
}

/// What writers did.
#[derive(Default)]
struct Ledger {
    committed: Mutex<HashSet<String>>,
    number: AtomicUsize,
    enough: AtomicBool,
}

impl Ledger {
    fn committed(&self) -> MutexGuard<'_, HashSet<String>> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, ids: Vec<String>) {
        self.number.fetch_add(ids.len(), Ordering::Relaxed);
        self.committed().extend(ids);
    }
}

/// Writes transactions until there are enough. Each key has one writer, so that its numbers are in the order of commits.
async fn write(url: String, writer: usize, slow: bool, seed: u64, ledger: Arc<Ledger>) -> Result<()> {
    let (outbox, mut chance) = (Outbox::new("outbox")?, Chance(seed));
    let mut next: HashMap<usize, usize> = HashMap::new();
    let mut connection: Option<PgConnection> = None;
    while !ledger.enough.load(Ordering::Relaxed) {
        let Some(open) = &mut connection else {
            connection = PgConnection::connect(&url).await.ok();
            tokio::task::yield_now().await;
            continue;
        };
        let (mut ids, mut numbers) = (Vec::new(), next.clone());
        let rolls_back = chance.below(5) == 0;
        let written: Result<(), sqlx::Error> = async {
            let mut transaction = open.begin().await?;
            for _ in 0..=chance.below(8) {
                let key = chance.below(KEYS);
                let number = numbers.entry(key).or_default();
                let event = world::event(&format!("w{writer}k{key}"), *number, 0)
                    .map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
                // Numbers are used again after a rollback; ids are not.
                let event = relais_outbox::OutboxEvent { id: Uuid::now_v7(), ..event };
                *number += 1;
                ids.push(event.id.to_string());
                outbox
                    .add(&mut *transaction, &event)
                    .await
                    .map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
            }
            if slow {
                tokio::time::sleep(chance.millis(400)).await;
            }
            match rolls_back {
                true => transaction.rollback().await,
                false => transaction.commit().await,
            }
        }
        .await;
        let committed = match written {
            Ok(()) => !rolls_back,
            // Nobody said whether it was committed: the table knows.
            Err(_) => {
                connection = None;
                match ids.first() {
                    Some(first) => is_there(&url, first).await?,
                    None => false,
                }
            }
        };
        if committed {
            next = numbers;
            ledger.note(ids);
        }
    }
    Ok(())
}

async fn is_there(url: &str, id: &str) -> Result<bool> {
    let begun = Instant::now();
    loop {
        let asked: Result<bool, sqlx::Error> = async {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM outbox WHERE id = $1::text::uuid)")
                .bind(id)
                .fetch_one(&mut connection)
                .await
        }
        .await;
        match asked {
            Ok(there) => return Ok(there),
            Err(error) if begun.elapsed() > SETTLED => return Err(error.into()),
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

fn options(name: &str) -> Result<RelayOptions> {
    Ok(RelayOptions {
        relay: name.to_owned(),
        poll: Duration::from_millis(20),
        lease: Duration::from_secs(2),
        retry: Retry {
            limit: 1_000_000,
            base: Duration::from_millis(10),
            cap: Duration::from_millis(200),
            ..Retry::default()
        },
        capture: CaptureOptions { retry: Duration::from_millis(200), ..CaptureOptions::default() },
        ..RelayOptions::new("orders")?
    })
}

/// The relays that run, and what is between them and their database.
struct Stage {
    world: World,
    server: PostgresServer,
    proxy: TcpProxy,
    relays: Vec<Option<RunningRelay>>,
    born: usize,
    faults: BTreeMap<&'static str, usize>,
}

impl Stage {
    fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    /// Starts a relay in this place as soon as the database lets it.
    async fn start(&mut self, place: usize, mode: Mode) -> Result<()> {
        self.born += 1;
        let url = self.server.url_via(self.proxy.addr(), "postgres");
        let begun = Instant::now();
        loop {
            match self.world.relay_in_mode(&url, mode, options(&format!("relay-{}", self.born))?).await {
                Ok(relay) => {
                    self.relays[place] = Some(relay);
                    return Ok(());
                }
                Err(error) => ensure!(begun.elapsed() < SETTLED, "no relay can start: {error}"),
            }
        }
    }

    async fn fault(&mut self, chance: &mut Chance) -> Result<()> {
        let place = chance.below(self.relays.len());
        match chance.below(9) {
            0 => {
                self.count("relay killed");
                self.relays[place].take().context("a relay")?.kill();
                self.start(place, Mode::Auto).await
            }
            1 => {
                self.count("relay stopped");
                self.relays[place].take().context("a relay")?.stop().await?;
                self.start(place, Mode::Auto).await
            }
            2 => {
                self.count("database killed");
                self.server.kill9()?;
                tokio::time::sleep(chance.millis(100)).await;
                self.server.restart().await
            }
            3 => {
                self.count("connections cut");
                self.proxy.cut().await?;
                tokio::time::sleep(chance.millis(300)).await;
                Ok(self.proxy.restore().await?)
            }
            4 => {
                self.count("slot dropped");
                let _ = self.end_senders(true).await;
                Ok(())
            }
            5 => {
                self.count("stream ended");
                let _ = self.end_senders(false).await;
                Ok(())
            }
            6 => {
                self.count("sink away");
                self.world.sink.away(true);
                tokio::time::sleep(chance.millis(500)).await;
                self.world.sink.away(false);
                Ok(())
            }
            7 => {
                self.count("sink fails by chance");
                self.world.sink.chance_of_failure(0.2);
                tokio::time::sleep(chance.millis(500)).await;
                self.world.sink.chance_of_failure(0.0);
                Ok(())
            }
            _ => {
                self.count("switched to polling and back");
                for place in 0..self.relays.len() {
                    self.relays[place].take().context("a relay")?.stop().await?;
                    self.start(place, Mode::Polling).await?;
                }
                tokio::time::sleep(chance.millis(300)).await;
                for place in 0..self.relays.len() {
                    self.relays[place].take().context("a relay")?.kill();
                    self.start(place, Mode::Auto).await?;
                }
                Ok(())
            }
        }
    }

    async fn end_senders(&self, drop_slot: bool) -> Result<()> {
        let mut connection = PgConnection::connect(&self.server.url("postgres")).await?;
        sqlx::query(
            "SELECT pg_terminate_backend(active_pid, 2000) FROM pg_replication_slots WHERE active_pid IS NOT NULL",
        )
        .execute(&mut connection)
        .await?;
        if drop_slot {
            sqlx::query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
                .execute(&mut connection)
                .await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_out_of_order_whatever_fails() -> Result<()> {
    let (messages, faults) = (setting("RELAIS_CHAOS_MESSAGES", 3_000), setting("RELAIS_CHAOS_FAULTS", 12));
    let seed = setting("RELAIS_SEED", 7) as u64;
    let server = PostgresServer::options().fsync(true).start().await?;
    let url = server.url("postgres");
    let world = World::at(&url).await?;
    world.create().await?;
    let proxy = TcpProxy::start(server.addr()).await?;
    let mut stage = Stage { world, server, proxy, relays: vec![None, None], born: 0, faults: BTreeMap::new() };
    for place in 0..stage.relays.len() {
        stage.start(place, Mode::Auto).await?;
    }
    let ledger = Arc::<Ledger>::default();
    let writers: Vec<_> = (0..WRITERS + SLOW_WRITERS)
        .map(|writer| {
            tokio::spawn(write(url.clone(), writer, writer >= WRITERS, seed + writer as u64, Arc::clone(&ledger)))
        })
        .collect();
    let mut chance = Chance(seed);
    let mut done = 0;
    while done < faults || ledger.number.load(Ordering::Relaxed) < messages {
        tokio::time::sleep(chance.millis(700)).await;
        if done < faults {
            stage.fault(&mut chance).await?;
            done += 1;
        }
    }
    ledger.enough.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await??;
    }
    let committed = ledger.committed().clone();
    let begun = Instant::now();
    while begun.elapsed() < SETTLED && !stage.world.sink.has_all(&committed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for relay in stage.relays.iter_mut().filter_map(Option::take) {
        relay.stop().await?;
    }
    let arrived = stage.world.sink.arrived();
    let mut seen = HashSet::new();
    let repeats = arrived.iter().filter(|outgoing| !seen.insert(outgoing.message.id.clone())).count();
    let lost = committed.difference(&seen).count();
    let never_committed = seen.difference(&committed).count();
    let out_of_order = stage.world.sink.out_of_order();
    println!(
        "messages {}, faults {done} {:?}, lost {lost}, out of order {out_of_order}, never committed {never_committed}, repeats {repeats}",
        committed.len(),
        stage.faults
    );
    ensure!((lost, out_of_order, never_committed) == (0, 0, 0), "the outbox does not hold its promise (seed {seed})");
    ensure!(committed.len() >= messages && done >= faults, "too little happened");
    Ok(())
}
