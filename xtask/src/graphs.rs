//! `cargo xtask graphs`: do the Grafana dashboard and the alert rules speak of metrics that there are?
//!
//! promtool judges the rules and runs their tests. Then a server is started, given something to do, and asked for its
//! metrics: every name that a rule or a panel uses has to be among them, or among those that the server describes (some
//! are exported only once they have happened, such as what a broker does).

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    cargo::{self, cargo, root, run as execute},
    fuzz_api::{Server, call, ended_task, free_port, server_command},
    packages,
};

const RULES: &str = "deploy/prometheus/relais.rules.yaml";
const TESTS: &str = "deploy/prometheus/relais.test.yaml";
const DASHBOARD: &str = "deploy/grafana/relais.json";

/// Where the server describes its metrics.
const DESCRIBED: &str = "crates/server/src/metrics.rs";

/// Makes sure that promtool is there.
pub fn ensure_installed() -> Result<()> {
    match Command::new("promtool").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(_) => packages::install("promtool", "prometheus"),
    }
}

/// Builds the server, then checks.
pub fn run() -> Result<()> {
    ensure_installed()?;
    execute(&mut cargo(["build", "-p", "relais-server", "--bin", "relais"]))?;
    run_built()
}

/// Checks, with the server that has been built.
pub fn run_built() -> Result<()> {
    let start = Instant::now();
    execute(Command::new("promtool").args(["check", "rules", RULES]).current_dir(root()))?;
    execute(Command::new("promtool").args(["test", "rules", TESTS]).current_dir(root()))?;
    let rules = fs::read_to_string(root().join(RULES)).context("there are no rules")?;
    let dashboard = fs::read_to_string(root().join(DASHBOARD)).context("there is no dashboard")?;
    let parsed: Value = serde_json::from_str(&dashboard).context("the dashboard is not JSON")?;
    ensure!(parsed["panels"].as_array().is_some_and(|panels| panels.len() > 10), "the dashboard has hardly a panel");

    let described = names(&fs::read_to_string(root().join(DESCRIBED)).context("nothing is described")?);
    let scraped = scrape()?;
    for name in
        ["relais_tasks_pending", "relais_tasks_finished_total", "relais_task_run_seconds", "relais_store_seconds"]
    {
        ensure!(scraped.contains(name), "the server does not export {name}; it does {scraped:?}");
    }
    let mut used = names(&rules);
    used.extend(names(&dashboard));
    let unknown: Vec<&String> =
        used.iter().filter(|name| !scraped.contains(*name) && !described.contains(*name)).collect();
    if !unknown.is_empty() {
        bail!("no server exports {unknown:?}");
    }
    println!(
        "graphs: {} metrics in use, {} of them seen; passed in {:.0} s",
        used.len(),
        used.iter().filter(|name| scraped.contains(*name)).count(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The names of metrics in a text, without what an exporter adds to those of histograms.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("relais_") && word.len() > "relais_".len());
    ours.map(|word| {
        ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned()
    })
    .collect()
}

/// What a server exports that has had something to do.
fn scrape() -> Result<BTreeSet<String>> {
    let data = cargo::target_directory()?.join("graphs-data");
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| format!("cannot clear {}", data.display()))?;
    }
    fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))?;
    let (port, log) = (free_port()?, data.join("server.log"));
    let mut server = server_command(&cargo::binary("debug", "relais")?, port, &data)?;
    let written = fs::File::create(&log).context("cannot create the server's log")?;
    server.stdin(Stdio::null()).stdout(written.try_clone()?).stderr(written);
    let mut server = Server(server.spawn().context("cannot start relais")?);
    server.wait_until_ready(port, &log)?;
    ended_task(port)?;
    call(port, "POST", "/v1/services/example/tasks", r#"{"body": {"sleep": 0}}"#)?;
    let claimed = call(port, "POST", "/v1/services/example/claims", "{}")?;
    let task =
        claimed.split("\"taskId\":\"").nth(1).and_then(|rest| rest.split('"').next()).context("nothing was claimed")?;
    let done = format!(r#"{{"taskId": "{task}", "data": {{"messageType": "success", "response": {{}}}}}}"#);
    call(port, "POST", "/v1/services/example/messages", &done)?;
    Ok(names(&call(port, "GET", "/metrics", "")?))
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn names_of_metrics_are_found_and_histograms_known_by_their_own() {
        let text =
            r#"sum by (le) (rate(relais_task_wait_seconds_bucket{service="relais_"}[5m])) / relais_tasks_pending"#;
        assert_eq!(names(text).into_iter().collect::<Vec<_>>(), ["relais_task_wait_seconds", "relais_tasks_pending"]);
    }
}
