//! The rule of the house: dependencies between our crates point down only.
//!
//! A table rather than a principle, because a table can be compared. Changing it is an
//! architectural decision and deserves its own commit. Dev-dependencies are free: a test may know
//! more than the code it tests.

use anyhow::{Context, Result};
use serde_json::Value;

use super::verdict;
use crate::cargo::metadata;

/// Which of our packages a package may depend on, to build or to run. Every package is named.
const MAY_KNOW: [(&str, &[&str]); 29] = [
    ("relais-core", &[]),
    ("relais-protocol", &[]),
    // What a handler is, for whoever runs it.
    ("relais-handler", &[]),
    // Connections and bodies, for whatever serves HTTP.
    ("relais-http", &[]),
    // Callers that share a transaction.
    ("relais-group-commit", &["relais-core"]),
    // What a message is, and the port for where messages go.
    ("relais-message", &[]),
    // Processing a message once, for whatever consumes. A library of its own.
    ("relais-dedup", &[]),
    // Push workers, and the port for what feeds them.
    ("relais-push-worker", &["relais-dedup"]),
    // PostgreSQL's write-ahead log. Knows the port of sinks, and none of them.
    ("relais-capture", &["relais-message"]),
    ("relais-outbox", &["relais-message", "relais-capture"]),
    ("relais-store", &["relais-core", "relais-protocol", "relais-notify"]),
    ("relais-bus", &["relais-core", "relais-protocol", "relais-message", "relais-push-worker"]),
    ("relais-messaging", &["relais-message", "relais-push-worker"]),
    ("relais-callback", &["relais-core", "relais-protocol", "relais-message", "relais-messaging"]),
    ("relais-broker", &["relais-core", "relais-messaging"]),
    (
        "relais-engine",
        &["relais-core", "relais-protocol", "relais-group-commit", "relais-handler", "relais-message", "relais-bus"],
    ),
    // Outboxes and the like in the server: implements ports of the engine, as the api uses them.
    (
        "relais-relay",
        &[
            "relais-core",
            "relais-protocol",
            "relais-engine",
            "relais-message",
            "relais-outbox",
            "relais-capture",
            "relais-bus",
            "relais-notify",
        ],
    ),
    ("relais-notify", &["relais-core", "relais-group-commit", "relais-message"]),
    // The port of notifications on Redis, beside the one on databases.
    ("relais-notify-redis", &["relais-core", "relais-notify"]),
    ("relais-api", &["relais-core", "relais-protocol", "relais-engine", "relais-http", "relais-notify", "relais-bus"]),
    ("relais-worker", &["relais-protocol", "relais-handler", "relais-messaging"]),
    ("relais-scaler", &["relais-core", "relais-protocol", "relais-engine"]),
    // The dashboard: the same application layer as the API, and beside it.
    ("relais-ui", &["relais-core", "relais-protocol", "relais-engine", "relais-http", "relais-notify"]),
    ("relais-server", ALL_THAT_SHIP),
    // For tests only: conformance suites speak the ports, never a driver.
    (
        "relais-testkit",
        &["relais-core", "relais-protocol", "relais-message", "relais-dedup", "relais-notify", "relais-push-worker"],
    ),
    // The model checker of tests.
    ("relais-explore", &[]),
    // These two are tests themselves, and may use all there is.
    ("relais-tests", EVERYTHING),
    ("relais-bench", EVERYTHING),
    // Compiled before every command.
    ("xtask", &[]),
];

const ALL_THAT_SHIP: &[&str] = &[
    "relais-core",
    "relais-protocol",
    "relais-handler",
    "relais-group-commit",
    "relais-http",
    "relais-message",
    "relais-dedup",
    "relais-push-worker",
    "relais-outbox",
    "relais-capture",
    "relais-store",
    "relais-bus",
    "relais-callback",
    "relais-messaging",
    "relais-broker",
    "relais-engine",
    "relais-relay",
    "relais-notify",
    "relais-notify-redis",
    "relais-api",
    "relais-worker",
    "relais-scaler",
    "relais-ui",
];

const EVERYTHING: &[&str] = &[
    "relais-core",
    "relais-protocol",
    "relais-handler",
    "relais-group-commit",
    "relais-http",
    "relais-message",
    "relais-dedup",
    "relais-push-worker",
    "relais-outbox",
    "relais-capture",
    "relais-store",
    "relais-bus",
    "relais-callback",
    "relais-messaging",
    "relais-broker",
    "relais-engine",
    "relais-relay",
    "relais-notify",
    "relais-notify-redis",
    "relais-api",
    "relais-worker",
    "relais-scaler",
    "relais-ui",
    "relais-server",
    "relais-testkit",
];

/// Compares `cargo metadata` with the table.
pub fn check() -> Result<()> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    verdict(&violations(packages))
}

fn violations(packages: &[Value]) -> Vec<String> {
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut found = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, may_know)) = MAY_KNOW.iter().find(|(known, _)| *known == name) else {
            found.push(format!("{name} is not in the table of xtask/src/check/dependencies.rs; add it"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap_or_default();
            // "kind" is null for a normal dependency.
            let for_tests = dependency["kind"] == "dev";
            if names.contains(&other) && !for_tests && !may_know.contains(&other) {
                found.push(format!("{name} must not depend on {other}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::violations;

    #[test]
    fn only_dependencies_that_point_down_are_accepted() {
        let core = json!({"name": "relais-core", "dependencies": [
            {"name": "serde", "kind": null},
            {"name": "relais-store", "kind": "dev"},
        ]});
        let store = json!({"name": "relais-store", "dependencies": [
            {"name": "relais-core", "kind": null},
            {"name": "relais-testkit", "kind": "dev"},
        ]});
        let testkit = json!({"name": "relais-testkit", "dependencies": []});
        assert!(violations(&[core.clone(), store.clone(), testkit.clone()]).is_empty());

        let upward = json!({"name": "relais-engine", "dependencies": [
            {"name": "relais-store", "kind": null},
            {"name": "relais-testkit", "kind": "build"},
        ]});
        assert_eq!(
            violations(&[core, store, testkit, upward]),
            ["relais-engine must not depend on relais-store", "relais-engine must not depend on relais-testkit",]
        );
    }

    #[test]
    fn a_package_that_nobody_placed_is_refused() {
        let newcomer = json!({"name": "relais-utils", "dependencies": []});
        assert_eq!(violations(&[newcomer]).len(), 1);
    }
}
