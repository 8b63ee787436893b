//! `relais worker`: any command is a worker, as an operator runs it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use relais_testkit::{ServerProcess, TestVhost};
use relais_tests::{
    chaos::Api,
    instance::{Instance, command},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{PATIENCE, Said, sqlite, until};

/// A server, a service `resize`, and a folder in which commands leave traces.
struct Scene {
    server: Instance,
    client: Api,
    folder: TempDir,
    broker: Option<TestVhost>,
}

impl Scene {
    async fn over_http() -> Result<Self> {
        Self::new(None).await
    }

    async fn over_rabbitmq() -> Result<Self> {
        Self::new(Some(TestVhost::create().await?)).await
    }

    async fn new(broker: Option<TestVhost>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut options = Instance::options(sqlite(folder.path()));
        if let Some(vhost) = &broker {
            // As they are on every day but the first: what is submitted while they are made may be handed out twice.
            vhost.declare_queue("images-in").await?;
            vhost.declare_queue("images-out").await?;
            options = options.env("RELAIS_BROKER_URL", vhost.url());
        }
        let server = options.start().await?;
        let admin = Api::admin(server.url())?;
        let declaration = json!({
            "services": [{"serviceName": "resize", "queueName": "images"}],
            "clients": [{"clientId": "me", "clientSecret": "hush"}],
            "authorizations": [{"clientId": "me", "serviceName": "resize", "roles": ["consume", "work"]}],
        });
        admin.post("/admin/apply", &declaration).await?.data()?;
        Ok(Self { client: admin.with("me", "hush"), server, folder, broker })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn submit(&self, body: Value) -> Result<String> {
        let task = self.client.post("/v1/services/resize/tasks", &json!({"body": body})).await?.data()?;
        Ok(task["taskId"].as_str().context("no name")?.to_owned())
    }

    async fn ended(&self, task: &str) -> Result<Value> {
        self.client.get(&format!("/v1/services/resize/tasks/{task}?wait=30s")).await?.data()
    }

    async fn seen(&self, task: &str) -> Result<Value> {
        self.client.get(&format!("/admin/tasks/{task}")).await?.data()
    }

    /// A worker with these flags, whose command is a script. `$0` is the folder.
    fn worker(&self, flags: &str, script: &str) -> Result<ServerProcess> {
        self.run(flags, &["sh", "-c", script, &self.folder.path().display().to_string()])
    }

    fn run(&self, flags: &str, words: &[&str]) -> Result<ServerProcess> {
        let mut worker = command()?;
        worker.args(["worker", "--service", "resize"]).args(flags.split_whitespace()).arg("--").args(words);
        worker.current_dir(self.folder.path()).env("RESIZE_BUSY", self.path("busy"));
        match &self.broker {
            Some(vhost) => worker.env("RELAIS_BROKER_URL", vhost.url()).args([""; 0]),
            None => worker.env("RELAIS_URL", self.server.url()).env("RELAIS_CLIENT", "me").env("RELAIS_SECRET", "hush"),
        };
        ServerProcess::spawn_command(worker)
    }

    /// Waits until a script has written a file, and gives its text.
    async fn written(&self, name: &str) -> Result<String> {
        let path = self.path(name);
        let read = || fs::read_to_string(&path).unwrap_or_default();
        until(&format!("{name} is written"), async || Ok(read().ends_with('\n'))).await?;
        Ok(read().trim().to_owned())
    }

    /// Waits until a process is gone, whose number a script has written.
    async fn gone(&self, name: &str) -> Result<()> {
        let stat = format!("/proc/{}/stat", self.written(name).await?);
        until(&format!("the process {name} is gone"), async || {
            let stat = fs::read_to_string(&stat).unwrap_or_default();
            // Dead, and only not reaped yet.
            Ok(stat.is_empty() || stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
        })
        .await
    }

    async fn until_status(&self, task: &str, status: &str) -> Result<Value> {
        until(&format!("the task is {status}"), async || Ok(self.seen(task).await?["task"]["status"] == status))
            .await?;
        self.seen(task).await
    }
}

async fn exit_code(mut worker: ServerProcess) -> Result<Option<i32>> {
    Ok(worker.wait_exit(PATIENCE).await?.code())
}

/// What the guide shows, with and without success, and when it is not the time.
async fn does_what_the_guide_says(scene: &Scene, flags: &str) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/worker/resize.sh");
    let script = script.display().to_string();
    Command::new("jq").arg("--version").output().context("jq is missing: the example in shell needs it")?;
    let once = format!("--once --host-name pod-1 {flags}");

    let task = scene.submit(json!({"width": 640, "height": 480, "percent": 50})).await?;
    let mut worker = scene.run(&once, &[&script])?;
    let view = scene.ended(&task).await?;
    assert_eq!(view["response"], json!({"width": 320, "height": 240}), "{view}\n{}", worker.stderr()?);
    assert_eq!(worker.wait_exit(PATIENCE).await?.code(), Some(0));
    assert!(worker.stderr()?.contains(&format!("task {task} of resize")), "{}", worker.stderr()?);
    assert_eq!(scene.seen(&task).await?["workerHost"], "pod-1");
    if let Some(vhost) = &scene.broker {
        assert!(vhost.take("images-in", 9).await?.is_empty(), "the process ended before its acknowledgement was out");
    }

    let task = scene.submit(json!({"percent": 0})).await?;
    let worker = scene.run(&once, &[&script])?;
    assert_eq!(scene.ended(&task).await?["errorMessage"], "percent must be more than 0");
    assert_eq!(exit_code(worker).await?, Some(0), "it was reported");

    fs::write(scene.path("busy"), "")?;
    let task = scene.submit(json!({"width": 2, "height": 2, "percent": 100})).await?;
    assert_eq!(exit_code(scene.run(&once, &[&script])?).await?, Some(0));
    let seen = scene.until_status(&task, "PENDING").await?;
    assert_eq!(seen["losses"], 0);
    fs::remove_file(scene.path("busy"))?;
    let worker = scene.run(&once, &[&script])?;
    assert_eq!(scene.ended(&task).await?["status"], "SUCCESS");
    assert_eq!(exit_code(worker).await?, Some(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guides_command_works_over_http() -> Result<()> {
    does_what_the_guide_says(&Scene::over_http().await?, "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guides_command_works_over_rabbitmq() -> Result<()> {
    does_what_the_guide_says(&Scene::over_rabbitmq().await?, "--queue images").await
}

/// SIGTERM: no new task, what runs finishes.
async fn finishes(scene: &Scene, flags: &str) -> Result<()> {
    let tasks = [scene.submit(json!({})).await?, scene.submit(json!({})).await?];
    let script = "echo $RELAIS_TASK_ID >>$0/began; while ! [ -e $0/go ]; do sleep 0.02; done; echo '\"done\"'";
    let mut worker = scene.worker(flags, script)?;
    let began = scene.written("began").await?;
    worker.terminate()?;
    fs::write(scene.path("go"), "")?;
    assert_eq!(worker.wait_exit(PATIENCE).await?.code(), Some(0), "{}", worker.stderr()?);
    assert_eq!(scene.ended(&began).await?["response"], "done");
    let other = if began == tasks[0] { &tasks[1] } else { &tasks[0] };
    assert_eq!(scene.seen(other).await?["task"]["status"], "PENDING", "it was not to be taken");
    Ok(())
}

/// SIGTERM, where tasks can be interrupted: they are stopped at once and given back, and no attempt is burnt.
async fn interrupts(scene: &Scene, flags: &str) -> Result<()> {
    let task = scene.submit(json!({})).await?;
    let script = "trap 'echo 1 >$0/told; exit 1' TERM; sleep 1000 & echo $! >$0/child; echo $$ >$0/pid; wait";
    let mut worker = scene.worker(&format!("--interruptible {flags}"), script)?;
    scene.written("pid").await?;
    scene.until_status(&task, "IN_PROGRESS").await?;
    worker.terminate()?;
    assert_eq!(worker.wait_exit(PATIENCE).await?.code(), Some(0), "{}", worker.stderr()?);
    assert_eq!(scene.written("told").await?, "1");
    scene.gone("pid").await?;
    scene.gone("child").await?;
    let seen = scene.until_status(&task, "PENDING").await?;
    assert_eq!(seen["losses"], 0, "{seen}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_commands_finish() -> Result<()> {
    finishes(&Scene::over_http().await?, "").await?;
    finishes(&Scene::over_rabbitmq().await?, "--queue images").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_interrupts_commands_that_may_be() -> Result<()> {
    interrupts(&Scene::over_http().await?, "").await?;
    interrupts(&Scene::over_rabbitmq().await?, "--queue images").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_at_once_and_leaves_nothing_behind() -> Result<()> {
    let scene = Scene::over_http().await?;
    scene.submit(json!({})).await?;
    let mut worker =
        scene.worker("--grace 1h", "trap '' TERM; sleep 1000 & echo $! >$0/child; echo $$ >$0/pid; wait")?;
    scene.written("pid").await?;
    worker.terminate()?;
    until("the first signal was heard", async || {
        let _ = worker.terminate();
        Ok(!worker.is_running()?)
    })
    .await?;
    assert_eq!(worker.wait_exit(PATIENCE).await?.code(), Some(1));
    scene.gone("pid").await?;
    scene.gone("child").await
}

/// The worker alone is killed: its commands go too, and another worker does the task.
async fn survives_a_kill(scene: &Scene, flags: &str) -> Result<()> {
    let task = scene.submit(json!({})).await?;
    let script =
        "if [ -e $0/pid ]; then echo '\"second\"'; else sleep 1000 & echo $! >$0/child; echo $$ >$0/pid; wait; fi";
    let mut worker = scene.worker(flags, script)?;
    scene.written("pid").await?;
    let killed = Command::new("kill").args(["-s", "KILL", &worker.id().to_string()]).status()?;
    assert!(killed.success());
    worker.wait_exit(PATIENCE).await?;
    scene.gone("pid").await?;
    scene.gone("child").await?;
    let other = scene.worker(&format!("--once {flags}"), script)?;
    assert_eq!(scene.ended(&task).await?["response"], "second");
    assert_eq!(exit_code(other).await?, Some(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_killed_leaves_no_command_and_no_task_behind() -> Result<()> {
    survives_a_kill(&Scene::over_http().await?, "--lease 5s").await?;
    survives_a_kill(&Scene::over_rabbitmq().await?, "--queue images").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_task_and_one_that_is_late_end_their_commands() -> Result<()> {
    let scene = Scene::over_http().await?;
    let task = scene.submit(json!({})).await?;
    let script = "sleep 1000 & echo $! >$0/child; echo $$ >$0/pid; wait";
    let mut worker = scene.worker("--lease 1s", script)?;
    scene.written("pid").await?;
    let path = format!("/v1/services/resize/tasks/{task}");
    Api::send(scene.client.request(reqwest::Method::DELETE, &path)).await?.data()?;
    scene.gone("pid").await?;
    scene.gone("child").await?;
    worker.terminate()?;
    assert_eq!(worker.wait_exit(PATIENCE).await?.code(), Some(0), "{}", worker.stderr()?);

    fs::remove_file(scene.path("pid"))?;
    let task = scene.submit(json!({})).await?;
    // Longer than it takes to begin, on a busy machine.
    let worker = scene.worker("--timeout 3s --once", script)?;
    let message = scene.ended(&task).await?["errorMessage"].clone();
    assert_eq!(message, "the command was stopped after 3s, its time limit");
    assert_eq!(exit_code(worker).await?, Some(0));
    scene.gone("child").await
}

#[test]
fn a_worker_that_can_not_work_reports_it_at_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let run = |line: &str, secret: Option<&str>| -> Result<String> {
        let mut command = command()?;
        command.args(line.split(' ')).current_dir(folder.path()).envs(secret.map(|secret| ("RELAIS_SECRET", secret)));
        Said::of(&command.output()?).refusal()
    };
    for (line, words) in [
        ("worker --service s --client c -- nosuchprogram", "cannot run nosuchprogram: there is no such program"),
        ("worker --service s -- true", "`--client` or RELAIS_CLIENT"),
        ("worker --service s --client c -- true", "RELAIS_SECRET or with `--secret-file`"),
        ("worker --service s --client c --secret-file nothing -- true", "cannot read nothing"),
        ("worker --service s --broker http://h -- true", "it begins with amqp:// or amqps://"),
    ] {
        let said = run(line, None)?;
        assert!(said.contains(words), "{line}: {said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_can_come_from_a_file_and_a_wrong_one_is_refused() -> Result<()> {
    let scene = Scene::over_http().await?;
    fs::write(scene.path("secret"), "hush\n")?;
    fs::write(scene.path("wrong"), "loud\n")?;
    let task = scene.submit(json!({"n": 1})).await?;
    // The command does not get to know the secret.
    let script = "cat >/dev/null; echo \"\\\"${RELAIS_SECRET-none}\\\"\"";
    let worker = scene.worker("--once --secret-file secret", script)?;
    assert_eq!(scene.ended(&task).await?["response"], "none");
    assert_eq!(exit_code(worker).await?, Some(0));
    let mut worker = scene.worker("--once --secret-file wrong", script)?;
    assert_eq!(worker.wait_exit(PATIENCE).await?.code(), Some(1));
    assert!(worker.stderr()?.contains("403001"), "{}", worker.stderr()?);
    Ok(())
}
