//! `relais batch`

use anyhow::Result;
use clap::{Args, Subcommand};
use relais_protocol::batch::{AdminBatchPage, AdminBatchView, BatchStatusName};

use super::{
    args::{client_id, task_id},
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais batch`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct BatchArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: BatchCommand,
}

#[derive(Debug, Subcommand)]
enum BatchCommand {
    /// List batches, the newest first
    List {
        /// Only of this client
        #[arg(long, value_parser = client_id)]
        client: Option<String>,
        /// How many at most, 1 to 200
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: u32,
        /// Go on where the last listing ended; it says with what
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a batch, and how its tasks are
    Show {
        /// The batch
        #[arg(value_parser = task_id)]
        batch_id: String,
    },
    /// Take no more tasks into a batch
    Close {
        /// The batch
        #[arg(value_parser = task_id)]
        batch_id: String,
    },
    /// Close a batch, and cancel all of its tasks that have not ended
    Cancel {
        /// The batch
        #[arg(value_parser = task_id)]
        batch_id: String,
    },
}

/// Runs `relais batch`.
pub async fn run(args: BatchArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        BatchCommand::List { client, limit, cursor } => {
            let request = Request::get(["admin", "batches"])
                .with("clientId", client)
                .with("limit", Some(limit))
                .with("cursor", cursor);
            let page: Option<AdminBatchPage> = server.print(request, show_batches).await?;
            if let Some(cursor) = page.and_then(|page| page.next_cursor) {
                output::note(&format!("There are more: --cursor {cursor}"));
            }
        }
        BatchCommand::Show { batch_id } => {
            server.print(Request::get(["admin", "batches", &batch_id]), show_batch).await?;
        }
        BatchCommand::Close { batch_id } => {
            let request = Request::call(["admin", "batches", &batch_id, "close"]);
            server.print(request, show_batch).await?;
        }
        BatchCommand::Cancel { batch_id } => {
            let request = Request::call(["admin", "batches", &batch_id, "cancel"]);
            server.print(request, show_batch).await?;
        }
    }
    Ok(())
}

fn status_name(status: BatchStatusName) -> &'static str {
    match status {
        BatchStatusName::Open => "OPEN",
        BatchStatusName::InProgress => "IN_PROGRESS",
        BatchStatusName::Ended => "ENDED",
    }
}

fn show_batches(page: &AdminBatchPage) -> String {
    let columns = [
        Left("BATCH"),
        Left("CLIENT"),
        Left("STATUS"),
        Right("TOTAL"),
        Right("PENDING"),
        Right("RUNNING"),
        Right("SUCCESS"),
        Right("FAILURE"),
        Right("CANCELLED"),
        Left("MADE"),
        Left("ENDED"),
    ];
    let rows = page.batches.iter().map(|AdminBatchView { client_id, batch, .. }| {
        [
            batch.batch_id.clone(),
            client_id.clone(),
            status_name(batch.status).to_owned(),
            batch.total.to_string(),
            batch.pending.to_string(),
            batch.in_progress.to_string(),
            batch.success.to_string(),
            batch.failure.to_string(),
            batch.cancelled.to_string(),
            batch.submition_date.clone(),
            or_none(batch.end_date.as_deref()),
        ]
    });
    table(columns, rows, "There are no batches.")
}

fn show_batch(view: &AdminBatchView) -> String {
    let batch = &view.batch;
    card([
        ("batch", Some(batch.batch_id.clone())),
        ("client", Some(view.client_id.clone())),
        ("status", Some(status_name(batch.status).to_owned())),
        ("total", Some(batch.total.to_string())),
        ("pending", Some(batch.pending.to_string())),
        ("in progress", Some(batch.in_progress.to_string())),
        ("success", Some(batch.success.to_string())),
        ("failure", Some(batch.failure.to_string())),
        ("cancelled", Some(batch.cancelled.to_string())),
        ("made", Some(batch.submition_date.clone())),
        ("closed", batch.close_date.clone()),
        ("ended", batch.end_date.clone()),
        ("correlation id", batch.correlation_id.clone()),
        ("callback", view.notification_status.clone()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_shown_with_its_counters() {
        let view: AdminBatchView = serde_json::from_value(serde_json::json!({
            "clientId": "web", "notificationStatus": "SUCCESS",
            "batch": {
                "batchId": "01890a5d-ac96-774b-bcce-b302099a8057", "status": "ENDED", "total": 3, "pending": 0,
                "inProgress": 0, "success": 2, "failure": 1, "cancelled": 0, "submitionDate": "2026-01-31T12:00:00Z",
                "closeDate": "2026-01-31T12:00:00Z", "endDate": "2026-01-31T12:00:01Z",
            },
        }))
        .unwrap();
        assert_eq!(
            show_batch(&view),
            "batch:       01890a5d-ac96-774b-bcce-b302099a8057\n\
             client:      web\n\
             status:      ENDED\n\
             total:       3\n\
             pending:     0\n\
             in progress: 0\n\
             success:     2\n\
             failure:     1\n\
             cancelled:   0\n\
             made:        2026-01-31T12:00:00Z\n\
             closed:      2026-01-31T12:00:00Z\n\
             ended:       2026-01-31T12:00:01Z\n\
             callback:    SUCCESS"
        );
        let page = AdminBatchPage { batches: vec![view], next_cursor: None };
        assert!(show_batches(&page).lines().nth(1).is_some_and(|line| line.contains("ENDED")));
    }
}
