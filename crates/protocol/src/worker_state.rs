//! Workers, as operators see them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a worker is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkerActivity {
    /// It asks for tasks.
    Waiting,
    /// It has tasks, and says so.
    Busy,
    /// It has tasks, and is late to say so.
    Silent,
    /// It was heard of lately, has no tasks and asks for none.
    Quiet,
}

/// A task that a worker has.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldTaskView {
    /// The task's public name.
    #[schema(format = "uuid")]
    pub task_id: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub start_date: Option<String>,
    /// Until when the worker may keep silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = "date-time")]
    pub lease_expires: Option<String>,
    /// From 0 to 100.
    pub progress: f64,
}

/// A worker of a service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStateView {
    /// The host or pod; absent for those that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
    /// The service.
    pub service: String,
    /// `builtin` or `rabbitmq`.
    pub transport: String,
    /// What it is, as it says itself: `relais-worker/0.1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What it is at.
    pub activity: WorkerActivity,
    /// How long ago this process has heard of it; absent if another one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_seconds_ago: Option<f64>,
    /// How many tasks it asks this process for.
    pub asks_for: usize,
    /// How many tasks it has.
    pub running: usize,
    /// Some of them, the newest.
    pub tasks: Vec<HeldTaskView>,
}

/// The workers that are known of.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkerStates {
    /// In the order of services and hosts.
    pub workers: Vec<WorkerStateView>,
}
