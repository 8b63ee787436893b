//! What outboxes and captures have in their databases is let go when they are deleted.

use std::sync::Arc;

use relais_core::{Change, RelayChange, RelayKind, RelayRecord};

use crate::{Engine, EngineError};

impl Engine {
    /// The outboxes and captures that changes delete.
    pub(crate) async fn deleted_relays(
        &self,
        changes: &[Change],
    ) -> Result<Vec<(RelayKind, RelayRecord)>, EngineError> {
        let mut deleted = Vec::new();
        for change in changes {
            let Change::Relay(RelayChange::Delete(kind, name)) = change else { continue };
            let record = match (kind, self.outboxes(), self.captures()) {
                (RelayKind::Outbox, Some(outboxes), _) => outboxes.record(name.as_str()).await?,
                (RelayKind::Capture, _, Some(captures)) => captures.record(name.as_str()).await?,
                _ => continue,
            };
            deleted.push((*kind, record));
        }
        Ok(deleted)
    }

    /// Drops the slots and publications of deleted outboxes and captures. Nobody waits for a database that is away.
    pub(crate) fn release_relays(&self, deleted: Vec<(RelayKind, RelayRecord)>) {
        let (outboxes, captures) = (self.outboxes().map(Arc::clone), self.captures().map(Arc::clone));
        tokio::spawn(async move {
            for (kind, record) in deleted {
                let released = match (kind, &outboxes, &captures) {
                    (RelayKind::Outbox, Some(outboxes), _) => outboxes.release(&record).await,
                    (RelayKind::Capture, _, Some(captures)) => captures.release(&record).await,
                    _ => Ok(()),
                };
                if let Err(error) = released {
                    let kind = kind.as_str();
                    tracing::warn!(kind, name = %record.name, %error, "what was deleted left something in its database");
                }
            }
        });
    }
}
