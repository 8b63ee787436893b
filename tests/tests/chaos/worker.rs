//! A worker that crashes while it runs a task.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use relais_testkit::ServerProcess;
use relais_tests::{chaos::Api, instance::Instance};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_of_a_crashed_worker_goes_to_another_and_the_first_is_fenced() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(format!("sqlite:{}", folder.path().join("relais.db").display())).await?;
    let admin = Api::admin(server.url())?;
    let declaration = json!({
        "services": [{"serviceName": "example", "lease": "5s"}],
        "clients": [{"clientId": "me", "clientSecret": "hush"}],
        "authorizations": [{"clientId": "me", "serviceName": "example", "roles": ["consume", "work"]}],
    });
    admin.post("/admin/apply", &declaration).await?.data()?;
    let client = admin.with("me", "hush");
    let submission = json!({"body": {"sleep": 600, "mustSucceed": true}});
    let task = client.post("/v1/services/example/tasks", &submission).await?.data()?;
    let task_id = task["taskId"].as_str().context("a task without a name")?.to_owned();

    let mut worker = Command::new("python3");
    worker
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/worker.py"))
        .env("RELAIS_URL", server.url())
        .env("RELAIS_CLIENT", "me")
        .env("RELAIS_SECRET", "hush");
    let mut worker = ServerProcess::spawn_command(worker).context("examples/worker.py needs python3")?;
    // It works, and has shown that it keeps its lease: a heartbeat follows each report of progress.
    let events = client.request(Method::GET, &format!("/v1/services/example/tasks/{task_id}/events"));
    let mut events = events.send().await?;
    let seen = async {
        let mut text = String::new();
        while let Some(chunk) = events.chunk().await? {
            text.push_str(&String::from_utf8_lossy(&chunk));
            let views = text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?).ok());
            if views.into_iter().any(|view: Value| view["progress"].as_f64() > Some(0.1)) {
                return Ok(());
            }
        }
        anyhow::bail!("the stream ends: {text}")
    };
    timeout(PATIENCE, seen).await.with_context(|| worker.stderr().unwrap_or_default()).context("no progress")??;
    let view = admin.get(&format!("/admin/tasks/{task_id}")).await?.data()?;
    assert_eq!((&view["attempt"], &view["losses"]), (&json!(1), &json!(0)), "{view}");
    worker.kill9()?;

    let killed = Instant::now();
    let claim = client.post("/v1/services/example/claims", &json!({"wait": "30s"})).await?.data()?;
    println!("worker killed: another one had its task after {:?}, the lease being 5 s", killed.elapsed());
    let again = &claim["tasks"][0];
    assert_eq!((&again["taskId"], &again["attempt"]), (&json!(task_id), &json!(2)), "{claim}");

    let tell = |attempt: u32| {
        let data = json!({"messageType": "success", "response": {"by": attempt}});
        json!({"taskId": task_id, "attempt": attempt, "data": data})
    };
    let outcome = |answer: Value| answer["outcomes"][0]["outcome"].clone();
    let late = client.post("/v1/services/example/messages", &tell(1)).await?.data()?;
    assert_eq!(outcome(late), "lost", "the first worker's result counts no more");
    let good = client.post("/v1/services/example/messages", &tell(2)).await?.data()?;
    assert_eq!(outcome(good), "accepted");
    let late = client.post("/v1/services/example/messages", &tell(1)).await?.data()?;
    assert_eq!(outcome(late), "ended");
    let view = client.get(&format!("/v1/services/example/tasks/{task_id}")).await?.data()?;
    assert_eq!((&view["status"], &view["response"]), (&json!("SUCCESS"), &json!({"by": 2})), "{view}");
    println!("worker killed: tasks 1, faults 1, lost 0, doubled 0, stuck 0");
    Ok(())
}
