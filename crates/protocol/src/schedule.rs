//! Schedules, as operators declare and are shown them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{HumanDuration, callback::CallbackRequest, retry::RetryDeclaration};

/// What becomes of runs that were missed while no process ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MissedPolicy {
    /// They are left out.
    Skip,
    /// One run stands for all of them.
    #[default]
    Once,
    /// Each is made up for, up to the newest 1000.
    All,
}

/// What becomes of a run while the task of the run before is unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OverlapPolicy {
    /// It happens all the same.
    #[default]
    Allow,
    /// It is left out, and counted.
    Skip,
}

/// A schedule: tasks that are submitted at the times which a cron expression names.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ScheduleDeclaration {
    /// Its name, as it stands in URLs.
    pub schedule_name: String,
    /// The service that its tasks are for.
    pub service_name: String,
    /// The consumer on whose behalf they are submitted. It needs the role `consume` on the service.
    pub client_id: String,
    /// When: five fields (minute, hour, day of the month, month, day of the week), six with seconds first, or `@hourly`,
    /// `@daily`, `@weekly`, `@monthly`, `@yearly`.
    #[schema(example = "30 2 * * MON-FRI")]
    pub cron: String,
    /// Where the clocks are that it goes by, a name of the IANA database; `UTC` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Europe/Paris")]
    pub time_zone: Option<String>,
    /// The arguments of each task, a JSON object; an empty one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub body: Option<serde_json::Value>,
    /// One id for all of its tasks; if absent, each gets one of its own, `<scheduleName>@<the date it was due>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    pub correlation_id: Option<String>,
    /// Where to tell what becomes of each task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackRequest>,
    /// How urgent they are, from 0 to 9; 4 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// If no worker has started one so long after its run, it fails; e.g. `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "1h")]
    pub expires_after: Option<HumanDuration>,
    /// How long an attempt may take; the service's setting if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,6}(d|h|m|s|ms))+$", example = "5m")]
    pub timeout: Option<HumanDuration>,
    /// How often to try again what fails: `none`, `classic` or a rule; the service's setting if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryDeclaration>,
    /// What becomes of runs that were missed while no process ran; `once` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<MissedPolicy>,
    /// What becomes of a run while the task of the run before is unfinished; `allow` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<OverlapPolicy>,
    /// Whether it is paused: there are no runs, and none are missed. Left as it is if absent.
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
