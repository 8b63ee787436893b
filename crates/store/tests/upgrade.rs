//! A database of an earlier version, with tasks in every state, is migrated and goes on.
//!
//! `databases/` holds dumps that the server of that version left behind when it was killed. Each task's correlation id says
//! what is the matter with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use relais_core::{
    AudienceTypes, Change, ClaimRequest, ClientId, ClientKey, Event, Json, NewLinks, NewTask, NotificationRights,
    Outcome, ServiceKey, Status, Store, StoredSubmission, SubmissionValidator, Task, TaskEvent, TaskFilter, TaskId,
    Terms, UniqueKey,
};
use relais_store::Options;
use relais_testkit::TestDatabase;
use sqlx::{Connection as _, Executor as _, PgConnection, SqliteConnection, sqlite::SqliteConnectOptions};

const POSTGRES: &str = include_str!("databases/postgres_0020.sql");
const SQLITE: &str = include_str!("databases/sqlite_0016.sql");

/// Longer than anything in the dumps waits.
const LONG: Duration = Duration::from_secs(2 * 3600);

#[tokio::test]
async fn a_postgres_database_of_the_version_before_is_migrated_and_goes_on() -> Result<()> {
    let database = TestDatabase::create().await?;
    PgConnection::connect(database.url()).await?.execute(POSTGRES).await?;
    let store = relais_store::open(database.url(), &Options::default()).await?;
    goes_on(store.as_ref()).await
}

#[tokio::test]
async fn a_sqlite_database_of_the_version_before_is_migrated_and_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("relais.db");
    let url = format!("sqlite:{}", path.display());
    // A dump names tables before it makes them.
    let new_file = SqliteConnectOptions::from_str(&url)?.create_if_missing(true).foreign_keys(false);
    let mut connection = SqliteConnection::connect_with(&new_file).await?;
    sqlx::raw_sql(SQLITE).execute(&mut connection).await?;
    connection.close().await?;
    let store = relais_store::open(&url, &Options::default()).await?;
    goes_on(store.as_ref()).await?;

    // A program that was not changed inserts into the table by its old name.
    let mut connection = SqliteConnection::connect(&url).await?;
    let insert = "INSERT INTO inbox (task_id, service, client, request, created)
                  VALUES ('6c25a2f9-9c6a-4b44-9d0c-3f5b8f3f8b8e', 'plain', 'shop', '{}', 1)";
    connection.execute(insert).await?;
    ensure!(collect(store.as_ref()).await? == 1, "a submission by the old name becomes a task");
    Ok(())
}

/// During an upgrade, processes of the version before run beside the new ones, and programs insert into `inbox`.
#[tokio::test]
async fn the_tables_old_names_can_be_used_during_an_upgrade() -> Result<()> {
    let database = TestDatabase::create().await?;
    let mut old = PgConnection::connect(database.url()).await?;
    old.execute(POSTGRES).await?;
    let role: String = sqlx::query_scalar("SELECT 'writer_of_' || current_database()").fetch_one(&mut old).await?;
    let grants = format!(
        r#"CREATE ROLE "{role}"; GRANT USAGE ON SCHEMA relais TO "{role}";
           GRANT INSERT (service, client, request) ON relais.inbox TO "{role}"; GRANT SELECT ON relais.tally TO "{role}""#
    );
    old.execute(sqlx::AssertSqlSafe(grants)).await?;
    // What an old process says: each is prepared before the migration, and used again after it.
    let said = [
        "SELECT service_id, n FROM relais.tally WHERE service_id = 1 AND client_id = 0 ORDER BY service_id FOR NO KEY UPDATE",
        "UPDATE relais.tally SET n = n + 0 WHERE service_id = 1 AND client_id = 0 AND status = 0 RETURNING n",
        "INSERT INTO relais.tally AS t (service_id, client_id, status, departed, n) VALUES (1, 0, 0, false, 0)
         ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = t.n + excluded.n",
        "INSERT INTO relais.departure AS t (service_id, level, slot, n) VALUES (1, 0, 0, 0)
         ON CONFLICT (service_id, level, slot) DO UPDATE SET n = t.n + excluded.n",
        "WITH gone AS (DELETE FROM relais.hand WHERE id = 0 RETURNING tasks)
         INSERT INTO relais.hand (instance_id, service_id, tasks) VALUES (0, 0, '{1}') RETURNING id",
        "DELETE FROM relais.hand WHERE instance_id = 0",
        "INSERT INTO relais.roll_call (process, workers, at) VALUES ('p2', '[]', now())
         ON CONFLICT (process) DO UPDATE SET workers = excluded.workers, at = excluded.at",
        "SELECT id FROM relais.inbox WHERE refused IS NULL ORDER BY id FOR UPDATE SKIP LOCKED",
        "UPDATE relais.inbox SET refused = NULL WHERE id = 0",
        "SELECT * FROM relais.client WHERE NOT deleted",
    ];
    for statement in said {
        sqlx::query(statement).fetch_all(&mut old).await?;
    }
    let store = relais_store::open(database.url(), &Options::default()).await?;
    store.migrate().await?;
    for statement in said {
        sqlx::query(statement).fetch_all(&mut old).await.with_context(|| statement.to_owned())?;
    }

    // Rights that were granted on the tables hold for the old names.
    old.execute(sqlx::AssertSqlSafe(format!(r#"SET ROLE "{role}""#))).await?;
    sqlx::query("SELECT n FROM relais.tally").fetch_all(&mut old).await?;
    let insert = "INSERT INTO relais.inbox (service, client, request) VALUES ('plain', 'shop', '{}')";
    sqlx::query(insert).execute(&mut old).await?;
    ensure!(sqlx::query("SELECT * FROM relais.inbox").fetch_all(&mut old).await.is_err(), "no more than was granted");
    old.execute("RESET ROLE").await?;
    ensure!(collect(store.as_ref()).await? == 2, "the submission of the dump and the new one become tasks");
    Ok(())
}

/// Whichever version deletes and declares it.
#[tokio::test]
async fn a_client_that_an_old_process_declares_again_has_no_rights_for_notifications() -> Result<()> {
    let database = TestDatabase::create().await?;
    let mut old = PgConnection::connect(database.url()).await?;
    old.execute(POSTGRES).await?;
    let store = relais_store::open(database.url(), &Options::default()).await?;
    store.migrate().await?;
    let rights = NotificationRights { emit: AudienceTypes::All, ..NotificationRights::default() };
    let client_id = ClientId::new("shop")?;
    let notifications = Some(rights.clone());
    let put = Change::PutClient { client_id, secret_hash: None, destinations: None, notifications };
    store.declare(vec![put]).await?;
    ensure!(store.declared().await?.clients["shop"].notifications == rights);

    let again = "INSERT INTO relais.client AS c (client_id, secret_hash, destinations) VALUES ('shop', 'hash', NULL)
                 ON CONFLICT (client_id) DO UPDATE SET secret_hash = excluded.secret_hash, deleted = false,
                     destinations = coalesce(excluded.destinations, c.destinations)";
    old.execute(again).await?;
    ensure!(store.declared().await?.clients["shop"].notifications == rights, "a new secret takes nothing away");
    old.execute(
        "UPDATE relais.client SET deleted = true, secret_hash = '', destinations = NULL WHERE client_id = 'shop'",
    )
    .await?;
    old.execute(again).await?;
    ensure!(store.declared().await?.clients["shop"].notifications.is_empty());
    Ok(())
}

/// Everything that was under way ends as it would have.
async fn goes_on(store: &dyn Store) -> Result<()> {
    ensure!(store.migrate().await? > 0, "there is something to migrate");
    ensure!(store.migrate().await? == 0, "once");
    let declared = store.declared().await?;
    let key = |name: &str| anyhow::Ok(declared.services.get(name).context("the service")?.key);
    let (resize, plain, embedded) = (key("resize")?, key("plain")?, key("embedded")?);
    let shop = declared.clients.get("shop").context("the client")?.key;

    let before = tasks(store).await?;
    let pending = ["first", "unique", "idempotent", "urgent"];
    for (name, status) in [
        ("success", Status::Success),
        ("failure", Status::Failure),
        ("cancelled", Status::Cancelled),
        ("in_progress", Status::InProgress),
        ("lost", Status::InProgress),
        ("retry", Status::Waiting),
        ("delayed", Status::Waiting),
        ("after", Status::Waiting),
        ("batch_done", Status::Success),
        ("batch_open", Status::Pending),
        ("leased1", Status::Pending),
    ]
    .into_iter()
    .chain(pending.map(|name| (name, Status::Pending)))
    {
        ensure!(before.get(name).context(name)?.state.status == status, "{name} is {status:?} as before");
    }
    let mut places = BTreeSet::new();
    for name in pending {
        places.extend(store.find_task(before[name].task_id).await?.context("the task")?.position);
    }
    ensure!(places == BTreeSet::from([1, 2, 3, 4]), "positions are as before: {places:?}");
    ensure!(depth(store, resize).await? == (4, 2), "the counters are as before");
    ensure!(depth(store, embedded).await? == (3, 0), "the counters are as before");

    let unique = Some(UniqueKey { key: "k1".to_owned(), lasting: None });
    let again = NewTask { terms: Terms { unique, ..Terms::default() }, ..new_task(TaskId::generate(), resize, shop)? };
    let answer = store.submit_many(vec![again]).await?.pop().context("one answer")??;
    ensure!(answer.duplicate && answer.task_id == before["unique"].task_id, "a unique key holds");

    // The process that had leased tasks is dead, and so are the workers. What waits for a time is due.
    ensure!(claim(store, embedded).await?.is_empty(), "what an instance has leased is not handed out");
    store.advance(LONG).await?;
    let mut reaped = 0;
    while !store.list_instances().await?.is_empty() {
        reaped += store.reap_instances().await?.tasks;
    }
    ensure!(reaped == 3, "the tasks of a dead instance go back: {reaped}");
    while store.fire_timers(100).await?.changed > 0 {}
    ensure!(complete(store, embedded).await? == 3, "and are handed out");
    ensure!(complete(store, resize).await? == 8, "four that waited, two of dead workers, a retry and a delayed one");
    while store.resolve_dependencies(100).await?.more {}
    ensure!(complete(store, resize).await? == 1, "the one that waited for another");
    ensure!(collect(store).await? == 1, "a stored submission becomes a task");
    ensure!(complete(store, plain).await? == 2, "that one, and the rest of the batch");

    let after = tasks(store).await?;
    for (name, task) in &after {
        let expected = match name.as_str() {
            "failure" => Status::Failure,
            "cancelled" => Status::Cancelled,
            _ => Status::Success,
        };
        ensure!(task.state.status == expected, "{name} has ended: {:?}", task.state.status);
    }
    for service in [resize, plain, embedded] {
        ensure!(depth(store, service).await? == (0, 0), "the counters agree");
    }
    let batch = after["batch_open"].links.batch.context("its batch")?;
    let batch = store.find_batch(batch).await?.context("the batch")?;
    ensure!(batch.ended.is_some() && batch.counts.success == 2, "the batch has ended: {batch:?}");

    let lanes = store.list_callback_lanes(None, 10).await?.heads;
    let due = store.claim_callbacks(lanes.iter().map(|head| head.lane).collect(), 10, LONG).await?;
    ensure!(due.len() == 1 && due[0].tries == 1, "the callback that was not delivered is tried again");
    ensure!(store.list_instances().await?.is_empty(), "dead instances are gone");
    ensure!(!store.list_published_workers("me".to_owned(), LONG * 1_000_000).await?.is_empty(), "workers are known");
    Ok(())
}

/// All tasks, by their correlation ids.
async fn tasks(store: &dyn Store) -> Result<BTreeMap<String, Task>> {
    let filter = TaskFilter { limit: 1000, ..TaskFilter::default() };
    let tasks = store.list_tasks(filter).await?.tasks;
    Ok(tasks.into_iter().map(|task| (task.correlation_id.clone().unwrap_or_default(), task)).collect())
}

async fn depth(store: &dyn Store, service: ServiceKey) -> Result<(u64, u64)> {
    let depth = store.queue_depths(vec![service]).await?.pop().context("one depth")?;
    Ok((depth.pending, depth.in_progress))
}

async fn claim(store: &dyn Store, service: ServiceKey) -> Result<Vec<Task>> {
    let request = ClaimRequest { service, max: 100, lease: Some(LONG), worker_host: None, instance: None };
    store.claim_tasks(vec![request]).await?.tasks.pop().context("one answer")
}

/// Claims all that is there and says that it is done; how many.
async fn complete(store: &dyn Store, service: ServiceKey) -> Result<usize> {
    let claimed = claim(store, service).await?;
    let mut events = Vec::new();
    for task in &claimed {
        let event = Event::Succeeded { attempt: Some(task.state.attempt), response: Json::parse("{}".to_owned())? };
        events.push(TaskEvent { task_id: task.task_id, service, client: None, event });
    }
    for outcome in store.record_events(events).await? {
        ensure!(matches!(outcome, Outcome::Applied(_)), "the result counts: {outcome:?}");
    }
    Ok(claimed.len())
}

/// Takes every stored submission.
struct Anything {
    version: i64,
    service: ServiceKey,
    client: ClientKey,
}

impl SubmissionValidator for Anything {
    fn version(&self) -> i64 {
        self.version
    }

    fn judge(&self, entry: &StoredSubmission) -> Result<NewTask, String> {
        new_task(entry.task_id, self.service, self.client).map_err(|error| error.to_string())
    }
}

/// Makes tasks of what was stored for the service `plain`; how many.
async fn collect(store: &dyn Store) -> Result<usize> {
    let declared = store.declared().await?;
    let service = declared.services.get("plain").context("the service")?.key;
    let client = declared.clients.get("shop").context("the client")?.key;
    let validator = Arc::new(Anything { version: declared.version, service, client });
    Ok(store.collect_submissions(100, validator).await?.taken)
}

fn new_task(task_id: TaskId, service: ServiceKey, client: ClientKey) -> Result<NewTask> {
    Ok(NewTask {
        task_id,
        service,
        client,
        request: Json::parse("{}".to_owned())?,
        callback: None,
        correlation_id: Some("stored".to_owned()),
        idempotency: None,
        terms: Terms::default(),
        links: NewLinks::default(),
        dispatch: None,
    })
}
