//! The examples, run as they are.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};
use relais_testkit::ServerProcess;
use relais_tests::{chaos::Api, instance::Instance};
use serde_json::json;

use crate::{PATIENCE, sqlite};

async fn runs(example: &str, program: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(sqlite(folder.path())).await?;
    let admin = Api::admin(server.url())?;
    let declaration = json!({
        "services": [{"serviceName": "example"}],
        "clients": [{"clientId": "me", "clientSecret": "hush"}],
        "authorizations": [{"clientId": "me", "serviceName": "example", "roles": ["consume", "work"]}],
    });
    admin.post("/admin/apply", &declaration).await?.data()?;
    let client = admin.with("me", "hush");
    for (must_succeed, status) in [(true, "SUCCESS"), (false, "FAILURE")] {
        let submission = json!({"body": {"sleep": 1, "mustSucceed": must_succeed}});
        let task = client.post("/v1/services/example/tasks", &submission).await?.data()?;
        let mut worker = Command::new(program);
        worker
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(example))
            .arg("--once")
            .env("RELAIS_URL", server.url())
            .env("RELAIS_CLIENT", "me")
            .env("RELAIS_SECRET", "hush")
            .env("HOSTNAME", "example-host")
            .env("NO_PROXY", "127.0.0.1");
        let mut worker = ServerProcess::spawn_command(worker).with_context(|| format!("it needs {program}"))?;
        let path = format!("/v1/services/example/tasks/{}?wait=30s", task["taskId"].as_str().context("no name")?);
        let view = client.get(&path).await?.data()?;
        assert_eq!(view["status"], status, "{view}\n{}", worker.stderr()?);
        if must_succeed {
            assert_eq!(view["response"], json!({"slept": 1}));
        } else {
            assert_eq!(view["errorMessage"], "mustSucceed is false");
        }
        assert_eq!(worker.wait_exit(PATIENCE).await?.code(), Some(0), "{}", worker.stderr()?);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_in_python_runs() -> Result<()> {
    runs("worker.py", "python3").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_in_shell_runs() -> Result<()> {
    for needed in ["curl", "jq"] {
        let found = Command::new(needed).arg("--version").output();
        found.with_context(|| format!("{needed} is missing: the example in shell needs it"))?;
    }
    runs("worker.sh", "bash").await
}
