//! Flow limits over two servers on one PostgreSQL, while workers and a server crash: the limits hold, and every task
//! ends.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_testkit::TestDatabase;
use relais_tests::{
    chaos::{Api, Random, rounds},
    instance::Instance,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const LEASE: Duration = Duration::from_secs(2);
const MAX_RUNNING: usize = 5;
const PER_CLIENT: usize = 3;
const TASKS: usize = 120;
const PATIENCE: Duration = Duration::from_secs(60);

/// That a task was certainly running: from the claim's answer until just before its end was said, or until its lease
/// may have been over.
struct Run {
    client: &'static str,
    from: Instant,
    until: Instant,
}

#[derive(Default)]
struct Stage {
    runs: Mutex<Vec<Run>>,
    done: AtomicUsize,
    stop: AtomicBool,
}

impl Stage {
    fn note(&self, run: Run) {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    async fn until_done(&self, tasks: usize) -> Result<()> {
        let begun = Instant::now();
        while self.done.load(Ordering::Relaxed) < tasks {
            ensure!(begun.elapsed() < PATIENCE, "{} of {tasks} are done", self.done.load(Ordering::Relaxed));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

/// The most that ran at once.
fn most_at_once<'a>(runs: impl Iterator<Item = &'a Run>) -> usize {
    let mut steps: Vec<(Instant, isize)> = Vec::new();
    for run in runs {
        steps.push((run.from, 1));
        steps.push((run.until, -1));
    }
    // Ends before starts of the same moment.
    steps.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, step) in steps {
        now += step;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or(0)
}

/// Takes tasks from this server or that one, works a moment, says so; now and then it dies with what it has, or before
/// it has heard what it got.
async fn work(servers: [Api; 2], stage: Arc<Stage>, number: usize) -> Result<()> {
    let mut turn = number;
    while !stage.stop.load(Ordering::Relaxed) {
        turn += 1;
        let server = &servers[turn % 2];
        let asked = Instant::now();
        let request = json!({"max": 1 + turn % 3, "wait": "2s"});
        let claim = server.post("/v1/services/limited/claims", &request);
        let answer = if turn.is_multiple_of(11) {
            // It hangs up at some moment of its wait.
            match tokio::time::timeout(Duration::from_millis(40), claim).await {
                Ok(answer) => answer,
                Err(_) => continue,
            }
        } else {
            claim.await
        };
        let from = Instant::now();
        let Some(tasks) = answer.ok().and_then(|answer| answer.data().ok()) else {
            // The server is away; the other one, or this one in a moment.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let lease_over = asked + LEASE;
        for task in tasks["tasks"].as_array().cloned().unwrap_or_default() {
            let client = if task["data"]["body"]["client"] == "many" { "many" } else { "few" };
            turn += 1;
            if turn.is_multiple_of(13) {
                // Killed: nobody says anything of this task until its lease is over.
                stage.note(Run { client, from, until: lease_over.max(from) });
                continue;
            }
            tokio::time::sleep(Duration::from_millis(3 + turn as u64 % 7)).await;
            let said = Instant::now();
            stage.note(Run { client, from, until: said.min(lease_over).max(from) });
            if succeed(&servers, &task).await {
                stage.done.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Says so until somebody has heard it. Whether this was the result that counted.
async fn succeed(servers: &[Api; 2], task: &Value) -> bool {
    let data = json!({"messageType": "success", "response": {}});
    let message = json!({"taskId": task["taskId"], "attempt": task["attempt"], "data": data});
    let begun = Instant::now();
    let mut heard_before = false;
    while begun.elapsed() < PATIENCE {
        for server in servers {
            let answer = server.post("/v1/services/limited/messages", &message).await;
            if let Some(outcomes) = answer.ok().and_then(|answer| answer.data().ok()) {
                let outcome = &outcomes["outcomes"][0]["outcome"];
                // The answer to the first try may have been lost with its server.
                return outcome == "accepted" || heard_before && outcome == "ended";
            }
            heard_before = true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_limits_hold_through_crashes_and_every_task_ends() -> Result<()> {
    let (mut random, faults) = (Random::new(), rounds(3));
    let database = TestDatabase::create().await?;
    let mut mortal = Instance::start(database.url()).await?;
    let steady = Instance::start(database.url()).await?;
    let declaration = json!({
        "services": [{
            "serviceName": "limited", "lease": "2s", "maxRunning": MAX_RUNNING, "maxRunningPerClient": PER_CLIENT,
            "fairShare": true,
        }],
        "clients": [
            {"clientId": "many", "clientSecret": "hush"}, {"clientId": "few", "clientSecret": "hush"},
            {"clientId": "worker", "clientSecret": "hush"},
        ],
        "authorizations": [
            {"clientId": "many", "serviceName": "limited"}, {"clientId": "few", "serviceName": "limited"},
            {"clientId": "worker", "serviceName": "limited", "roles": ["work"]},
        ],
    });
    let (admin, other) = (Api::admin(steady.url())?, Api::admin(mortal.url())?);
    admin.post("/admin/apply", &declaration).await?.data()?;
    other.post("/admin/apply", &declaration).await?.data()?;
    for (client, tasks) in [("many", TASKS * 3 / 4), ("few", TASKS / 4)] {
        let bodies: Vec<Value> = (0..tasks).map(|_| json!({"body": {"client": client}})).collect();
        admin.with(client, "hush").post("/v1/services/limited/tasks/batch", &json!({"tasks": bodies})).await?.data()?;
    }
    let stage = Arc::new(Stage::default());
    let servers = [admin.with("worker", "hush"), other.with("worker", "hush")];
    let mut workers = JoinSet::new();
    for number in 0..8 {
        workers.spawn(work(servers.clone(), Arc::clone(&stage), number * 3));
    }
    let part = TASKS / 2 / (faults + 1);
    for fault in 1..=faults {
        stage.until_done(part * fault + random.between(0, part.max(2))).await?;
        mortal.kill9()?;
        mortal.restart().await?;
    }
    let begun = Instant::now();
    let state = loop {
        let state = admin.get("/admin/services/limited").await?.data()?;
        if state["pending"] == 0 && state["inProgress"] == 0 {
            break state;
        }
        ensure!(begun.elapsed() < PATIENCE, "stuck: {state}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    stage.stop.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    assert_eq!(state["success"], TASKS, "{state}");
    let runs = stage.runs.lock().unwrap_or_else(PoisonError::into_inner);
    let most = most_at_once(runs.iter());
    let of = |client: &'static str| most_at_once(runs.iter().filter(|run| run.client == client));
    println!(
        "two servers, at most {MAX_RUNNING} and {PER_CLIENT} of a client: tasks {TASKS}, runs {}, faults {faults}, at once {most}, \
         of many {}, of few {}",
        runs.len(),
        of("many"),
        of("few"),
    );
    assert!(most <= MAX_RUNNING && of("many") <= PER_CLIENT && of("few") <= PER_CLIENT);
    assert_eq!(of("many"), PER_CLIENT, "the room there is was used");
    let first = runs.iter().map(|run| run.from).min().context("nothing ran")?;
    let early = runs.iter().filter(|run| run.from < first + LEASE);
    assert!(early.clone().any(|run| run.client == "few"), "few did not wait for many");
    Ok(())
}
