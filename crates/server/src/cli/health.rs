//! `relais health`: a probe for scripts and containers that have no HTTP client.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::connection::{Connection, ConnectionArgs, Request};
use crate::output;

/// `relais health`
#[derive(Debug, Args)]
#[command(after_help = "Exits with 0 if the server is ready to take requests, and with 1 otherwise.")]
pub struct HealthArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Runs `relais health`.
pub async fn run(args: HealthArgs) -> Result<ExitCode> {
    let server = Connection::new(args.connection)?;
    let (url, status, text) = server.send(Request::get(["readyz"])).await?;
    if server.json {
        output::data(&text)?;
    } else if status.is_success() {
        output::data("ready")?;
    } else {
        output::note(&format!("error: not ready: {url} answered {status}\n{}", text.trim_end()));
    }
    Ok(if status.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
