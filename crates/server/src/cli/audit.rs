//! `relais audit` and `relais workers`: who did what, and who works.

use anyhow::Result;
use clap::Args;
use relais_protocol::{
    audit::{AuditLog, AuditOutcomeName},
    worker_state::{WorkerActivity, WorkerStates},
};

use super::{
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, or_none, table},
};
use crate::output;

/// `relais audit`
#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// How many at most, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Go on where the last listing ended; it says with what
    #[arg(long)]
    cursor: Option<String>,
}

/// Runs `relais audit`.
pub async fn run(args: AuditArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    let request = Request::get(["admin", "audit"]).with("limit", Some(args.limit)).with("cursor", args.cursor);
    let log: Option<AuditLog> = server.print(request, show).await?;
    if let Some(cursor) = log.and_then(|log| log.next_cursor) {
        output::note(&format!("There are more: --cursor {cursor}"));
    }
    Ok(())
}

fn show(log: &AuditLog) -> String {
    let rows = log.entries.iter().map(|entry| {
        [
            entry.date.clone(),
            entry.actor.clone(),
            entry.via.clone(),
            entry.action.clone(),
            entry.target.clone(),
            match entry.outcome {
                AuditOutcomeName::Done => "done",
                AuditOutcomeName::Failed => "not done",
                AuditOutcomeName::Unknown => "unknown",
            }
            .to_owned(),
            or_none(entry.error.as_deref().or(entry.detail.as_deref())),
        ]
    });
    let columns =
        [Left("DATE"), Left("WHO"), Left("VIA"), Left("ACTION"), Left("TARGET"), Left("OUTCOME"), Left("ABOUT")];
    table(columns, rows, "Nobody did anything yet.")
}

/// `relais workers`
#[derive(Debug, Args)]
pub struct WorkersArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Runs `relais workers`.
pub async fn workers(args: WorkersArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    server.print(Request::get(["admin", "workers"]), show_workers).await.map(drop)
}

fn show_workers(states: &WorkerStates) -> String {
    let rows = states.workers.iter().map(|worker| {
        let activity = match worker.activity {
            WorkerActivity::Waiting => "waiting",
            WorkerActivity::Busy => "busy",
            WorkerActivity::Silent => "silent",
            WorkerActivity::Quiet => "quiet",
        };
        [
            or_none(worker.host_name.as_deref()),
            worker.service.clone(),
            worker.transport.clone(),
            activity.to_owned(),
            worker.running.to_string(),
            or_none(worker.seen_seconds_ago.map(|seconds| format!("{seconds:.0}s ago"))),
            or_none(worker.version.as_deref()),
        ]
    });
    let columns = [
        Left("WORKER"),
        Left("SERVICE"),
        Left("TRANSPORT"),
        Left("STATE"),
        Right("RUNNING"),
        Left("HEARD"),
        Left("VERSION"),
    ];
    table(columns, rows, "No worker has been heard of.")
}
