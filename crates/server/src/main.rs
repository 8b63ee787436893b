//! The binary `relais`: the server, and the commands that talk to one.
//!
//! This file only decides what runs and with which code the process ends. Exit codes: 0 done, 1 it could not be done,
//! 2 the command line was not understood (clap's own).

mod cli;
mod config;
mod declarations;
mod demo;
mod events;
mod limits;
mod logging;
mod metrics;
mod migrate;
mod nearest;
mod notifications;
mod output;
mod scaler;
mod serve;
mod signals;
mod sinks;
mod telemetry;
mod watcher;

use std::process::ExitCode;

use clap::Parser as _;
use cli::{Cli, Command, ReferencePage};
use mimalloc::MiMalloc;

/// It gives back what a storm of requests has used; with the system's, a few links that stay open keep all of it
/// ([ADR 0037](../../../docs/adr/0037-allocator.md)).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match start(command) {
        Ok(code) => code,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn start(command: Command) -> anyhow::Result<ExitCode> {
    // Everything but a server waits for one answer at a time: one thread is enough, and quicker to start.
    let server = matches!(command, Command::Serve(_) | Command::Demo(_));
    let mut builder = match server {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build()?.block_on(run(command))
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match cli::run(command).await? {
        Ok(code) => return Ok(code),
        Err(Command::Serve(args)) => serve::run(args).await?,
        Err(Command::Demo(args)) => demo::run(args).await?,
        Err(Command::Migrate(args)) => migrate::run(args).await?,
        Err(Command::Openapi) => output::data(&relais_api::openapi_document())?,
        Err(Command::Reference(args)) => output::data(&match args.page {
            ReferencePage::Declarations => relais_api::reference::declarations(),
            ReferencePage::Errors => relais_api::reference::errors(),
        })?,
        Err(other) => anyhow::bail!("{other:?} is nobody's command"),
    }
    Ok(ExitCode::SUCCESS)
}
