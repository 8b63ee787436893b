//! `relais schedule`

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use relais_protocol::{
    HumanDuration,
    callback::CallbackRequest,
    consumer::SubmitAnswer,
    retry::RetryDeclaration,
    schedule::{MissedPolicy, OverlapPolicy, ScheduleDeclaration, ScheduleRuns, ScheduleState, ScheduleStates},
};
use serde_json::Value;

use super::{
    apply::show_report,
    args::{client_id, duration, schedule_name, service_name},
    connection::{Connection, ConnectionArgs, Request},
    service::{confirm, retry, retry_text},
    table::{Column::*, card, or_none, table},
};
use crate::output;

/// `relais schedule`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct ScheduleArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
enum ScheduleCommand {
    /// List the schedules, when they run next and how they did
    List,
    /// Show everything about a schedule
    Show {
        /// The schedule
        #[arg(value_parser = schedule_name)]
        name: String,
    },
    /// Create a schedule, or change it
    ///
    /// The schedule is then as this command says: what is not given gets its default. Whether it is paused stays as it is.
    Put(Box<PutArgs>),
    /// Delete a schedule; its tasks stay
    Delete {
        /// The schedule
        #[arg(value_parser = schedule_name)]
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Pause a schedule: there are no runs, and none are missed
    Pause {
        /// The schedule
        #[arg(value_parser = schedule_name)]
        name: String,
    },
    /// Let a paused schedule go on
    Resume {
        /// The schedule
        #[arg(value_parser = schedule_name)]
        name: String,
    },
    /// Run a schedule now, paused or not, besides its other runs
    Run {
        /// The schedule
        #[arg(value_parser = schedule_name)]
        name: String,
    },
    /// Show when a schedule runs next
    Next {
        /// The schedule
        #[arg(value_parser = schedule_name)]
        name: String,
        /// How many runs, 1 to 1000
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
    },
}

#[derive(Debug, Args)]
struct PutArgs {
    /// The schedule's name, as it stands in URLs
    #[arg(value_parser = schedule_name)]
    name: String,
    /// The service that its tasks are for
    #[arg(long, value_parser = service_name)]
    service: String,
    /// The client on whose behalf they are submitted; it needs the role consume on the service
    #[arg(long, value_parser = client_id)]
    client: String,
    /// When: minute, hour, day, month and day of the week, with seconds first if there are six, e.g. "30 2 * * MON-FRI"; or
    /// @hourly, @daily, @weekly, @monthly, @yearly
    #[arg(long, value_name = "EXPRESSION")]
    cron: String,
    /// Where the clocks are that it goes by, e.g. Europe/Paris; UTC by default
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// The arguments of each task, a JSON object; an empty one by default
    #[arg(long, value_name = "JSON", value_parser = json)]
    body: Option<Value>,
    /// The same from a file
    #[arg(long, value_name = "FILE", conflicts_with = "body")]
    body_file: Option<PathBuf>,
    /// One id for all of its tasks; by default each has one of its own
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
    /// Tell this URL what becomes of each task
    #[arg(long, value_name = "URL")]
    callback: Option<String>,
    /// How urgent they are, 0 to 9; 4 by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Fail what no worker has started so long after its run, e.g. 1h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expires_after: Option<HumanDuration>,
    /// How long an attempt may take, e.g. 5m; the service's setting by default
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<HumanDuration>,
    /// How often to try again what fails: none, classic, or like limit=5,base=10s,factor=2,cap=1h,jitter=0.2,within=1d; the
    /// service's setting by default
    #[arg(long, value_name = "POLICY", value_parser = retry)]
    retry: Option<RetryDeclaration>,
    /// What becomes of runs that were missed while no process ran: skip, once, all (the newest 1000); once by default
    #[arg(long, value_parser = missed)]
    missed: Option<MissedPolicy>,
    /// What becomes of a run while the task of the run before is unfinished: allow, skip; allow by default
    #[arg(long, value_parser = overlap)]
    overlap: Option<OverlapPolicy>,
}

impl PutArgs {
    fn declaration(self) -> Result<ScheduleDeclaration> {
        let body = match self.body_file {
            Some(path) => {
                let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                Some(serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?)
            }
            None => self.body,
        };
        let callback = self.callback.map(|url| CallbackRequest {
            kind: url.split_once(':').map_or("https", |(scheme, _)| scheme).to_owned(),
            url: Some(url),
            destination: None,
            audience: None,
            events: None,
            compression: None,
        });
        Ok(ScheduleDeclaration {
            schedule_name: self.name,
            service_name: self.service,
            client_id: self.client,
            cron: self.cron,
            time_zone: self.time_zone,
            body,
            correlation_id: self.correlation_id,
            callback,
            priority: self.priority,
            expires_after: self.expires_after,
            timeout: self.timeout,
            retry: self.retry,
            missed: self.missed,
            overlap: self.overlap,
            paused: None,
        })
    }
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))
}

fn missed(text: &str) -> Result<MissedPolicy, String> {
    match text {
        "skip" => Ok(MissedPolicy::Skip),
        "once" => Ok(MissedPolicy::Once),
        "all" => Ok(MissedPolicy::All),
        _ => Err("must be skip, once or all".to_owned()),
    }
}

fn missed_name(missed: MissedPolicy) -> &'static str {
    match missed {
        MissedPolicy::Skip => "skip",
        MissedPolicy::Once => "once",
        MissedPolicy::All => "all",
    }
}

fn overlap(text: &str) -> Result<OverlapPolicy, String> {
    match text {
        "allow" => Ok(OverlapPolicy::Allow),
        "skip" => Ok(OverlapPolicy::Skip),
        _ => Err("must be allow or skip".to_owned()),
    }
}

fn overlap_name(overlap: OverlapPolicy) -> &'static str {
    match overlap {
        OverlapPolicy::Allow => "allow",
        OverlapPolicy::Skip => "skip",
    }
}

/// Runs `relais schedule`.
pub async fn run(args: ScheduleArgs) -> Result<()> {
    let server = Connection::new(args.connection)?;
    match args.command {
        ScheduleCommand::List => {
            server.print(Request::get(["admin", "schedules"]), show_schedules).await?;
        }
        ScheduleCommand::Show { name } => {
            server.print(Request::get(["admin", "schedules", &name]), show_schedule).await?;
        }
        ScheduleCommand::Put(put) => {
            let declaration = put.declaration()?;
            let path = ["admin", "schedules", &declaration.schedule_name];
            server.print(Request::put(path, &declaration)?, show_report).await?;
        }
        ScheduleCommand::Delete { name, yes } => {
            if !yes {
                confirm(&format!("Delete schedule {name}?"))?;
            }
            server.print(Request::delete(["admin", "schedules", &name]), show_report).await?;
        }
        ScheduleCommand::Pause { name } => {
            server.print(Request::call(["admin", "schedules", &name, "pause"]), show_schedule).await?;
        }
        ScheduleCommand::Resume { name } => {
            server.print(Request::call(["admin", "schedules", &name, "resume"]), show_schedule).await?;
        }
        ScheduleCommand::Run { name } => {
            server
                .print(Request::call(["admin", "schedules", &name, "run"]), |answer: &SubmitAnswer| {
                    answer.task_id.clone()
                })
                .await?;
        }
        ScheduleCommand::Next { name, count } => {
            let request = Request::get(["admin", "schedules", &name, "next"]).with("count", Some(count));
            if let Some(runs) = server.print(request, show_runs).await?
                && runs.paused
            {
                output::note("It is paused: there are no runs until `relais schedule resume`.");
            }
        }
    }
    Ok(())
}

fn show_schedules(states: &ScheduleStates) -> String {
    let columns = [
        Left("SCHEDULE"),
        Left("SERVICE"),
        Left("STATE"),
        Left("WHEN"),
        Left("NEXT RUN"),
        Left("LAST RUN"),
        Right("RUNS"),
        Right("SKIPPED"),
        Right("REFUSED"),
        Right("MISSED"),
    ];
    let rows = states.schedules.iter().map(|state| {
        [
            state.declaration.schedule_name.clone(),
            state.declaration.service_name.clone(),
            condition(state).to_owned(),
            state.description.clone(),
            or_none(state.next_run_date.as_deref()),
            or_none(state.last_run_date.as_deref()),
            state.runs.to_string(),
            state.skipped_runs.to_string(),
            state.refused_runs.to_string(),
            state.missed_runs.to_string(),
        ]
    });
    table(columns, rows, "There are no schedules. `relais schedule put NAME` makes one.")
}

fn condition(state: &ScheduleState) -> &'static str {
    if state.declaration.paused == Some(true) { "paused" } else { "running" }
}

fn show_schedule(state: &ScheduleState) -> String {
    let declaration = &state.declaration;
    card([
        ("schedule", Some(declaration.schedule_name.clone())),
        ("state", Some(condition(state).to_owned())),
        ("service", Some(declaration.service_name.clone())),
        ("client", Some(declaration.client_id.clone())),
        ("cron", Some(declaration.cron.clone())),
        ("time zone", declaration.time_zone.clone()),
        ("when", Some(state.description.clone())),
        ("missed", declaration.missed.map(|missed| missed_name(missed).to_owned())),
        ("overlap", declaration.overlap.map(|overlap| overlap_name(overlap).to_owned())),
        ("correlation id", declaration.correlation_id.clone()),
        ("callback", declaration.callback.as_ref().and_then(|one| one.url.clone().or(one.destination.clone()))),
        ("priority", declaration.priority.map(|priority| priority.to_string())),
        ("expires after", declaration.expires_after.map(|time| time.to_string())),
        ("timeout", declaration.timeout.map(|time| time.to_string())),
        ("retry", declaration.retry.as_ref().map(retry_text)),
        ("next run", state.next_run_date.clone()),
        ("last run", state.last_run_date.clone()),
        ("last task", state.last_task_id.clone()),
        ("last error", state.last_error.clone()),
        ("last error at", state.last_error_date.clone()),
        ("runs", Some(state.runs.to_string())),
        ("skipped runs", Some(state.skipped_runs.to_string())),
        ("refused runs", Some(state.refused_runs.to_string())),
        ("missed runs", Some(state.missed_runs.to_string())),
        ("body", declaration.body.as_ref().map(|body| format!("{body:#}"))),
    ])
}

fn show_runs(runs: &ScheduleRuns) -> String {
    let rows = runs.runs.iter().map(|run| [run.run_date.clone(), run.local_date.clone()]);
    table([Left("RUN"), Left("LOCAL TIME")], rows, "There are no more runs.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ScheduleState {
        serde_json::from_value(serde_json::json!({
            "scheduleName": "nightly", "serviceName": "resize", "clientId": "web", "cron": "30 2 * * MON-FRI",
            "timeZone": "Europe/Paris", "priority": 7, "retry": {"limit": 3, "base": "10s"}, "missed": "once", "overlap": "skip", "paused": false, "body": {"all": true},
            "description": "at 02:30 every Monday to Friday, Europe/Paris",
            "nextRunDate": "2026-01-30T01:30:00.000Z", "lastError": "the service's capacity is reached",
            "runs": 12, "skippedRuns": 1, "refusedRuns": 2, "missedRuns": 0,
        }))
        .unwrap()
    }

    #[test]
    fn schedules_are_listed_one_per_line() {
        let text = show_schedules(&ScheduleStates { schedules: vec![state()] });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[1].starts_with("nightly   resize   running  at 02:30 every Monday to Friday, Europe/Paris"),
            "{text}"
        );
        assert!(show_schedules(&ScheduleStates { schedules: vec![] }).contains("relais schedule put"));
    }

    #[test]
    fn a_schedule_is_shown_with_how_it_did() {
        let text = show_schedule(&state());
        for line in [
            "last error:   the service's capacity is reached",
            "overlap:      skip",
            "refused runs: 2",
            "retry:        limit=3,base=10s",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
        }
        assert!(!text.contains("last run"), "{text}");
    }
}
