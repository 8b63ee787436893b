//! What only PostgreSQL can get wrong: claims beside a transaction that has some of the tasks locked.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use relais_core::{
    Change, ClaimRequest, ClientId, FlowLimits, Json, NewTask, QueueSettings, ServiceLimits, ServiceName, Status,
    TaskId, Terms, Transport,
};
use relais_store::Options;
use relais_testkit::TestDatabase;
use sqlx::{Connection as _, PgConnection};

/// A task that another transaction holds is passed over, and nobody else's is handed out twice in its stead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_limit_no_task_is_handed_out_twice_because_another_is_locked() -> Result<()> {
    let database = TestDatabase::create().await?;
    let store = relais_store::open(database.url(), &Options::default()).await?;
    store.migrate().await?;
    let flow = FlowLimits { max_running: Some(10), fair_share: true, ..FlowLimits::default() };
    let mut changes = vec![Change::PutService {
        name: ServiceName::new("resize")?,
        queue_name: "resize".to_owned(),
        transport: Transport::Builtin,
        queue: QueueSettings::default(),
        json_schema: None,
        paused: None,
        limits: ServiceLimits { flow, ..ServiceLimits::default() },
    }];
    for client in ["alice", "bob"] {
        let secret_hash = Some("hash".to_owned());
        changes.push(Change::PutClient { client_id: ClientId::new(client)?, secret_hash, destinations: None });
    }
    store.declare(changes).await?;
    let declared = store.declared().await?;
    let service = declared.services.get("resize").context("the service")?.key;
    let task = |client: &str| -> Result<NewTask> {
        Ok(NewTask {
            task_id: TaskId::generate(),
            service,
            client: declared.clients.get(client).context("the client")?.key,
            request: Json::parse("{}".to_owned())?,
            callback: None,
            correlation_id: None,
            idempotency: None,
            terms: Terms::default(),
            links: relais_core::NewLinks::default(),
            dispatch: None,
        })
    };
    let tasks = [task("alice")?, task("alice")?, task("alice")?, task("bob")?];
    let bobs = tasks[3].task_id;
    for task in tasks {
        store.submit_many(vec![task]).await?.remove(0)?;
    }
    let mut other = PgConnection::connect(database.url()).await?;
    let mut holding = other.begin().await?;
    sqlx::query("SELECT 1 FROM relais.task WHERE task_id = $1 FOR UPDATE").bind(bobs.0).execute(&mut *holding).await?;

    let claim = async |max| -> Result<Vec<TaskId>> {
        let wish =
            ClaimRequest { service, max, lease: Some(Duration::from_secs(3600)), worker_host: None, instance: None };
        let claimed = store.claim(vec![wish]).await?;
        Ok(claimed.tasks.into_iter().flatten().map(|task| task.task_id).collect())
    };
    let running = async || -> Result<u64> {
        let depths = store.queue_depths(vec![service]).await?;
        Ok(depths.first().context("the queue")?.in_progress)
    };
    let first = claim(2).await?;
    ensure!(first.len() == 1 && first[0] != bobs, "{first:?}");
    ensure!(running().await? == 1, "counted as often as it was handed out");
    holding.rollback().await?;
    let mut rest = claim(10).await?;
    rest.extend(first);
    rest.sort_unstable();
    rest.dedup();
    ensure!(rest.len() == 4 && running().await? == 4, "{rest:?}");
    let backlog = store.backlog().await?;
    for (status, expected) in [(Status::Pending, 0), (Status::InProgress, 4)] {
        let tally = backlog.tallies.iter().find(|tally| tally.service == service && tally.status == status);
        let current = tally.map_or(0, relais_core::Tally::current);
        ensure!(current == expected, "{current} are counted in {status:?} instead of {expected}");
    }
    Ok(())
}
