//! Log lines: to stderr, for people or for programs, as `[log]` says; and traces, where `[telemetry]` asks for them.
//!
//! Commands that talk to a running server do not log; they print (see `output`).

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::{
    config::{LogConfig, LogFormat, TelemetryConfig},
    telemetry,
};

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts logging. `RUST_LOG` wins over the configured level.
pub fn init(config: &LogConfig, traces: &TelemetryConfig) -> anyhow::Result<()> {
    let (filter, from) = match std::env::var("RUST_LOG") {
        Ok(filter) if !filter.is_empty() => (filter, "RUST_LOG"),
        _ => (config.level.clone(), "log.level"),
    };
    // The broker's client logs whole messages, task data and all, when one comes back; what matters of it is logged by
    // us.
    let with_rule = if filter.contains("lapin") { filter.clone() } else { format!("{filter},lapin=off") };
    let filter = EnvFilter::try_new(&with_rule).with_context(|| format!("{from} = {filter:?} is not a log filter"))?;
    let terminal = io::stderr().is_terminal();
    let json = match config.format {
        LogFormat::Auto => !terminal,
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines: BoxedLayer = if json {
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).with_filter(filter).boxed()
    } else {
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        lines.with_ansi(colours).with_target(false).with_filter(filter).boxed()
    };
    let mut layers = vec![lines];
    layers.extend(telemetry::layer(traces)?);
    tracing_subscriber::registry().with(layers).try_init().context("cannot start logging")
}

/// Starts logging for the demo, whose screen is not a log: only what is wrong.
pub fn init_quiet() -> anyhow::Result<()> {
    let config = LogConfig { format: LogFormat::Human, level: "warn".to_owned() };
    init(&config, &TelemetryConfig { otlp_endpoint: String::new(), service_name: String::new() })
}

/// Sends what is left of traces.
pub fn flush() {
    telemetry::flush();
}

/// Checks a level or filter. The error is what was expected instead.
///
/// A filter takes any word for the name of a module: without this, `inof` would silence everything.
pub fn check_level(level: &str) -> Result<(), String> {
    let expected = "expected off, error, warn, info, debug or trace, or a filter like \"info,relais_engine=debug\"";
    let known = |part: &str| LEVELS.contains(&part.trim().to_lowercase().as_str());
    let fine = level.split(',').all(|part| part.contains('=') || known(part)) && EnvFilter::try_new(level).is_ok();
    if fine { Ok(()) } else { Err(expected.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_not_taken_for_the_name_of_a_module() {
        for level in ["info", "WARN", "info,relais_engine=debug", "warn,sqlx=off"] {
            check_level(level).unwrap();
        }
        for level in ["inof", "", "info,relais_engine", "info,relais=loud"] {
            assert!(check_level(level).is_err(), "{level}");
        }
    }
}
