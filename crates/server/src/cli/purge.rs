//! `relais purge`

use anyhow::Result;
use clap::Args;
use relais_protocol::admin::{PurgeAnswer, PurgeRequest};

use super::{
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, table},
};
use crate::output;

/// `relais purge`
#[derive(Debug, Args)]
pub struct PurgeArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Only count what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Runs `relais purge`.
pub async fn run(args: PurgeArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    let request = Request::post(["admin", "purge"], Some(&PurgeRequest { dry_run: args.dry_run }))?;
    let answer = server.print(request, show_purge).await?;
    if answer.is_some_and(|answer| answer.dry_run) {
        output::note("Nothing was removed: this was a dry run.");
    }
    Ok(())
}

fn show_purge(answer: &PurgeAnswer) -> String {
    let purged = if answer.dry_run { "TO PURGE" } else { "PURGED" };
    let rows = answer.services.iter().map(|service| {
        [service.service.clone(), service.purged.to_string(), service.finished.to_string(), service.any.to_string()]
    });
    let columns = [Left("SERVICE"), Right(purged), Right("KEEP FINISHED"), Right("KEEP ANY")];
    table(columns, rows, "There are no services.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_is_shown_per_service() {
        let answer: PurgeAnswer = serde_json::from_value(serde_json::json!({
            "dryRun": true, "services": [{"service": "resize", "purged": 12, "finished": "30d", "any": "90d"}],
        }))
        .unwrap();
        assert_eq!(
            show_purge(&answer),
            "SERVICE  TO PURGE  KEEP FINISHED  KEEP ANY\nresize         12            30d       90d"
        );
    }
}
