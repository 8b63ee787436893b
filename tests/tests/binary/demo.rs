//! `relais demo`: the first thing that anybody tries.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use relais_testkit::{ServerProcess, free_port};
use relais_tests::instance;
use serde_json::Value;

use crate::{PATIENCE, Said, until};

#[test]
fn the_demo_shows_a_success_a_failure_and_a_refusal_and_ends() -> Result<()> {
    let listen = format!("127.0.0.1:{}", free_port()?);
    let text = Said::of(&instance::run(["demo", "--exit", "--listen", &listen])?).data()?;
    for said in
        ["SUCCESS {\"slept\":2.0}", "FAILURE mustSucceed was false", "400001", "curl -u demo:", "/demo", "/docs"]
    {
        assert!(text.contains(said), "{said:?} is not in\n{text}");
    }
    Ok(())
}

/// The commands that the demo prints, each on one line, without the comments behind them.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| line.starts_with("curl "));
    lines.map(|line| line.split("  #").next().unwrap_or(line).trim().to_owned()).collect()
}

fn execute(line: &str) -> Result<String> {
    let output = Command::new("sh")
        .args(["-c", line])
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .context("the demo's commands need sh and curl")?;
    let said = Said::of(&output);
    ensure!(said.code == 0, "{line}\n{said:?}");
    Ok(said.stdout)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_that_the_demo_prints_work_as_they_stand() -> Result<()> {
    let mut command = instance::command()?;
    command.args(["demo", "--listen", &format!("127.0.0.1:{}", free_port()?)]);
    let mut demo = ServerProcess::spawn_command(command)?;
    until("the demo has printed its commands", async || Ok(demo.stdout()?.contains("API documentation"))).await?;
    let lines = commands(&demo.stdout()?);
    let [submit, wait, follow, list, give_up, notify] = &lines[..] else {
        anyhow::bail!("six commands expected: {lines:?}")
    };
    let json = |line: &str| -> Result<Value> { Ok(serde_json::from_str(&execute(line)?)?) };

    let name = |answer: &Value| answer["data"]["taskId"].as_str().map(str::to_owned).context("there is no task id");
    let first = name(&json(submit)?)?;
    let second = name(&json(submit)?)?;
    let cancelled = json(&give_up.replace("TASK_ID", &second))?;
    assert_eq!(cancelled["data"]["status"], "CANCELLED", "{cancelled}");
    let ended = json(&wait.replace("TASK_ID", &first))?;
    assert_eq!(ended["data"]["status"], "SUCCESS", "{ended}");
    let events = execute(&follow.replace("TASK_ID", &first))?;
    assert!(events.contains("event: status") && events.contains("SUCCESS"), "{events}");
    let listed = json(list)?;
    // Two of the demo's own, and these.
    assert_eq!(listed["data"]["tasks"].as_array().map(Vec::len), Some(4), "{listed}");
    let notified = json(notify)?;
    assert!(notified["data"]["id"].is_string(), "{notified}");

    demo.terminate()?;
    assert_eq!(demo.wait_exit(PATIENCE).await?.code(), Some(0));
    Ok(())
}
