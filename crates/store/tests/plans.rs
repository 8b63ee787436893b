//! Plans are made once, when tables may be small, and kept (see `postgres/session.rs`). Here they are made on tables
//! that are empty or tiny and known to be, and must still be right when there are thousands of rows: a call reads as
//! much as it did before.
//!
//! What was read is what PostgreSQL itself counts: rows of tables and entries of indexes, and the blocks that they are
//! in. The latter since entries that are passed over in the midst of an index are not counted.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use relais_core::{
    After, BatchId, Callback, CallbackEvent, CallbackFilter, CallbackOutcome, CallbackType, CallbackVerdict, Change,
    ClaimRequest, ClientId, ClientKey, Condition, CrashPolicy, Dispatched, Event, FlowLimits, IdempotencyKey,
    InstanceKey, Json, NewBatch, NewInstance, NewLinks, NewTask, PurgeRule, QueueSettings, Registration, Resend,
    ServiceKey, ServiceLimits, ServiceName, Status, Store, TaskEvent, TaskFilter, TaskId, TaskLink, TaskTransport,
    Terms, UniqueKey,
};
use relais_store::Options;
use relais_testkit::TestDatabase;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

/// So many tasks of each kind there are in the end.
const MANY: i64 = 5000;

/// So many more rows and entries may a call read then: those that were changed leave dead ones behind, which are passed
/// by once.
const SLACK: i64 = 150;

/// So many more blocks: indexes are higher, and what is dead lies elsewhere.
const SLACK_OF_BLOCKS: i64 = 250;

const LONG: Duration = Duration::from_secs(3600);
const LANE: i64 = 7;

/// Services with all ways to come by a task.
const SERVICES: [&str; 7] = ["plain", "fair", "leased", "brokered", "windowed", "turns", "each"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_plans_read_no_more_rows_as_tables_grow() -> Result<()> {
    reads_no_more_of_full_tables(true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_plans_prepared_on_empty_tables_stay_good_as_tables_grow() -> Result<()> {
    reads_no_more_of_full_tables(false).await
}

async fn reads_no_more_of_full_tables(had_some: bool) -> Result<()> {
    let database = TestDatabase::create().await?;
    // One connection: what is planned is what is run.
    let options = Options { max_connections: 1, notify: false, ..Options::default() };
    let store = relais_store::open(database.url(), &options).await?;
    store.migrate().await?;
    let mut watch = Watch::new(database.url()).await?;
    let mut world = World::new(store).await?;
    if had_some {
        world.round(&mut watch).await?;
    }
    // Plans of before are not kept: these know how small the tables are.
    watch.connection.execute("ANALYZE").await?;
    let before = world.round(&mut watch).await?;
    watch.fill().await?;
    let after = world.round(&mut watch).await?;
    let mut wrong = Vec::new();
    for (few, many) in before.iter().zip(&after) {
        for (what, few_read, many_read, slack) in
            [("rows and entries", &few.rows, &many.rows, SLACK), ("blocks", &few.blocks, &many.blocks, SLACK_OF_BLOCKS)]
        {
            if many_read.number > few_read.number + slack {
                let (name, most) = (many.name, &many_read.most);
                let (few, many) = (few_read.number, many_read.number);
                wrong.push(format!("{name}: {few} {what}, but {many} where there is more, most of {most}"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(before.iter().any(|read| read.rows.number > 0 && read.blocks.number > 0), "nothing was counted");
    Ok(())
}

/// What a call read.
struct Read {
    name: &'static str,
    /// Rows of tables and entries of indexes.
    rows: Sum,
    /// Blocks of both.
    blocks: Sum,
}

struct Sum {
    number: i64,
    /// The table or index that most is of.
    most: String,
}

impl Sum {
    /// Adds up how much more each is than it was.
    fn of_new(counted: Vec<(String, i64)>, known: &mut HashMap<String, i64>) -> Self {
        let (mut number, mut most) = (0, (0, String::new()));
        for (name, count) in counted {
            let new = count - known.insert(name.clone(), count).unwrap_or(0);
            number += new;
            most = most.max((new, name));
        }
        Self { number, most: most.1 }
    }
}

/// Sees what others read.
struct Watch {
    connection: PgConnection,
    /// What was read of each table and index, the last time.
    rows: HashMap<String, i64>,
    blocks: HashMap<String, i64>,
}

impl Watch {
    async fn new(url: &str) -> Result<Self> {
        let mut connection = PgConnection::connect(url).await?;
        let tables: Vec<String> =
            sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'relais'")
                .fetch_all(&mut connection)
                .await?;
        for table in tables {
            // Nobody comes by and has all plans made anew.
            let off = format!("ALTER TABLE relais.\"{table}\" SET (autovacuum_enabled = false)");
            connection.execute(AssertSqlSafe(off)).await?;
        }
        // Whoever takes a turn tells what it has read so far, at once instead of now and then.
        connection
            .execute(
                "CREATE FUNCTION tell_reads() RETURNS trigger LANGUAGE plpgsql AS
                     $$ BEGIN PERFORM pg_stat_force_next_flush(); RETURN NULL; END $$;
                 CREATE TRIGGER tell_reads AFTER INSERT OR UPDATE ON relais.chore
                     FOR EACH STATEMENT EXECUTE FUNCTION tell_reads()",
            )
            .await?;
        Ok(Self { connection, rows: HashMap::new(), blocks: HashMap::new() })
    }

    /// What was read since the last time, rows and blocks.
    async fn newly_read(&mut self, store: &dyn Store) -> Result<(Sum, Sum)> {
        store.take_turn("tell what was read", Duration::ZERO).await?;
        let rows = sqlx::query_as(
            "SELECT relname::text, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables
             WHERE schemaname = 'relais' AND relname <> 'chore'
             UNION ALL
             SELECT indexrelname::text, idx_tup_read FROM pg_stat_user_indexes
             WHERE schemaname = 'relais' AND relname <> 'chore'",
        )
        .fetch_all(&mut self.connection)
        .await?;
        let blocks = sqlx::query_as(
            "SELECT relname::text, heap_blks_hit + heap_blks_read FROM pg_statio_user_tables
             WHERE schemaname = 'relais' AND relname <> 'chore'
             UNION ALL
             SELECT indexrelname::text, idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes
             WHERE schemaname = 'relais' AND relname <> 'chore'",
        )
        .fetch_all(&mut self.connection)
        .await?;
        Ok((Sum::of_new(rows, &mut self.rows), Sum::of_new(blocks, &mut self.blocks)))
    }

    /// Makes thousands of each task and callback that there is, but for what is due.
    async fn fill(&mut self) -> Result<()> {
        let tasks = copied(&mut self.connection, "task", &["task_id", "seq", "correlation_id"]).await?;
        let callbacks = copied(&mut self.connection, "callback", &["due"]).await?;
        let made = sqlx::query(AssertSqlSafe(format!(
            "INSERT INTO relais.task (task_id, seq, correlation_id, {tasks})
             SELECT gen_random_uuid(), 1000000 + n, 'of many', {tasks} FROM relais.task, generate_series(1, $1) n
             WHERE id IN (SELECT max(id) FROM relais.task WHERE due IS NULL GROUP BY service_id, status)"
        )))
        .bind(MANY)
        .execute(&mut self.connection)
        .await?
        .rows_affected();
        ensure!(made >= 10 * MANY as u64, "too little was made: {made}");
        sqlx::query(AssertSqlSafe(format!(
            "INSERT INTO relais.callback (due, {callbacks})
             SELECT CASE WHEN status = 0 THEN now() + interval '1 day' END, {callbacks}
             FROM relais.callback, generate_series(1, $1) n
             WHERE id IN (SELECT max(id) FROM relais.callback GROUP BY status)"
        )))
        .bind(MANY)
        .execute(&mut self.connection)
        .await?;
        self.connection
            .execute(
                "INSERT INTO relais.attempt SELECT (jsonb_populate_record(NULL::relais.attempt,
                     to_jsonb(a) || jsonb_build_object('task', t.id))).*
                 FROM (SELECT * FROM relais.attempt LIMIT 1) a, relais.task t WHERE t.seq > 1000000 AND t.status = 2;
                 INSERT INTO relais.dispatch (service_id, task_id, due)
                 SELECT t.service_id, t.task_id, now() FROM relais.task t JOIN relais.service s ON s.id = t.service_id
                 WHERE t.seq > 1000000 AND t.status = 0 AND s.transport = 1",
            )
            .await?;
        // What this connection has read itself is counted now, and not while somebody else is watched.
        self.connection.execute("SELECT pg_stat_force_next_flush()").await?;
        Ok(())
    }
}

/// The columns of a table that can be copied, besides these.
async fn copied(connection: &mut PgConnection, table: &str, besides: &[&str]) -> Result<String> {
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT column_name::text FROM information_schema.columns
         WHERE table_schema = 'relais' AND table_name = $1 AND is_generated = 'NEVER' AND is_identity = 'NO'
           AND column_name <> ALL($2)",
    )
    .bind(table)
    .bind(besides)
    .fetch_all(connection)
    .await?;
    Ok(columns.join(", "))
}

/// A store, and those who use it.
struct World {
    store: Arc<dyn Store>,
    services: Vec<ServiceKey>,
    clients: Vec<ClientKey>,
    instance: InstanceKey,
    rounds: usize,
}

impl World {
    async fn new(store: Arc<dyn Store>) -> Result<Self> {
        let mut changes = Vec::new();
        for name in SERVICES {
            let flow = match name {
                "fair" => FlowLimits { max_running_per_client: Some(1000), fair_share: true, ..FlowLimits::default() },
                "windowed" => FlowLimits { dispatch_window: Some(50), ..FlowLimits::default() },
                "turns" => FlowLimits { dispatch_window: Some(50), fair_share: true, ..FlowLimits::default() },
                "each" => {
                    let per_client = Some(40);
                    FlowLimits {
                        dispatch_window: Some(50),
                        max_running_per_client: per_client,
                        ..FlowLimits::default()
                    }
                }
                _ => FlowLimits::default(),
            };
            let brokered = matches!(name, "brokered" | "windowed" | "turns" | "each");
            changes.push(Change::PutService {
                name: ServiceName::new(name)?,
                queue_name: name.to_owned(),
                transport: if brokered { TaskTransport::RabbitMq } else { TaskTransport::Builtin },
                queue: QueueSettings::default(),
                json_schema: None,
                paused: None,
                limits: ServiceLimits { flow, ..ServiceLimits::default() },
            });
        }
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
        let service = |name: &str| declared.services.get(name).map(|service| service.key).context("a service");
        let client = |name: &str| declared.clients.get(name).map(|client| client.key).context("a client");
        let instance = NewInstance {
            name: "one".to_owned(),
            host: None,
            version: "1".to_owned(),
            policy: CrashPolicy::Restart,
            silence: LONG,
            services: vec![service("leased")?],
        };
        let Registration::In { key: instance, .. } = store.register_instance(instance).await? else {
            bail!("it may not begin")
        };
        Ok(Self {
            services: SERVICES.iter().map(|name| service(name)).collect::<Result<_>>()?,
            clients: vec![client("alice")?, client("bob")?],
            store,
            instance,
            rounds: 0,
        })
    }

    fn task(&self, service: ServiceKey, client: usize) -> Result<NewTask> {
        Ok(NewTask {
            task_id: TaskId::generate(),
            service,
            client: self.clients[client],
            request: Json::parse("{}".to_owned())?,
            callback: Some(Callback {
                kind: CallbackType::Https,
                target: "https://example.org".to_owned(),
                events: CallbackEvent::ENDS.to_vec(),
                gzip: false,
                lane: LANE,
            }),
            correlation_id: Some("chain".to_owned()),
            idempotency: None,
            terms: Terms::default(),
            links: NewLinks::default(),
            dispatch: None,
        })
    }

    fn tasks(&self, service: ServiceKey, number: usize) -> Result<Vec<NewTask>> {
        (0..number).map(|n| self.task(service, n % 2)).collect()
    }

    /// Does a little of everything, and tells what each call read.
    async fn round(&mut self, watch: &mut Watch) -> Result<Vec<Read>> {
        self.rounds += 1;
        let (store, rounds) = (Arc::clone(&self.store), self.rounds);
        let store = store.as_ref();
        let &[plain, fair, leased, brokered, windowed, turns, each] = self.services.as_slice() else {
            bail!("seven services")
        };
        let mut read = Vec::new();
        watch.newly_read(store).await?;
        macro_rules! measured {
            ($name:literal, $call:expr) => {{
                let answer = $call.await?;
                let (rows, blocks) = watch.newly_read(store).await?;
                read.push(Read { name: $name, rows, blocks });
                answer
            }};
        }
        let mut names = Vec::new();
        for service in [plain, fair, leased, brokered, windowed, turns, each] {
            let taken = measured!("submit", store.submit_many(self.tasks(service, 10)?));
            names.push(taken.into_iter().map(|answer| Ok(answer?.task_id)).collect::<Result<Vec<_>>>()?);
        }
        let keyed = NewTask {
            idempotency: Some(IdempotencyKey { key: format!("{rounds}"), fingerprint: vec![1] }),
            terms: Terms {
                unique: Some(UniqueKey { key: format!("{rounds}"), lasting: None }),
                expires: Some(LONG),
                ..Terms::default()
            },
            ..self.task(plain, 0)?
        };
        measured!("submit with keys", store.submit_many(vec![keyed]));
        let request =
            |service, instance| ClaimRequest { service, max: 3, lease: Some(LONG), worker_host: None, instance };
        let says = |service, task_id, event| TaskEvent { task_id, service, client: None, event };
        let success =
            || Ok::<_, anyhow::Error>(Event::Succeeded { attempt: None, response: Json::parse("1".to_owned())? });
        for service in [plain, fair] {
            let claimed = measured!("claim", store.claim_tasks(vec![request(service, None)]));
            ensure!(claimed.tasks[0].len() == 3, "{} were claimed", claimed.tasks[0].len());
            let heartbeats = claimed.tasks[0].iter().map(|task| {
                says(service, task.task_id, Event::Renewed { attempt: Some(task.state.attempt), lease: LONG })
            });
            measured!("heartbeat", store.record_events(heartbeats.collect()));
            let results = claimed.tasks[0][..2].iter().map(|task| Ok(says(service, task.task_id, success()?)));
            measured!("record results", store.record_events(results.collect::<Result<_>>()?));
        }
        let waits = store.submit_and_claim(self.tasks(leased, 3)?, request(leased, Some(self.instance)));
        let (_, taken) = measured!("submit for a process", waits);
        ensure!(taken.is_empty(), "{} were taken before others", taken.len());
        let claimed = measured!("claim by an instance", store.claim_tasks(vec![request(leased, Some(self.instance))]));
        ensure!(claimed.tasks[0].len() == 3, "{} are leased", claimed.tasks[0].len());
        let results = claimed.tasks[0].iter().map(|task| {
            let response = Json::parse("1".to_owned())?;
            Ok(says(leased, task.task_id, Event::Succeeded { attempt: Some(task.state.attempt), response }))
        });
        measured!("results of leased tasks", store.record_events(results.collect::<Result<_>>()?));
        let events = [Event::Cancelled, Event::failed(None, "no")].into_iter().zip(&names[0][8..]);
        measured!("cancel, fail", store.record_events(events.map(|(event, name)| says(plain, *name, event)).collect()));

        for service in [brokered, windowed, turns, each] {
            let due = measured!("dispatch", store.claim_dispatches(vec![service], 3, LONG)).tasks;
            ensure!(due.len() == 3, "{} are due", due.len());
            let done = due.into_iter().map(|due| due.name).collect();
            measured!("settle dispatches", store.complete_dispatches(done, Dispatched::Done));
            measured!("the oldest at the broker", store.oldest_published(service));
        }
        measured!("refill", store.refill_dispatches(10));
        let started = Event::Started { attempt: None, worker_host: None, lease: None };
        measured!("started", store.record_events(vec![says(brokered, names[3][0], started)]));
        measured!("success", store.record_events(vec![says(brokered, names[3][0], success()?)]));

        let due = measured!("claim callbacks", store.claim_callbacks(vec![LANE], 3, LONG));
        ensure!(due.len() == 3, "{} are due", due.len());
        let settled = |row, attempt| CallbackOutcome {
            row,
            attempt,
            chain: false,
            verdict: CallbackVerdict::Delivered,
            tried: None,
        };
        let settled = due.iter().map(|due| settled(due.record.row, due.record.attempts)).collect();
        measured!("settle callbacks", store.complete_callbacks(settled, Vec::new()));
        measured!("lanes", store.list_callback_lanes(None, 10));

        let about = CallbackFilter { task: Some(names[0][9]), limit: 5, ..CallbackFilter::default() };
        let told = measured!("callbacks of a task", store.list_callbacks(about)).records;
        ensure!(told.len() == 1, "{} callbacks", told.len());
        measured!("tries of a callback", store.list_callback_attempts(vec![told[0].row]));
        measured!("send again", store.resend_callbacks(Resend::One(told[0].id)));
        measured!("give up", store.expire_callbacks(LANE + 1, LONG, 5));

        measured!("retry by hand", store.record_events(vec![says(plain, names[0][9], Event::Revived)]));
        let mut dependent = self.task(plain, 0)?;
        dependent.links.after = Some(After { tasks: vec![names[1][9]], when: Condition::AllSucceeded });
        measured!("submit what waits", store.submit_many(vec![dependent]));
        let event = Event::failed(None, "no");
        measured!("fail what is waited for", store.record_events(vec![says(fair, names[1][9], event)]));
        measured!("dependencies", store.resolve_dependencies(100));
        measured!("time", store.fire_timers(100));
        measured!("dependencies", store.resolve_dependencies(100));
        measured!("queue depths", store.queue_depths(self.services.clone()));
        measured!("queue shares", store.queue_shares(fair));
        measured!("backlog", store.backlog());
        measured!("heartbeat of a process", store.heartbeat_instance(self.instance, LONG));
        measured!("the dead", store.reap_instances());
        measured!("processes", store.list_instances());
        measured!("the next run", store.next_schedule_run());
        for name in [names[0][0], names[0][9], names[3][5]] {
            let task = measured!("read", store.find_task(name)).context("a task")?;
            measured!("attempts", store.list_attempts(task.id));
        }
        let page = TaskFilter { limit: 5, ..TaskFilter::default() };
        for filter in [
            page.clone(),
            TaskFilter { services: vec![plain], ..page.clone() },
            TaskFilter { services: vec![plain], statuses: vec![Status::Failure], ..page.clone() },
            TaskFilter { client: Some(self.clients[0]), ..page.clone() },
            TaskFilter {
                client: Some(self.clients[1]),
                services: vec![fair],
                statuses: vec![Status::Pending],
                ..page.clone()
            },
            TaskFilter { before_id: Some(20), ..page.clone() },
            TaskFilter {
                client: Some(self.clients[0]),
                link: Some(TaskLink::Correlation("chain".to_owned())),
                ..page.clone()
            },
        ] {
            measured!("list", store.list_tasks(filter));
        }
        let batch = NewBatch {
            batch_id: BatchId::generate(),
            client: self.clients[0],
            open: false,
            callback: None,
            correlation_id: None,
            trace: None,
            idempotency: Some(IdempotencyKey { key: format!("{rounds}"), fingerprint: vec![1] }),
        };
        let (id, mut tasks) = (batch.batch_id, vec![self.task(plain, 0)?, self.task(plain, 0)?]);
        tasks.iter_mut().for_each(|task| task.links.batch = Some(id));
        measured!("make a batch", store.create_batch(batch, tasks));
        measured!("read a batch", store.find_batch(id));
        measured!("list batches", store.list_batches(Some(self.clients[0]), None, 5));
        let rule = PurgeRule { service: plain, finished: LONG, any: LONG, dry_run: false, batch: 5, cursor: None };
        measured!("purge", store.purge_tasks(rule));
        Ok(read)
    }
}
