//! `relais worker`: any command does the tasks of a service.
//!
//! Only the command line is here. How a command is run is `relais_worker::command`, how tasks are taken and told is the
//! worker library.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use relais_protocol::HumanDuration;
use relais_worker::{Worker, WorkerBuilder, command::CommandRunner};
use reqwest::Url;

use super::args::{client_id, duration, service_name};
use crate::{
    config::{LogConfig, LogFormat, TelemetryConfig},
    logging, signals,
};

/// Holds the client's secret, which thus is in no list of processes.
const SECRET_VARIABLE: &str = "RELAIS_SECRET";
const BROKER_VARIABLE: &str = "RELAIS_BROKER_URL";

const AFTER_HELP: &str = "\
One process for each task:
  stdin         the body of the task, JSON
  stdout        the response: all of it if it is one JSON value, else its last line that is JSON
  stderr        a line `progress 42` is progress; other lines go to the log
  exit code 0   success
  exit code 75  try again: the task is given back
  any other     failure, with the end of stderr as its message
  environment   RELAIS_TASK_ID, RELAIS_ATTEMPT, RELAIS_SERVICE, RELAIS_CORRELATION_ID, TRACEPARENT, TRACESTATE

At SIGTERM no more tasks are taken; what runs may finish within --grace, and is then stopped and
given back. The exit code is 0, also with --once when the task failed: that was reported; and with
--idle when no task came. It is 1 if the server or the broker does not let the worker in at the start.";

/// `relais worker`
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct WorkerArgs {
    /// The service whose tasks are to be done
    #[arg(long, value_name = "NAME", value_parser = service_name)]
    service: String,
    /// How many tasks at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: u16,
    /// Take exactly one task, do it, and exit
    #[arg(long)]
    once: bool,
    /// Exit when there was no task for so long, e.g. 1m; wait for ever if absent
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle: Option<HumanDuration>,
    /// How long a command may run before it is stopped and its task failed, e.g. 10m; for ever if absent
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<HumanDuration>,
    /// How long a command that is to stop has between SIGTERM and SIGKILL
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    kill_after: HumanDuration,
    /// How long running commands may go on when the worker is told to stop
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "20s", conflicts_with = "interruptible")]
    grace: HumanDuration,
    /// Stop running commands at once when the worker is told to stop, and give their tasks back
    #[arg(long)]
    interruptible: bool,
    /// Answer /livez, /readyz and /metrics here
    #[arg(long, value_name = "ADDRESS:PORT")]
    health: Option<SocketAddr>,
    /// The name shown beside the tasks; the host's if absent
    #[arg(long, value_name = "NAME")]
    host_name: Option<String>,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    log_format: LogFormat,
    /// Where traces go with OTLP over HTTP, e.g. http://localhost:4318; only in builds with the feature `otlp`
    #[arg(
        long,
        value_name = "URL",
        env = "RELAIS_TELEMETRY_OTLP_ENDPOINT",
        default_value = "",
        hide_default_value = true
    )]
    otlp_endpoint: String,
    /// The name under which the worker's traces are found
    #[arg(long, value_name = "NAME", env = "RELAIS_TELEMETRY_SERVICE_NAME", default_value = "relais-worker")]
    otlp_name: String,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    rabbitmq: RabbitMqArgs,
    /// The command and its arguments; there is no shell in between
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Over HTTP")]
struct HttpArgs {
    /// Where the server is
    #[arg(
        long,
        value_name = "URL",
        env = "RELAIS_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8080"
    )]
    url: Url,
    /// The client to work as; it needs the role `work` on the service
    #[arg(long, value_name = "ID", env = "RELAIS_CLIENT", hide_env_values = true, value_parser = client_id)]
    client: Option<String>,
    /// File that holds the client's secret; without it, RELAIS_SECRET does
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// How long the server waits for a sign of life before it hands a task to another worker
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    lease: HumanDuration,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Over RabbitMQ")]
struct RabbitMqArgs {
    /// Take tasks from RabbitMQ instead: amqp://… or amqps://…
    ///
    /// Other users of the machine can see a command line. Give a password in RELAIS_BROKER_URL instead.
    #[arg(long, value_name = "URL", env = BROKER_VARIABLE, hide_env_values = true)]
    broker: Option<String>,
    /// The service's queueName: tasks come from NAME-in, messages go to NAME-out; the service's name if absent
    #[arg(long, value_name = "NAME", requires = "broker")]
    queue: Option<String>,
    /// File of certificates in PEM that are trusted for amqps besides those of the system
    #[arg(long, value_name = "FILE", env = "RELAIS_BROKER_ROOT_CERTIFICATES", hide_env_values = true)]
    root_certificates: Option<PathBuf>,
}

/// Runs `relais worker`.
pub async fn run(args: WorkerArgs) -> Result<()> {
    let log = LogConfig { format: args.log_format, level: "info".to_owned() };
    let traces = TelemetryConfig { otlp_endpoint: args.otlp_endpoint.clone(), service_name: args.otlp_name.clone() };
    logging::init(&log, &traces)?;
    let mut command = args.command.iter();
    let program = command.next().context("there is no command")?;
    let runner = CommandRunner::new(&args.service, program, command)
        .time_limit(args.timeout.map(|limit| limit.0))
        .kill_after(args.kill_after.0)
        .hide([SECRET_VARIABLE, BROKER_VARIABLE, "RELAIS_ADMIN_TOKEN"]);
    runner.check().with_context(|| format!("cannot run {}", program.display()))?;
    let grace = if args.interruptible { Duration::ZERO } else { args.grace.0 };
    let mut builder = source(&args)?
        .concurrency(args.concurrency.into())
        .once(args.once)
        .grace(grace)
        // It ends by itself in this time; what is beyond is for the unforeseen.
        .stop_limit(args.kill_after.0 + Duration::from_secs(2));
    if let Some(idle) = args.idle {
        builder = builder.idle(idle.0);
    }
    if let Some(host_name) = args.host_name {
        builder = builder.host_name(host_name);
    }
    if let Some(address) = args.health {
        builder = builder.health(address);
    }
    let worker = builder.build()?;
    let shutdown = signals::stop()?;
    tracing::info!(service = args.service, concurrency = args.concurrency, "working");
    let report = worker.run(runner.handler(), shutdown).await?;
    let relais_worker::WorkerReport { done, failed, returned, lost, unsent, .. } = report;
    tracing::info!(done, failed, returned, lost, unsent, "stopped");
    logging::flush();
    Ok(())
}

fn source(args: &WorkerArgs) -> Result<WorkerBuilder> {
    if let Some(broker) = &args.rabbitmq.broker {
        let builder = Worker::rabbitmq(broker, args.rabbitmq.queue.as_ref().unwrap_or(&args.service));
        return Ok(match &args.rabbitmq.root_certificates {
            Some(file) => builder.root_certificates(file),
            None => builder,
        });
    }
    let Some(client) = &args.http.client else {
        bail!(
            "say who works with `--client` or RELAIS_CLIENT, or where RabbitMQ is with `--broker` or {BROKER_VARIABLE}"
        )
    };
    let secret = match &args.http.secret_file {
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?,
        None => std::env::var(SECRET_VARIABLE)
            .with_context(|| format!("give the client's secret in {SECRET_VARIABLE} or with `--secret-file`"))?,
    };
    // A file ends with a line end, a secret does not.
    let secret = secret.trim_end_matches(['\n', '\r']);
    Ok(Worker::builder(args.http.url.as_str(), client, secret, &args.service).lease(args.http.lease.0))
}
