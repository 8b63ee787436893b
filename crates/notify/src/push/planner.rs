//! Looks through the log for messages to push, and for whom.

use std::collections::{BTreeSet, HashMap};

use relais_core::StoreError;

use super::{PlannedPush, PushCursor, WebPush};
use crate::{
    AckStatus, Audience, AudienceKey, EntryContent, EntryKind, LogEntry, LogPosition, NotificationStore,
    StoredNotification, USER,
};

/// So many entries of the log are looked at in one transaction.
const PAGE: usize = 200;

/// So many entries without anything to push are looked at again by whoever starts anew.
const MOST_UNWRITTEN: LogPosition = 5000;

/// So many members are read at once.
const MEMBERS: usize = 10_000;

impl WebPush {
    /// Looks through the log to its end, as far as nobody else does. False if nobody subscribes.
    pub(super) async fn plan(&self) -> Result<bool, StoreError> {
        // Behind the cursor, up to here, there is nothing to push: entries of which that is known are not written down.
        let mut seen: Option<PushCursor> = self.seen();
        loop {
            let Some(from) = self.store().push_cursor().await? else { return Ok(false) };
            let head = self.notifications().store().log_head().await?;
            let head_cursor = PushCursor { epoch: head.epoch, position: head.position };
            if head_cursor.epoch != from.epoch {
                // Another log: a restored backup. What was in the old one is not known any more.
                self.store().plan_pushes(&from, &head_cursor, Vec::new(), self.options().delay).await?;
                continue;
            }
            let after = seen.as_ref().filter(|seen| seen.epoch == from.epoch).map_or(0, |seen| seen.position);
            let after = after.max(from.position);
            if head_cursor.position <= after {
                return Ok(true);
            }
            let entries = self.notifications().store().read_log(after.max(head.floor), PAGE).await?;
            let position = entries.last().map_or(head_cursor.position, |last| last.position);
            let to = PushCursor { position, ..head_cursor };
            let planned = self.planned(entries).await?;
            if planned.is_empty() && to.position - from.position < MOST_UNWRITTEN {
                self.set_seen(to.clone());
                seen = Some(to);
            } else {
                // Where another process was faster, there is nothing left to do but to look on.
                self.store().plan_pushes(&from, &to, planned, self.options().delay).await?;
            }
        }
    }

    async fn planned(&self, entries: Vec<LogEntry>) -> Result<Vec<PlannedPush>, StoreError> {
        let (mut planned, mut users) = (Vec::new(), UsersOf::default());
        for entry in entries {
            let EntryContent::Message(kind, stored) = entry.content else { continue };
            let metadata = &stored.notification.metadata;
            if !self.options().types.contains(&metadata.kind) {
                continue;
            }
            let is_over = matches!(stored.status, AckStatus::Expired | AckStatus::Withdrawn);
            match kind {
                EntryKind::Withdrawn => planned.push(PlannedPush::Withdrawal { id: metadata.id }),
                EntryKind::Emitted | EntryKind::Replayed { .. } if is_over => {}
                EntryKind::Emitted | EntryKind::Replayed { .. } => {
                    let users = users.of(self.notifications().store().as_ref(), &stored).await?;
                    if !users.is_empty() {
                        planned.push(PlannedPush::Message { id: metadata.id, users, expiration: metadata.expiration });
                    }
                }
            }
        }
        Ok(planned)
    }
}

/// Who belongs to audiences, as it is declared. Read once for all messages of a page.
#[derive(Default)]
struct UsersOf(HashMap<AudienceKey, BTreeSet<AudienceKey>>);

impl UsersOf {
    async fn of(
        &mut self,
        store: &dyn NotificationStore,
        stored: &StoredNotification,
    ) -> Result<Vec<String>, StoreError> {
        let Audience { kind, targets } = &stored.notification.routing.audience;
        let mut left: Vec<AudienceKey> = targets.iter().map(|target| AudienceKey::new(kind, target)).collect();
        let mut found: BTreeSet<AudienceKey> = left.iter().cloned().collect();
        while let Some(key) = left.pop() {
            if key.kind == USER {
                continue;
            }
            if !self.0.contains_key(&key) {
                let members = members(store, &key).await?;
                self.0.insert(key.clone(), members);
            }
            for member in self.0.get(&key).into_iter().flatten() {
                if found.insert(member.clone()) {
                    left.push(member.clone());
                }
            }
        }
        Ok(found.into_iter().filter(|key| key.kind == USER).map(|key| key.target).collect())
    }
}

/// The direct members of a target.
async fn members(store: &dyn NotificationStore, of: &AudienceKey) -> Result<BTreeSet<AudienceKey>, StoreError> {
    let (mut all, mut after) = (BTreeSet::new(), None);
    loop {
        let page = store.list_members(of, after.take(), MEMBERS).await?;
        let is_last = page.len() < MEMBERS;
        after = page.last().map(|last| last.key.clone());
        all.extend(page.into_iter().map(|member| member.key));
        if is_last {
            return Ok(all);
        }
    }
}
