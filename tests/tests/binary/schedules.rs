//! Schedules from the command line, from a file that is watched, and over a restart.

use std::fs;

use anyhow::Result;
use relais_tests::instance::Instance;
use serde_json::{Value, json};

use crate::{Said, relais, sqlite, type_in, until};

/// A server with a service and a client that may use it.
async fn start(database: String) -> Result<Instance> {
    let server = Instance::start(database).await?;
    for line in ["service put resize", "client put web --json", "authorization put web resize --role consume"] {
        type_in(&server, line)?.data()?;
    }
    Ok(server)
}

/// Types a command whose words may have spaces.
fn say(server: &Instance, words: &[&str]) -> Result<Said> {
    Ok(Said::of(&relais(server)?.args(words).output()?))
}

fn read(server: &Instance, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&type_in(server, &format!("schedule show {name} --json"))?.data()?)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_is_put_shown_run_paused_and_deleted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(sqlite(folder.path())).await?;
    assert!(type_in(&server, "schedule list")?.data()?.contains("There are no schedules."));
    let body = folder.path().join("body.json");
    fs::write(&body, r#"{"width": 100}"#)?;
    let put = ["schedule", "put", "nightly", "--service", "resize", "--client", "web", "--cron", "30 2 * * MON-FRI"];
    let body = body.display().to_string();
    let more = ["--time-zone", "Europe/Paris", "--overlap", "skip", "--body-file", &body];
    let report = say(&server, &[&put[..], &more].concat())?.data()?;
    assert!(report.contains("schedule") && report.contains("created"), "{report}");
    assert!(say(&server, &[&put[..], &more].concat())?.data()?.contains("unchanged"));

    let table = type_in(&server, "schedule list")?.data()?;
    let line = table.lines().nth(1).unwrap_or_default();
    assert!(line.starts_with("nightly   resize   running  at 02:30 every Monday to Friday, Europe/Paris"), "{table}");
    let next = type_in(&server, "schedule next nightly --count 3")?.data()?;
    assert_eq!(next.lines().count(), 4, "{next}");
    assert!(
        next.lines().skip(1).all(|line| line.contains("T02:30:00+0") || line.contains("T03:00:00+02:00")),
        "{next}"
    );

    let task_id = type_in(&server, "schedule run nightly")?.data()?;
    let card = type_in(&server, "schedule show nightly")?.data()?;
    assert!(card.lines().any(|line| line.starts_with("last task:") && line.ends_with(task_id.trim())), "{card}");
    assert!(card.contains("\"width\": 100"), "{card}");
    let task = type_in(&server, &format!("task show {}", task_id.trim()))?.data()?;
    assert!(task.contains("nightly@"), "{task}");
    let busy = type_in(&server, "schedule run nightly")?.refusal()?;
    assert!(busy.contains("409003") && busy.contains(task_id.trim()), "{busy}");

    assert!(type_in(&server, "schedule pause nightly")?.data()?.contains("paused"));
    assert!(type_in(&server, "schedule next nightly")?.stderr.contains("relais schedule resume"));
    assert_eq!(read(&server, "nightly")?["paused"], true);
    assert!(type_in(&server, "schedule resume nightly")?.data()?.contains("running"));
    let refusal =
        say(&server, &["schedule", "put", "x", "--service", "resize", "--client", "web", "--cron", "61 * * * *"])?;
    let refusal = refusal.refusal()?;
    assert!(refusal.contains("400010") && refusal.contains("must be between 0 and 59"), "{refusal}");
    assert!(type_in(&server, "export")?.data()?.contains("schedules:\n  - scheduleName: nightly\n"));
    assert!(type_in(&server, "schedule delete nightly")?.refusal()?.contains("--yes"), "there is nobody to ask");
    assert!(type_in(&server, "schedule delete nightly --yes")?.data()?.contains("deleted"));
    let gone = type_in(&server, "schedule show nightly")?.refusal()?;
    assert!(gone.contains("404008") && gone.contains("hint: `relais schedule list`"), "{gone}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_declares_schedules_and_they_survive_a_restart() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("services.yaml");
    let declare = |cron: &str| {
        fs::write(
            &file,
            format!(
                "services: [{{serviceName: resize}}]\nclients: [{{clientId: web, clientSecret: hush}}]\n\
                 authorizations: [{{clientId: web, serviceName: resize}}]\n\
                 schedules:\n  - scheduleName: tick\n    serviceName: resize\n    clientId: web\n    cron: {cron:?}\n\
                 \x20   missed: all\n    body: {{width: 100, list: [1, 2.5]}}\n"
            ),
        )
    };
    declare("* * * * * *")?;
    let mut server = Instance::options(sqlite(folder.path()))
        .arg("--declarations")
        .arg(file.display().to_string())
        .env("RELAIS_DECLARATIONS_INTERVAL", "50ms")
        .start()
        .await?;
    let runs = |server: &Instance| -> Result<u64> { Ok(read(server, "tick")?["runs"].as_u64().unwrap_or_default()) };
    until("it runs", async || Ok(runs(&server)? >= 1)).await?;
    server.kill9()?;
    server.restart().await?;
    let before = runs(&server)?;
    assert!(before >= 1, "it has not forgotten");
    until("it goes on", async || Ok(runs(&server)? > before)).await?;
    declare("@yearly")?;
    until("the edit is applied", async || Ok(read(&server, "tick")?["description"] == "at 00:00 on 1 January, UTC"))
        .await?;
    let state = read(&server, "tick")?;
    assert_eq!(state["body"], json!({"width": 100, "list": [1, 2.5]}));
    assert!(state["runs"].as_u64() > Some(before) && state["missedRuns"] == 0, "{state}");
    Ok(())
}

/// Whoever does not make the runs still declares and shows them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_role_there_are_no_runs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut server = Instance::options(sqlite(folder.path())).arg("--role").arg("api").start().await?;
    for line in ["service put resize", "client put web --json", "authorization put web resize --role consume"] {
        type_in(&server, line)?.data()?;
    }
    let put = ["schedule", "put", "tick", "--service", "resize", "--client", "web", "--cron", "* * * * * *"];
    say(&server, &put)?.data()?;
    let next = read(&server, "tick")?["nextRunDate"].clone();
    let due = |server: &Instance| -> Result<bool> {
        let runs: Value = serde_json::from_str(&type_in(server, "schedule next tick --count 1 --json")?.data()?)?;
        Ok(runs["runs"][0]["runDate"].as_str() > next.as_str())
    };
    until("a run would have been due", async || due(&server)).await?;
    assert_eq!((&read(&server, "tick")?["runs"], &read(&server, "tick")?["nextRunDate"]), (&json!(0), &next));
    let said = server.process().stderr()?;
    assert!(said.contains("schedule"), "it is said who is missing: {said}");
    Ok(())
}
