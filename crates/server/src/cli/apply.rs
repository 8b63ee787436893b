//! `relais apply` and `relais export`: declaration files to and from a server.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use relais_protocol::admin::{AppliedAction, ApplyReport, Declaration};

use super::{
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, table},
    yaml::to_yaml,
};
use crate::{declarations, output};

/// `relais apply`
#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// The file, YAML or JSON; - reads stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Delete what is not in the file
    #[arg(long)]
    prune: bool,
    /// Do not ask the databases and sinks of outboxes and captures whether they can be used
    #[arg(long)]
    no_check: bool,
}

/// `relais export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Runs `relais apply`.
pub async fn apply(args: ApplyArgs) -> Result<()> {
    let declaration = read(&args.file)?;
    let server = Connection::new(args.connection)?;
    let request = Request::post(["admin", "apply"], Some(&declaration))?
        .with("dryRun", args.dry_run.then_some(true))
        .with("prune", args.prune.then_some(true))
        .with("check", args.no_check.then_some(false));
    let Some(report) = server.print(request, show_report).await? else {
        return Ok(());
    };
    note_secrets(&report);
    output::note(&summary(&report, args.dry_run));
    Ok(())
}

fn read(file: &Path) -> Result<Declaration> {
    if file != Path::new("-") {
        return declarations::read(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
    declarations::parse(&text, "stdin")
}

/// Runs `relais export`.
pub async fn export(args: ExportArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    server.print(Request::get(["admin", "declaration"]), to_yaml).await?;
    Ok(())
}

fn action(action: AppliedAction) -> &'static str {
    match action {
        AppliedAction::Created => "created",
        AppliedAction::Updated => "updated",
        AppliedAction::Unchanged => "unchanged",
        AppliedAction::Deleted => "deleted",
    }
}

/// What was done, a line per thing; with its secret, where one was generated.
pub fn show_report(report: &ApplyReport) -> String {
    let nothing = "There is nothing to do.";
    let entries = report.applied.iter();
    if report.applied.iter().any(|entry| entry.client_secret.is_some()) {
        let rows = entries.map(|entry| {
            let secret = entry.client_secret.clone().unwrap_or_default();
            [entry.kind.clone(), entry.name.clone(), action(entry.action).to_owned(), secret]
        });
        return table([Left("KIND"), Left("NAME"), Left("ACTION"), Left("SECRET")], rows, nothing);
    }
    let rows = entries.map(|entry| [entry.kind.clone(), entry.name.clone(), action(entry.action).to_owned()]);
    table([Left("KIND"), Left("NAME"), Left("ACTION")], rows, nothing)
}

/// Says that secrets in the report are gone for good if nobody writes them down.
pub fn note_secrets(report: &ApplyReport) {
    if report.applied.iter().any(|entry| entry.client_secret.is_some()) {
        output::note("Keep the secrets: they are not shown again.");
    }
}

fn summary(report: &ApplyReport, dry_run: bool) -> String {
    let actions = [AppliedAction::Created, AppliedAction::Updated, AppliedAction::Deleted, AppliedAction::Unchanged];
    let counts = actions.map(|wanted| {
        let count = report.applied.iter().filter(|entry| entry.action == wanted).count();
        format!("{count} {}", action(wanted))
    });
    let end = if dry_run { ". Nothing was changed: this was a dry run." } else { "." };
    counts.join(", ") + end
}

#[cfg(test)]
mod tests {
    use relais_protocol::admin::AppliedEntry;

    use super::*;

    fn entry(kind: &str, name: &str, action: AppliedAction, secret: Option<&str>) -> AppliedEntry {
        let client_secret = secret.map(str::to_owned);
        AppliedEntry { kind: kind.to_owned(), name: name.to_owned(), action, client_secret }
    }

    #[test]
    fn a_report_has_a_column_for_secrets_only_if_there_are_any() {
        let service = entry("service", "resize", AppliedAction::Updated, None);
        let mut report = ApplyReport { applied: vec![service] };
        assert_eq!(show_report(&report), "KIND     NAME    ACTION\nservice  resize  updated");
        report.applied.push(entry("client", "web", AppliedAction::Created, Some("s3cret")));
        assert_eq!(
            show_report(&report),
            "KIND     NAME    ACTION   SECRET\nservice  resize  updated  -\nclient   web     created  s3cret"
        );
        assert_eq!(
            summary(&report, true),
            "1 created, 1 updated, 0 deleted, 0 unchanged. Nothing was changed: this was a dry run."
        );
    }
}
