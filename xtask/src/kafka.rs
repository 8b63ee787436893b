//! What the tests of Kafka need beside a broker.

use std::process::Command;

use anyhow::Result;

use crate::{cargo::target_directory, packages, sdk_javascript};

/// The features that turn Kafka on, and the test that needs them: nothing else compiles librdkafka.
pub const FEATURES: [&str; 2] = ["--features", "relais-messaging/kafka-tls"];

/// That test.
pub const TEST: &str = "messaging_kafka";

/// The variable that names a folder with kafkajs in its `node_modules`.
const KAFKAJS: &str = "RELAIS_TEST_KAFKAJS";

/// The client of Node that groups are handed over to.
const KAFKAJS_VERSION: &str = "2.2.4";

/// Installs what is missing, and tells the tests.
pub fn prepare(tests: &mut Command) -> Result<()> {
    sdk_javascript::ensure_installed()?;
    let folder = target_directory()?.join("kafkajs");
    packages::npm(&folder, "kafkajs", KAFKAJS_VERSION)?;
    tests.env(KAFKAJS, folder);
    Ok(())
}
