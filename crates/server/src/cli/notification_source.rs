//! `relais notification source`

use anyhow::Result;
use clap::{Args, Subcommand};
use relais_protocol::notification_source::{
    BusSourceDeclaration, NotificationSourceDeclaration, NotificationSourceState, NotificationSourceStates,
};

use super::{
    apply::show_report,
    args::relay_name,
    connection::{Connection, Request},
    service::confirm,
    table::{Column::*, card, or_none, table},
};

/// `relais notification source`
#[derive(Debug, Args)]
pub struct SourceArgs {
    #[command(subcommand)]
    command: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// List the notification sources, how many events they have made notifications of, and what is wrong with them
    List,
    /// Show everything about a notification source
    Show {
        /// The source
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// Pause a notification source: what happens meanwhile does not become notifications
    Pause {
        /// The source
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// Go on with a paused notification source
    Resume {
        /// The source
        #[arg(value_parser = relay_name)]
        name: String,
    },
    /// Delete a notification source; its notifications stay
    Delete {
        /// The source
        #[arg(value_parser = relay_name)]
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Runs `relais notification source`.
pub(super) async fn run(server: &Connection, args: SourceArgs) -> Result<()> {
    match args.command {
        SourceCommand::List => {
            server.print(Request::get(["admin", "notification-sources"]), show_sources).await?;
        }
        SourceCommand::Show { name } => {
            server.print(Request::get(["admin", "notification-sources", &name]), show_source).await?;
        }
        SourceCommand::Pause { name } => {
            server.print(Request::call(["admin", "notification-sources", &name, "pause"]), show_source).await?;
        }
        SourceCommand::Resume { name } => {
            server.print(Request::call(["admin", "notification-sources", &name, "resume"]), show_source).await?;
        }
        SourceCommand::Delete { name, yes } => {
            if !yes {
                confirm(&format!("Delete notification source {name}? Its notifications stay."))?;
            }
            server.print(Request::delete(["admin", "notification-sources", &name]), show_report).await?;
        }
    }
    Ok(())
}

fn show_sources(states: &NotificationSourceStates) -> String {
    let columns = [
        Left("SOURCE"),
        Left("STATE"),
        Left("CHANNELS"),
        Left("AUDIENCE"),
        Right("EMITTED"),
        Right("FAILED"),
        Left("TROUBLE"),
    ];
    let rows = states.notification_sources.iter().map(|state| {
        [
            state.declaration.source_name.clone(),
            condition(state).to_owned(),
            channels(&state.declaration),
            or_none(audience(&state.declaration)),
            state.emitted.to_string(),
            state.failed.to_string(),
            or_none(state.trouble.as_deref()),
        ]
    });
    table(columns, rows, "There are no notification sources. `relais apply` declares them.")
}

fn condition(state: &NotificationSourceState) -> &'static str {
    match (state.declaration.paused, &state.trouble) {
        (Some(true), _) => "paused",
        (_, Some(_)) => "in trouble",
        _ => "listening",
    }
}

fn channels(declaration: &NotificationSourceDeclaration) -> String {
    let BusSourceDeclaration { channels } =
        declaration.bus.clone().unwrap_or(BusSourceDeclaration { channels: vec![] });
    channels.join(", ")
}

fn audience(declaration: &NotificationSourceDeclaration) -> Option<String> {
    declaration.audience.as_ref().map(|audience| format!("{}:{}", audience.kind, audience.targets.join(",")))
}

fn show_source(state: &NotificationSourceState) -> String {
    let declaration = &state.declaration;
    let conditions = declaration.when.iter().map(|(value, is)| format!("{value} is {}", is.values().join(" or ")));
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let head = card([
        ("source", Some(declaration.source_name.clone())),
        ("state", Some(condition(state).to_owned())),
        ("channels", Some(channels(declaration))),
        ("when", some(conditions.collect::<Vec<_>>().join("; "))),
        ("audience", audience(declaration)),
        ("payload", declaration.payload.as_ref().map(ToString::to_string)),
        ("type", declaration.kind.clone()),
        ("priority", declaration.priority.clone()),
        ("operation", declaration.operation.clone()),
        ("emitted", Some(state.emitted.to_string())),
        ("failed", Some(state.failed.to_string())),
        ("trouble", state.trouble.clone()),
    ]);
    let columns = [
        Left("PROCESS"),
        Left("LISTENING"),
        Right("EMITTED"),
        Right("KNOWN"),
        Right("PASSED OVER"),
        Right("FAILED"),
        Left("TROUBLE"),
    ];
    let rows = state.processes.iter().map(|process| {
        [
            process.process.clone(),
            if process.listening { "yes" } else { "no" }.to_owned(),
            process.emitted.to_string(),
            process.known.to_string(),
            process.passed_over.to_string(),
            process.failed.to_string(),
            or_none(process.trouble.as_deref()),
        ]
    });
    format!("{head}\n\n{}", table(columns, rows, "No process hears its events."))
}
