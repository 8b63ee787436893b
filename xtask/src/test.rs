//! `cargo xtask test`: everything that needs running code.
//!
//! From a fresh clone to a verdict. Does not lint: that is `cargo xtask check`.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use crate::{
    browser,
    cargo::{self, cargo, run as execute},
    chart, fuzz_api, graphs, kafka, packages, postgres, rabbitmq, redisbloom, sdk_browser, sdk_javascript, sdk_python,
    select::{self, Selection, Target},
    valkey,
};

/// Runs all tests, or those whose name contains one of `filters`, and says how long it took.
pub fn run(filters: &[String]) -> Result<()> {
    let start = Instant::now();
    let result = if filters.is_empty() { all() } else { some(filters, None) };
    let verdict = if result.is_ok() { "passed" } else { "FAILED" };
    println!("test: {verdict} in {:.0} s", start.elapsed().as_secs_f64());
    result
}

/// Runs one test in this environment, and shows what it prints.
pub fn run_long(test: &str, environment: &[(&str, &str)]) -> Result<()> {
    some(&[test.to_owned()], Some(environment))
}

/// What tests something else than the workspace's crates, with the binaries that have been built: it waits more than it
/// computes, so it runs beside them, in a process of its own. What it prints is shown when it has ended.
struct Beside {
    process: Child,
    log: PathBuf,
}

impl Beside {
    fn start(broker: &str, database: &str) -> Result<Self> {
        let log = cargo::target_directory()?.join("test-beside.log");
        let written = File::create(&log).context("cannot write what is tested beside")?;
        // As it was built with everything else: the one that runs may have been replaced by that.
        let mut command = Command::new(cargo::binary("debug", "xtask")?);
        command.arg(BESIDE).env(rabbitmq::VARIABLE, broker).env(postgres::VARIABLE, database).stdin(Stdio::null());
        command.stdout(written.try_clone()?).stderr(written);
        Ok(Self { process: command.spawn().context("cannot start what is tested beside")?, log })
    }

    fn finish(mut self) -> Result<()> {
        let status = self.process.wait().context("cannot wait for what is tested beside")?;
        let written = fs::read(&self.log).context("cannot read what was tested beside")?;
        println!("{}", String::from_utf8_lossy(&written));
        ensure!(status.success(), "the API, the libraries, the chart or the graphs failed ({status}); see above");
        Ok(())
    }
}

/// A transport of the bus that nothing in the workspace turns on. Named each time, or dependencies would be compiled
/// once more.
const FEATURES: [&str; 2] = ["--features", "relais-bus/postgres,relais-messaging/redis"];

/// The command of [`Beside`], which nobody types.
pub const BESIDE: &str = "test-beside";

/// Runs it.
pub fn beside() -> Result<()> {
    let broker = env::var(rabbitmq::VARIABLE).context("there is no broker to test with")?;
    let database = env::var(postgres::VARIABLE).context("there is no PostgreSQL to test with")?;
    fuzz_api::run_built()?;
    sdk_javascript::run(&broker, &database)?;
    sdk_browser::run()?;
    sdk_python::run(&cargo::binary("debug", "relais")?, &broker, &database)?;
    chart::run_built()?;
    graphs::run_built()
}

/// Runs the tests that some words mean, with what those need and nothing else.
fn some(words: &[String], environment: Option<&[(&str, &str)]>) -> Result<()> {
    let Selection { whole, some, words, needs } = select::select(words)?;
    if needs.postgres {
        postgres::ensure_installed()?;
    }
    if needs.rabbitmq {
        rabbitmq::ensure_installed()?;
    }
    if needs.redis {
        packages::ensure(&["redis-server"])?;
    }
    let valkey = if needs.valkey { Some(valkey::ensure()?) } else { None };
    let redisbloom = if needs.redisbloom { Some(redisbloom::ensure()?) } else { None };
    if needs.binary {
        packages::ensure(&["curl", "faketime", "jq", "openssl", "python3"])?;
    }
    let postgres_18 = match needs.postgres_18 {
        true => {
            sdk_javascript::ensure_installed()?;
            Some(postgres::ensure_18()?)
        }
        false => None,
    };
    let axe = if needs.browser { Some(browser::ensure_installed()?) } else { None };
    let languages = match needs.languages {
        true => {
            sdk_javascript::ensure_installed()?;
            Some((sdk_python::prepare()?.join("python"), sdk_javascript::prepare()?))
        }
        false => None,
    };
    let targets: Vec<&str> = whole.iter().chain(&some).flat_map(Target::arguments).collect();
    let needs_kafka = targets.contains(&kafka::TEST);
    if needs_kafka {
        packages::ensure_openssl()?;
    }
    let kafka_features = needs_kafka.then_some(kafka::FEATURES).into_iter().flatten();
    let mut programs = Vec::new();
    for (is_needed, program) in [
        (needs.postgres, "relais-testkit-postgres"),
        (needs.rabbitmq, "relais-testkit-rabbitmq"),
        (needs.binary, "relais"),
    ] {
        programs.extend(is_needed.then_some(["--bin", program]).into_iter().flatten());
    }
    if !programs.is_empty() {
        execute(
            cargo(["build", "--workspace"]).args(&targets).args(&programs).args(FEATURES).args(kafka_features.clone()),
        )?;
    }
    let database = needs.postgres.then(postgres::Server::start).transpose()?;
    let mut broker = needs.rabbitmq.then(rabbitmq::Server::begin).transpose()?;
    let broker = broker.as_mut().map(rabbitmq::Server::url).transpose()?;
    let run = |targets: Vec<&str>, words: &[String]| -> Result<()> {
        let mut tests = cargo(["test", "--workspace", "--no-fail-fast"]);
        tests.args(FEATURES).args(kafka_features.clone()).args(targets).arg("--").args(words);
        tests.envs(database.as_ref().map(|server| (postgres::VARIABLE, server.url().to_owned())));
        tests.envs(postgres_18.as_ref().map(|programs| (postgres::VARIABLE_18, programs)));
        tests.envs(valkey.as_ref().map(|program| (valkey::VARIABLE, program)));
        tests.envs(redisbloom.as_ref().map(|module| (redisbloom::VARIABLE, module)));
        tests.envs(broker.as_ref().map(|url| (rabbitmq::VARIABLE, url)));
        tests.envs(axe.as_ref().map(|axe| (browser::AXE, axe)));
        if let Some((python, javascript)) = &languages {
            tests.env(sdk_python::VARIABLE, python).env(sdk_javascript::VARIABLE, javascript);
        }
        if needs_kafka {
            kafka::prepare(&mut tests)?;
        }
        if needs.binary {
            tests.env("RELAIS_BIN", cargo::binary("debug", "relais")?);
        }
        if let Some(environment) = environment {
            tests.envs(environment.iter().copied()).args(["--nocapture", "--test-threads=1"]);
        }
        execute(&mut tests)
    };
    let (whole, some): (Vec<&str>, Vec<&str>) =
        (whole.iter().flat_map(Target::arguments).collect(), some.iter().flat_map(Target::arguments).collect());
    let named = if whole.is_empty() { Ok(()) } else { run(whole, &[]) };
    let matching = if some.is_empty() { Ok(()) } else { run(some, &words) };
    named.and(matching)
}

fn all() -> Result<()> {
    postgres::ensure_installed()?;
    rabbitmq::ensure_installed()?;
    // The examples are workers in Python and in shell, and are run as they are.
    // A clock that tests set is told by libfaketime, certificates that they trust are made by openssl.
    packages::ensure(&["curl", "faketime", "jq", "openssl", "python3", "redis-server"])?;
    // Receivers of callbacks are in JavaScript too.
    sdk_javascript::ensure_installed()?;
    let postgres_18 = postgres::ensure_18()?;
    let (valkey, redisbloom) = (valkey::ensure()?, redisbloom::ensure()?);
    // The dashboard and the browser library are looked at in a real browser.
    let axe = browser::ensure_installed()?;
    sdk_browser::ensure_installed()?;
    graphs::ensure_installed()?;
    // Workers of both libraries are among the workspace's tests.
    let (python, javascript) = (sdk_python::prepare()?.join("python"), sdk_javascript::prepare()?);
    // RabbitMQ takes seconds to start, and does so while everything else is compiled. A test and the
    // whole workspace are named although this is for one binary: with them, dependencies get the
    // very features that `cargo test` wants, and are compiled once instead of twice.
    execute(cargo("build --workspace --bin relais-testkit-rabbitmq --test rabbitmq".split(' ')).args(FEATURES))?;
    let mut broker = rabbitmq::Server::begin()?;
    // `--tests` for the same reason.
    execute(cargo(["build", "--workspace", "--bins", "--tests"]).args(FEATURES))?;
    let server = postgres::Server::start()?;

    let mut tests = cargo(["test", "--workspace", "--no-fail-fast"]);
    tests.args(FEATURES);
    tests.env(postgres::VARIABLE_18, &postgres_18).env(valkey::VARIABLE, &valkey);
    tests.env(redisbloom::VARIABLE, &redisbloom);
    tests.env(postgres::VARIABLE, server.url()).env(rabbitmq::VARIABLE, broker.url()?);
    let relais = cargo::binary("debug", "relais")?;
    tests.env("RELAIS_BIN", &relais).env(browser::AXE, &axe);
    tests.env(sdk_python::VARIABLE, &python).env(sdk_javascript::VARIABLE, &javascript);
    let beside = Beside::start(&broker.url()?, server.url())?;
    let tested = execute(&mut tests);
    let beside = beside.finish();
    tested?;
    beside?;

    // Last, since it replaces the binary by one with traces and KEDA's scaler, which nobody else needs. The whole
    // workspace is named so that dependencies stay as they are.
    let more = "test --workspace --features relais-server/otlp,relais-server/keda --test otlp --test scaler";
    execute(cargo(more.split(' ')).args(FEATURES))?;
    // Says by name what it did not run, if the environment names no Kafka broker.
    packages::ensure_openssl()?;
    let mut tests = cargo(["test", "--workspace", "--test", kafka::TEST]);
    kafka::prepare(&mut tests)?;
    execute(tests.args(FEATURES).args(kafka::FEATURES))
}
