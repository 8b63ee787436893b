//! Instances: processes on the store, as operators see them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A process on the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// What it is called.
    pub name: String,
    /// `alive`, `silent` for too long, or `undecided`: it died with leased tasks, and an operator has to decide about them.
    pub status: String,
    /// The host or pod it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_name: Option<String>,
    /// Which version of Relais it is.
    pub version: String,
    /// What happens to its leased tasks if it dies: `restart`, `fail` or `refuse`.
    pub crash_policy: String,
    /// About how many tasks it has leased. A server has none: workers have their own leases.
    pub in_hand: u64,
    /// When it began.
    #[schema(format = "date-time")]
    pub start_date: String,
    /// Its last sign of life.
    #[schema(format = "date-time")]
    pub last_seen_date: String,
}

/// The processes on the store.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Instances {
    /// In the order of their names.
    pub instances: Vec<InstanceView>,
}

/// What an operator decides about the tasks of a process that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DecisionName {
    /// They are done again.
    Restart,
    /// They fail.
    Fail,
}

/// A decision.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ResolveRequest {
    /// What becomes of the tasks.
    pub decision: DecisionName,
}

/// What came of a decision.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolveAnswer {
    /// So many tasks it was about.
    pub tasks: usize,
}
