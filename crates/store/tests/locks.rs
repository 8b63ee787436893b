//! What only PostgreSQL can get wrong: claims and submissions beside a transaction that has locked what they need.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use relais_core::{
    Change, ClaimRequest, ClientId, ClientKey, CrashPolicy, FlowLimits, Json, NewInstance, NewTask, QueueSettings,
    Registration, ServiceKey, ServiceLimits, ServiceName, Status, Store, TaskId, TaskTransport, Terms,
};
use relais_store::Options;
use relais_testkit::TestDatabase;
use sqlx::{Connection as _, PgConnection};
use tokio::time::{Instant, timeout};

/// A service with two clients, on a database of its own.
struct World {
    database: TestDatabase,
    store: Arc<dyn Store>,
    service: ServiceKey,
    clients: [ClientKey; 2],
}

impl World {
    async fn new(flow: FlowLimits) -> Result<Self> {
        let database = TestDatabase::create().await?;
        let store = relais_store::open(database.url(), &Options::default()).await?;
        store.migrate().await?;
        let mut changes = vec![Change::PutService {
            name: ServiceName::new("resize")?,
            queue_name: "resize".to_owned(),
            transport: TaskTransport::Builtin,
            queue: QueueSettings::default(),
            json_schema: None,
            paused: None,
            limits: ServiceLimits { flow, ..ServiceLimits::default() },
        }];
        for client in ["alice", "bob"] {
            let secret_hash = Some("hash".to_owned());
            changes.push(Change::PutClient {
                client_id: ClientId::new(client)?,
                secret_hash,
                destinations: None,
                notifications: None,
            });
        }
        store.declare(changes).await?;
        let declared = store.declared().await?;
        let service = declared.services.get("resize").context("the service")?.key;
        let client = |name| anyhow::Ok(declared.clients.get(name).context("the client")?.key);
        let clients = [client("alice")?, client("bob")?];
        Ok(Self { database, store, service, clients })
    }

    fn task(&self, client: ClientKey) -> Result<NewTask> {
        Ok(NewTask {
            task_id: TaskId::generate(),
            service: self.service,
            client,
            request: Json::parse("{}".to_owned())?,
            callback: None,
            correlation_id: None,
            idempotency: None,
            terms: Terms::default(),
            links: relais_core::NewLinks::default(),
            dispatch: None,
        })
    }

    /// A process that does tasks of the service, and what it asks for.
    async fn join(&self) -> Result<ClaimRequest> {
        let joined = self.store.register_instance(NewInstance {
            name: "one".to_owned(),
            host: None,
            version: String::new(),
            policy: CrashPolicy::Restart,
            silence: Duration::from_secs(3600),
            services: vec![self.service],
        });
        let Registration::In { key, .. } = joined.await? else { bail!("it may begin") };
        Ok(ClaimRequest { service: self.service, max: 10, lease: None, worker_host: None, instance: Some(key) })
    }

    /// Whether somebody waits for a lock, or soon does.
    async fn waits_for_a_lock(&self) -> Result<()> {
        let mut connection = PgConnection::connect(self.database.url()).await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let waits: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')",
            )
            .fetch_one(&mut connection)
            .await?;
            if waits {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "nobody waits for a lock");
        }
    }
}

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(20);

/// A submission that was to be in the hand of the process that submits it, was given up, and goes on late: its task is
/// anybody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_that_commits_late_is_leased_by_nobody() -> Result<()> {
    let world = World::new(FlowLimits::default()).await?;
    let request = world.join().await?;
    let alice = world.clients[0];
    let (_, warm) = world.store.submit_and_claim(vec![world.task(alice)?], request.clone()).await?;
    ensure!(warm.len() == 1, "what is submitted while it waits is leased to it");

    let mut other = PgConnection::connect(world.database.url()).await?;
    let mut holding = other.begin().await?;
    sqlx::query("SELECT 1 FROM relais.counter FOR UPDATE").execute(&mut *holding).await?;
    let late = world.task(alice)?;
    let name = late.task_id;
    let (store, requested) = (Arc::clone(&world.store), request.clone());
    let given_up = tokio::spawn(async move { store.submit_and_claim(vec![late], requested).await.map(drop) });
    world.waits_for_a_lock().await?;
    given_up.abort();
    ensure!(given_up.await.is_err_and(|failure| failure.is_cancelled()), "it was given up");
    let claimed = world.store.claim_tasks(vec![request.clone()]).await?.tasks.concat();
    ensure!(claimed.is_empty(), "nothing is there yet: {claimed:?}");
    holding.rollback().await?;

    let deadline = Instant::now() + PATIENCE;
    while world.store.find_task(name).await?.is_none() {
        ensure!(Instant::now() < deadline, "the submission was lost, which it may be, but not here");
    }
    let claimed = world.store.claim_tasks(vec![request]).await?.tasks.concat();
    ensure!(claimed.iter().map(|task| task.task_id).eq([name]), "it is in a lease that nobody knows: {claimed:?}");
    Ok(())
}

/// A claim that was given up and goes on: what it takes is found by the next one, which waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_cancelled_claim_are_found_by_the_next_claim() -> Result<()> {
    let world = World::new(FlowLimits::default()).await?;
    let request = world.join().await?;
    let task = world.task(world.clients[0])?;
    let name = task.task_id;
    world.store.submit_many(vec![task]).await?.remove(0)?;

    let mut other = PgConnection::connect(world.database.url()).await?;
    let mut holding = other.begin().await?;
    sqlx::query("SELECT 1 FROM relais.flow FOR UPDATE").execute(&mut *holding).await?;
    let claim = || {
        let (store, requested) = (Arc::clone(&world.store), request.clone());
        tokio::spawn(async move { store.claim_tasks(vec![requested]).await })
    };
    let given_up = claim();
    world.waits_for_a_lock().await?;
    given_up.abort();
    ensure!(given_up.await.is_err_and(|failure| failure.is_cancelled()), "it was given up");
    let next = claim();
    holding.rollback().await?;
    let claimed = timeout(PATIENCE, next).await???.tasks.concat();
    ensure!(claimed.iter().map(|task| task.task_id).eq([name]), "{claimed:?}");
    ensure!(world.store.claim_tasks(vec![request]).await?.tasks.concat().is_empty(), "it is claimed once");
    Ok(())
}

/// A task that another transaction holds is passed over, and nobody else's is claimed twice in its stead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_limited_claim_never_gets_a_task_twice_because_another_is_locked() -> Result<()> {
    let flow = FlowLimits { max_running: Some(10), fair_share: true, ..FlowLimits::default() };
    let world = World::new(flow).await?;
    let (store, service, [alice, bob]) = (&world.store, world.service, world.clients);
    let tasks = [world.task(alice)?, world.task(alice)?, world.task(alice)?, world.task(bob)?];
    let bobs = tasks[3].task_id;
    for task in tasks {
        store.submit_many(vec![task]).await?.remove(0)?;
    }
    let mut other = PgConnection::connect(world.database.url()).await?;
    let mut holding = other.begin().await?;
    sqlx::query("SELECT 1 FROM relais.task WHERE task_id = $1 FOR UPDATE").bind(bobs.0).execute(&mut *holding).await?;

    let claim = async |max| -> Result<Vec<TaskId>> {
        let requested =
            ClaimRequest { service, max, lease: Some(Duration::from_secs(3600)), worker_host: None, instance: None };
        let claimed = store.claim_tasks(vec![requested]).await?;
        Ok(claimed.tasks.into_iter().flatten().map(|task| task.task_id).collect())
    };
    let running = async || -> Result<u64> {
        let depths = store.queue_depths(vec![service]).await?;
        Ok(depths.first().context("the queue")?.in_progress)
    };
    let first = claim(2).await?;
    ensure!(first.len() == 1 && first[0] != bobs, "{first:?}");
    ensure!(running().await? == 1, "counted as often as it was claimed");
    holding.rollback().await?;
    let mut rest = claim(10).await?;
    rest.extend(first);
    rest.sort_unstable();
    rest.dedup();
    ensure!(rest.len() == 4 && running().await? == 4, "{rest:?}");
    let backlog = store.backlog().await?;
    for (status, expected) in [(Status::Pending, 0), (Status::InProgress, 4)] {
        let counter = backlog.counters.iter().find(|counter| counter.service == service && counter.status == status);
        let current = counter.map_or(0, relais_core::StatusCounter::current);
        ensure!(current == expected, "{current} are counted in {status:?} instead of {expected}");
    }
    Ok(())
}
