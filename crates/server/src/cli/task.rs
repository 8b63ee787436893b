//! `relais task`

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use relais_protocol::{
    admin::{AdminTaskPage, AdminTaskView, AttemptView, RetryAnswer, TasksRequest},
    consumer::{AfterView, AfterWhen, TaskStatus},
};

use super::{
    args::{client_id, service_name, task_id},
    connection::{Connection, ConnectionArgs, Request, understand},
    table::{Column::*, card, or_none, table},
    task_watch,
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
    /// Watch a task until it ends; the exit code is 0 if it ended well
    Watch {
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
    /// Do tasks once more that have ended; or now, if they are to start later
    Retry(RetryArgs),
}

#[derive(Debug, Args)]
struct RetryArgs {
    /// The tasks
    #[arg(value_name = "TASK_ID", value_parser = task_id, conflicts_with_all = ["service", "client", "statuses", "from", "before"])]
    task_ids: Vec<String>,
    /// All that match instead: of this service
    #[arg(long, value_parser = service_name)]
    service: Option<String>,
    /// Of this client
    #[arg(long, value_parser = client_id)]
    client: Option<String>,
    /// With one of these statuses: failure (if none is given), success, cancelled
    #[arg(long = "status", value_name = "STATUS", value_delimiter = ',', value_parser = status)]
    statuses: Vec<String>,
    /// Submitted at this time or later, e.g. 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,
    /// Submitted before this time
    #[arg(long, value_name = "TIME")]
    before: Option<Timestamp>,
    /// Only count
    #[arg(long)]
    dry_run: bool,
}

/// Asks for one batch after the other until all were looked at.
async fn retry(server: &Connection, args: RetryArgs) -> Result<()> {
    if args.task_ids.is_empty() && args.service.is_none() && args.client.is_none() {
        bail!("say which: task ids, or --service, or --client");
    }
    let statuses = args.statuses.iter().map(|status| serde_json::from_value(status.as_str().into()));
    let mut asked = TasksRequest {
        tasks: args.task_ids,
        service: args.service,
        client_id: args.client,
        correlation_id: None,
        statuses: statuses.collect::<Result<_, _>>()?,
        from: args.from.map(|from| from.to_string()),
        before: args.before.map(|before| before.to_string()),
        cursor: None,
        dry_run: args.dry_run,
    };
    let mut total = RetryAnswer { retried: 0, passed_over: 0, next_cursor: None };
    loop {
        let request = Request::post(["admin", "tasks", "retry"], Some(&asked))?;
        let answer: RetryAnswer = understand(&server.data(request).await?)?;
        total.retried += answer.retried;
        total.passed_over += answer.passed_over;
        match answer.next_cursor {
            Some(cursor) => asked.cursor = Some(cursor),
            None => break,
        }
    }
    if server.json {
        return Ok(output::data(&serde_json::to_string(&total)?)?);
    }
    let did = if asked.dry_run { "would be done once more" } else { "done once more" };
    Ok(output::data(&format!("{} {did}, {} passed over.", total.retried, total.passed_over))?)
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
    /// Only with this correlation id
    #[arg(long, value_name = "ID")]
    correlation: Option<String>,
    /// Only parts of this task
    #[arg(long, value_name = "TASK_ID", value_parser = task_id, conflicts_with = "correlation")]
    parent: Option<String>,
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
                .with("correlationId", list.correlation)
                .with("parentId", list.parent)
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
        TaskCommand::Watch { task_id } => task_watch::watch(&server, &task_id).await?,
        TaskCommand::Retry(args) => retry(&server, args).await?,
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

/// One line for each attempt, and where it failed below it, as far as its worker told.
fn show_attempts(attempts: &[AttemptView]) -> String {
    let rows = attempts.iter().map(|attempt| {
        [
            attempt.number.to_string(),
            attempt.outcome.clone(),
            or_none(attempt.start_date.as_deref()),
            or_none(attempt.end_date.as_deref()),
            or_none(attempt.worker_host.as_deref()),
            or_none(attempt.error_kind.as_deref()),
            or_none(attempt.error_message.as_deref()),
        ]
    });
    let columns = [
        Right("#"),
        Left("OUTCOME"),
        Left("STARTED"),
        Left("ENDED"),
        Left("WORKER"),
        Left("ERROR KIND"),
        Left("ERROR"),
    ];
    let table = table(columns, rows, "none");
    let mut lines = table.lines();
    let mut shown: Vec<String> = lines.next().map(str::to_owned).into_iter().collect();
    // The table has one line for each row, whatever is in it.
    for (line, attempt) in lines.zip(attempts) {
        shown.push(line.to_owned());
        shown.extend(attempt.error_trace.iter().flat_map(|trace| trace.lines()).map(|line| format!("     {line}")));
    }
    shown.join("\n")
}

/// One line for each task that it waits for, or waited for.
fn show_after(after: &AfterView) -> String {
    let when = match after.when {
        AfterWhen::AllSucceeded => "all succeeded",
        AfterWhen::AllEnded => "all ended",
        AfterWhen::AnyEnded => "any ended",
    };
    let rows = after.tasks.iter().map(|one| [one.task_id.clone(), or_none(one.status.map(status_name))]);
    format!("until {when}\n{}", table([Left("TASK"), Left("ENDED AS")], rows, "none"))
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
        ("priority", task.priority.map(|priority| priority.to_string())),
        ("scheduled", task.scheduled_date.clone()),
        ("tried again", task.retry_date.clone()),
        ("failures", (view.failures > 0).then(|| view.failures.to_string())),
        ("workers lost", (view.losses > 0).then(|| view.losses.to_string())),
        ("worker", view.worker_host.clone()),
        ("lease expires", view.lease_expires.clone()),
        ("deadline", view.deadline.clone()),
        ("submitted", Some(task.submition_date.clone())),
        ("started", task.start_date.clone()),
        ("ended", task.end_date.clone()),
        ("waits for", task.after.as_ref().map(show_after)),
        ("batch", task.batch_id.clone()),
        ("parent", task.parent_id.clone()),
        ("correlation id", task.correlation_id.clone()),
        ("trace", view.traceparent.clone()),
        ("trace state", view.tracestate.clone()),
        ("callback", view.notification_status.clone()),
        ("error", task.error_message.clone()),
        ("error kind", task.error_kind.clone()),
        ("attempts", view.attempts.as_deref().filter(|attempts| !attempts.is_empty()).map(show_attempts)),
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

    fn attempts(view: &mut AdminTaskView, attempts: serde_json::Value) {
        view.attempts = Some(serde_json::from_value(attempts).unwrap());
    }

    #[test]
    fn every_attempt_is_shown_with_why_and_where_it_failed() {
        let mut view = view();
        let failed = serde_json::json!({
            "number": 1, "outcome": "failure", "startDate": "2026-01-31T12:00:01Z", "endDate": "2026-01-31T12:00:02Z",
            "workerHost": "pod-1", "errorKind": "paper", "errorMessage": "no\npaper",
            "errorTrace": "tray.rs:7\n  tray.rs:9\n",
        });
        let running = serde_json::json!({"number": 2, "outcome": "running", "startDate": "2026-01-31T12:01:00Z", "workerHost": "pod-2"});
        attempts(&mut view, serde_json::json!([failed, running]));
        let shown = show_task(&view);
        assert!(
            shown.contains(
                "\nattempts:     #  OUTCOME  STARTED               ENDED                 WORKER  ERROR KIND  ERROR\n\
                 \x20             1  failure  2026-01-31T12:00:01Z  2026-01-31T12:00:02Z  pod-1   paper       no paper\n\
                 \x20                  tray.rs:7\n\
                 \x20                    tray.rs:9\n\
                 \x20             2  running  2026-01-31T12:01:00Z  -                     pod-2   -           -\n\
                 request:"
            ),
            "{shown}"
        );
    }

    #[test]
    fn the_only_attempt_is_shown_and_none_is_not() {
        let mut view = view();
        attempts(&mut view, serde_json::json!([{"number": 1, "outcome": "success", "workerHost": "pod-9"}]));
        assert!(show_task(&view).contains("1  success  -        -      pod-9"), "{}", show_task(&view));
        attempts(&mut view, serde_json::json!([]));
        assert!(!show_task(&view).contains("attempts:"));
    }

    #[test]
    fn links_of_a_task_are_shown() {
        let mut view = view();
        view.traceparent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned());
        view.task = serde_json::from_value(serde_json::json!({
            "taskId": "t", "status": "PENDING", "submitionDate": "2026-01-31T12:00:00Z", "parentId": "p", "batchId": "b",
            "correlationId": "c",
            "after": {"when": "allEnded", "tasks": [{"taskId": "x", "status": "FAILURE"}, {"taskId": "y"}]},
        }))
        .unwrap();
        let shown = show_task(&view);
        for line in ["until all ended", "FAILURE", "parent:", "batch:", "correlation id:", "trace:"] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
    }

    #[test]
    fn statuses_are_taken_in_any_case() {
        assert_eq!(status("in-progress").unwrap(), "IN_PROGRESS");
        assert!(status("waiting").is_err());
    }
}
