//! What a driver says in SQL about declared audiences.

use std::future::Future;

use relais_core::{AudienceChange, AudienceRecord, DeclaredAudience, DeclaredMember};

use crate::{
    row::{Columns, corrupt},
    session::Result,
};

/// Declared audiences, without a transaction.
pub(crate) trait AudienceReader: Send + Sync {
    /// In the order of their types and targets.
    fn list_audiences(&self) -> impl Future<Output = Result<Vec<AudienceRecord>>> + Send;
}

/// Declared audiences, within a transaction.
pub(crate) trait AudienceRows: Send {
    /// Makes one change. A target that is deleted stays as one that is gone.
    fn change_audience(&mut self, change: &AudienceChange) -> impl Future<Output = Result<()>> + Send;

    /// Removes a target that is gone.
    fn forget_audience(&mut self, audience: &DeclaredAudience) -> impl Future<Output = Result<()>> + Send;
}

/// The column of the target: empty for a type.
pub(crate) fn target(audience: &DeclaredAudience) -> &str {
    audience.target.as_deref().unwrap_or_default()
}

/// Members as they are stored.
pub(crate) fn members_text(members: &[DeclaredMember]) -> Result<String> {
    serde_json::to_string(members).map_err(corrupt)
}

pub(crate) fn audience_record(row: &impl Columns) -> Result<AudienceRecord> {
    let target = Some(row.text("target")?).filter(|target| !target.is_empty());
    Ok(AudienceRecord {
        audience: DeclaredAudience { kind: row.text("type")?, target },
        members: serde_json::from_str(&row.text("members")?).map_err(corrupt)?,
        gone: row.flag("gone")?,
    })
}
