//! Reading the log.

use std::collections::{BTreeSet, HashMap};

use relais_core::StoreError;
use relais_notify::{AudienceKey, EntryContent, EntryKind, LogEntry, LogPosition, UserScope};
use uuid::Uuid;

use crate::{
    RedisNotifications,
    error::corrupt,
    message::{MessageRow, moment, number, uuid},
};

/// An entry of the stream.
type StreamEntry = (String, HashMap<String, String>);

impl RedisNotifications {
    pub(crate) async fn read_after(&self, after: LogPosition, limit: usize) -> Result<Vec<LogEntry>, StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("XRANGE").arg(self.keys().log()).arg(after.saturating_add(1)).arg("+").arg("COUNT").arg(limit);
        let (entries,): (Vec<StreamEntry>,) = self.ask(&pipeline).await?;
        self.with_messages(entries).await
    }

    pub(crate) async fn read_for(
        &self,
        scope: &UserScope,
        after: LogPosition,
        up_to: LogPosition,
        limit: usize,
    ) -> Result<Vec<LogEntry>, StoreError> {
        let mut pipeline = redis::pipe();
        for key in scope.keys() {
            pipeline.cmd("ZRANGEBYSCORE").arg(self.keys().entries(key)).arg(format!("({after}")).arg(up_to);
            pipeline.arg("LIMIT").arg(0).arg(limit);
        }
        let found: Vec<Vec<LogPosition>> = self.ask(&pipeline).await?;
        let positions: BTreeSet<LogPosition> = found.into_iter().flatten().collect();
        if positions.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for position in positions.into_iter().take(limit) {
            pipeline.cmd("XRANGE").arg(self.keys().log()).arg(position).arg(position);
        }
        let entries: Vec<Vec<StreamEntry>> = self.ask(&pipeline).await?;
        self.with_messages(entries.into_iter().flatten().collect()).await
    }

    /// The entries with the messages that they are about.
    async fn with_messages(&self, entries: Vec<StreamEntry>) -> Result<Vec<LogEntry>, StoreError> {
        let named = entries.iter().filter_map(|(_, fields)| fields.get("n"));
        let ids: Vec<Uuid> = named.map(|id| uuid(id)).collect::<Result<_, _>>()?;
        let rows = self.read_messages(&ids).await?;
        entries.into_iter().map(|entry| read(&entry, &rows)).collect()
    }
}

fn read((id, fields): &StreamEntry, rows: &HashMap<Uuid, MessageRow>) -> Result<LogEntry, StoreError> {
    let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let position = id.split('-').next().unwrap_or_default();
    let content = match field("k") {
        kind @ ("0" | "1" | "2") => match rows.get(&uuid(field("n"))?) {
            None => EntryContent::Gone,
            Some(row) => {
                let kind = match kind {
                    "0" => EntryKind::Emitted,
                    "1" => EntryKind::Replayed { attempts: number(field("a"))? },
                    _ => EntryKind::Withdrawn,
                };
                EntryContent::Message(kind, Box::new(row.stored.clone()))
            }
        },
        "3" => {
            let ids = field("i").split(' ').map(uuid).collect::<Result<_, _>>()?;
            EntryContent::Acknowledged { user: field("u").to_owned(), ids }
        }
        "4" => {
            type Detail = ((String, String), Vec<(String, String)>);
            let (key, changed): Detail = serde_json::from_str(field("d")).map_err(corrupt)?;
            let read = |(kind, target)| AudienceKey { kind, target };
            EntryContent::Members { key: read(key), changed: changed.into_iter().map(read).collect() }
        }
        kind => return Err(corrupt(format!("kind `{kind}` of an entry of the log"))),
    };
    Ok(LogEntry { position: number(position)?, appended: moment(field("t"))?, content })
}
