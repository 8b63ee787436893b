//! What the demo shows: progress bars on a terminal, plain lines anywhere else.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use relais_protocol::consumer::{TaskStatus, TaskView};
use relais_worker::{CallError, Client};
use serde_json::json;

use crate::output;

/// How often a task is looked at: often enough for a bar to move.
const LOOK: Duration = Duration::from_millis(80);

/// A task of the demo that takes longer than this is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn welcome(url: &str, store: &str) -> std::io::Result<()> {
    output::data(&format!(
        "Relais serves at {url}, on {store}.\n\
         A service `example` is declared, and a worker listens for its tasks over HTTP.\n"
    ))
}

/// A task that succeeds, one that fails, and one that the schema refuses.
pub(super) async fn three_tasks(client: &Client) -> anyhow::Result<()> {
    follow(client, "succeeds", &json!({ "sleep": 2, "mustSucceed": true })).await?;
    follow(client, "fails", &json!({ "sleep": 2, "mustSucceed": false })).await?;
    let body = json!({ "sleep": "long" });
    match client.submit(&body).await {
        Err(CallError::Refused { number, description, details }) => {
            let details: Vec<String> = details.iter().map(|d| format!("{}: {}", d.path, d.message)).collect();
            output::data(&format!("3. refused   {body}\n   {number} {description}\n   {}", details.join("\n   ")))?;
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(task_id) => anyhow::bail!("the schema should have refused {body}, but it became task {task_id}"),
    }
}

/// Submits a task and shows it to its end.
async fn follow(client: &Client, title: &str, body: &serde_json::Value) -> anyhow::Result<()> {
    let number = if title == "succeeds" { 1 } else { 2 };
    let task_id = client.submit(body).await?;
    output::data(&format!("{number}. {title:<9} {body}\n   task {task_id}"))?;
    let mut line = Line::new();
    let begun = Instant::now();
    loop {
        let task = client.task(&task_id).await?;
        line.show(&task)?;
        if task.status.is_final() {
            break;
        }
        anyhow::ensure!(begun.elapsed() < PATIENCE, "task {task_id} did not end");
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// One task on the screen.
enum Line {
    Bar(ProgressBar),
    Plain { said: Option<(TaskStatus, u64)> },
}

impl Line {
    fn new() -> Self {
        if !std::io::stdout().is_terminal() {
            return Self::Plain { said: None };
        }
        let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stdout());
        if let Ok(style) = ProgressStyle::with_template("   {bar:40} {pos:>3} % {msg}") {
            bar.set_style(style);
        }
        Self::Bar(bar)
    }

    fn show(&mut self, task: &TaskView) -> std::io::Result<()> {
        let percent = task.progress.unwrap_or(0.0) as u64;
        let words = words(task);
        match self {
            Self::Bar(bar) => {
                bar.set_position(percent);
                bar.set_message(words);
                if task.status.is_final() {
                    bar.abandon();
                }
            }
            Self::Plain { said } => {
                // A line for each quarter is enough for a log.
                let now = (task.status, percent / 25);
                if said.replace(now) != Some(now) {
                    output::data(&format!("   {percent:>3} % {words}"))?;
                }
            }
        }
        Ok(())
    }
}

fn words(task: &TaskView) -> String {
    match task.status {
        TaskStatus::Pending => "PENDING".to_owned(),
        TaskStatus::InProgress => "IN_PROGRESS".to_owned(),
        TaskStatus::Success => {
            format!("SUCCESS {}", task.response.as_ref().map_or("", |response| response.get()))
        }
        TaskStatus::Failure => format!("FAILURE {}", task.error_message.as_deref().unwrap_or_default()),
        TaskStatus::Cancelled => "CANCELLED".to_owned(),
    }
}

/// How to do the same with `curl`.
pub(super) fn by_hand(url: &str, client_id: &str, secret: &str) -> std::io::Result<()> {
    let tasks = format!("{url}/v1/services/example/tasks");
    output::data(&format!(
        "\nThe same by hand:\n\n\
         \x20 curl -u {client_id}:{secret} -H 'Content-Type: application/json' \\\n\
         \x20      -d '{{\"body\": {{\"sleep\": 5, \"mustSucceed\": true}}}}' {tasks}\n\n\
         \x20 curl -u {client_id}:{secret} '{tasks}/TASK_ID?wait=30s'     # answers when it ends\n\
         \x20 curl -u {client_id}:{secret} -N {tasks}/TASK_ID/events      # as it happens\n\
         \x20 curl -u {client_id}:{secret} {tasks}                        # your tasks\n\
         \x20 curl -u {client_id}:{secret} -X DELETE {tasks}/TASK_ID      # give it up\n\n\
         Notifications, in a page with two users: {url}/demo\n\n\
         \x20 curl -u {client_id}:{secret} -H 'Content-Type: application/json' \\\n\
         \x20      -d '{{\"payload\": {{\"title\": \"Hello\"}}, \"routing\": {{\"audience\": {{\"type\": \"USER\", \"targets\": [\"ann\"]}}}}}}' \\\n\
         \x20      {url}/v1/notifications\n\n\
         Dashboard: {url}/ui\n\
         API documentation: {url}/docs"
    ))
}
