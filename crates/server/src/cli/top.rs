//! `relais top`: services, workers and what runs, as they change.
//!
//! Plain text that is drawn anew, so that it works over any connection; on a terminal it is left with `q`. With `--once`, or
//! where nobody looks, it is printed once.

use std::{
    collections::HashMap,
    fmt::Write as _,
    io::{IsTerminal as _, Read as _, Write as _},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Args;
use relais_protocol::{
    HumanDuration,
    admin::{AdminTaskPage, ServiceState, ServiceStates},
    worker_state::{WorkerActivity, WorkerStates},
};

use super::{
    connection::{Connection, ConnectionArgs, Request, understand},
    table::{Column::*, or_none, table},
};
use crate::output;

/// `relais top`
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Print once, and end
    #[arg(long)]
    once: bool,
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "2s")]
    every: HumanDuration,
    /// So many workers and running tasks at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
}

/// What was seen at one moment.
struct Sight {
    at: Instant,
    services: Vec<ServiceState>,
    workers: WorkerStates,
    running: AdminTaskPage,
}

/// Runs `relais top`.
pub async fn run(args: TopArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    let first = look(&server, args.limit).await?;
    if server.json {
        let seen = serde_json::json!({
            "services": first.services, "workers": first.workers.workers, "running": first.running.tasks,
        });
        return Ok(output::data(&seen.to_string())?);
    }
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Ok(output::data(&shown(&first, None, args.limit))?);
    }
    watch(&server, first, args.every.0.max(Duration::from_millis(200)), args.limit).await
}

async fn look(server: &Connection, limit: u32) -> Result<Sight> {
    let services: ServiceStates = understand(&server.data(Request::get(["admin", "services"])).await?)?;
    let workers: WorkerStates = understand(&server.data(Request::get(["admin", "workers"])).await?)?;
    let running = Request::get(["admin", "tasks"]).with("status", Some("IN_PROGRESS")).with("limit", Some(limit));
    let running: AdminTaskPage = understand(&server.data(running).await?)?;
    Ok(Sight { at: Instant::now(), services: services.services, workers, running })
}

/// Draws until somebody presses `q`.
async fn watch(server: &Connection, first: Sight, every: Duration, limit: u32) -> Result<()> {
    let _screen = Screen::open()?;
    let (pressed, mut keys) = tokio::sync::mpsc::channel(8);
    // Reading a terminal can not be given up: the thread ends with the process.
    std::thread::spawn(move || {
        let mut byte = [0];
        while std::io::stdin().read_exact(&mut byte).is_ok() && pressed.blocking_send(byte[0]).is_ok() {}
    });
    let (mut before, mut now): (Option<Sight>, Result<Sight>) = (None, Ok(first));
    loop {
        let text = match &now {
            Ok(sight) => shown(sight, before.as_ref(), limit),
            Err(error) => format!("{error:#}"),
        };
        draw(&text)?;
        if let Ok(sight) = now {
            before = Some(sight);
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            key = keys.recv() => match key {
                // Also what Ctrl-C and Ctrl-D are while the terminal hands out keys.
                Some(b'q' | b'Q' | 3 | 4) | None => return Ok(()),
                Some(_) => {}
            },
        }
        now = look(server, limit).await;
    }
}

fn draw(text: &str) -> Result<()> {
    let mut screen = String::from("\x1b[H");
    for line in text.lines() {
        // To the end of the line, so that nothing of what was there stays.
        let _ = write!(screen, "{line}\x1b[K\r\n");
    }
    screen.push_str("\x1b[J");
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(screen.as_bytes())?;
    Ok(stdout.flush()?)
}

/// The terminal, as it is while `top` has it. Dropped, it is as it was.
struct Screen(String);

impl Screen {
    fn open() -> Result<Self> {
        let before = stty(&["-g"]).context("the terminal does not say how it is set")?;
        stty(&["-icanon", "-echo", "-isig", "min", "1"]).context("the terminal can not be set")?;
        // Another screen, without a cursor.
        output::data("\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(Self(before.trim().to_owned()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = output::data("\x1b[?25h\x1b[?1049l");
        let _ = stty(&[&self.0]);
    }
}

/// Asks the terminal, or tells it.
fn stty(arguments: &[&str]) -> Result<String> {
    let done = Command::new("stty").args(arguments).stdin(Stdio::inherit()).output()?;
    anyhow::ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn shown(sight: &Sight, before: Option<&Sight>, limit: u32) -> String {
    let mut text = String::new();
    let sum = |of: fn(&ServiceState) -> u64| sight.services.iter().map(of).sum::<u64>();
    let _ = writeln!(
        text,
        "{} pending, {} later, {} running, {} workers{}\n",
        sum(|s| s.pending),
        sum(|s| s.waiting),
        sum(|s| s.in_progress),
        sight.workers.workers.len(),
        if before.is_some() { "    q leaves" } else { "" }
    );
    let _ = writeln!(text, "{}\n", services(sight, before));
    let _ = writeln!(text, "{}\n", workers(&sight.workers, limit));
    text.push_str(&running(&sight.running));
    text
}

fn services(sight: &Sight, before: Option<&Sight>) -> String {
    let earlier: HashMap<&str, &ServiceState> = before
        .map(|before| before.services.iter().map(|one| (one.declaration.service_name.as_str(), one)).collect())
        .unwrap_or_default();
    let seconds = before.map_or(0.0, |before| sight.at.duration_since(before.at).as_secs_f64());
    let columns = [
        Left("SERVICE"),
        Left("STATE"),
        Right("PENDING"),
        Right("LATER"),
        Right("RUNNING"),
        Right("DONE/S"),
        Right("FAILED/S"),
        Right("SUCCESS"),
        Right("FAILURE"),
        Left("OLDEST"),
    ];
    let rows = sight.services.iter().map(|service| {
        let declared = &service.declaration;
        let rate = |of: fn(&ServiceState) -> u64| {
            let then = earlier.get(declared.service_name.as_str()).filter(|_| seconds > 0.0)?;
            Some(format!("{:.1}", of(service).saturating_sub(of(then)) as f64 / seconds))
        };
        let of = |used: u64, most: Option<u32>| most.map_or(used.to_string(), |most| format!("{used}/{most}"));
        [
            declared.service_name.clone(),
            if declared.paused == Some(true) { "paused" } else { "open" }.to_owned(),
            of(service.pending, declared.capacity),
            service.waiting.to_string(),
            of(service.in_progress, declared.max_running),
            or_none(rate(|s| s.success)),
            or_none(rate(|s| s.failure)),
            service.success.to_string(),
            service.failure.to_string(),
            or_none(service.oldest_pending_date.as_deref()),
        ]
    });
    table(columns, rows, "No service is declared.")
}

fn workers(workers: &WorkerStates, limit: u32) -> String {
    let rows = workers.workers.iter().take(limit as usize).map(|worker| {
        let activity = match worker.activity {
            WorkerActivity::Waiting => "waiting",
            WorkerActivity::Busy => "busy",
            WorkerActivity::Silent => "SILENT",
            WorkerActivity::Quiet => "quiet",
        };
        [
            or_none(worker.host_name.as_deref()),
            worker.service.clone(),
            activity.to_owned(),
            worker.running.to_string(),
            worker.asks_for.to_string(),
            or_none(worker.seen_seconds_ago.map(|seconds| format!("{seconds:.0}s ago"))),
            or_none(worker.version.as_deref()),
        ]
    });
    let columns = [
        Left("WORKER"),
        Left("SERVICE"),
        Left("STATE"),
        Right("RUNNING"),
        Right("ASKS FOR"),
        Left("HEARD"),
        Left("VERSION"),
    ];
    table(columns, rows, "No worker has been heard of.")
}

fn running(page: &AdminTaskPage) -> String {
    let rows = page.tasks.iter().map(|view| {
        let percent = view.task.progress.unwrap_or(0.0).clamp(0.0, 100.0);
        let full = (percent / 10.0) as usize;
        [
            view.task.task_id.clone(),
            view.service.clone(),
            view.client_id.clone(),
            or_none(view.worker_host.as_deref()),
            format!("{}{} {percent:>3.0}%", "#".repeat(full), ".".repeat(10 - full)),
            or_none(view.task.start_date.as_deref()),
        ]
    });
    let columns =
        [Left("RUNNING TASK"), Left("SERVICE"), Left("CLIENT"), Left("WORKER"), Left("PROGRESS"), Left("STARTED")];
    table(columns, rows, "Nothing runs.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(success: u64) -> Sight {
        let service = serde_json::json!({
            "serviceName": "resize", "maxRunning": 4, "pending": 7, "waiting": 1, "inProgress": 2, "success": success,
            "failure": 1, "cancelled": 0,
        });
        let worker = serde_json::json!({"workers": [{
            "hostName": "pod-1", "service": "resize", "transport": "builtin", "activity": "busy", "asksFor": 0, "running": 2,
            "tasks": [],
        }]});
        Sight {
            at: Instant::now(),
            services: vec![serde_json::from_value(service).unwrap()],
            workers: serde_json::from_value(worker).unwrap(),
            running: AdminTaskPage { tasks: Vec::new(), next_cursor: None },
        }
    }

    #[test]
    fn rates_are_what_happened_since_the_last_look() {
        let (before, mut now) = (sight(10), sight(30));
        now.at = before.at + Duration::from_secs(2);
        let text = shown(&now, Some(&before), 10);
        assert!(text.starts_with("7 pending, 1 later, 2 running, 1 workers    q leaves\n"), "{text}");
        assert!(text.contains("10.0") && text.contains("2/4") && text.contains("pod-1"), "{text}");
        assert!(shown(&before, None, 10).contains("Nothing runs."));
    }
}
