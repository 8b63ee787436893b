//! Flow limits on published tasks with a dispatch window: how many, of whom, how fast and in which order.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_testkit::{TestDatabase, TestVhost};
use relais_tests::{
    amqp::{AmqpWorker, Job},
    app::{Backend, Caller},
    chaos::{Api, SERVICE, consumer, declare_service},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    processes::{ready, server},
    stage::{Stage, until},
};

on_each_store!(
    max_running_per_client_limits_published_tasks,
    fair_share_orders_tasks_at_the_broker,
    a_rate_limit_publishes_the_next_task_when_it_refills,
    an_ended_task_frees_flow_room_at_once,
);

/// Long enough for a task to come that should not.
const A_WHILE: Duration = Duration::from_millis(400);

/// Submits so many tasks that say whose they are.
async fn submit(client: &Caller, who: &str, count: usize) {
    let tasks: Vec<Value> = (0..count).map(|n| json!({"body": {"who": who, "n": n}})).collect();
    let answer = client.post("/v1/services/resize/tasks/batch", &json!({"tasks": tasks})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

fn who(job: &Job) -> String {
    job.body()["who"].as_str().unwrap().to_owned()
}

/// How many of each are held.
fn count(held: &[Job]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for job in held {
        *counts.entry(who(job)).or_default() += 1;
    }
    counts
}

async fn pause(stage: &Stage, act: &str) {
    let answer = stage.app.caller().post_nothing(&format!("/admin/services/resize/{act}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

async fn max_running_per_client_limits_published_tasks(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"dispatchWindow": 20, "maxRunning": 5, "maxRunningPerClient": 3})).await;
    let bobs = json!({"clientId": "bob", "serviceName": "resize", "roles": ["consume"], "maxRunning": 1});
    stage.app.apply(json!({"authorizations": [bobs]})).await;
    submit(&stage.alice, "alice", 12).await;
    submit(&stage.app.client("bob"), "bob", 6).await;
    let mut listening = stage.worker.listen(100).await;
    let mut held = Vec::new();
    while held.len() < 4 {
        held.push(listening.take().await);
    }
    assert_eq!(count(&held), BTreeMap::from([("alice".to_owned(), 3), ("bob".to_owned(), 1)]));
    assert!(timeout(A_WHILE, listening.take()).await.is_err(), "neither of them may have more");
    let shown = stage.app.caller().get("/admin/services/resize").await.data();
    assert_eq!((&shown["maxRunning"], &shown["maxRunningPerClient"]), (&json!(5), &json!(3)));
    let most = |client: usize| shown["clients"][client]["maxRunning"].as_u64();
    assert_eq!((most(0), most(1)), (Some(3), Some(1)), "{shown}");

    // Room that one of them makes is for its own next one.
    let mut waiting = BTreeMap::from([("alice".to_owned(), 9), ("bob".to_owned(), 5)]);
    while !held.is_empty() {
        let job = held.remove(0);
        stage.worker.success(&job.task_id, json!(null)).await;
        listening.ack(&job);
        let left = waiting.get_mut(&who(&job)).unwrap();
        if *left > 0 {
            *left -= 1;
            let next = listening.take().await;
            assert_eq!(who(&next), who(&job));
            held.push(next);
        }
    }
    assert!(waiting.values().all(|left| *left == 0), "{waiting:?}");
}

async fn fair_share_orders_tasks_at_the_broker(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"dispatchWindow": 4, "fairShare": true})).await;
    pause(&stage, "pause").await;
    submit(&stage.alice, "alice", 20).await;
    submit(&stage.app.client("bob"), "bob", 4).await;
    pause(&stage, "resume").await;
    let mut listening = stage.worker.listen(100).await;
    let mut order = Vec::new();
    while order.len() < 24 {
        let job = listening.take().await;
        order.push(who(&job));
        listening.ack(&job);
        stage.worker.success(&job.task_id, json!(null)).await;
    }
    for part in [4, 8] {
        let bobs = order[..part].iter().filter(|who| *who == "bob").count();
        assert_eq!(bobs, part / 2, "{order:?}");
    }
}

async fn a_rate_limit_publishes_the_next_task_when_it_refills(on: Backend) {
    let stage = Stage::start(on).await;
    let rate = json!({"count": 10, "per": "1s", "burst": 2});
    stage.resize(json!({"dispatchWindow": 50, "rateLimit": rate})).await;
    let mut listening = stage.worker.listen(100).await;
    let begun = Instant::now();
    submit(&stage.alice, "alice", 10).await;
    // Nobody does any of them: nothing but the clock lets the next one out.
    listening.take_all(10).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(750), "ten of them came in {took:?}");
}

async fn an_ended_task_frees_flow_room_at_once(on: Backend) {
    let stage = Stage::start(on).await;
    stage.resize(json!({"dispatchWindow": 1, "maxRunningPerClient": 1})).await;
    submit(&stage.alice, "alice", 15).await;
    let mut listening = stage.worker.listen(100).await;
    for _ in 0..15 {
        let job = listening.take().await;
        // Often before it was noted that it was published.
        stage.worker.success(&job.task_id, json!(null)).await;
        listening.ack(&job);
    }
}

/// They share what there is, and one that dies takes nothing along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_hold_limits_together() -> Result<()> {
    let (database, vhost) = (TestDatabase::create().await?, TestVhost::create().await?);
    let first = server(database.url(), &vhost).start().await?;
    let second = server(database.url(), &vhost).start().await?;
    let limits = json!({"serviceName": SERVICE, "dispatchWindow": 20, "maxRunning": 6, "maxRunningPerClient": 4});
    declare_service(&first.url(), limits).await?;
    let other = json!({
        "clients": [{"clientId": "other", "clientSecret": "a secret of the other one"}],
        "authorizations": [{"clientId": "other", "serviceName": SERVICE, "roles": ["consume"], "maxRunning": 3}],
    });
    Api::admin(first.url())?.post("/admin/apply", &other).await?.data()?;
    ready(&vhost).await;
    let callers = [
        ("one", consumer(&first.url())?),
        ("two", Api::admin(second.url())?.with("other", "a secret of the other one")),
    ];
    until("the second one knows both", async || {
        callers[1].1.get("/v1/services").await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
    let worker = AmqpWorker::new(vhost.url(), SERVICE);
    let mut listening = worker.listen(100).await;
    let mut left = BTreeMap::from([("one", 20), ("two", 20)]);
    for (who, caller) in &callers {
        for n in 0..left[who] {
            let body = json!({"body": {"who": who, "n": n}});
            caller.post(&format!("/v1/services/{SERVICE}/tasks"), &body).await?.data()?;
        }
    }
    let (mut held, mut first) = (Vec::new(), Some(first));
    while left.values().sum::<usize>() > 0 {
        // As many as may be out, and no more.
        let most = (left["one"].min(4) + left["two"].min(3)).min(6);
        while held.len() < most {
            held.push(listening.take().await);
            let counts = count(&held);
            let of = |who: &str| counts.get(who).copied().unwrap_or(0);
            ensure!(of("one") <= 4 && of("two") <= 3, "{counts:?} are out");
        }
        if left["two"] < 14
            && let Some(mut first) = first.take()
        {
            ensure!(timeout(A_WHILE, listening.take()).await.is_err(), "more than six are out");
            first.kill9()?;
        }
        for job in held.split_off(held.len() / 2) {
            *left.get_mut(&*who(&job)).context("one of the two")? -= 1;
            worker.success(&job.task_id, json!(null)).await;
            listening.ack(&job);
        }
    }
    ensure!(first.is_none(), "one of them has died");
    Ok(())
}
