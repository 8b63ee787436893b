//! `relais task`

use anyhow::Result;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use relais_protocol::{
    admin::{AdminTaskPage, AdminTaskView},
    consumer::TaskStatus,
};

use super::{
    args::{client_id, service_name, task_id},
    connection::{Connection, ConnectionArgs, Request},
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais task`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct TaskArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: TaskCommand,
}

#[derive(Debug, Subcommand)]
enum TaskCommand {
    /// List tasks, the newest first
    List(ListArgs),
    /// Show everything about a task
    Show {
        /// The task
        #[arg(value_parser = task_id)]
        task_id: String,
    },
    /// Cancel a task that has not ended
    Cancel {
        /// The task
        #[arg(value_parser = task_id)]
        task_id: String,
    },
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only of this service
    #[arg(long, value_parser = service_name)]
    service: Option<String>,
    /// Only of this client
    #[arg(long, value_parser = client_id)]
    client: Option<String>,
    /// Only with one of these statuses: pending, in_progress, success, failure, cancelled
    #[arg(long = "status", value_name = "STATUS", value_delimiter = ',', value_parser = status)]
    statuses: Vec<String>,
    /// Only submitted at this time or later, e.g. 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,
    /// Only submitted before this time
    #[arg(long, value_name = "TIME")]
    before: Option<Timestamp>,
    /// How many at most, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Go on where the last listing ended; it says with what
    #[arg(long)]
    cursor: Option<String>,
}

fn status(text: &str) -> Result<String, String> {
    let text = text.trim().to_uppercase().replace('-', "_");
    let known = serde_json::from_value::<TaskStatus>(text.as_str().into());
    known.map(|_| text).map_err(|_| "expected pending, in_progress, success, failure or cancelled".to_owned())
}

/// Runs `relais task`.
pub async fn run(args: TaskArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        TaskCommand::List(list) => {
            let statuses = (!list.statuses.is_empty()).then(|| list.statuses.join(","));
            let request = Request::get(["admin", "tasks"])
                .with("service", list.service)
                .with("clientId", list.client)
                .with("status", statuses)
                .with("from", list.from)
                .with("before", list.before)
                .with("limit", Some(list.limit))
                .with("cursor", list.cursor);
            let page: Option<AdminTaskPage> = server.print(request, show_tasks).await?;
            if let Some(cursor) = page.and_then(|page| page.next_cursor) {
                output::note(&format!("There are more: --cursor {cursor}"));
            }
        }
        TaskCommand::Show { task_id } => {
            server.print(Request::get(["admin", "tasks", &task_id]), show_task).await?;
        }
        TaskCommand::Cancel { task_id } => {
            server.print(Request::delete(["admin", "tasks", &task_id]), show_task).await?;
        }
    }
    Ok(())
}

fn status_name(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Pending => "PENDING",
        TaskStatus::InProgress => "IN_PROGRESS",
        TaskStatus::Success => "SUCCESS",
        TaskStatus::Failure => "FAILURE",
        TaskStatus::Cancelled => "CANCELLED",
    }
}

fn show_tasks(page: &AdminTaskPage) -> String {
    let columns = [
        Left("TASK"),
        Left("SERVICE"),
        Left("CLIENT"),
        Left("STATUS"),
        Right("PROGRESS"),
        Right("ATTEMPT"),
        Left("SUBMITTED"),
        Left("ENDED"),
    ];
    let rows = page.tasks.iter().map(|view| {
        [
            view.task.task_id.clone(),
            view.service.clone(),
            view.client_id.clone(),
            status_name(view.task.status).to_owned(),
            or_none(view.task.progress.map(percent)),
            view.attempt.to_string(),
            view.task.submition_date.clone(),
            or_none(view.task.end_date.as_deref()),
        ]
    });
    table(columns, rows, "There are no such tasks.")
}

fn percent(progress: f64) -> String {
    format!("{progress}%")
}

fn show_task(view: &AdminTaskView) -> String {
    let task = &view.task;
    card([
        ("task", Some(task.task_id.clone())),
        ("service", Some(view.service.clone())),
        ("client", Some(view.client_id.clone())),
        ("status", Some(status_name(task.status).to_owned())),
        ("position", task.task_position.map(|position| position.to_string())),
        ("estimated start", task.estimated_start_date.clone()),
        ("progress", task.progress.map(percent)),
        ("attempt", Some(view.attempt.to_string())),
        ("workers lost", (view.losses > 0).then(|| view.losses.to_string())),
        ("worker", view.worker_host.clone()),
        ("lease expires", view.lease_expires.clone()),
        ("submitted", Some(task.submition_date.clone())),
        ("started", task.start_date.clone()),
        ("ended", task.end_date.clone()),
        ("correlation id", task.correlation_id.clone()),
        ("callback", view.notification_status.clone()),
        ("error", task.error_message.clone()),
        ("request", view.request.as_ref().map(|request| request.get().to_owned())),
        ("response", task.response.as_ref().map(|response| response.get().to_owned())),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> AdminTaskView {
        serde_json::from_value(serde_json::json!({
            "id": 7, "service": "resize", "clientId": "web", "attempt": 2, "losses": 1, "workerHost": "pod-1",
            "request": {"width": 3},
            "task": {
                "taskId": "01890a5d-ac96-774b-bcce-b302099a8057", "status": "IN_PROGRESS", "progress": 12.5,
                "submitionDate": "2026-01-31T12:00:00Z", "startDate": "2026-01-31T12:00:01Z",
            },
        }))
        .unwrap()
    }

    #[test]
    fn tasks_are_listed_one_per_line() {
        let page = AdminTaskPage { tasks: vec![view()], next_cursor: None };
        assert_eq!(
            show_tasks(&page),
            "TASK                                  SERVICE  CLIENT  STATUS       PROGRESS  ATTEMPT  SUBMITTED             ENDED\n\
             01890a5d-ac96-774b-bcce-b302099a8057  resize   web     IN_PROGRESS     12.5%        2  2026-01-31T12:00:00Z  -"
        );
    }

    #[test]
    fn a_task_is_shown_with_what_is_known_of_it() {
        assert_eq!(
            show_task(&view()),
            "task:         01890a5d-ac96-774b-bcce-b302099a8057\n\
             service:      resize\n\
             client:       web\n\
             status:       IN_PROGRESS\n\
             progress:     12.5%\n\
             attempt:      2\n\
             workers lost: 1\n\
             worker:       pod-1\n\
             submitted:    2026-01-31T12:00:00Z\n\
             started:      2026-01-31T12:00:01Z\n\
             request:      {\"width\":3}"
        );
    }

    #[test]
    fn statuses_are_taken_in_any_case() {
        assert_eq!(status("in-progress").unwrap(), "IN_PROGRESS");
        assert!(status("waiting").is_err());
    }
}
