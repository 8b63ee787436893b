//! `relais capture`: what can be done about change capture without a server.

use std::{fs, io::Read as _, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Subcommand};
use relais_capture::{Address, CaptureOptions, CapturedDatabase, Lack, debezium::import::import};
use relais_engine::chain;

use crate::output;

/// `relais capture`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct CaptureArgs {
    #[command(subcommand)]
    command: CaptureCommand,
}

#[derive(Debug, Subcommand)]
enum CaptureCommand {
    /// Say what a database lacks for change capture, and what to do; changes nothing
    ///
    /// Looks at wal_level, slots, senders, rights, and the replica identity of the tables. Ends with status 1 if something is
    /// missing; a warning is not.
    Check(CheckArgs),
    /// Print the declaration that a Debezium connector becomes (YAML)
    ///
    /// Reads a connector for PostgreSQL as it is posted to Kafka Connect (JSON, with or without the name around it), or a
    /// file of properties. Settings that are not carried over are comments, each with what to do. Passwords are not printed.
    Import {
        /// The connector's file; - is the standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
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
    match is_postgres && Address::parse(text).is_ok() {
        true => Ok(text.to_owned()),
        false => Err("change capture needs PostgreSQL: postgres://user:password@host/database".to_owned()),
    }
}

/// Runs `relais capture`.
pub async fn run(args: CaptureArgs) -> Result<ExitCode> {
    match args.command {
        CaptureCommand::Check(args) => check(args).await,
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
            Ok(ExitCode::SUCCESS)
        }
    }
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
    fn a_wrong_url_is_not_repeated() {
        let refused = database_url("mysql://u:hidden@h/db").unwrap_err();
        assert!(!refused.contains("hidden") && refused.contains("PostgreSQL"));
    }
}
