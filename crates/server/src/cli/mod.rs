//! The command line: what can be typed, and the commands that talk to a running server.
//!
//! Those commands do nothing that the admin API can not do; they only save typing. What `serve`, `migrate` and `demo`
//! do is not here, only their arguments are.

mod apply;
mod args;
mod audience;
mod audit;
mod authorization;
mod batch;
mod broker;
mod callback;
mod capture;
mod client;
mod config;
mod connection;
mod deadletter;
mod events;
mod health;
mod instance;
mod notification;
mod notification_source;
mod outbox;
mod purge;
mod reference;
mod schedule;
mod service;
mod table;
mod task;
mod task_watch;
#[cfg(unix)]
mod top;
mod topology;
#[cfg(unix)]
mod worker;
mod yaml;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use self::{
    args::{DemoArgs, MigrateArgs, ServeArgs},
    connection::install_tls_provider,
    reference::ReferencePage,
};

const AFTER_HELP: &str = "\
Data goes to stdout, everything else to stderr.

Exit codes:
  0  done
  1  it could not be done; stderr says why
  2  the command line was not understood";

/// Relais: takes tasks in over HTTP, hands them to workers, and never loses one.
#[derive(Debug, Parser)]
#[command(name = "relais", version, after_help = AFTER_HELP, propagate_version = false, max_term_width = 100)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(ServeArgs),
    /// Try Relais out: a server, a service and a worker in one process
    Demo(DemoArgs),
    /// Bring the database's schema up to date
    Migrate(MigrateArgs),
    /// Do the tasks of a service: run a command for each
    #[cfg(unix)]
    Worker(worker::WorkerArgs),
    /// Look at the configuration
    Config(config::ConfigArgs),
    /// Declare services, pause them, see how full they are
    Service(service::ServiceArgs),
    /// Declare clients and give them new secrets
    Client(client::ClientArgs),
    /// Say which client may do what on which service
    #[command(visible_alias = "auth")]
    Authorization(authorization::AuthorizationArgs),
    /// Have tasks submitted at the times that a cron expression names
    Schedule(schedule::ScheduleArgs),
    /// Make outboxes, see how they are published, decide about parked events
    Outbox(outbox::OutboxArgs),
    /// Check databases for change capture, see how captures do, ask for snapshots, import Debezium's connectors
    Capture(capture::CaptureArgs),
    /// Compare a topology of RabbitMQ (exchanges, queues, bindings) with a broker, and create what is missing
    Topology(topology::TopologyArgs),
    /// Send notifications, see who has acknowledged them, look at the error log, withdraw; see what emits them
    Notification(notification::NotificationArgs),
    /// Say who belongs to which audience of notifications, see which audiences are declared
    Audience(audience::AudienceArgs),
    /// See which processes are on the store, and decide about those that died
    Instance(instance::InstanceArgs),
    /// Look for tasks and cancel them
    Task(task::TaskArgs),
    /// Look at batches, close and cancel them
    Batch(batch::BatchArgs),
    /// See services, workers and what runs, as they change
    #[cfg(unix)]
    Top(top::TopArgs),
    /// See the workers that are known of
    Workers(audit::WorkersArgs),
    /// See what operators did
    Audit(audit::AuditArgs),
    /// See what became of callbacks, and send them again
    Callback(callback::CallbackArgs),
    /// See messages of workers that could not be understood, and replay them
    Deadletter(deadletter::DeadLetterArgs),
    /// Follow what happens, publish events, see how the event bus does
    Events(events::EventsArgs),
    /// Make the server's services, clients, authorizations, schedules, outboxes, captures, audiences and notification sources what a file says
    Apply(apply::ApplyArgs),
    /// Print the server's services, clients, authorizations, schedules, outboxes, captures, audiences and notification sources as such a file, without secrets
    Export(apply::ExportArgs),
    /// Remove what is too old now, instead of waiting for the daily purge
    Purge(purge::PurgeArgs),
    /// Ask whether the server is ready
    Health(health::HealthArgs),
    /// Print the description of the HTTP API (OpenAPI, JSON)
    Openapi,
    /// Print a reference page (Markdown)
    Reference(reference::ReferenceArgs),
    /// Print a completion script for a shell
    Completions(reference::CompletionsArgs),
    /// Print the help of every command as one Markdown document
    HelpAll,
}

/// Runs a command that needs no server of its own.
///
/// The commands that the binary wires itself (`serve`, `demo`, `migrate`, `openapi`, `reference`) are handed back.
pub async fn run(command: Command) -> anyhow::Result<Result<ExitCode, Command>> {
    match command {
        #[cfg(unix)]
        Command::Worker(args) => worker::run(args).await?,
        Command::Config(args) => config::run(args)?,
        Command::Service(args) => service::run(args).await?,
        Command::Client(args) => client::run(args).await?,
        Command::Authorization(args) => authorization::run(args).await?,
        Command::Schedule(args) => schedule::run(args).await?,
        Command::Outbox(args) => outbox::run(args).await?,
        Command::Capture(args) => return Ok(Ok(capture::run(args).await?)),
        Command::Topology(args) => return Ok(Ok(topology::run(args).await?)),
        Command::Notification(args) => notification::run(args).await?,
        Command::Audience(args) => audience::run(args).await?,
        Command::Instance(args) => instance::run(args).await?,
        Command::Task(args) => task::run(args).await?,
        Command::Batch(args) => batch::run(args).await?,
        #[cfg(unix)]
        Command::Top(args) => top::run(args).await?,
        Command::Workers(args) => audit::workers(args).await?,
        Command::Audit(args) => audit::run(args).await?,
        Command::Callback(args) => callback::run(args).await?,
        Command::Deadletter(args) => deadletter::run(args).await?,
        Command::Events(args) => events::run(args).await?,
        Command::Apply(args) => apply::apply(args).await?,
        Command::Export(args) => apply::export(args).await?,
        Command::Purge(args) => purge::run(args).await?,
        Command::Health(args) => return health::run(args).await.map(Ok),
        Command::Completions(args) => reference::completions(&args)?,
        Command::HelpAll => reference::help_all()?,
        own => return Ok(Err(own)),
    }
    Ok(Ok(ExitCode::SUCCESS))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definitions_contradict_nothing() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usual_command_lines_are_understood() {
        for line in [
            "serve",
            "serve --config relais.toml --listen 0.0.0.0:80 --database sqlite:x.db --role api,purge --no-migrate",
            "serve --declarations services.yaml --log-format json",
            "demo --exit",
            "migrate --database postgres://h/d",
            "config show --config relais.toml",
            "worker --service s --client c --url http://h:1 --secret-file f --lease 30s -- ./resize.sh -x --once",
            "worker --service s --broker amqp://h --queue q --concurrency 4 --timeout 10m --kill-after 5s --grace 1m -- cat",
            "worker --service s --once --interruptible --health 127.0.0.1:9 --host-name h --log-format json -- cat",
            "service list --json --url http://h:1",
            "service put s --queue-name q --capacity 3 --lease 60s --delivery-limit 2 --keep-finished 7d --keep-any 9d",
            "service --token t delete s --yes",
            "client put c --secret-env SECRET",
            "authorization put c s --role consume --role work --capacity 3",
            "auth put c s --role consume,work",
            "task list --service s --status pending,SUCCESS --from 2026-01-01T00:00:00Z --limit 10",
            "task show 01890a5d-ac96-774b-bcce-b302099a8057",
            "task list --correlation order-1",
            "task list --parent 01890a5d-ac96-774b-bcce-b302099a8057",
            "batch list --client c --limit 10",
            "batch show 01890a5d-ac96-774b-bcce-b302099a8057",
            "batch cancel 01890a5d-ac96-774b-bcce-b302099a8057",
            "task watch 01890a5d-ac96-774b-bcce-b302099a8057",
            "top --once --every 5s --limit 3",
            "workers --json",
            "audit --limit 7",
            "callback list --status failure --since 2h --task 01890a5d-ac96-774b-bcce-b302099a8057",
            "callback show 01890a5d-ac96-774b-bcce-b302099a8057-3",
            "deadletter list --service s --limit 7",
            "deadletter show s 01890a5d-ac96-774b-bcce-b302099a8057",
            "deadletter replay s --all",
            "deadletter discard s a b",
            "service redispatch s",
            "service put s --transport rabbitmq --queue-type quorum --message-ttl 1h --max-length 1000",
            "callback redeliver 01890a5d-ac96-774b-bcce-b302099a8057-3",
            "callback redeliver --failed-since 2026-01-01T00:00:00Z --service s --client c",
            "client signing-secret c --rotate --overlap 2d",
            "service put s --callback-retry 10s,1m --callback-retry 1d",
            "serve --broker amqp://h",
            "schedule list --json",
            "schedule put nightly --service s --client c --cron @daily --time-zone Europe/Paris --body {} --missed all",
            "schedule put nightly --service s --client c --cron @daily --body-file f --overlap skip --correlation-id x",
            "schedule put nightly --service s --client c --cron @daily --callback https://example.org/done",
            "schedule next nightly --count 3",
            "schedule run nightly",
            "outbox init --print --table shop.outbox --aggregate-id text --no-notify postgres://h/db",
            "outbox list --json",
            "outbox show orders",
            "outbox parked orders --limit 7",
            "outbox retry orders --all",
            "outbox skip orders a b",
            "outbox pause orders",
            "outbox resume orders",
            "outbox delete orders --yes",
            "capture list",
            "capture show shop --json",
            "capture snapshot shop public.orders items",
            "capture pause shop",
            "capture resume shop",
            "capture drop shop --yes",
            "topology plan -f topology.yaml --broker amqp://h --management http://h --json",
            "topology apply -f - --delete-extra-bindings --config relais.toml",
            "audience list",
            "audience show GROUP 1b",
            "audience show COURSE --json",
            "audience delete GROUP 1b --yes",
            "audience delete COURSE --yes",
            "notification source list",
            "notification source show failures",
            "notification source pause failures",
            "notification source resume failures",
            "notification source delete failures --yes",
            "apply -f x --no-check",
            "notification list --status failed --client shop --limit 7",
            "notification list --before 17 --json",
            "notification show 01890a5d-ac96-774b-bcce-b302099a8057",
            "notification errors",
            "notification resend 01890a5d-ac96-774b-bcce-b302099a8057 01890a5d-ac96-774b-bcce-b302099a8057",
            "notification withdraw 01890a5d-ac96-774b-bcce-b302099a8057",
            "notification ack 01890a5d-ac96-774b-bcce-b302099a8057 --user ann",
            "notification links",
            "notification send --to USER:ann --to USER:bob --title T --body B --type system --ack-required",
            "audience members GROUP 1b --limit 7",
            "audience set GROUP 1b ann USER:bob GROUP:1a",
            "audience set GROUP 1b --none",
            "audience add GROUP 1b ann",
            "audience remove GROUP 1b ann GROUP:1a",
            "instance list",
            "instance resolve billing-1 --fail",
            "schedule delete nightly --yes",
            "apply -f - --dry-run --prune",
            "purge --dry-run",
            "events tail",
            "events tail task.resize.* task.*.failure --json",
            "events publish orders.created {\"number\":7}",
            "events stats --json",
            "reference errors",
            "reference declarations",
            "completions bash",
            "help-all",
        ] {
            let words = std::iter::once("relais").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn an_invalid_command_line_is_a_usage_error() {
        for line in [
            "service show a/b",
            "service put s --lease 60",
            "service put s --capacity -1",
            "task show 12",
            "task list --limit 0",
            "task list --status WAITING",
            "callback show 12",
            "callback redeliver",
            "deadletter replay s",
            "deadletter replay s a --all",
            "service put s --transport carrier-pigeon",
            "callback redeliver 01890a5d-ac96-774b-bcce-b302099a8057-3 --failed-since 2h",
            "client signing-secret c --overlap 2d",
            "schedule put nightly --service s --client c",
            "schedule put nightly --service s --client c --cron @daily --missed never",
            "schedule put nightly --service s --client c --cron @daily --body {",
            "schedule put nightly --service s --client c --cron @daily --body {} --body-file f",
            "schedule next nightly --count 0",
            "outbox init",
            "outbox init mysql://h/db",
            "outbox init sqlite:x.db --table a.b.c",
            "outbox retry orders",
            "capture show",
            "capture snapshot",
            "topology plan",
            "outbox skip orders a --all",
            "notification list --status OPENED",
            "notification show 12",
            "notification resend",
            "notification ack 01890a5d-ac96-774b-bcce-b302099a8057",
            "notification send --title T",
            "notification send --to ann",
            "notification send --to USER:ann --payload {",
            "notification send --to USER:ann --type MAIL",
            "audience set GROUP 1b",
            "audience set GROUP 1b ann --none",
            "audience add GROUP 1b",
            "audience add GROUP 1b GROUP:",
            "instance resolve billing-1",
            "instance resolve billing-1 --fail --restart",
            "schedule show a/b",
            "authorization put c s",
            "authorization put c s --role dance",
            "serve --role dance",
            "events publish orders.created {",
            "events publish orders.created",
            "serve --listen nowhere",
            "apply",
            "worker --service s",
            "worker --service s cat",
            "worker -- cat",
            "worker --service a/b -- cat",
            "worker --service s --concurrency 0 -- cat",
            "worker --service s --queue q -- cat",
            "worker --service s --grace 1s --interruptible -- cat",
        ] {
            let words = std::iter::once("relais").chain(line.split(' '));
            let error = Cli::try_parse_from(words).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
