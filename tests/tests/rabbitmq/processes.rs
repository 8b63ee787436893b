//! The compiled `relais` with a broker: several processes, roles apart, the commands, the metrics.

use std::{collections::BTreeSet, time::Instant};

use anyhow::{Context, Result, ensure};
use relais_testkit::{TestDatabase, TestVhost};
use relais_tests::{
    amqp::AmqpWorker,
    app::DEADLINE,
    chaos::{Api, SERVICE, consumer, declare},
    instance::{Instance, InstanceOptions, command},
};
use serde_json::{Value, json};

use crate::control::Heard;

pub fn server(database: &str, vhost: &TestVhost) -> InstanceOptions {
    // In the environment, as a password would be.
    Instance::options(database)
        .env("RELAIS_BROKER_URL", vhost.url())
        .env("RELAIS_BROKER_MANAGEMENT_URL", vhost.management_url())
}

/// Returns when the service has its queues.
pub async fn ready(vhost: &TestVhost) {
    for side in ["in", "out"] {
        let queue = format!("{SERVICE}-{side}");
        crate::stage::until("its queues are there", async || vhost.queue(&queue).await.is_ok()).await;
    }
}

async fn submit(api: &Api, count: usize) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for n in 0..count {
        let answer = api.post(&format!("/v1/services/{SERVICE}/tasks"), &json!({"body": {"n": n}})).await?.data()?;
        ids.push(answer["taskId"].as_str().context("no taskId")?.to_owned());
    }
    Ok(ids)
}

async fn ended(api: &Api, id: &str) -> Result<Value> {
    let begun = Instant::now();
    loop {
        let task = api.get(&format!("/v1/services/{SERVICE}/tasks/{id}?wait=20s")).await?.data()?;
        if task["endDate"].is_string() {
            return Ok(task);
        }
        ensure!(begun.elapsed() < DEADLINE, "it does not end: {task}");
    }
}

async fn metric(server: &Instance, series: &str) -> Result<Option<f64>> {
    let text = Api::admin(server.url())?.request(reqwest::Method::GET, "/metrics").send().await?.text().await?;
    Ok(text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_publish_each_task_once() -> Result<()> {
    let (database, vhost) = (TestDatabase::create().await?, TestVhost::create().await?);
    let first = server(database.url(), &vhost).start().await?;
    let second = server(database.url(), &vhost).start().await?;
    declare(&first.url(), "60s").await?;
    ready(&vhost).await;
    let (one, two) = (consumer(&first.url())?, consumer(&second.url())?);
    // The second one may not know yet what was declared at the first.
    crate::stage::until("both know the service", async || {
        two.get("/v1/services").await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
    let worker = AmqpWorker::new(vhost.url(), SERVICE);
    let mut listening = worker.listen(100).await;
    let series = format!("relais_tasks_dispatched_total{{service=\"{SERVICE}\"}}");
    let published = async || -> Result<(f64, f64)> {
        let counts = tokio::try_join!(metric(&first, &series), metric(&second, &series))?;
        Ok((counts.0.unwrap_or_default(), counts.1.unwrap_or_default()))
    };
    // Each has to connect first, and to see that nothing waits in the store: until then the other may publish what it
    // takes.
    let (begun, mut own, mut before) = (Instant::now(), 0, published().await?);
    while own < 5 {
        ensure!(begun.elapsed() < DEADLINE, "they do not publish what they take: {before:?}");
        tokio::try_join!(submit(&one, 1), submit(&two, 1))?;
        for job in listening.take_all(2).await {
            worker.success(&job.task_id, json!(null)).await;
        }
        let total = before.0 + before.1 + 2.0;
        crate::stage::until("both are counted", async || {
            published().await.is_ok_and(|after| after.0 + after.1 == total)
        })
        .await;
        let after = published().await?;
        own = if after == (before.0 + 1.0, before.1 + 1.0) { own + 1 } else { 0 };
        before = after;
    }
    let (ids, more) = tokio::try_join!(submit(&one, 50), submit(&two, 50))?;
    let all: BTreeSet<String> = ids.into_iter().chain(more).collect();
    let taken: Vec<String> = listening.take_all(100).await.into_iter().map(|job| job.task_id).collect();
    assert_eq!(taken.iter().cloned().collect::<BTreeSet<_>>(), all);
    let results = taken.iter().map(|id| worker.message(id, json!({"messageType": "success"})).to_string());
    worker.send_many(results.collect::<Vec<_>>()).await;
    for id in &all {
        // Whichever of the two has heard of it.
        ensure!(ended(&one, id).await?["status"] == "SUCCESS");
    }
    // One behind them all comes next: none came twice.
    let last = submit(&two, 1).await?;
    assert_eq!(listening.take().await.task_id, last[0]);
    crate::stage::until("all are counted", async || {
        published().await.is_ok_and(|after| after.0 + after.1 == before.0 + before.1 + 101.0)
    })
    .await;
    assert_eq!(published().await?, (before.0 + 50.0, before.1 + 51.0), "who takes a task publishes it");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_commits_a_cancellation_sends_the_revocation() -> Result<()> {
    let (database, vhost) = (TestDatabase::create().await?, TestVhost::create().await?);
    let role = |role: &str| server(database.url(), &vhost).arg("--role").arg(role);
    let (first, _second) =
        (server(database.url(), &vhost).start().await?, server(database.url(), &vhost).start().await?);
    // One that neither publishes tasks nor follows workers.
    let api = role("api").start().await?;
    declare(&first.url(), "60s").await?;
    ready(&vhost).await;
    let mut heard = Heard::at(&vhost, SERVICE).await;
    let (one, other) = (consumer(&first.url())?, consumer(&api.url())?);
    crate::stage::until("both know the service", async || {
        other.get("/v1/services").await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
    crate::stage::until("the one that only answers has the broker", async || {
        metric(&api, "relais_broker_up").await.ok().flatten() == Some(1.0)
    })
    .await;
    let ids = submit(&one, 20).await?;
    for (n, id) in ids.iter().enumerate() {
        let at = if n % 2 == 0 { &one } else { &other };
        let cancel = at.request(reqwest::Method::DELETE, &format!("/v1/services/{SERVICE}/tasks/{id}"));
        ensure!(Api::send(cancel).await?.status == 200);
        let told = heard.next().await;
        assert_eq!(told, [json!({"taskId": id, "outcome": "cancelled", "revision": 1})]);
    }
    let told = format!("relais_stops_told_total{{service=\"{SERVICE}\"}}");
    // Counted a moment after it is told.
    crate::stage::until("both have told of ten", async || {
        let counts = tokio::try_join!(metric(&first, &told), metric(&api, &told));
        counts.is_ok_and(|counts| counts == (Some(10.0), Some(10.0)))
    })
    .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_can_run_in_separate_processes() -> Result<()> {
    let (database, vhost) = (TestDatabase::create().await?, TestVhost::create().await?);
    let role = |role: &str| server(database.url(), &vhost).arg("--role").arg(role);
    let api = role("api").start().await?;
    declare(&api.url(), "60s").await?;
    let client = consumer(&api.url())?;
    // It does nothing for the broker, and knows how it is all the same.
    crate::stage::until("it knows that the broker is there", async || {
        metric(&api, "relais_broker_up").await.ok().flatten() == Some(1.0)
    })
    .await;
    let early = submit(&client, 3).await?;
    let mut dispatch = role("dispatch").start().await?;
    ready_in(&vhost).await;
    let worker = AmqpWorker::new(vhost.url(), SERVICE);
    let mut listening = worker.listen(10).await;
    for id in &early {
        let job = listening.take().await;
        assert_eq!(&job.task_id, id);
        listening.ack(&job);
    }
    // Told at once that there is something to publish, not at the next look.
    let begun = Instant::now();
    let late = submit(&client, 1).await?;
    let job = listening.take().await;
    println!("submitted at one process, published by another, after {:?}", begun.elapsed());
    assert_eq!(job.task_id, late[0]);
    listening.ack(&job);
    for id in early.iter().chain(&late) {
        worker.success(id, json!("told")).await;
    }
    // Nobody listens yet; then somebody does.
    let track = role("track").start().await?;
    for id in early.iter().chain(&late) {
        ensure!(ended(&client, id).await?["response"] == "told");
    }
    // The one that dispatches dies; another one takes over what is left.
    dispatch.kill9()?;
    let orphan = submit(&client, 1).await?;
    let _successor = role("dispatch").start().await?;
    let job = listening.take().await;
    assert_eq!(job.task_id, orphan[0]);
    listening.ack(&job);
    drop(track);
    Ok(())
}

/// The queue of tasks alone: whoever follows makes the other one.
async fn ready_in(vhost: &TestVhost) {
    let queue = format!("{SERVICE}-in");
    crate::stage::until("there is a queue of tasks", async || vhost.queue(&queue).await.is_ok()).await;
}

fn type_in(server: &Instance, line: &str) -> Result<(i32, String, String)> {
    let mut command = command()?;
    let output = command.env("RELAIS_URL", server.url()).current_dir(server.folder()).args(line.split(' ')).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_types_deadletter_commands() -> Result<()> {
    let (folder, vhost) = (tempfile::tempdir()?, TestVhost::create().await?);
    let database = format!("sqlite:{}", folder.path().join("relais.db").display());
    let server = server(&database, &vhost).start().await?;
    declare(&server.url(), "60s").await?;
    ready(&vhost).await;
    let worker = AmqpWorker::new(vhost.url(), SERVICE);
    let (code, said, _) = type_in(&server, "deadletter list")?;
    assert_eq!((code, said.trim()), (0, "There are no dead letters."));
    for body in ["not json", "{\"taskId\":\"x\",\n\"data\":{\"messageType\":\"success\"}}", "third"] {
        worker.send(body).await;
    }
    let series = format!("relais_dead_letters_total{{service=\"{SERVICE}\"}}");
    crate::stage::until("they are counted", async || metric(&server, &series).await.is_ok_and(|n| n == Some(3.0)))
        .await;
    let rejected = format!("relais_worker_messages_total{{service=\"{SERVICE}\",outcome=\"rejected\"}}");
    assert_eq!(metric(&server, &rejected).await?, Some(3.0));
    assert_eq!(metric(&server, "relais_broker_up").await?, Some(1.0));

    let mut listed = String::new();
    crate::stage::until("they are listed", async || {
        listed =
            type_in(&server, &format!("deadletter list --service {SERVICE}")).map(|said| said.1).unwrap_or_default();
        listed.lines().count() == 4
    })
    .await;
    let rows: Vec<&str> = listed.lines().skip(1).collect();
    assert!(rows[0].contains("not a message") && rows[0].contains("not json"), "{listed}");
    assert!(rows[1].contains("taskId is not a UUID"), "{listed}");
    let id = |row: &str| row.split_whitespace().next().unwrap_or_default().to_owned();
    let (code, shown, _) = type_in(&server, &format!("deadletter show {SERVICE} {}", id(rows[1])))?;
    assert_eq!(code, 0);
    assert!(shown.trim_end().ends_with("{\"taskId\":\"x\",\n\"data\":{\"messageType\":\"success\"}}"), "{shown}");
    let (code, said, _) = type_in(&server, &format!("deadletter replay {SERVICE} {}", id(rows[0])))?;
    assert_eq!((code, said.trim()), (0, "1 put back"));
    crate::stage::until("it was set aside once more", async || {
        metric(&server, &series).await.is_ok_and(|n| n == Some(4.0))
    })
    .await;
    let (code, said, _) = type_in(&server, &format!("deadletter discard {SERVICE} {}", id(rows[2])))?;
    assert_eq!((code, said.trim()), (0, "1 forgotten"));
    let (code, _, refusal) = type_in(&server, &format!("deadletter show {SERVICE} {}", id(rows[2])))?;
    assert_eq!(code, 1);
    assert!(refusal.contains("404007"), "{refusal}");
    let (code, _, _) = type_in(&server, &format!("deadletter discard {SERVICE}"))?;
    assert_eq!(code, 2, "which ones?");
    let (code, _, _) = type_in(&server, &format!("deadletter discard {SERVICE} --all"))?;
    assert_eq!(code, 0);
    crate::stage::until("none is left", async || {
        type_in(&server, "deadletter list").is_ok_and(|said| said.1.contains("There are no dead letters."))
    })
    .await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_server_publishes_its_accepted_tasks_after_a_restart() -> Result<()> {
    for round in 0..3 {
        let (folder, vhost) = (tempfile::tempdir()?, TestVhost::create().await?);
        let database = format!("sqlite:{}", folder.path().join("relais.db").display());
        let mut server = server(&database, &vhost).start().await?;
        declare(&server.url(), "60s").await?;
        if round > 0 {
            ready(&vhost).await;
        }
        let ids = submit(&consumer(&server.url())?, 20).await?;
        server.kill9()?;
        server.restart().await?;
        ready(&vhost).await;
        let worker = AmqpWorker::new(vhost.url(), SERVICE);
        let mut listening = worker.listen(50).await;
        let mut missing: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        while !missing.is_empty() {
            let job = listening.take().await;
            listening.ack(&job);
            missing.remove(job.task_id.as_str());
        }
    }
    Ok(())
}
