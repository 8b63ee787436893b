//! What operators did, as operators are shown it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an operator did, or tried.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditLine {
    /// When.
    #[schema(format = "date-time")]
    pub date: String,
    /// Who: the name that goes with a token; `local` for whoever was on the machine itself.
    pub actor: String,
    /// By which way: `api`, `dashboard` or `file`.
    pub via: String,
    /// What.
    #[schema(example = "service.pause")]
    pub action: String,
    /// To what.
    pub target: String,
    /// What came of it.
    #[serde(default)]
    pub outcome: AuditOutcomeName,
    /// What else is worth knowing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Why it could not be done; absent if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What came of something that an operator did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuditOutcomeName {
    /// It was done.
    #[default]
    Done,
    /// It was refused, or could not be done.
    Failed,
    /// It is being done; or whoever did it died over it, and it may or may not have been done.
    Unknown,
}

/// A page of the audit log, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditLog {
    /// The lines.
    pub entries: Vec<AuditLine>,
    /// Give this as `cursor` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
