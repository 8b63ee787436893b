//! Schedules, as operators declare and are shown them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{HumanDuration, callback::CallbackRequest, retry::RetryDeclaration};

/// What happens with runs that were missed while no server process ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MissedPolicy {
    /// No run is made up for.
    Skip,
    /// One run stands for all that were missed.
    #[default]
    Once,
    /// Every missed run is made up for, up to the newest 1000.
    All,
}

/// What happens with a run while the task of the run before is unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OverlapPolicy {
    /// The run takes place.
    #[default]
    Allow,
    /// The run is skipped, and counted.
    Skip,
}

/// A schedule: tasks that are submitted at the times of a cron expression.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ScheduleDeclaration {
    /// The name of the schedule, as it appears in URLs.
    pub schedule_name: String,
    /// The service that the tasks are submitted to.
    pub service_name: String,
    /// The client that the tasks belong to. It needs the role `consume` on the service, and its `capacity` counts.
    pub client_id: String,
    /// When the schedule runs: a cron expression with five fields (minute, hour, day of the month, month, day of the
    /// week), with six (seconds first), or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
    #[schema(example = "30 2 * * MON-FRI")]
    pub cron: String,
    /// The time zone of the cron expression, a name of the IANA database. Default: `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Europe/Paris")]
    pub time_zone: Option<String>,
    /// The `body` of each task, a JSON object that conforms to the service's `jsonSchema`. Default: `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub body: Option<serde_json::Value>,
    /// One correlation id for all tasks of the schedule. Default: each task has its own, `<scheduleName>@<the date it
    /// was due>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    pub correlation_id: Option<String>,
    /// Where the server reports the end of each task. Default: no callback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackRequest>,
    /// The priority of the tasks; a higher number is more urgent. Default: 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// A task fails if no worker has started it this long after its run. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "1h")]
    pub expires_after: Option<HumanDuration>,
    /// How long one attempt may take. At most `30d`. Default: the service's `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "5m")]
    pub timeout: Option<HumanDuration>,
    /// How often a failed task is retried: `none`, `classic` or a rule. Default: the service's `retry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryDeclaration>,
    /// What happens with runs that were missed while no server process ran. `skip`: no run is made up for. `once`: one
    /// run stands for all that were missed. `all`: every missed run is made up for, up to the newest 1000. Default:
    /// `once`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<MissedPolicy>,
    /// What happens with a run while the task of the run before is unfinished. `allow`: the run takes place. `skip`:
    /// the run is skipped, and counted. Default: `allow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<OverlapPolicy>,
    /// Whether the schedule is paused: it does not run, and no runs count as missed. Default: a new schedule is not
    /// paused, an existing one keeps its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// A schedule, as operators see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleState {
    /// As it is declared, defaults filled in.
    #[serde(flatten)]
    pub declaration: ScheduleDeclaration,
    /// Its times in words.
    #[schema(example = "at 02:30 every Monday to Friday, Europe/Paris")]
    pub description: String,
    /// When it runs next; absent while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub next_run_date: Option<String>,
    /// When the last run was due that submitted a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub last_run_date: Option<String>,
    /// The task of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "uuid")]
    pub last_task_id: Option<String>,
    /// Why the last run that was refused was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub last_error_date: Option<String>,
    /// Runs that submitted a task, ever.
    pub runs: u64,
    /// Runs that were left out because the task of the run before was unfinished.
    pub skipped_runs: u64,
    /// Runs whose task was refused.
    pub refused_runs: u64,
    /// Runs that were missed while no process ran, and not made up for.
    pub missed_runs: u64,
}

/// The schedules.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ScheduleStates {
    /// In the order of their names.
    pub schedules: Vec<ScheduleState>,
}

/// A run that is to come.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleRun {
    /// When.
    #[schema(format = "date-time")]
    pub run_date: String,
    /// The same, as the clocks show it there.
    #[schema(example = "2026-03-29T03:00:00+02:00")]
    pub local_date: String,
}

/// The next runs of a schedule.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleRuns {
    /// The schedule.
    pub schedule_name: String,
    /// Its times in words.
    pub description: String,
    /// Whether it is paused, and there will be none of them.
    pub paused: bool,
    /// In their order.
    pub runs: Vec<ScheduleRun>,
}
