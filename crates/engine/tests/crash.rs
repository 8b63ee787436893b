//! Programs that do their own tasks, killed in the middle of it, again and again.
//!
//! The programs are this very test, started anew with [`PROGRAM`] as the test to run. Every execution is noted in the
//! database under its task and attempt, before anything else is done: two executions of one attempt would be refused
//! there.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{
    collections::BTreeMap,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use relais_core::{ServiceKey, Status, Store, TaskFilter};
use relais_engine::{Context, HandlerError, Handlers, InstanceOptions, Tasks, protocol::admin::ServiceDeclaration};
use relais_testkit::{ServerProcess, TestDatabase};
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

const PROGRAM: &str = "program";
const URL: &str = "RELAIS_CRASH_URL";
const NAME: &str = "RELAIS_CRASH_NAME";
const AT_ONCE: &str = "RELAIS_CRASH_AT_ONCE";

/// How often it is looked how far they are.
const LOOK: Duration = Duration::from_millis(5);

/// How long all tasks may take after the last kill.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that does tasks until it is killed.
#[tokio::test]
#[ignore = "started by the tests of this file"]
async fn program() {
    let Ok(url) = std::env::var(URL) else { return };
    let store = relais_store::open(&url, &relais_store::Options::default()).await.unwrap();
    let notes = Notes::open(&url).await;
    let handler = move |body: Value, context: Context| {
        let notes = notes.clone();
        async move {
            let mut continued = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw())).unwrap();
            notes.note(context.task_id(), context.attempt().unwrap()).await;
            // Some are over at once, others take long enough to be seen.
            if let Some(pause) = body["pause"].as_u64() {
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            if body["until"] == "continued" {
                continued.recv().await;
            }
            Ok::<_, HandlerError>(context.attempt())
        }
    };
    let options = InstanceOptions {
        name: std::env::var(NAME).ok(),
        silence: Duration::from_secs(1),
        ..InstanceOptions::default()
    };
    let at_once = std::env::var(AT_ONCE).map_or(20, |number| number.parse().unwrap());
    let handlers = Handlers::new().options(options).on_up_to(at_once, "work", handler);
    let _tasks = Tasks::builder(store).handlers(handlers).start().await.unwrap();
    std::future::pending::<()>().await;
}

/// Where executions are noted.
#[derive(Clone)]
enum Notes {
    Postgres(sqlx::PgPool),
    Sqlite(sqlx::SqlitePool),
}

impl Notes {
    async fn open(url: &str) -> Self {
        match url.starts_with("sqlite:") {
            // A file of its own: the store's has one writer.
            true => Self::Sqlite(sqlx::SqlitePool::connect(&format!("{url}.notes?mode=rwc")).await.unwrap()),
            false => Self::Postgres(sqlx::PgPool::connect(url).await.unwrap()),
        }
    }

    async fn prepare(&self) {
        let table =
            "CREATE TABLE execution (task_id text, attempt integer, times integer, PRIMARY KEY (task_id, attempt))";
        match self {
            Self::Postgres(pool) => drop(sqlx::query(table).execute(pool).await.unwrap()),
            Self::Sqlite(pool) => drop(sqlx::query(table).execute(pool).await.unwrap()),
        }
    }

    async fn note(&self, task_id: &str, attempt: u32) {
        let attempt = i32::try_from(attempt).unwrap();
        let note = "INSERT INTO execution AS e VALUES ($1, $2, 1)
                    ON CONFLICT (task_id, attempt) DO UPDATE SET times = e.times + 1";
        match self {
            Self::Postgres(pool) => drop(sqlx::query(note).bind(task_id).bind(attempt).execute(pool).await.unwrap()),
            Self::Sqlite(pool) => drop(sqlx::query(note).bind(task_id).bind(attempt).execute(pool).await.unwrap()),
        }
    }

    /// How often each attempt of each task was executed.
    async fn read(&self) -> BTreeMap<(String, i32), i32> {
        let all = "SELECT task_id, attempt, times FROM execution";
        let rows: Vec<(String, i32, i32)> = match self {
            Self::Postgres(pool) => sqlx::query_as(all).fetch_all(pool).await.unwrap(),
            Self::Sqlite(pool) => sqlx::query_as(all).fetch_all(pool).await.unwrap(),
        };
        rows.into_iter().map(|(task_id, attempt, times)| ((task_id, attempt), times)).collect()
    }
}

/// The program, on this database.
fn command(url: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", PROGRAM, "--ignored", "--nocapture"]).env(URL, url);
    command
}

fn start(url: &str, name: Option<&str>) -> Child {
    let mut command = command(url);
    if let Some(name) = name {
        command.env(NAME, name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills it so that it can say nothing.
fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

async fn submit(tasks: &Tasks, number: usize) -> Vec<relais_core::TaskId> {
    let mut names = Vec::new();
    for n in 0..number {
        let body = if n % 3 == 0 { json!({"pause": 60}) } else { json!({}) };
        names.push(tasks.submit("work", &body).await.unwrap());
    }
    names
}

/// How many tasks have ended.
async fn ended(store: &dyn Store, service: ServiceKey) -> u64 {
    let counters = store.backlog().await.unwrap().counters;
    let ended = counters.iter().filter(|tally| tally.service == service && tally.status.is_final());
    ended.map(|tally| tally.arrived).sum()
}

/// Waits until so many have ended.
async fn until_ended(store: &dyn Store, service: ServiceKey, number: u64) {
    let deadline = Instant::now() + PATIENCE;
    while ended(store, service).await < number {
        assert!(Instant::now() < deadline, "{} of {number} have ended", ended(store, service).await);
        tokio::time::sleep(LOOK).await;
    }
}

/// Judges what was executed, and tells.
async fn judge(title: &str, store: &dyn Store, service: ServiceKey, notes: &Notes, submitted: usize, kills: usize) {
    let executions = notes.read().await;
    let page = store.list_tasks(TaskFilter { services: vec![service], limit: submitted + 1, ..TaskFilter::default() });
    let tasks = page.await.unwrap().tasks;
    let lost = submitted - tasks.iter().filter(|task| task.state.status == Status::Success).count();
    let doubled = executions.values().filter(|&&times| times > 1).count();
    let again = executions.len()
        - executions.keys().map(|(task_id, _)| task_id).collect::<std::collections::BTreeSet<_>>().len();
    println!(
        "{title}: {submitted} tasks, {kills} kills, {} executions, {again} of them again, lost {lost}, attempts run twice {doubled}",
        executions.len()
    );
    assert_eq!((tasks.len(), lost, doubled), (submitted, 0, 0));
    for task in tasks {
        let attempt = i32::try_from(task.state.attempt).unwrap();
        assert!(
            executions.contains_key(&(task.task_id.to_string(), attempt)),
            "the attempt that succeeded was executed: {task:?}"
        );
    }
}

/// A program that submits and does nothing else.
async fn submitter(store: Arc<dyn Store>) -> Tasks {
    let service = ServiceDeclaration { delivery_limit: Some(1000), ..ServiceDeclaration::named("work") };
    Tasks::builder(store).service(service).start().await.unwrap()
}

#[tokio::test]
async fn crashed_instances_lose_no_task_and_run_no_attempt_twice() {
    const TASKS: usize = 600;
    const KILLS: usize = 8;
    let database = TestDatabase::create().await.unwrap();
    let url = database.url();
    let store = relais_store::open(url, &relais_store::Options::default()).await.unwrap();
    let tasks = submitter(Arc::clone(&store)).await;
    let service = tasks.engine().insider("app", "work", relais_core::Role::Consume).unwrap().service.key;
    let notes = Notes::open(url).await;
    notes.prepare().await;
    let mut programs = vec![start(url, None), start(url, None)];
    for round in 0..KILLS {
        submit(&tasks, TASKS / KILLS).await;
        // In the middle of it.
        until_ended(&*store, service, (round * TASKS / KILLS + 10) as u64).await;
        kill(programs.remove(0));
        programs.push(start(url, None));
    }
    until_ended(&*store, service, TASKS as u64).await;
    programs.into_iter().for_each(kill);
    judge("PostgreSQL, two programs", &*store, service, &notes, TASKS, KILLS).await;
    tasks.stop().await;
}

#[tokio::test]
async fn a_crashed_instance_continues_its_tasks_after_a_restart() {
    const TASKS: usize = 300;
    const KILLS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("tasks.db").display());
    let open = || async { relais_store::open(&url, &relais_store::Options::default()).await.unwrap() };
    let tasks = submitter(open().await).await;
    let service = tasks.engine().insider("app", "work", relais_core::Role::Consume).unwrap().service.key;
    submit(&tasks, TASKS).await;
    // One process at a time has the file.
    tasks.stop().await;
    let notes = Notes::open(&url).await;
    notes.prepare().await;
    for round in 1..=KILLS {
        let program = start(&url, Some("solo"));
        let deadline = Instant::now() + PATIENCE;
        while notes.read().await.len() < round * 40 {
            assert!(Instant::now() < deadline, "it does not go on");
            tokio::time::sleep(LOOK).await;
        }
        kill(program);
    }
    let program = start(&url, Some("solo"));
    let deadline = Instant::now() + PATIENCE;
    let all = loop {
        let executed = notes.read().await;
        let tasks: std::collections::BTreeSet<&String> = executed.keys().map(|(task_id, _)| task_id).collect();
        if tasks.len() == TASKS {
            break tasks.len();
        }
        assert!(Instant::now() < deadline, "{} of {TASKS} were executed", tasks.len());
        tokio::time::sleep(LOOK).await;
    };
    assert_eq!(all, TASKS);
    // The last ones may not be written yet: whoever comes next does them again.
    kill(program);
    let store = open().await;
    let handlers =
        Handlers::new().options(InstanceOptions { name: Some("solo".to_owned()), ..InstanceOptions::default() });
    let executed = notes.clone();
    let handlers = handlers.on("work", move |_: Value, context: Context| {
        let executed = executed.clone();
        async move {
            executed.note(context.task_id(), context.attempt().unwrap()).await;
            Ok::<_, HandlerError>(context.attempt())
        }
    });
    let tasks = Tasks::builder(Arc::clone(&store)).handlers(handlers).start().await.unwrap();
    until_ended(&*store, service, TASKS as u64).await;
    judge("SQLite, one program", &*store, service, &notes, TASKS, KILLS + 1).await;
    tasks.stop().await;
}

#[tokio::test]
async fn a_paused_instance_is_fenced_after_its_tasks_were_taken_over() {
    let database = TestDatabase::create().await.unwrap();
    let url = database.url();
    let open = || async { relais_store::open(url, &relais_store::Options::default()).await.unwrap() };
    let submitter = submitter(open().await).await;
    let notes = Notes::open(url).await;
    notes.prepare().await;
    let mut command = command(url);
    // One at a time: what it says of one task it has said before it is done with the next.
    command.env(NAME, "paused").env(AT_ONCE, "1");
    let mut paused = ServerProcess::spawn_command(command).unwrap();
    // Over when the program goes on.
    let name = submitter.submit("work", &json!({"until": "continued"})).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while notes.read().await.is_empty() {
        assert!(Instant::now() < deadline, "it does not begin: {}", paused.stderr().unwrap());
        tokio::time::sleep(LOOK).await;
    }
    paused.pause().unwrap();

    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (bell, gate, executed) = (Arc::clone(&begun), Arc::clone(&go_on), notes.clone());
    let handler = move |_: Value, context: Context| {
        let (bell, gate, executed) = (Arc::clone(&bell), Arc::clone(&gate), executed.clone());
        async move {
            executed.note(context.task_id(), context.attempt().unwrap()).await;
            bell.notify_one();
            gate.notified().await;
            Ok::<_, HandlerError>(context.attempt())
        }
    };
    let handlers = Handlers::new().on_up_to(1, "work", handler);
    let successor = Tasks::builder(open().await).handlers(handlers).start().await.unwrap();
    tokio::time::timeout(PATIENCE, begun.notified()).await.expect("somebody else gets its task");

    // Only the one that was paused has room for it.
    let next = submitter.submit("work", &json!({})).await.unwrap();
    paused.resume().unwrap();
    let next = submitter.wait(next, PATIENCE).await.unwrap();
    assert_eq!((next.state.status, next.state.attempt), (Status::Success, 1), "it begins anew");
    let task = submitter.wait(name, Duration::ZERO).await.unwrap();
    assert!(!task.state.status.is_final(), "its result does not count: {task:?}");
    go_on.notify_one();
    let task = submitter.wait(name, PATIENCE).await.unwrap();
    assert_eq!((task.state.status, task.state.attempt), (Status::Success, 2));
    assert_eq!(task.response.unwrap().get(), "2", "the one result that counts");
    assert_eq!(notes.read().await.into_values().collect::<Vec<_>>(), [1, 1, 1], "no attempt ran twice");
    paused.kill9().unwrap();
    let report = successor.stop().await;
    assert_eq!((report.done, report.lost), (1, 0));
    submitter.stop().await;
}
