//! What outboxes and captures have in their databases is let go when they are deleted.

use std::{sync::Arc, time::Duration};

use relais_core::{Change, RelayChange, RelayKind, RelayRecord};

use crate::{Engine, EngineError};

/// How often, and for how long, a database that is away is asked.
const TRIES: u32 = 20;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

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

    /// Drops the slots and publications of deleted outboxes and captures. Nobody waits for a database that is away: it is asked
    /// again for about a quarter of an hour, while this process runs.
    pub(crate) fn release_relays(&self, deleted: Vec<(RelayKind, RelayRecord)>) {
        for (kind, record) in deleted {
            let (outboxes, captures) = (self.outboxes().map(Arc::clone), self.captures().map(Arc::clone));
            tokio::spawn(async move {
                match (kind, outboxes, captures) {
                    (RelayKind::Outbox, Some(outboxes), _) => release(&record, || outboxes.release(&record)).await,
                    (RelayKind::Capture, _, Some(captures)) => release(&record, || captures.release(&record)).await,
                    _ => {}
                }
            });
        }
    }
}

async fn release<F>(record: &RelayRecord, try_it: impl Fn() -> F)
where
    F: Future<Output = Result<(), EngineError>>,
{
    let mut pause = Duration::from_secs(1);
    for _ in 0..TRIES {
        let released = try_it().await;
        let Err(error) = released else { return };
        tracing::warn!(name = %record.name, %error, "what was deleted has something in its database");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
