//! `relais outbox`

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use relais_engine::chain;
use relais_outbox::{AggregateId, Dialect, TableName, create_statements};
use relais_protocol::{
    admin::SecretDeclaration,
    outbox::{OutboxState, OutboxStates, ParkedAnswer, ParkedEvents, ParkedRequest},
};

use super::{
    apply::show_report,
    args::relay_name,
    connection::{Connection, ConnectionArgs, Request},
    service::confirm,
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais outbox`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct OutboxArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: OutboxCommand,
}

#[derive(Debug, Subcommand)]
enum OutboxCommand {
    /// Make the table of an outbox in a database; needs no server
    ///
    /// Makes the table with all columns that relays can use, its indexes, a trigger that wakes relays (PostgreSQL), and the
    /// three small tables that relays keep beside it. A table that exists stays as it is. An SQLite file that is missing
    /// is created.
    Init(InitArgs),
    /// List the outboxes, how far behind they are and what is wrong with them
    List,
    /// Show everything about an outbox, with what its database says now
    Show {
        /// The outbox
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// List the events of an outbox that are parked, the oldest first, and why
    Parked {
        /// The outbox
        #[arg(value_parser = relay_name)]
        name: String,
        /// How many at most, 1 to 1000
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Try parked events again, e.g. once the exchange is there
    Retry(WhichArgs),
    /// Give parked events up: they are never published, and later events of their keys go on
    Skip(WhichArgs),
    /// Pause an outbox: nothing is published, and its rows wait
    Pause {
        /// The outbox
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// Publish a paused outbox again
    Resume {
        /// The outbox
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// Delete an outbox from the server; its table stays
    Delete {
        /// The outbox
        #[arg(value_parser = relay_name)]
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct InitArgs {
    /// The database: postgres://user:password@host/database or sqlite:file.db
    #[arg(value_name = "DATABASE_URL", env = "OUTBOX_DATABASE_URL", hide_env_values = true, value_parser = database_url)]
    database: String,
    /// The table, NAME or SCHEMA.NAME
    #[arg(long, value_name = "TABLE", default_value = "outbox", value_parser = table_name)]
    table: String,
    /// The type of the column aggregate_id (PostgreSQL)
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = AggregateIdType::Uuid)]
    aggregate_id: AggregateIdType,
    /// Make no trigger: relays then look every 500 ms
    #[arg(long)]
    no_notify: bool,
    /// Only print the statements, for a migration of your own
    #[arg(long)]
    print: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum AggregateIdType {
    /// UUIDs
    Uuid,
    /// Any text
    Text,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["ids", "all"])))]
struct WhichArgs {
    /// The outbox
    #[arg(value_parser = relay_name)]
    name: String,
    /// The events
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All parked events of the outbox
    #[arg(long)]
    all: bool,
}

impl WhichArgs {
    fn request<'a>(&'a self, verb: &'a str) -> Result<Request<'a>> {
        let asked = ParkedRequest { ids: self.ids.clone(), all: self.all };
        Request::post(["admin", "outboxes", &self.name, verb], Some(&asked))
    }
}

/// Never with the text: it may have a password in it.
fn database_url(text: &str) -> Result<String, String> {
    Dialect::of_url(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn table_name(text: &str) -> Result<String, String> {
    TableName::parse(text).map(|name| name.to_string()).map_err(|error| error.to_string())
}

/// Runs `relais outbox`.
pub async fn run(args: OutboxArgs) -> Result<()> {
    let command = match args.command {
        OutboxCommand::Init(init) => return make(init).await,
        other => other,
    };
    let server = Connection::new(args.connection)?;
    match command {
        OutboxCommand::Init(_) => {}
        OutboxCommand::List => {
            server.print(Request::get(["admin", "outboxes"]), show_outboxes).await?;
        }
        OutboxCommand::Show { name } => {
            server.print(Request::get(["admin", "outboxes", &name]), show_outbox).await?;
        }
        OutboxCommand::Parked { name, limit } => {
            let request = Request::get(["admin", "outboxes", &name, "parked"]).with("limit", Some(limit));
            server.print(request, show_parked).await?;
        }
        OutboxCommand::Retry(which) => {
            let said = |answer: &ParkedAnswer| format!("{} retried", answer.changed);
            server.print(which.request("retry")?, said).await?;
        }
        OutboxCommand::Skip(which) => {
            let said = |answer: &ParkedAnswer| format!("{} skipped", answer.changed);
            server.print(which.request("skip")?, said).await?;
        }
        OutboxCommand::Pause { name } => {
            server.print(Request::call(["admin", "outboxes", &name, "pause"]), show_outbox).await?;
        }
        OutboxCommand::Resume { name } => {
            server.print(Request::call(["admin", "outboxes", &name, "resume"]), show_outbox).await?;
        }
        OutboxCommand::Delete { name, yes } => {
            if !yes {
                confirm(&format!("Delete outbox {name}? Its table stays."))?;
            }
            server.print(Request::delete(["admin", "outboxes", &name]), show_report).await?;
        }
    }
    Ok(())
}

async fn make(args: InitArgs) -> Result<()> {
    let table = TableName::parse(&args.table)?;
    let aggregate_id = match args.aggregate_id {
        AggregateIdType::Uuid => AggregateId::Uuid,
        AggregateIdType::Text => AggregateId::Text,
    };
    if args.print {
        let statements = create_statements(&table, Dialect::of_url(&args.database)?, aggregate_id, !args.no_notify);
        output::data(&statements.iter().map(|statement| format!("{statement};\n")).collect::<String>())?;
        return Ok(());
    }
    super::install_tls_provider();
    let made = relais_outbox::init(&args.database, &table, aggregate_id, !args.no_notify).await;
    let made = made.map_err(|error| anyhow!(chain(&error))).context("the outbox could not be made")?;
    output::note(&match made {
        true => format!("The outbox {table} is made, with the tables that relays keep beside it."),
        false => format!("The table {table} was there and stays as it is; what relays keep beside it is there now."),
    });
    Ok(())
}

fn show_outboxes(states: &OutboxStates) -> String {
    let columns = [
        Left("OUTBOX"),
        Left("STATE"),
        Left("SINK"),
        Right("RELAYS"),
        Right("UNPUBLISHED"),
        Right("OLDEST"),
        Right("PARKED"),
        Right("PUBLISHED"),
        Left("TROUBLE"),
    ];
    let rows = states.outboxes.iter().map(|state| {
        [
            state.declaration.outbox_name.clone(),
            condition(state).to_owned(),
            state.declaration.sink.kinds().join(", "),
            state.relays.len().to_string(),
            or_none(unpublished(state)),
            or_none(oldest(state)),
            or_none(state.parked),
            state.published.to_string(),
            or_none(state.trouble.as_deref()),
        ]
    });
    table(columns, rows, "There are no outboxes. `relais apply` declares them.")
}

fn condition(state: &OutboxState) -> &'static str {
    match (state.declaration.paused, &state.trouble) {
        (Some(true), _) => "paused",
        (_, Some(_)) => "in trouble",
        _ => "running",
    }
}

fn unpublished(state: &OutboxState) -> Option<String> {
    let more = if state.more_unpublished { "+" } else { "" };
    state.unpublished.map(|count| format!("{count}{more}"))
}

fn oldest(state: &OutboxState) -> Option<String> {
    state.oldest_seconds.map(|seconds| format!("{seconds:.1}s"))
}

fn show_outbox(state: &OutboxState) -> String {
    let declaration = &state.declaration;
    let shown = |secret: &SecretDeclaration| match secret {
        SecretDeclaration::Plain(text) => text.clone(),
        SecretDeclaration::Env { env } => format!("{{env: {env}}}"),
    };
    let sink = &declaration.sink;
    let address = [
        sink.rabbitmq.as_ref().map(|sink| shown(&sink.url)),
        sink.redis.as_ref().map(|sink| shown(&sink.url)),
        sink.kafka.as_ref().map(|sink| sink.brokers.clone()),
        sink.task.as_ref().map(|sink| format!("as client {}", sink.client_id)),
    ];
    let retry = declaration.retry.as_ref().map(|retry| {
        format!(
            "limit={},base={},factor={},cap={}",
            number(retry.limit),
            time(retry.base),
            number(retry.factor),
            time(retry.cap)
        )
    });
    let headers =
        declaration.headers.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ");
    let head = card([
        ("outbox", Some(declaration.outbox_name.clone())),
        ("state", Some(condition(state).to_owned())),
        ("trouble", state.trouble.clone()),
        ("database", Some(shown(&declaration.database_url))),
        ("table", declaration.table.clone()),
        ("mode", declaration.mode.map(|mode| mode.as_str().to_owned())),
        ("sink", Some(sink.kinds().join(", "))),
        ("sink address", address.into_iter().flatten().next()),
        ("key", declaration.key.clone()),
        ("destination", declaration.destination.clone()),
        ("routing key", declaration.routing_key.clone().filter(|_| sink.rabbitmq.is_some())),
        ("headers", Some(headers).filter(|headers| !headers.is_empty())),
        ("retry", retry),
        ("retention", declaration.retention.map(|time| time.to_string())),
        ("delete published", declaration.delete_published.map(|delete| delete.to_string())),
        ("poll interval", declaration.poll_interval.map(|time| time.to_string())),
        ("batch rows", declaration.batch_rows.map(|rows| rows.to_string())),
        ("unpublished", unpublished(state)),
        ("oldest", oldest(state)),
        ("parked", state.parked.map(|parked| parked.to_string())),
        ("published", Some(state.published.to_string())),
        ("failed", Some(state.failed.to_string())),
        ("not captured", state.relays.iter().find_map(|relay| relay.why_not_capture.clone())),
        (
            "retained WAL",
            state.relays.iter().find_map(|relay| relay.retained_wal).map(|bytes| format!("{bytes} bytes")),
        ),
    ]);
    let columns =
        [Left("RELAY"), Left("ACTIVITY"), Right("PARTITIONS"), Right("PUBLISHED"), Right("FAILED"), Left("TROUBLE")];
    let rows = state.relays.iter().map(|relay| {
        [
            relay.process.clone(),
            relay.activity.as_str().to_owned(),
            relay.partitions.to_string(),
            relay.published.to_string(),
            relay.failed.to_string(),
            or_none(relay.trouble.as_deref()),
        ]
    });
    format!("{head}\n\n{}", table(columns, rows, "No process publishes it."))
}

fn number(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn time(time: Option<relais_protocol::HumanDuration>) -> String {
    number(time)
}

fn show_parked(events: &ParkedEvents) -> String {
    let columns = [Left("ID"), Left("KEY"), Left("EVENT TYPE"), Right("TRIES"), Left("ERROR")];
    let rows = events.parked.iter().map(|event| {
        let line =
            |text: &str| text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect::<String>();
        [
            event.id.clone(),
            line(&event.key),
            line(&event.event_type),
            event.retry_count.to_string(),
            or_none(event.error.as_deref().map(line)),
        ]
    });
    table(columns, rows, "Nothing is parked.")
}

#[cfg(test)]
mod tests {
    use relais_protocol::outbox::ParkedEvent;

    use super::*;

    fn state() -> OutboxState {
        serde_json::from_value(serde_json::json!({
            "outboxName": "orders", "databaseUrl": "postgres://u@h/db", "table": "outbox", "mode": "auto",
            "destination": "shop", "sink": {"rabbitmq": {"url": "amqp://u@h"}}, "paused": false,
            "retry": {"limit": 10, "base": "1s", "factor": 2, "cap": "5m"},
            "relays": [{"process": "a-1", "activity": "polling", "partitions": 16, "published": 7, "failed": 2}],
            "unpublished": 10000, "moreUnpublished": true, "oldestSeconds": 1.25, "parked": 1, "published": 7, "failed": 2,
        }))
        .unwrap()
    }

    #[test]
    fn outboxes_are_listed_one_per_line() {
        let text = show_outboxes(&OutboxStates { outboxes: vec![state()] });
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("10000+") && text.contains("1.2s") && text.contains("running"), "{text}");
        let away = OutboxState { trouble: Some("the sink is away".to_owned()), ..state() };
        assert!(show_outboxes(&OutboxStates { outboxes: vec![away] }).contains("in trouble"));
        assert!(show_outboxes(&OutboxStates { outboxes: vec![] }).contains("relais apply"));
    }

    #[test]
    fn an_outbox_is_shown_with_its_relays() {
        let text = show_outbox(&state());
        assert!(text.contains("limit=10,base=1s,factor=2,cap=5m"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("a-1") && line.contains("polling")), "{text}");
    }

    #[test]
    fn a_parked_event_is_one_line_whatever_it_says() {
        let event = ParkedEvent {
            id: "1".to_owned(),
            key: "k\n".to_owned(),
            event_type: "t".to_owned(),
            retry_count: 3,
            error: Some("a\nb".to_owned()),
        };
        let events = ParkedEvents { outbox_name: "orders".to_owned(), parked: vec![event] };
        assert_eq!(show_parked(&events).lines().count(), 2);
    }
}
