//! What else is in `deploy/`: the compose file, the image and the systemd unit.
//!
//! They need Docker and systemd to run, and tests need neither: what can be said without is said here.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    judge::{list, seconds, text},
    tools::Tools,
};
use crate::cargo::{self, root};

/// Checks them.
pub fn check(tools: &Tools, space: &Path) -> Result<()> {
    let compose = root().join("deploy/compose.yaml");
    tools.matches_known("vendor.compose-spec", &compose)?;
    let declared = tools.yaml(&root().join("deploy/compose/services.yaml"))?;
    let found = compose_complaints(&tools.yaml(&compose)?, &read("deploy/.env.example")?, &declared);
    ensure!(found.is_empty(), "deploy/compose.yaml: {}", found.join("; "));
    image()?;
    unit(space)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"))
}

/// What does not fit together in the compose file.
fn compose_complaints(compose: &Value, example: &str, declared: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let offered: BTreeSet<&str> =
        example.lines().filter_map(|line| line.strip_suffix('=')).filter(|name| !name.starts_with('#')).collect();
    let whole = compose.to_string();
    let wanted: BTreeSet<&str> = whole.split("${").skip(1).filter_map(|rest| rest.split([':', '}']).next()).collect();
    if offered != wanted {
        found.push(format!("it asks for {wanted:?}, and .env.example has {offered:?}"));
    }
    for (name, service) in compose["services"].as_object().into_iter().flatten() {
        if name != "worker" && service["healthcheck"]["test"].is_null() {
            found.push(format!("{name} has no health check"));
        }
        if !text(&service["image"]).contains(':') || text(&service["image"]).ends_with(":latest") {
            found.push(format!("{name} has an image without a version"));
        }
        for (variable, value) in service["environment"].as_object().into_iter().flatten() {
            let secret = ["SECRET", "PASS", "TOKEN", "_URL"].iter().any(|word| variable.contains(word));
            if secret && !text(value).contains("${") && variable != "RELAIS_URL" {
                found.push(format!("{name} has {variable} in the open"));
            }
        }
        for needed in service["depends_on"].as_object().into_iter().flatten().map(|(needed, _)| needed) {
            if compose["services"][needed].is_null() {
                found.push(format!("{name} waits for {needed}, which is not there"));
            }
        }
    }
    let relais = &compose["services"]["relais"];
    for service in list(&declared["services"]) {
        // With a broker, tasks go there unless a service says otherwise, and the worker here comes over HTTP.
        if service["transport"] != "builtin" {
            found.push(format!("the tasks of {} never reach the worker", service["serviceName"]));
        }
    }
    for client in list(&declared["clients"]) {
        let secret = text(&client["clientSecret"]["env"]);
        if relais["environment"][secret].is_null() {
            found.push(format!("the declarations ask for {secret:?}, which relais does not get"));
        }
    }
    let grace = seconds(text(&relais["environment"]["RELAIS_SERVER_SHUTDOWN_GRACE"]));
    if grace.is_none() || seconds(text(&relais["stop_grace_period"])) <= grace {
        found.push("relais is killed before its grace is over".to_owned());
    }
    found
}

/// The image is built with the workspace's Rust, and with features that there are.
fn image() -> Result<()> {
    let dockerfile = read("deploy/Dockerfile")?;
    let metadata = cargo::metadata()?;
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    let server = packages.iter().find(|one| one["name"] == "relais-server").context("there is no relais-server")?;
    let rust = format!("FROM rust:{}-", text(&server["rust_version"]));
    ensure!(dockerfile.contains(&rust), "deploy/Dockerfile is not built with the workspace's Rust: {rust}…");
    let features = dockerfile
        .split("--features ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .context("deploy/Dockerfile names no features")?;
    for feature in features.split(',') {
        ensure!(!server["features"][feature].is_null(), "deploy/Dockerfile: relais-server has no feature {feature}");
    }
    ensure!(dockerfile.contains("\nUSER 10001:10001\n"), "deploy/Dockerfile does not leave root");
    Ok(())
}

/// The unit is one that systemd understands and finds well closed, where systemd is installed.
fn unit(space: &Path) -> Result<()> {
    let unit = read("deploy/systemd/relais.service")?;
    ensure!(unit.contains("ExecStart=/usr/local/bin/relais serve\n"), "the unit does not run `relais serve`");
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("chart: systemd-analyze is not here; deploy/systemd/relais.service is not verified");
        return Ok(());
    }
    // A program that is there: the one of the unit is not installed on this machine.
    let path = space.join("relais.service");
    let relais = cargo::binary("debug", "relais")?;
    fs::write(&path, unit.replace("/usr/local/bin/relais", &relais.display().to_string()))?;
    let verify = Command::new("systemd-analyze").arg("verify").arg(&path).output()?;
    let said = String::from_utf8_lossy(&verify.stderr);
    ensure!(verify.status.success() && !said.contains("relais.service:"), "systemd does not like the unit:\n{said}");
    // Exposure is told from 0 to 10; 2 is what systemd still calls fine. The threshold is in tenths.
    let security =
        Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=20"]).arg(&path).output()?;
    ensure!(security.status.success(), "the unit is not closed well:\n{}", String::from_utf8_lossy(&security.stdout));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_compose_file_that_does_not_fit_together_is_noticed() {
        let good = json!({"services": {"relais": {
            "image": "relais:1", "healthcheck": {"test": ["CMD", "x"]}, "stop_grace_period": "40s",
            "environment": {"RELAIS_SERVER_SHUTDOWN_GRACE": "30s", "RELAIS_ADMIN_TOKEN": "${TOKEN:?}", "A": "${A}"},
        }}});
        let declared = json!({"clients": [{"clientId": "a", "clientSecret": {"env": "A"}}]});
        let example = "# Secrets=\nA=\nTOKEN=\n";
        assert_eq!(compose_complaints(&good, example, &declared), [""; 0]);
        for (place, value, said) in [
            ("/services/relais/stop_grace_period", json!("30s"), "killed before"),
            ("/services/relais/environment/RELAIS_ADMIN_TOKEN", json!("hush"), "in the open"),
            ("/services/relais/environment/A", json!("${B}"), "it asks for"),
            ("/services/relais/environment/A", Value::Null, "it asks for"),
            ("/services/relais/image", json!("relais:latest"), "without a version"),
            ("/services/relais/healthcheck", json!({}), "no health check"),
        ] {
            let mut bad = good.clone();
            if let Some(field) = bad.pointer_mut(place) {
                *field = value;
            }
            let found = compose_complaints(&bad, example, &declared).join("; ");
            assert!(found.contains(said), "{place}: {found}");
        }
    }
}
