//! What operators look at: roles, metrics, log lines, and what an idle server costs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use relais_testkit::TestDatabase;
use relais_tests::{
    chaos::{Api, SERVICE, consumer, declare},
    instance::Instance,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{PATIENCE, sqlite};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_the_role_api_serves_health_and_metrics_and_does_its_own_work() -> Result<()> {
    let database = TestDatabase::create().await?;
    let api = Instance::options(database.url()).arg("--role").arg("api").start().await?;
    let rescue = Instance::options(database.url()).arg("--role").arg("rescue").start().await?;
    let outside = Api::admin(rescue.url())?;
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/v1/services", 404),
        ("/admin/services", 404),
        ("/docs", 404),
        ("/openapi.json", 404),
    ] {
        assert_eq!(outside.get(path).await?.status, status, "{path}");
    }
    // The one hands out, the other takes away: a worker that keeps silent loses its task.
    declare(&api.url(), "1s").await?;
    let client = consumer(&api.url())?;
    client.post("/v1/services/chaos/tasks", &json!({"body": {}})).await?.data()?;
    let first = client.post("/v1/services/chaos/claims", &json!({"wait": "10s"})).await?.data()?;
    let second = client.post("/v1/services/chaos/claims", &json!({"wait": "10s"})).await?.data()?;
    assert_eq!(first["tasks"][0]["taskId"], second["tasks"][0]["taskId"], "{second}");
    assert_eq!(second["tasks"][0]["attempt"], 2);
    Ok(())
}

/// The value of the series that has these labels.
fn value(metrics: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let wanted: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    metrics.lines().find_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (found, labels) = series.split_once('{').unwrap_or((series, ""));
        (found == name && wanted.iter().all(|label| labels.contains(label))).then(|| value.parse().ok())?
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_say_what_happened() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(sqlite(folder.path())).await?;
    declare(&server.url(), "60s").await?;
    let capacity = json!({"services": [{"serviceName": SERVICE, "capacity": 5}]});
    Api::admin(server.url())?.post("/admin/apply", &capacity).await?.data()?;
    let client = consumer(&server.url())?;
    let submission = json!({"body": {}});
    for place in 0..7 {
        let request = client.request(Method::POST, "/v1/services/chaos/tasks").json(&submission);
        // The first one twice.
        let request = if place < 2 { request.header("Idempotency-Key", "once") } else { request };
        let answer = Api::send(request).await?;
        assert_eq!(answer.status, if place < 6 { 201 } else { 429 }, "{}", answer.body);
    }
    let claim = client.post("/v1/services/chaos/claims", &json!({"max": 3})).await?.data()?;
    let tasks = claim["tasks"].as_array().context("no tasks")?;
    for (task, kind) in tasks.iter().zip(["success", "failure"]) {
        let data = json!({"messageType": kind, "response": {}, "errorMessage": "no"});
        let message = json!({"taskId": task["taskId"], "attempt": task["attempt"], "data": data});
        client.post("/v1/services/chaos/messages", &message).await?.data()?;
    }
    assert_eq!(client.with("nobody", "wrong").get("/v1/services").await?.status, 403);

    let metrics = client.request(Method::GET, "/metrics").send().await?.text().await?;
    let service = ("service", SERVICE);
    for (name, labels, expected) in [
        ("relais_tasks_submitted_total", &[service][..], 5.0),
        ("relais_tasks_replayed_total", &[service], 1.0),
        ("relais_tasks_refused_total", &[service], 1.0),
        ("relais_tasks_claimed_total", &[service], 3.0),
        ("relais_tasks_finished_total", &[service, ("status", "SUCCESS")], 1.0),
        ("relais_tasks_finished_total", &[service, ("status", "FAILURE")], 1.0),
        ("relais_worker_messages_total", &[service, ("outcome", "accepted")], 2.0),
        ("relais_http_refusals_total", &[("number", "429001")], 1.0),
        ("relais_http_refusals_total", &[("number", "403001")], 1.0),
        ("relais_tasks_pending", &[service], 2.0),
        ("relais_tasks_running", &[service], 1.0),
        ("relais_tasks_watched", &[], 0.0),
        ("relais_task_wait_seconds_count", &[service], 3.0),
        ("relais_task_run_seconds_count", &[service, ("status", "SUCCESS")], 1.0),
        ("relais_store_seconds_count", &[("verb", "claim_tasks")], 1.0),
        ("relais_batch_size_sum", &[("batch", "submissions")], 7.0),
        ("relais_http_request_seconds_count", &[("route", "/v1/services/{service}/claims"), ("status", "200")], 1.0),
    ] {
        assert_eq!(value(&metrics, name, labels), Some(expected), "{name} {labels:?} in\n{metrics}");
    }
    assert!(value(&metrics, "relais_queue_age_seconds", &[service]).is_some_and(|age| (0.0..60.0).contains(&age)));
    for described in ["relais_tasks_submitted_total", "relais_store_seconds", "relais_queue_age_seconds"] {
        assert!(metrics.contains(&format!("# HELP {described} ")), "{described} is not explained");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_lines_are_json_where_that_is_asked_for() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut server = Instance::options(sqlite(folder.path())).arg("--log-format").arg("json").start().await?;
    server.process().terminate()?;
    assert_eq!(server.process().wait_exit(PATIENCE).await?.code(), Some(0));
    let log = server.process().stderr()?;
    let mut messages = Vec::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        for field in ["timestamp", "level", "message", "target"] {
            assert!(line[field].is_string(), "{field} is missing in {line}");
        }
        messages.push(line["message"].clone());
    }
    assert!(messages.iter().any(|message| message == "stopped"), "{messages:?}");
    assert_eq!(server.process().stdout()?, "", "a server has no data to print");
    Ok(())
}

/// For information: on a machine that runs other tests, a time is no promise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_is_measured() -> Result<()> {
    const WINDOW: Duration = Duration::from_secs(5);
    let folder = tempfile::tempdir()?;
    let mut server = Instance::start(sqlite(folder.path())).await?;
    let (begun, used) = (Instant::now(), server.process().cpu_time()?);
    tokio::time::sleep(WINDOW).await;
    let used = server.process().cpu_time()?.saturating_sub(used);
    let percent = 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64();
    let megabytes = server.process().rss_bytes()? as f64 / 1e6;
    println!("idle server (debug build): {percent:.2} % CPU over {WINDOW:?}, {megabytes:.0} MB resident");
    Ok(())
}
