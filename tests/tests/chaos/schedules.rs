//! A schedule of every second under two servers that are killed in turn and together, and so is their database: each
//! second has one task.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_testkit::{PostgresServer, TestDatabase};
use relais_tests::{
    chaos::{Api, Random, SERVICE, declare, rounds},
    instance::Instance,
};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than what counts as a little late: from then on runs are missed, and the schedule's policy decides.
const ABSENCE: Duration = Duration::from_secs(7);

async fn state(server: &Instance) -> Result<Value> {
    Api::admin(server.url())?.get("/admin/schedules/tick").await?.data()
}

/// Waits for so many more runs. The database may be away for a moment.
async fn more(server: &Instance, runs: u64) -> Result<()> {
    let (begun, mut wanted) = (Instant::now(), None);
    loop {
        let seen = state(server).await;
        if let Some(count) = seen.as_ref().ok().and_then(|state| state["runs"].as_u64())
            && count >= *wanted.get_or_insert(count + runs)
        {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "the schedule does not run: {seen:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// When the run of each task was due, and how many tasks it has.
async fn tasks(server: &Instance) -> Result<BTreeMap<i64, usize>> {
    let (api, mut found, mut cursor) = (Api::admin(server.url())?, BTreeMap::new(), String::new());
    loop {
        let page = api.get(&format!("/admin/tasks?limit=200&service={SERVICE}{cursor}")).await?.data()?;
        for task in page["tasks"].as_array().context("tasks")? {
            let id = task["task"]["correlationId"].as_str().context("a task of the schedule")?;
            let due = id.strip_prefix("tick@").and_then(relais_core::Timestamp::parse).context("a date")?;
            *found.entry(due.as_millis()).or_default() += 1;
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(found),
        }
    }
}

/// Two servers, and the schedule.
async fn start(database: String) -> Result<[Instance; 2]> {
    let servers = [Instance::start(database.clone()).await?, Instance::start(database).await?];
    declare(&servers[0].url(), "60s").await?;
    let schedule = json!({
        "scheduleName": "tick", "serviceName": SERVICE, "clientId": "chaos-client", "cron": "* * * * * *", "missed": "all",
    });
    Api::admin(servers[0].url())?.put("/admin/schedules/tick", &schedule).await?.data()?;
    Ok(servers)
}

/// Stops the schedule; every second until then must have one task.
#[expect(clippy::print_stdout, reason = "the verdict is for whoever runs the test")]
async fn judge(name: &str, servers: &[Instance; 2], faults: usize) -> Result<()> {
    Api::admin(servers[1].url())?.post("/admin/schedules/tick/pause", &json!({})).await?.data()?;
    let (found, last) = (tasks(&servers[0]).await?, state(&servers[1]).await?);
    let (first, end) = found.first_key_value().zip(found.last_key_value()).context("no tasks")?;
    let seconds = usize::try_from((end.0 - first.0) / 1000 + 1)?;
    let lost = seconds - found.len();
    let doubled = found.values().filter(|tasks| **tasks > 1).count();
    println!("{name}: runs {seconds}, faults {faults}, lost {lost}, doubled {doubled}");
    assert_eq!((lost, doubled), (0, 0), "{found:?}");
    assert_eq!((&last["runs"], &last["missedRuns"], &last["refusedRuns"]), (&json!(seconds), &json!(0), &json!(0)));
    assert!(found.keys().all(|due| due % 1000 == 0));
    Ok(())
}

/// A moment anywhere within a second: also in the midst of a run.
async fn any_moment(random: &mut Random) {
    tokio::time::sleep(Duration::from_millis(random.between(0, 999) as u64)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_runs_once_per_second_when_servers_crash() -> Result<()> {
    let database = TestDatabase::create().await?;
    let mut servers = start(database.url().to_owned()).await?;
    let (mut random, kills) = (Random::new(), rounds(6));
    for kill in 0..kills {
        more(&servers[0], 1).await?;
        any_moment(&mut random).await;
        let victim = &mut servers[kill % 2];
        victim.kill9()?;
        victim.restart().await?;
    }
    // Right after a run.
    more(&servers[1], 1).await?;
    servers[0].kill9()?;
    more(&servers[1], 2).await?;
    // Nobody is there.
    servers[1].kill9()?;
    tokio::time::sleep(ABSENCE).await;
    for server in &mut servers {
        server.restart().await?;
    }
    more(&servers[0], 3).await?;
    judge("schedule of every second, kill -9 of servers", &servers, kills + 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_runs_once_per_second_when_postgresql_crashes() -> Result<()> {
    let mut postgres = PostgresServer::options().fsync(true).start().await?;
    let servers = start(postgres.url("postgres")).await?;
    let (mut random, kills) = (Random::new(), rounds(4));
    for kill in 0..kills {
        more(&servers[kill % 2], 1).await?;
        any_moment(&mut random).await;
        postgres.kill9()?;
        postgres.restart().await?;
    }
    more(&servers[0], 2).await?;
    judge("schedule of every second, kill -9 of PostgreSQL", &servers, kills).await
}
