//! `cargo xtask bench`: the benchmarks, on the binary that would ship.
//!
//! What is measured, and against what, is in the package relais-bench.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{
    cargo::{self, cargo, run as execute},
    debezium, packages, postgres, python, rabbitmq,
};

/// What the benchmark `rabbitmq` is held against. Pinned, so that figures can be compared.
const CELERY: &str = "celery==5.7.0\nsqlalchemy==2.1.8\npsycopg2-binary==2.9.13\n";

/// The module of nginx that streams events, held against notifications.
const NCHAN: &str = "/usr/lib/nginx/modules/ngx_nchan_module.so";

/// Builds for release and runs relais-bench with `arguments`.
pub fn run(arguments: &[String]) -> Result<()> {
    let named = arguments.iter().any(|argument| !argument.starts_with('-'));
    let asked_for = |name: &str| !named || arguments.iter().any(|argument| argument == name);
    postgres::ensure_installed()?;
    if ["outbox", "rabbitmq"].into_iter().any(asked_for) {
        rabbitmq::ensure_installed()?;
    }
    if ["bus", "consume", "outbox"].into_iter().any(asked_for) {
        packages::ensure(&["redis-server"])?;
    }
    if asked_for("notify") && !arguments.iter().any(|argument| argument == "--alone") {
        packages::ensure(&["nginx", "pushpin"])?;
        if !Path::new(NCHAN).exists() {
            packages::install("Nchan, the module of nginx,", "libnginx-mod-nchan")?;
        }
    }
    // In one go: built one after the other, their features differ and both would be compiled twice.
    let mut build = cargo(["build", "--release", "-p", "relais-server", "-p", "relais-bench"]);
    // librdkafka takes a minute to build, and is of no use without a broker.
    if asked_for("outbox") && env::var_os("RELAIS_TEST_KAFKA_BROKER").is_some() {
        build.args(["--features", "relais-bench/kafka"]);
    }
    execute(&mut build)?;
    let mut bench = Command::new(cargo::binary("release", "relais-bench")?);
    bench.args(arguments).env("RELAIS_BIN", cargo::binary("release", "relais")?);
    let alone = arguments.iter().any(|argument| argument == "--alone");
    if !alone && asked_for("rabbitmq") {
        let programs = python::environment(&cargo::target_directory()?.join("bench-python"), CELERY)?;
        bench.env("BENCH_PYTHON", programs);
    }
    if !alone && ["engine", "pickup", "rabbitmq"].into_iter().any(asked_for) {
        bench.env("BENCH_PEERS", peers()?);
    }
    if !alone && asked_for("outbox") {
        match debezium::prepare() {
            Ok(libraries) => {
                bench.env("BENCH_DEBEZIUM", libraries);
            }
            Err(error) => eprintln!("Debezium can not be measured: {error:#}"),
        }
    }
    execute(&mut bench)
}

/// Builds what some benchmarks are held against: a workspace of its own, in a directory of its own.
fn peers() -> Result<PathBuf> {
    let target = cargo::target_directory()?.join("bench-peers");
    let mut build = cargo(["build", "--release", "--locked", "--manifest-path", "bench/peers/Cargo.toml"]);
    execute(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("release").join("relais-bench-peers"))
}
