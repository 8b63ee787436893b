//! `relais capture`

use std::{fs, io::Read as _, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Subcommand};
use relais_capture::{Address, CaptureOptions, CapturedDatabase, Lack, debezium::import::import};
use relais_engine::chain;
use relais_protocol::{
    admin::SecretDeclaration,
    capture::{CaptureState, CaptureStates, SnapshotRequest},
};

use super::{
    apply::show_report,
    args::relay_name,
    connection::{Connection, ConnectionArgs, Request},
    service::confirm,
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais capture`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct CaptureArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: CaptureCommand,
}

#[derive(Debug, Subcommand)]
enum CaptureCommand {
    /// Say what a database lacks for change capture, and what to do; changes nothing, and needs no server
    ///
    /// Looks at wal_level, slots, senders, rights, and the replica identity of the tables. Ends with status 1 if something is
    /// missing; a warning is not.
    Check(CheckArgs),
    /// Print the declaration that a Debezium connector becomes (YAML); needs no server
    ///
    /// Reads a connector for PostgreSQL as it is posted to Kafka Connect (JSON, with or without the name around it), or a
    /// file of properties. Settings that are not carried over are comments, each with what to do. Passwords are not printed.
    Import {
        /// The connector's file; - is the standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// List the captures, how late they are and what is wrong with them
    List,
    /// Show everything about a capture, with what its database says now
    Show {
        /// The capture
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// Read tables again: their rows are published beside the stream
    Snapshot {
        /// The capture
        #[arg(value_parser = relay_name)]
        name: String,
        /// The tables, NAME or SCHEMA.NAME; all of the capture if none is given
        #[arg(value_name = "TABLE")]
        tables: Vec<String>,
    },
    /// Pause a capture: nothing is published, and the database keeps its WAL
    Pause {
        /// The capture
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// Go on with a paused capture
    Resume {
        /// The capture
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// Delete a capture from the server, with its slot and its publication; its tables stay
    Drop {
        /// The capture
        #[arg(value_parser = relay_name)]
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// The database: postgres://user:password@host/database
    #[arg(value_name = "DATABASE_URL", env = "CAPTURE_DATABASE_URL", hide_env_values = true, value_parser = database_url)]
    database: String,
    /// Tables that are to be captured, NAME or SCHEMA.NAME
    #[arg(value_name = "TABLE", required = true)]
    tables: Vec<String>,
}

/// Never with the text: it may have a password in it.
fn database_url(text: &str) -> Result<String, String> {
    let is_postgres = text.starts_with("postgres://") || text.starts_with("postgresql://");
    if !is_postgres {
        return Err("change capture needs PostgreSQL: postgres://user:password@host/database".to_owned());
    }
    Address::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Runs `relais capture`.
pub async fn run(args: CaptureArgs) -> Result<ExitCode> {
    let server = || Connection::new(args.connection);
    match args.command {
        CaptureCommand::Check(args) => return check(args).await,
        CaptureCommand::List => {
            server()?.print(Request::get(["admin", "captures"]), show_captures).await?;
        }
        CaptureCommand::Show { name } => {
            server()?.print(Request::get(["admin", "captures", &name]), show_capture).await?;
        }
        CaptureCommand::Snapshot { name, tables } => {
            let request = Request::post(["admin", "captures", &name, "snapshot"], Some(&SnapshotRequest { tables }))?;
            server()?.print(request, show_capture).await?;
        }
        CaptureCommand::Pause { name } => {
            server()?.print(Request::call(["admin", "captures", &name, "pause"]), show_capture).await?;
        }
        CaptureCommand::Resume { name } => {
            server()?.print(Request::call(["admin", "captures", &name, "resume"]), show_capture).await?;
        }
        CaptureCommand::Drop { name, yes } => {
            if !yes {
                confirm(&format!("Drop capture {name}, with its slot and its publication? Its tables stay."))?;
            }
            server()?.print(Request::delete(["admin", "captures", &name]), show_report).await?;
        }
        CaptureCommand::Import { file } => {
            let text = match file.to_str() {
                Some("-") => {
                    let mut text = String::new();
                    std::io::stdin().read_to_string(&mut text).context("cannot read the standard input")?;
                    text
                }
                _ => fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?,
            };
            output::data(&import(&text)?.declaration)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_captures(states: &CaptureStates) -> String {
    let columns = [
        Left("CAPTURE"),
        Left("STATE"),
        Left("SINK"),
        Right("TABLES"),
        Right("CHANGES"),
        Right("SNAPSHOT ROWS"),
        Right("LAG"),
        Right("RETAINED WAL"),
        Left("TROUBLE"),
    ];
    let rows = states.captures.iter().map(|state| {
        [
            state.declaration.capture_name.clone(),
            condition(state).to_owned(),
            state.declaration.sink.kinds().join(", "),
            state.declaration.tables.len().to_string(),
            state.changes.to_string(),
            state.snapshot_rows.to_string(),
            or_none(lag(state)),
            or_none(state.retained_wal),
            or_none(state.trouble.as_deref()),
        ]
    });
    table(columns, rows, "There are no captures. `relais apply` declares them.")
}

/// What the process that reads does, unless something is wrong.
fn condition(state: &CaptureState) -> &'static str {
    let reads = state.processes.iter().map(|process| process.activity).find(|does| *does != Default::default());
    match (state.declaration.paused, &state.trouble) {
        (Some(true), _) => "paused",
        (_, Some(_)) => "in trouble",
        _ => reads.unwrap_or_default().as_str(),
    }
}

fn lag(state: &CaptureState) -> Option<String> {
    state.processes.iter().find_map(|process| process.lag_seconds).map(|seconds| format!("{seconds:.3}s"))
}

fn show_capture(state: &CaptureState) -> String {
    let declaration = &state.declaration;
    let database = match &declaration.database_url {
        SecretDeclaration::Plain(text) => text.clone(),
        SecretDeclaration::Env { env } => format!("{{env: {env}}}"),
    };
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let head = card([
        ("capture", Some(declaration.capture_name.clone())),
        ("state", Some(condition(state).to_owned())),
        ("trouble", state.trouble.clone()),
        ("database", Some(database)),
        ("tables", Some(declaration.tables.join(", "))),
        ("include columns", some(declaration.include_columns.join(", "))),
        ("exclude columns", some(declaration.exclude_columns.join(", "))),
        ("mask columns", some(declaration.mask_columns.keys().cloned().collect::<Vec<_>>().join(", "))),
        ("snapshot", declaration.snapshot.map(|mode| mode.as_str().to_owned())),
        ("slot", declaration.slot.clone()),
        ("publication", declaration.publication.clone()),
        ("sink", Some(declaration.sink.kinds().join(", "))),
        ("destination", declaration.destination.clone()),
        ("changes", Some(state.changes.to_string())),
        ("snapshot rows", Some(state.snapshot_rows.to_string())),
        ("confirmed up to", state.position.as_ref().map(|position| position.commit_lsn.clone())),
        ("tables to read", state.position.as_ref().and_then(|position| some(position.snapshot.join(", ")))),
        ("lag", lag(state)),
        ("retained WAL", state.retained_wal.map(|bytes| format!("{bytes} bytes"))),
    ]);
    let columns = [Left("PROCESS"), Left("ACTIVITY"), Right("CHANGES"), Right("SNAPSHOT ROWS"), Left("TROUBLE")];
    let rows = state.processes.iter().map(|process| {
        [
            process.process.clone(),
            process.activity.as_str().to_owned(),
            process.changes.to_string(),
            process.snapshot_rows.to_string(),
            or_none(process.trouble.as_deref()),
        ]
    });
    format!("{head}\n\n{}", table(columns, rows, "No process captures it."))
}

async fn check(args: CheckArgs) -> Result<ExitCode> {
    super::install_tls_provider();
    let tables: Vec<&str> = args.tables.iter().map(String::as_str).collect();
    let options = CaptureOptions::new("check", &tables)?;
    let checked = async { CapturedDatabase::connect(&args.database).await?.check(&options).await };
    let lacks = checked.await.map_err(|error| anyhow!(chain(&error))).context("the database could not be asked")?;
    output::data(&show(&lacks))?;
    let missing = lacks.iter().any(|lack| !lack.only_a_warning);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(lacks: &[Lack]) -> String {
    if lacks.is_empty() {
        return "Nothing is missing.".to_owned();
    }
    let line = |lack: &Lack| {
        let kind = if lack.only_a_warning { "warning" } else { "missing" };
        format!("{kind}: {}\n         {}\n", lack.what, lack.remedy)
    };
    let mut text: String = lacks.iter().map(line).collect();
    if lacks.iter().all(|lack| lack.only_a_warning) {
        text.push_str("The tables can be captured.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_from_warnings() {
        let lack = |only_a_warning| Lack { what: "a".to_owned(), remedy: "b".to_owned(), only_a_warning };
        assert_eq!(show(&[]), "Nothing is missing.");
        assert_eq!(show(&[lack(false), lack(true)]), "missing: a\n         b\nwarning: a\n         b\n");
        assert!(show(&[lack(true)]).ends_with("The tables can be captured.\n"));
    }

    #[test]
    fn captures_are_listed_one_per_line_and_shown_with_their_processes() {
        let state: CaptureState = serde_json::from_value(serde_json::json!({
            "captureName": "shop", "databaseUrl": "postgres://u@h/db", "tables": ["public.orders"],
            "sink": {"redis": {"url": "redis://h"}}, "paused": false, "changes": 7, "snapshotRows": 3,
            "processes": [{"process": "a-1", "activity": "streaming", "changes": 7, "lagSeconds": 0.0125}],
            "position": {"commitLsn": "0/16B3748", "snapshot": ["public.orders"]},
        }))
        .unwrap();
        let text = show_captures(&CaptureStates { captures: vec![state.clone()] });
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("streaming") && text.contains("0.013s"), "{text}");
        let text = show_capture(&state);
        assert!(text.contains("0/16B3748") && text.lines().any(|line| line.starts_with("a-1")), "{text}");
        let away = CaptureState { trouble: Some("away".to_owned()), ..state };
        assert!(show_captures(&CaptureStates { captures: vec![away] }).contains("in trouble"));
    }

    #[test]
    fn a_wrong_url_is_not_repeated() {
        let refused = database_url("mysql://u:hidden@h/db").unwrap_err();
        assert!(!refused.contains("hidden") && refused.contains("PostgreSQL"));
    }
}
