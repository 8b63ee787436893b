//! Two servers that wake each other: through PostgreSQL, and over a Redis that may be killed.
//!
//! `here` answers and sends no callbacks; `there` answers and sends them. Waiters there are woken by changes here.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use relais_testkit::{RedisServer, TestDatabase};
use relais_tests::{
    chaos::{Api, SERVICE, consumer, declare},
    instance::{Instance, InstanceOptions},
    receiver::Receiver,
    tail::Tail,
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Below the sweeps of 5 s that find what a lost wake-up left behind.
const AT_ONCE: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(30);

struct Pair {
    database: TestDatabase,
    redis: Option<RedisServer>,
    receiver: Receiver,
    here: Instance,
    there: Instance,
}

impl Pair {
    async fn start(over_redis: bool) -> Result<Self> {
        let database = TestDatabase::create().await?;
        let redis = if over_redis { Some(RedisServer::start().await?) } else { None };
        let receiver = Receiver::start().await?;
        let port = receiver.address().port();
        let here = options(&database, redis.as_ref(), port).arg("--role").arg("api,rescue,purge").start().await?;
        let there = options(&database, redis.as_ref(), port).arg("--role").arg("api,callbacks").start().await?;
        declare(&here.url(), "60s").await?;
        declare(&there.url(), "60s").await?;
        let pair = Self { database, redis, receiver, here, there };
        for server in [&pair.here, &pair.there] {
            until(async || Ok(stats(server).await?["connected"] == true)).await.context("the bus is connected")?;
            let client = consumer(&server.url())?;
            until(async || Ok(client.get(&path("")).await?.status == 200)).await.context("the service is known")?;
        }
        Ok(pair)
    }

    fn redis(&mut self) -> Result<&mut RedisServer> {
        self.redis.as_mut().context("this pair has no Redis")
    }
}

fn options(database: &TestDatabase, redis: Option<&RedisServer>, called: u16) -> InstanceOptions {
    let options = Instance::options(database.url())
        .env("RELAIS_CALLBACKS_ALLOW_HTTP", "true")
        .env("RELAIS_CALLBACKS_ALLOW_NETWORKS", "127.0.0.1")
        .env("RELAIS_CALLBACKS_PORTS", called.to_string());
    match redis {
        // By the names that deployments have already.
        Some(redis) => options
            .env("EVENTBUS_MODE", "redis")
            .env("REDIS_HOST", redis.addr().ip().to_string())
            .env("REDIS_PORT", redis.addr().port().to_string()),
        None => options,
    }
}

fn path(rest: &str) -> String {
    let rest = if rest.is_empty() { String::new() } else { format!("/{rest}") };
    format!("/v1/services/{SERVICE}{rest}")
}

async fn until(mut so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !so().await? {
        ensure!(begun.elapsed() < PATIENCE, "it is not so after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn stats(server: &Instance) -> Result<Value> {
    Api::admin(server.url())?.get("/admin/eventbus/stats").await?.data()
}

async fn metrics(server: &Instance) -> Result<String> {
    Ok(Api::admin(server.url())?.request(Method::GET, "/metrics").send().await?.text().await?)
}

async fn submit(client: &Api, submission: &Value) -> Result<String> {
    let data = client.post(&path("tasks"), submission).await?.data()?;
    Ok(data["taskId"].as_str().context("a task without a name")?.to_owned())
}

async fn claim(client: &Api, wait: &str) -> Result<Value> {
    Ok(client.post(&path("claims"), &json!({"wait": wait})).await?.data()?["tasks"][0].clone())
}

async fn succeed(client: &Api, task: &Value) -> Result<()> {
    let data = json!({"messageType": "success", "response": {"done": true}});
    let message = json!({"taskId": task["taskId"], "attempt": task["attempt"], "data": data});
    let outcomes = client.post(&path("messages"), &message).await?.data()?;
    ensure!(outcomes["outcomes"][0]["outcome"] == "accepted", "{outcomes}");
    Ok(())
}

/// A worker, a consumer and a receiver of callbacks wait there; a task is submitted, claimed and ended here.
async fn what_happens_here_is_known_there(pair: &Pair) -> Result<()> {
    let (here, there) = (consumer(&pair.here.url())?, consumer(&pair.there.url())?);
    let called = pair.receiver.received().len();

    let waiting = tokio::spawn({
        let there = there.clone();
        async move { claim(&there, "30s").await }
    });
    // Answered after the claim that was sent before it, as far as one can tell from outside.
    there.get("/readyz").await?;
    let begun = Instant::now();
    let callback = json!({"type": "http", "url": pair.receiver.url("/told")});
    let task_id = submit(&here, &json!({"body": {}, "callback": callback})).await?;
    let task = timeout(PATIENCE, waiting).await???;
    let claimed = begun.elapsed();
    ensure!(task["taskId"] == task_id.as_str(), "{task}");

    let waiting = tokio::spawn({
        let (there, path) = (there.clone(), path(&format!("tasks/{task_id}?wait=30s")));
        async move { anyhow::Ok(there.get(&path).await?.data()?) }
    });
    let mut events = consumer_events(&there, &task_id).await?;
    until(async || Ok(metrics(&pair.there).await?.lines().any(|line| line == "relais_tasks_watched 1")))
        .await
        .context("somebody waits there")?;
    let begun = Instant::now();
    succeed(&here, &task).await?;
    let view = timeout(PATIENCE, waiting).await???;
    let waited = begun.elapsed();
    ensure!(view["status"] == "SUCCESS", "{view}");
    until_text(&mut events, "SUCCESS").await?;
    let streamed = begun.elapsed();
    let told = pair.receiver.wait_at_most(called + 1, PATIENCE).await;
    let called = begun.elapsed();
    ensure!(told.last().is_some_and(|told| told.json()["taskId"] == task_id.as_str()), "{told:?}");
    for (what, took) in [("claim", claimed), ("wait", waited), ("stream", streamed), ("callback", called)] {
        ensure!(took < AT_ONCE, "the {what} there took {took:?}");
    }
    Ok(())
}

async fn consumer_events(client: &Api, task_id: &str) -> Result<reqwest::Response> {
    let response = client.request(Method::GET, &path(&format!("tasks/{task_id}/events"))).send().await?;
    ensure!(response.status() == 200);
    Ok(response)
}

async fn until_text(response: &mut reqwest::Response, wanted: &str) -> Result<()> {
    let mut text = String::new();
    while !text.contains(wanted) {
        let chunk = timeout(PATIENCE, response.chunk()).await??.with_context(|| format!("no {wanted} in {text}"))?;
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    Ok(())
}

/// An operator there sees the life of a task that lives here, in its order, and so does one here.
async fn operators_see_both(pair: &Pair) -> Result<()> {
    let mut there = Tail::open(&pair.there.url(), &["task.>"]).await?;
    until(async || Ok(stats(&pair.here).await?["followed"] == true))
        .await
        .context("here it is known that there follows")?;
    let mut here = Tail::open(&pair.here.url(), &["task.*.success"]).await?;
    let client = consumer(&pair.here.url())?;
    let task_id = submit(&client, &json!({"body": {}})).await?;
    let task = claim(&client, "10s").await?;
    succeed(&client, &task).await?;
    for what in ["submitted", "started", "success"] {
        let told = there.until(|told| told.payload()["taskId"] == task_id.as_str()).await?;
        ensure!(told.channel() == format!("task.{SERVICE}.{what}"), "{told:?}");
    }
    let told = here.next().await?.context("the stream ended")?;
    ensure!(told.payload()["taskId"] == task_id.as_str(), "{told:?}");
    drop((here, there));
    until(async || Ok(stats(&pair.here).await?["followed"] == false)).await.context("nobody follows any more")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_over_postgresql_know_of_each_other_at_once() -> Result<()> {
    let pair = Pair::start(false).await?;
    ensure!(stats(&pair.here).await?["transport"] == "postgresql notify");
    what_happens_here_is_known_there(&pair).await?;
    operators_see_both(&pair).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_over_redis_know_of_each_other_at_once_and_the_database_is_left_alone() -> Result<()> {
    let pair = Pair::start(true).await?;
    ensure!(stats(&pair.here).await?["transport"] == "redis pub/sub");
    let mut listener = sqlx::postgres::PgListener::connect(pair.database.url()).await?;
    listener.listen_all(["relais", "relais_texts"]).await?;
    what_happens_here_is_known_there(&pair).await?;
    operators_see_both(&pair).await?;
    // Notifications come in the order of commits: had there been another before, it would come first.
    let pool = sqlx::PgPool::connect(pair.database.url()).await?;
    sqlx::query("SELECT pg_notify('relais', 'the test')").execute(&pool).await?;
    let heard = timeout(PATIENCE, listener.recv()).await??;
    ensure!(heard.payload() == "the test", "the database was bothered: {heard:?}");
    let metrics = metrics(&pair.there).await?;
    ensure!(metrics.contains("relais_push_worker_processed_total{worker=\"wakeups\"}"), "{metrics}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_costs_time_and_no_task() -> Result<()> {
    const TASKS: usize = 50;
    let mut pair = Pair::start(true).await?;
    let mut tail = Tail::open(&pair.there.url(), &["task.>"]).await?;
    until(async || Ok(stats(&pair.here).await?["followed"] == true)).await?;
    pair.redis()?.kill9()?;
    tail.until(|told| told.name == "bus" && told.channel() == "$bus.disconnected").await?;
    until(async || Ok(stats(&pair.here).await?["connected"] == false)).await?;

    // Taken, claimed on the other server and ended, without a bus.
    let (here, there) = (consumer(&pair.here.url())?, consumer(&pair.there.url())?);
    for _ in 0..TASKS {
        submit(&here, &json!({"body": {}})).await?;
    }
    let mut done = 0;
    while done < TASKS {
        let tasks = there.post(&path("claims"), &json!({"wait": "20s", "max": 20})).await?.data()?;
        for task in tasks["tasks"].as_array().into_iter().flatten() {
            succeed(&there, task).await?;
            done += 1;
        }
    }
    ensure!(stats(&pair.there).await?["healthy"] == false);

    pair.redis()?.restart().await?;
    let notice = tail.until(|told| told.channel() == "$bus.reconnected").await?;
    ensure!(notice.payload()["may_have_missed"] == true, "{notice:?}");
    for server in [&pair.here, &pair.there] {
        until(async || Ok(stats(server).await?["connected"] == true)).await.context("connected again")?;
    }
    until(async || Ok(stats(&pair.here).await?["followed"] == true))
        .await
        .context("what is followed is known again")?;
    let task_id = submit(&here, &json!({"body": {}})).await?;
    tail.until(|told| told.payload()["taskId"] == task_id.as_str()).await.context("events are told again")?;
    succeed(&here, &claim(&there, "20s").await?).await?;
    drop(tail);
    what_happens_here_is_known_there(&pair).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_starts_without_its_redis_and_finds_it_later() -> Result<()> {
    let (database, mut redis) = (TestDatabase::create().await?, RedisServer::start().await?);
    redis.kill9()?;
    let server = options(&database, Some(&redis), 1).start().await?;
    declare(&server.url(), "60s").await?;
    let client = consumer(&server.url())?;
    until(async || Ok(client.get(&path("")).await?.status == 200)).await?;
    let task = submit(&client, &json!({"body": {}})).await?;
    ensure!(claim(&client, "10s").await?["taskId"] == task.as_str());
    let refused = Api::admin(server.url())?.get("/admin/events").await?;
    ensure!(refused.number() == 503_005, "{}", refused.body);
    redis.restart().await?;
    until(async || Ok(stats(&server).await?["connected"] == true)).await?;
    let mut tail = Tail::open(&server.url(), &["task.>"]).await?;
    let task = submit(&client, &json!({"body": {}})).await?;
    ensure!(tail.next().await?.context("ended")?.payload()["taskId"] == task.as_str());
    Ok(())
}
