//! Two servers on one PostgreSQL: a change at one is known at the other at once, and capacity is exact over both.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, future::join_all};
use relais_testkit::TestDatabase;
use relais_tests::{
    chaos::{Api, SERVICE, consumer, declare},
    instance::Instance,
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Below the sweeps of 5 s that find what a lost wake-up left behind.
const AT_ONCE: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(30);

struct Pair {
    _database: TestDatabase,
    here: Instance,
    there: Instance,
}

impl Pair {
    async fn start() -> Result<Self> {
        let database = TestDatabase::create().await?;
        let here = Instance::start(database.url()).await?;
        let there = Instance::start(database.url()).await?;
        // Both: whoever is only told of it by the other may be asked first.
        declare(&here.url(), "60s").await?;
        declare(&there.url(), "60s").await?;
        let pair = Self { _database: database, here, there };
        // Until the other one has heard of it; how soon is another test's business.
        let client = consumer(&pair.there.url())?;
        until(PATIENCE, || async { Ok(client.get(&path("")).await?.status == 200) }).await?;
        // And until both hear each other.
        for server in [&pair.here, &pair.there] {
            let admin = Api::admin(server.url())?;
            until(PATIENCE, || async { Ok(admin.get("/admin/eventbus/stats").await?.data()?["connected"] == true) })
                .await?;
        }
        Ok(pair)
    }
}

fn path(rest: &str) -> String {
    let rest = if rest.is_empty() { String::new() } else { format!("/{rest}") };
    format!("/v1/services/{SERVICE}{rest}")
}

/// Asks until it is so, and says how long that took.
async fn until<F: Future<Output = Result<bool>>>(deadline: Duration, asked: impl Fn() -> F) -> Result<Duration> {
    let begun = Instant::now();
    while !asked().await? {
        anyhow::ensure!(begun.elapsed() < deadline, "it is not so after {deadline:?}");
        tokio::task::yield_now().await;
    }
    Ok(begun.elapsed())
}

async fn submit(client: &Api) -> Result<String> {
    let data = client.post(&path("tasks"), &json!({"body": {}})).await?.data()?;
    Ok(data["taskId"].as_str().context("a task without a name")?.to_owned())
}

async fn claim(client: &Api, wait: &str) -> Result<Value> {
    Ok(client.post(&path("claims"), &json!({"wait": wait})).await?.data()?["tasks"][0].clone())
}

async fn succeed(client: &Api, task: &Value) -> Result<()> {
    let data = json!({"messageType": "success", "response": {"done": true}});
    let message = json!({"taskId": task["taskId"], "attempt": task["attempt"], "data": data});
    let outcomes = client.post(&path("messages"), &message).await?.data()?;
    assert_eq!(outcomes["outcomes"][0]["outcome"], "accepted", "{outcomes}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_at_one_server_wakes_waiters_at_the_other() -> Result<()> {
    let pair = Pair::start().await?;
    let (here, there) = (consumer(&pair.here.url())?, consumer(&pair.there.url())?);

    // A worker waits there, and a task is submitted here.
    let waiting = tokio::spawn({
        let there = there.clone();
        async move { claim(&there, "30s").await }
    });
    // Answered after the claim that was sent before it, as far as one can tell from outside.
    there.get("/readyz").await?;
    let begun = Instant::now();
    let task_id = submit(&here).await?;
    let task = timeout(PATIENCE, waiting).await???;
    let claimed = begun.elapsed();
    assert_eq!(task["taskId"], task_id.as_str());
    assert!(claimed < AT_ONCE, "the claim there took {claimed:?}");

    // A consumer waits there, and the task ends here.
    let waiting = tokio::spawn({
        let (there, path) = (there.clone(), path(&format!("tasks/{task_id}?wait=30s")));
        async move { anyhow::Ok(there.get(&path).await?.data()?) }
    });
    let watched = Api::admin(pair.there.url())?;
    until(PATIENCE, || async {
        let metrics = Api::admin(pair.there.url())?.request(Method::GET, "/metrics").send().await?.text().await?;
        Ok(metrics.lines().any(|line| line == "relais_tasks_watched 1"))
    })
    .await
    .context("somebody waits there")?;
    drop(watched);
    let begun = Instant::now();
    succeed(&here, &task).await?;
    let view = timeout(PATIENCE, waiting).await???;
    let waited = begun.elapsed();
    assert_eq!(view["status"], "SUCCESS", "{view}");
    assert!(waited < AT_ONCE, "the wait there took {waited:?}");
    println!("two servers: a claim there {claimed:?} after the submission here, a wait there {waited:?} after the end");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_one_server_is_streamed_by_the_other() -> Result<()> {
    let pair = Pair::start().await?;
    let (here, there) = (consumer(&pair.here.url())?, consumer(&pair.there.url())?);
    let task_id = submit(&here).await?;
    let response = there.request(Method::GET, &path(&format!("tasks/{task_id}/events"))).send().await?;
    assert_eq!(response.status(), 200);
    let mut stream = response.bytes_stream();
    let mut text = String::new();
    let mut slowest = Duration::ZERO;
    for (step, status) in ["PENDING", "IN_PROGRESS", "SUCCESS"].into_iter().enumerate() {
        let begun = Instant::now();
        if step == 1 {
            let task = claim(&here, "0s").await?;
            assert_eq!(task["taskId"], task_id.as_str());
        } else if step == 2 {
            succeed(&here, &json!({"taskId": task_id, "attempt": 1})).await?;
        }
        while !text.contains(&format!("\"status\":\"{status}\"")) {
            let chunk = timeout(PATIENCE, stream.next()).await?.with_context(|| format!("no {status} in {text}"))??;
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
        slowest = slowest.max(begun.elapsed());
        assert!(begun.elapsed() < AT_ONCE, "{status} took {:?}", begun.elapsed());
    }
    assert!(timeout(PATIENCE, stream.next()).await?.is_none(), "the stream ends with the task");
    println!("two servers: the slowest event there came {slowest:?} after what happened here");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declaration_at_one_server_is_known_to_the_other_at_once() -> Result<()> {
    let pair = Pair::start().await?;
    let there = consumer(&pair.there.url())?;
    let declaration = json!({
        "services": [{"serviceName": "new"}],
        "authorizations": [{"clientId": "chaos-client", "serviceName": "new"}],
    });
    Api::admin(pair.here.url())?.post("/admin/apply", &declaration).await?.data()?;
    let took = until(PATIENCE, || async { Ok(there.get("/v1/services/new").await?.status == 200) }).await?;
    assert!(took < AT_ONCE, "it took {took:?}");
    println!("two servers: a service declared here is known there after {took:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_is_exact_across_two_servers() -> Result<()> {
    const CAPACITY: usize = 100;
    let pair = Pair::start().await?;
    let declaration = json!({"services": [{"serviceName": SERVICE, "capacity": CAPACITY}]});
    Api::admin(pair.here.url())?.post("/admin/apply", &declaration).await?.data()?;
    let clients = [consumer(&pair.here.url())?, consumer(&pair.there.url())?];
    let submission = json!({"body": {}});
    let calls = (0..1000).map(|number: usize| clients[number % 2].post("/v1/services/chaos/tasks", &submission));
    let (mut taken, mut refused) = (0, 0);
    for answer in join_all(calls).await {
        let answer = answer?;
        match (answer.status, answer.number()) {
            (201, _) => taken += 1,
            (429, 429_001) => refused += 1,
            _ => anyhow::bail!("answered {}: {}", answer.status, answer.body),
        }
    }
    println!("two servers, capacity {CAPACITY}: {taken} taken, {refused} refused");
    assert_eq!((taken, refused), (CAPACITY, 1000 - CAPACITY));
    Ok(())
}
