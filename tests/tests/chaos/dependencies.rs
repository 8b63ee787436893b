//! Dependencies and batches under `kill -9`: whatever is killed, every chain runs in order, and every batch ends and
//! sends one callback.
//!
//! Consumers create batches of four tasks: three in a row, of which some fail on purpose, and one that depends on all
//! of them, however they end. Workers run them. `doubled` counts batches with callbacks under two ids or with wrong
//! counters, and tasks that began before their dependencies had ended; `stuck` counts what has not ended or has an
//! unsent callback.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_testkit::TestDatabase;
use relais_tests::{
    chaos::{Api, Random, SERVICE, Verdict, consumer, declare, rounds},
    instance::{Instance, InstanceOptions},
    receiver::{Receiver, Reply},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What a killed server had handed out comes back soon.
const LEASE: &str = "2s";

/// How long it may take after a fault until more is accepted, and at the end until all tasks end and all callbacks are
/// sent.
const RECOVERY: Duration = Duration::from_secs(30);
const DRAIN: Duration = Duration::from_secs(60);

/// Between two tries of a call that got no good answer.
const PAUSE: Duration = Duration::from_millis(20);

/// As many batches may be unfinished before consumers hold back.
const AHEAD: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependencies_and_batches_survive_a_crash_of_a_server_on_sqlite() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let database = format!("sqlite:{}", folder.path().join("relais.db").display());
    kill_servers("chains and batches, kill -9 of the server, SQLite", &database, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependencies_and_batches_survive_crashes_of_two_servers_on_postgresql() -> Result<()> {
    let database = TestDatabase::create().await?;
    kill_servers("chains and batches, kill -9 of two servers in turn, PostgreSQL", database.url(), 2).await
}

/// The batches that were answered 201, with their tasks in their order.
type Made = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

fn book(made: &Made) -> std::sync::MutexGuard<'_, BTreeMap<String, Vec<String>>> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options(database: &str, receiver: &Receiver) -> InstanceOptions {
    Instance::options(database)
        .env("RELAIS_CALLBACKS_TIMEOUT", "500ms")
        .env("RELAIS_CALLBACKS_RETRIES", vec!["100ms"; 20].join(","))
        .env("RELAIS_CALLBACKS_PARK_FIRST", "100ms")
        .env("RELAIS_CALLBACKS_PARK_MOST", "500ms")
        .env("RELAIS_CALLBACKS_ALLOW_HTTP", "true")
        .env("RELAIS_CALLBACKS_ALLOW_NETWORKS", "127.0.0.0/8")
        .env("RELAIS_CALLBACKS_PORTS", receiver.address().port().to_string())
}

async fn kill_servers(name: &str, database: &str, count: usize) -> Result<()> {
    let (mut random, faults) = (Random::new(), rounds(5));
    let receiver = Receiver::start().await?;
    receiver.always(Reply::status(204));
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(options(database, &receiver).start().await?);
    }
    for server in &servers {
        declare(&server.url(), LEASE).await?;
    }
    let (made, stop, done) = (Made::default(), CancellationToken::new(), CancellationToken::new());
    let mut people = JoinSet::new();
    for number in 0..3_usize {
        for server in &servers {
            let api = consumer(&server.url())?;
            people.spawn(make(api.clone(), receiver.url("/batch"), Arc::clone(&made), number, stop.clone()));
            people.spawn(work(api, done.clone()));
        }
    }
    for turn in 0..faults {
        more(&made, random.between(5, 25)).await?;
        let killed = turn % servers.len();
        servers[killed].kill9()?;
        servers[killed].restart().await?;
    }
    more(&made, 10).await?;
    stop.cancel();
    let api = consumer(&servers[0].url())?;
    let verdict = judge(&api, &made, &receiver, faults).await;
    done.cancel();
    while let Some(ended) = people.join_next().await {
        ended??;
    }
    verdict?.report(name)
}

/// Returns once so many more batches were taken.
async fn more(made: &Made, batches: usize) -> Result<()> {
    let (before, begun) = (book(made).len(), Instant::now());
    while book(made).len() < before + batches {
        ensure!(begun.elapsed() < RECOVERY, "no batches are taken any more");
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Makes batches. One without an answer may be there or not: nobody counts on it.
async fn make(api: Api, callback: String, made: Made, number: usize, stop: CancellationToken) -> Result<()> {
    for turn in 0_usize.. {
        if stop.is_cancelled() {
            break;
        }
        let task = |reference: &str, fails: bool, after: Value| json!({"service": SERVICE, "body": {"fail": fails}, "ref": reference, "after": after});
        let fails = (turn + number) % 4;
        let request = json!({
            "tasks": [
                task("a", fails == 1, Value::Null),
                task("b", fails == 2, json!({"refs": ["a"]})),
                task("c", false, json!({"refs": ["a", "b"]})),
                task("d", false, json!({"refs": ["a", "b", "c"], "when": "allEnded"})),
            ],
            "callback": {"type": "http", "url": callback},
        });
        if let Ok(answer) = api.post("/v1/batches", &request).await
            && answer.status == 201
        {
            let data = answer.data()?;
            let names = data["tasks"].as_array().into_iter().flatten().map(|task| text(&task["taskId"])).collect();
            book(&made).insert(text(&data["batchId"]), names);
        } else {
            tokio::time::sleep(PAUSE).await;
        }
        while !stop.is_cancelled() && unfinished(&api).await > 4 * AHEAD {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// How many tasks have not ended; nobody knows while the server is away.
async fn unfinished(api: &Api) -> usize {
    let Ok(answer) = api.get(&format!("/v1/services/{SERVICE}/backlog")).await else { return usize::MAX };
    let backlog = answer.data().ok().and_then(|data| data["backlog"].as_u64());
    backlog.and_then(|backlog| usize::try_from(backlog).ok()).unwrap_or(usize::MAX)
}

/// Does tasks, and does not give up telling of them.
async fn work(api: Api, done: CancellationToken) -> Result<()> {
    let path = |last: &str| format!("/v1/services/{SERVICE}/{last}");
    while !done.is_cancelled() {
        let claimed = api.post(&path("claims"), &json!({"max": 5, "wait": "1s"})).await;
        let tasks = match claimed {
            Ok(answer) if answer.status == 200 => answer.data()?["tasks"].as_array().cloned().unwrap_or_default(),
            _ => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let messages: Vec<Value> = tasks
            .iter()
            .map(|task| {
                let data = match task["data"]["body"]["fail"].as_bool() {
                    Some(true) => json!({"messageType": "failure", "errorMessage": "on purpose"}),
                    _ => json!({"messageType": "success", "response": {}}),
                };
                json!({"taskId": task["taskId"], "attempt": task["attempt"], "data": data})
            })
            .collect();
        while !messages.is_empty() && !done.is_cancelled() {
            match api.post(&path("messages"), &json!({"messages": messages})).await {
                Ok(answer) if answer.status == 200 => break,
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }
    Ok(())
}

/// Waits until all tasks end and all callbacks are sent, and compares that with the promises.
async fn judge(api: &Api, made: &Made, receiver: &Receiver, faults: usize) -> Result<Verdict> {
    let made = book(made).clone();
    let begun = Instant::now();
    let told = || -> BTreeMap<String, BTreeSet<String>> {
        let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for received in receiver.received() {
            let words = format!("{} {}", received.id(), received.json());
            told.entry(text(&received.json()["batchId"])).or_default().insert(words);
        }
        told
    };
    while begun.elapsed() < DRAIN && made.keys().any(|batch| !told().contains_key(batch)) {
        tokio::time::sleep(PAUSE).await;
    }
    let (told, mut verdict) = (told(), Verdict { tasks: 4 * made.len(), faults, ..Verdict::default() });
    for (batch, tasks) in &made {
        let seen = api.get(&format!("/v1/batches/{batch}")).await?;
        let Ok(seen) = seen.data() else {
            verdict.lost += 1;
            verdict.findings.push(format!("batch {batch} was taken and is not there"));
            continue;
        };
        let words = told.get(batch).map_or(0, BTreeSet::len);
        if seen["status"] != "ENDED" || words == 0 {
            verdict.stuck += 1;
            verdict.findings.push(format!("batch {batch} is left, told {words} times: {seen}"));
        }
        if words > 1 || seen["total"] != 4 {
            verdict.doubled += 1;
            verdict.findings.push(format!("batch {batch} was told as {:?}: {seen}", told.get(batch)));
        }
        judge_chain(api, batch, tasks, &mut verdict).await?;
    }
    Ok(verdict)
}

async fn judge_chain(api: &Api, batch: &str, tasks: &[String], verdict: &mut Verdict) -> Result<()> {
    let mut seen: BTreeMap<&str, Value> = BTreeMap::new();
    for task in tasks {
        let found = api.get(&format!("/v1/services/{SERVICE}/tasks/{task}")).await?;
        let Ok(found) = found.data() else {
            verdict.lost += 1;
            verdict.findings.push(format!("task {task} was taken and is not there"));
            return Ok(());
        };
        if found["endDate"].is_null() {
            verdict.stuck += 1;
            verdict.findings.push(format!("task {task} is left: {found}"));
        }
        for other in found["after"]["tasks"].as_array().into_iter().flatten() {
            let before = seen.get(other["taskId"].as_str().unwrap_or_default()).context("what it waits for")?;
            let early = found["startDate"].as_str() < before["endDate"].as_str();
            let barred = found["errorKind"] == "dependency";
            let all = found["after"]["when"] == "allSucceeded";
            if early || all && !barred && before["status"] != "SUCCESS" {
                verdict.doubled += 1;
                verdict.findings.push(format!("task {task} of batch {batch} did not wait: {found} after {before}"));
            }
        }
        seen.insert(task, found);
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
