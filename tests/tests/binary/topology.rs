//! `relais topology`: a file is compared with a broker and applied, with the exit codes that it documents.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};
use relais_testkit::TestVhost;
use relais_tests::instance::command;
use serde_json::{Value, json};

use crate::Said;

const FILE: &str = "
exchanges:
  - {name: orders, type: topic}
queues:
  - {name: invoices, type: quorum, messageTtl: 1h, maxRetries: 3}
  - {name: mails}
bindings:
  - {exchange: orders, queue: invoices, routingKey: order.*}
";

struct Stage {
    vhost: TestVhost,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Result<Self> {
        let stage = Self { vhost: TestVhost::create().await?, folder: tempfile::tempdir()? };
        stage.write(FILE)?;
        Ok(stage)
    }

    fn write(&self, text: &str) -> Result<()> {
        std::fs::write(self.file(), text).context("write the file")
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("topology.yaml")
    }

    fn say(&self, management: bool, words: &[&str]) -> Result<Said> {
        let mut command = relais(self.folder.path())?;
        command.env("RELAIS_BROKER_URL", self.vhost.url());
        if management {
            command.env("RELAIS_BROKER_MANAGEMENT_URL", self.vhost.management_url());
        }
        let said = command.arg("topology").args(words).arg("-f").arg(self.file()).output()?;
        Ok(Said::of(&said))
    }
}

fn relais(folder: &Path) -> Result<Command> {
    let mut command = command()?;
    command.current_dir(folder);
    Ok(command)
}

#[tokio::test]
async fn a_topology_is_planned_applied_and_then_there() -> Result<()> {
    let stage = Stage::new().await?;
    let plan = stage.say(true, &["plan"])?;
    assert_eq!(plan.code, 3, "{plan:?}");
    assert_eq!(plan.stdout.lines().filter(|line| line.starts_with("missing ")).count(), 4, "{plan:?}");
    let applied = stage.say(true, &["apply"])?;
    assert_eq!(applied.code, 0, "{applied:?}");
    assert!(applied.stdout.contains("created  queue invoices"), "{applied:?}");
    for verb in ["plan", "apply"] {
        let report: Value = serde_json::from_str(&stage.say(true, &[verb, "--json"])?.data()?)?;
        let states: Vec<&Value> =
            report["objects"].as_array().context("no objects")?.iter().map(|object| &object["state"]).collect();
        assert_eq!((states, &report["compared"]), (vec![&json!("same"); 4], &json!(true)));
    }
    stage.vhost.bind("orders", "mails", "#").await?;
    let extra = stage.say(true, &["plan"])?.data()?;
    assert!(extra.lines().any(|line| line.starts_with("extra  ") && line.contains("queue mails with #")), "{extra}");
    assert_eq!(stage.say(true, &["plan", "--delete-extra-bindings"])?.code, 3);
    let deleted = stage.say(true, &["apply", "--delete-extra-bindings"])?.data()?;
    assert!(deleted.contains("deleted  binding"), "{deleted}");
    assert!(!stage.say(true, &["plan"])?.data()?.contains("extra"));
    Ok(())
}

#[tokio::test]
async fn a_difference_is_shown_and_is_an_exit_code_of_its_own() -> Result<()> {
    let stage = Stage::new().await?;
    stage.vhost.declare_queue("invoices").await?;
    for (management, verb, words) in [
        (true, "plan", "x-message-ttl: 3600000 declared, none found"),
        (true, "apply", "type: \"quorum\" declared, \"classic\" found"),
        (false, "apply", "PRECONDITION_FAILED"),
    ] {
        let said = stage.say(management, &[verb])?;
        assert_eq!(said.code, 4, "{said:?}");
        assert!(said.stdout.lines().any(|line| line.starts_with("different  queue invoices") && line.contains(words)));
    }
    stage.write(&FILE.replace("type: quorum, messageTtl: 1h, ", ""))?;
    let blind = stage.say(false, &["plan"])?;
    assert!(blind.code == 0 && blind.stdout.contains("exists   queue invoices"), "{blind:?}");
    assert!(blind.stderr.contains("management API"), "{blind:?}");
    Ok(())
}

#[tokio::test]
async fn what_can_not_be_compared_is_refused_without_a_password() -> Result<()> {
    let stage = Stage::new().await?;
    let refused = stage.say(false, &["plan", "--delete-extra-bindings"])?.refusal()?;
    assert!(refused.contains("RELAIS_BROKER_MANAGEMENT_URL"), "{refused}");
    stage.write("queues: [{nme: q}]")?;
    let refused = stage.say(false, &["apply"])?.refusal()?;
    assert!(refused.contains("topology.yaml:1:11: unknown key `nme`: did you mean `name`?"), "{refused}");

    stage.write(FILE)?;
    let ask = |url: &str, management: &str| {
        let mut command = relais(stage.folder.path())?;
        command.env("RELAIS_BROKER_URL", url).env("RELAIS_BROKER_MANAGEMENT_URL", management);
        Said::of(&command.args(["topology", "plan", "-f"]).arg(stage.file()).output()?).refusal()
    };
    let wrong = stage.vhost.url_with_password("hush-hush")?;
    let away = format!("amqp://user:hush-hush@127.0.0.1:{}", relais_testkit::free_port()?);
    let wrong_api = stage.vhost.management_url().replace(":guest@", ":hush-hush@");
    for (url, management, words) in [
        ("", "", "RELAIS_BROKER_URL"),
        (wrong.as_str(), "", "ACCESS_REFUSED"),
        (away.as_str(), "", "does not answer"),
        (stage.vhost.url(), wrong_api.as_str(), "does not let the user"),
    ] {
        let refused = ask(url, management)?;
        assert!(refused.contains(words) && !refused.contains("hush-hush"), "{refused}");
    }
    Ok(())
}
