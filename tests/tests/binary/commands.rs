//! The commands that talk to a server: a round trip of each.

use std::{fs, io::Write, process::Stdio};

use anyhow::{Context, Result};
use relais_tests::{chaos::Api, instance::Instance};
use serde_json::{Value, json};

use crate::{Said, relais, sqlite, type_in};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_objects_are_listed_as_text_and_as_json() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(sqlite(folder.path())).await?;
    assert_eq!(type_in(&server, "health")?.data()?, "ready\n");
    assert!(type_in(&server, "service list")?.data()?.contains("There are no services."));

    let report = type_in(&server, "service put resize --capacity 10 --lease 30s --keep-finished 7d")?.data()?;
    assert!(report.contains("service") && report.contains("created"), "{report}");
    let secret =
        Said::of(&relais(&server)?.args(["client", "put", "web", "--secret-env", "WEB"]).env("WEB", "hush").output()?);
    assert!(!secret.data()?.contains("hush"), "a given secret is not shown again");
    let generated = type_in(&server, "client put batch --json")?.data()?;
    let generated: Value = serde_json::from_str(&generated)?;
    assert!(generated["applied"][0]["clientSecret"].as_str().is_some_and(|secret| secret.len() > 20), "{generated}");
    type_in(&server, "authorization put web resize --role consume,work --capacity 5")?.data()?;

    let table = type_in(&server, "service list")?.data()?;
    let mut lines = table.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("SERVICE")), "{table}");
    assert!(lines.next().is_some_and(|line| line.starts_with("resize") && line.contains("running")), "{table}");
    let states: Value = serde_json::from_str(&type_in(&server, "service list --json")?.data()?)?;
    assert_eq!((&states["services"][0]["capacity"], &states["services"][0]["lease"]), (&json!(10), &json!("30s")));
    let clients: Value = serde_json::from_str(&type_in(&server, "client list --json")?.data()?)?;
    let names: Vec<&Value> =
        clients["clients"].as_array().context("no clients")?.iter().map(|c| &c["clientId"]).collect();
    assert_eq!(names, ["batch", "web"]);
    let table = type_in(&server, "authorization list")?.data()?;
    assert!(table.lines().any(|line| line.starts_with("web") && line.contains("resize")), "{table}");

    let refusal = type_in(&server, "service show nothing")?.refusal()?;
    assert!(refusal.contains("404001") && refusal.contains("hint: `relais service list`"), "{refusal}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_for_notifications_are_put_listed_and_exported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(sqlite(folder.path())).await?;
    type_in(&server, "client put shop --emit USER,GROUP --audience GROUP --ticket")?.data()?;
    type_in(&server, "client put desk --ticket=GROUP")?.data()?;
    type_in(&server, "client put shop")?.data()?;
    let table = type_in(&server, "client list")?.data()?;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["CLIENT", "SERVICES", "EMIT", "AUDIENCE", "TICKET"]);
    assert_eq!(lines[1], ["desk", "0", "-", "-", "GROUP"]);
    assert_eq!(lines[2], ["shop", "0", "GROUP,USER", "GROUP", "user", "only"]);

    let exported = type_in(&server, "export")?.data()?;
    assert!(exported.contains("ticket: true"), "{exported}");
    let file = folder.path().join("exported.yaml");
    std::fs::write(&file, &exported)?;
    let applied = type_in(&server, &format!("apply -f {}", file.display()))?.data()?;
    assert!(applied.contains("unchanged") && !applied.contains("updated"), "{applied}");

    type_in(&server, "client put shop --no-notifications")?.data()?;
    let table = type_in(&server, "client list")?.data()?;
    assert!(table.lines().any(|line| line.split_whitespace().eq(["shop", "0", "-", "-", "-"])), "{table}");
    let refused = type_in(&server, "client put shop --emit USER,*")?.refusal()?;
    assert!(refused.contains("400010") && refused.contains("/notifications/emit/1"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_on_the_flow_are_put_and_shown() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(sqlite(folder.path())).await?;
    let limits = "--max-running 20 --max-running-per-client 5 --rate-limit 100/1m30s --rate-burst 7 --fair-share";
    type_in(&server, &format!("service put resize {limits}"))?.data()?;
    type_in(&server, "client put web")?.data()?;
    type_in(&server, "authorization put web resize --role consume --max-running 2 --share 3")?.data()?;
    let card = type_in(&server, "service show resize")?.data()?;
    for line in [
        "in progress:    0 of at most 20",
        "of each client: at most 5 in progress",
        "rate limit:     100 starts per 1m30s, at most 7 at once",
        "fair share:     clients take turns",
    ] {
        assert!(card.lines().any(|found| found == line), "{line:?} is not in\n{card}");
    }
    let authorizations: Value = serde_json::from_str(&type_in(&server, "authorization list --json")?.data()?)?;
    let authorization = &authorizations["authorizations"][0];
    assert_eq!((&authorization["maxRunning"], &authorization["share"]), (&json!(2), &json!(3)), "{authorization}");
    let exported = type_in(&server, "export")?.data()?;
    assert!(exported.contains("rateLimit") && exported.contains("1m30s"), "{exported}");

    let refusal = type_in(&server, "service put resize --max-running 0")?.refusal()?;
    assert!(refusal.contains("maxRunning") && refusal.contains("pause"), "{refusal}");
    let misread = type_in(&server, "service put resize --rate-limit 100")?;
    assert!(misread.stderr.contains("100/1s"), "{misread:?}");
    assert!(
        type_in(&server, "service put resize --rate-burst 5")?.stderr.contains("--rate-limit"),
        "one needs the other"
    );
    // What is not said is gone.
    type_in(&server, "service put resize")?.data()?;
    assert!(type_in(&server, "service show resize")?.data()?.contains("in progress:    0\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_applied_exported_and_pruned() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(sqlite(folder.path())).await?;
    let file = folder.path().join("services.yaml");
    fs::write(
        &file,
        "services:\n  - {serviceName: resize, capacity: 3, jsonSchema: {type: object}}\n  - {serviceName: old}\n\
         clients:\n  - {clientId: web, clientSecret: {env: WEB_SECRET}}\n\
         authorizations:\n  - {clientId: web, serviceName: resize}\n",
    )?;
    let apply = |more: &[&str], secret: Option<&str>| -> Result<Said> {
        let mut command = relais(&server)?;
        command.args(["apply", "-f"]).arg(&file).args(more);
        if let Some(secret) = secret {
            command.env("WEB_SECRET", secret);
        }
        Ok(Said::of(&command.output()?))
    };
    let refusal = apply(&[], None)?.refusal()?;
    assert!(refusal.contains("WEB_SECRET is not set"), "{refusal}");

    let dry = apply(&["--dry-run"], Some("hush"))?;
    assert!(dry.stderr.contains("4 created") && dry.stderr.contains("Nothing was changed"), "{dry:?}");
    assert!(type_in(&server, "service list")?.data()?.contains("There are no services."));
    let done = apply(&[], Some("hush"))?;
    assert!(done.stderr.contains("4 created, 0 updated, 0 deleted, 0 unchanged"), "{done:?}");
    let client = Api::admin(server.url())?.with("web", "hush");
    assert_eq!(client.get("/v1/services/resize").await?.status, 200, "the secret came from the environment");

    // What is exported is what is there.
    let exported = type_in(&server, "export")?.data()?;
    assert!(!exported.contains("hush"), "{exported}");
    let mut again = relais(&server)?;
    again.args(["apply", "-f", "-", "--prune"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut again = again.spawn()?;
    again.stdin.take().context("no stdin")?.write_all(exported.as_bytes())?;
    let again = Said::of(&again.wait_with_output()?);
    assert!(again.stderr.contains("0 created, 0 updated, 0 deleted, 4 unchanged"), "{again:?}");
    assert_eq!(client.get("/v1/services/resize").await?.status, 200, "and a client without a secret keeps its own");

    fs::write(&file, fs::read_to_string(&file)?.replace("  - {serviceName: old}\n", ""))?;
    let kept = apply(&[], Some("hush"))?;
    assert!(kept.stderr.contains("0 deleted"), "{kept:?}");
    let pruned = apply(&["--prune"], Some("hush"))?;
    assert!(pruned.stderr.contains("1 deleted"), "{pruned:?}");
    assert!(pruned.stdout.lines().any(|line| line.contains("old") && line.contains("deleted")), "{pruned:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_listed_shown_and_cancelled_and_services_paused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Instance::start(sqlite(folder.path())).await?;
    type_in(&server, "service put resize")?.data()?;
    let put = relais(&server)?.args(["client", "put", "web", "--secret-env", "WEB"]).env("WEB", "hush").output()?;
    Said::of(&put).data()?;
    type_in(&server, "auth put web resize --role consume,work")?.data()?;
    let client = Api::admin(server.url())?.with("web", "hush");
    let submission = json!({"body": {"width": 7}, "correlationId": "chain-1"});
    let task = client.post("/v1/services/resize/tasks", &submission).await?.data()?;
    let task_id = task["taskId"].as_str().context("no name")?;

    let table = type_in(&server, "task list --status pending --service resize --client web")?.data()?;
    assert!(table.lines().count() == 2 && table.contains(task_id), "{table}");
    let card = type_in(&server, &format!("task show {task_id}"))?.data()?;
    assert!(card.contains("PENDING") && card.contains("{\"width\":7}") && card.contains("chain-1"), "{card}");

    let paused = type_in(&server, "service pause resize")?.data()?;
    assert!(paused.contains("paused"), "{paused}");
    let claim = client.post("/v1/services/resize/claims", &json!({})).await?.data()?;
    assert_eq!(claim["tasks"], json!([]), "a paused service hands out nothing");
    let resumed = type_in(&server, "service resume resize")?.data()?;
    assert!(resumed.contains("running"), "{resumed}");

    let cancelled = type_in(&server, &format!("task cancel {task_id}"))?.data()?;
    assert!(cancelled.contains("CANCELLED"), "{cancelled}");
    let claim = client.post("/v1/services/resize/claims", &json!({})).await?.data()?;
    assert_eq!(claim["tasks"], json!([]), "nor is a cancelled task handed out");
    let purge = type_in(&server, "purge --dry-run")?;
    assert!(purge.stdout.contains("TO PURGE") && purge.stderr.contains("dry run"), "{purge:?}");
    assert!(type_in(&server, "task list")?.data()?.contains(task_id), "nothing was removed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_token_is_asked_for_and_taken() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server =
        Instance::options(sqlite(folder.path())).env("RELAIS_ADMIN_TOKEN", "a-long-admin-token").start().await?;
    let refusal = type_in(&server, "service list")?.refusal()?;
    assert!(refusal.contains("403002") && refusal.contains("--token"), "{refusal}");
    type_in(&server, "service list --token a-long-admin-token")?.data()?;
    Ok(())
}

#[test]
fn an_unreachable_server_is_reported_with_what_to_do() -> Result<()> {
    let url = format!("http://127.0.0.1:{}", relais_testkit::free_port()?);
    for line in [["service", "list"], ["health", "--json"]] {
        let refusal = Said::of(&relais_tests::instance::run([line[0], line[1], "--url", &url])?).refusal()?;
        assert!(refusal.contains("no answer from") && refusal.contains("RELAIS_URL"), "{refusal}");
    }
    Ok(())
}
