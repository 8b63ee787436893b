//! `relais task watch`: a task until it ends, as a bar on a terminal and as lines anywhere else.

use std::{io::IsTerminal as _, time::Duration};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use relais_protocol::{admin::AdminTaskView, consumer::TaskStatus};

use super::connection::{Connection, Request, understand};
use crate::output;

/// How often it is looked at: often enough for a bar to move, seldom enough to cost nothing.
const LOOK: Duration = Duration::from_millis(400);

/// Watches a task to its end. Ends well if it does.
pub async fn watch(server: &Connection, task_id: &str) -> Result<()> {
    let bar = (std::io::stderr().is_terminal() && !server.json).then(bar);
    let mut said = None;
    loop {
        let raw = server.data(Request::get(["admin", "tasks", task_id])).await?;
        let view: AdminTaskView = understand(&raw)?;
        let percent = view.task.progress.unwrap_or(0.0);
        // A line for each change, and for each tenth of progress: enough for a log.
        let now = (view.task.status, view.attempt, (percent / 10.0) as u64);
        match &bar {
            Some(bar) => {
                bar.set_position(percent as u64);
                bar.set_message(words(&view));
            }
            None if server.json => {
                if said != Some(now) && !output::line(raw.get())? {
                    return Ok(());
                }
            }
            None => {
                if said != Some(now) && !output::line(&format!("{percent:>3.0} %  {}", words(&view)))? {
                    return Ok(());
                }
            }
        }
        said = Some(now);
        if view.task.status.is_final() {
            if let Some(bar) = bar {
                bar.abandon();
                output::data(&words(&view))?;
            }
            return match view.task.status {
                TaskStatus::Success => Ok(()),
                _ => bail!("the task did not end well"),
            };
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos:>3} % {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar
}

fn words(view: &AdminTaskView) -> String {
    let task = &view.task;
    match task.status {
        TaskStatus::Pending => match (task.task_position, &task.retry_date, &task.scheduled_date) {
            (Some(position), _, _) => format!("PENDING, number {position}"),
            (None, Some(date), _) => format!("PENDING, tried again at {date}"),
            (None, None, Some(date)) => format!("PENDING, scheduled for {date}"),
            (None, None, None) => "PENDING".to_owned(),
        },
        TaskStatus::InProgress => {
            format!("IN_PROGRESS, attempt {} on {}", view.attempt, view.worker_host.as_deref().unwrap_or("some worker"))
        }
        TaskStatus::Success => format!("SUCCESS {}", task.response.as_ref().map_or("", |response| response.get())),
        TaskStatus::Failure => format!("FAILURE {}", task.error_message.as_deref().unwrap_or_default()),
        TaskStatus::Cancelled => "CANCELLED".to_owned(),
    }
}
