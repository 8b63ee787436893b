//! Notifications: the log of messages, the ledger of who has seen them, and who belongs to which audience.
//!
//! Whoever appends to the log locks its head ([`NotificationRows::lock_head`]) as the last thing before the commit, so entries
//! become visible in the order of their positions. Messages that exist are locked before it, in the order of their ids.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::{StoreError, Wakeup};
use relais_notify::{
    AckChoice, AckEffect, AckEvent, AckPolicy, AckRefused, AckStatus, Acknowledged, Acknowledgement, Audience,
    AudienceKey, Belonging, ChangeRefused, Counts, Delivery, Emitted, Fired, LedgerLine, ListRequest,
    ListedNotification, LogEntry, LogHead, LogPosition, Member, MembersChange, MembersChanged, MembersRefused,
    MembershipRefused, NewNotification, NotificationFilter, NotificationStore, NotificationsPurged, StoredNotification,
    USER, UserScope, apply,
};
use uuid::Uuid;

use self::statements::{
    ACKNOWLEDGED, AcknowledgedDetail, AppendedEntry, ChangedState, EMITTED, InsertedRow, MEMBERS, MembersDetail,
    NotificationRow, NotificationRows, REPLAYED, WITHDRAWN, from_jiff, purged, to_jiff,
};
use crate::{
    clock::statements::Clock as _,
    counters::ledger::Ledger,
    row::{corrupt, wide},
    session::{Database, Session},
    verbs::Verbs,
};

/// "All of a user's messages" are at most so many in one transaction.
const MOST_ACKNOWLEDGED: i64 = 10_000;

/// So many open messages are looked at in one transaction when members have left.
const SETTLED_AT_ONCE: i64 = 100;

/// A change of more members is not told to those who come back later.
const TOLD_MEMBERS: usize = 1000;

/// What is to be written in a transaction.
#[derive(Default)]
struct Written {
    states: Vec<ChangedState>,
    entries: Vec<AppendedEntry>,
    inserts: Vec<NewNotification>,
}

#[async_trait]
impl<D: Database> NotificationStore for Verbs<D> {
    async fn log_head(&self) -> Result<LogHead, StoreError> {
        self.database.read_head().await
    }

    async fn emit_notifications(&self, messages: Vec<NewNotification>) -> Result<Vec<Emitted>, StoreError> {
        let mut session = self.database.begin().await?;
        let ids: Vec<Uuid> = messages.iter().map(|message| message.notification.metadata.id).collect();
        // Twice: a message that is known needs no lock, and one that became known meanwhile is noticed under it.
        let mut known: BTreeSet<Uuid> = session.known_notifications(&ids).await?.into_iter().collect();
        if ids.iter().any(|id| !known.contains(id)) {
            session.lock_head().await?;
            known.extend(session.known_notifications(&ids).await?);
        }
        let (mut answers, mut written) = (Vec::with_capacity(messages.len()), Written::default());
        for message in messages {
            let Audience { kind, targets } = &message.notification.routing.audience;
            let retry = message.notification.routing.retry;
            answers.push(if !known.insert(message.notification.metadata.id) {
                Emitted::Known
            } else if retry.ack_required && !Self::has_members(&mut session, kind, targets).await? {
                Emitted::NoMembers
            } else {
                written.inserts.push(message);
                Emitted::Stored
            });
        }
        self.write_notifications(session, written).await?;
        Ok(answers)
    }

    async fn check_notifications(&self, messages: &[NewNotification]) -> Result<Vec<Emitted>, StoreError> {
        let mut session = self.database.begin().await?;
        let ids: Vec<Uuid> = messages.iter().map(|message| message.notification.metadata.id).collect();
        let known: BTreeSet<Uuid> = session.known_notifications(&ids).await?.into_iter().collect();
        let mut answers = Vec::with_capacity(messages.len());
        let mut have_members: HashMap<&Audience, bool> = HashMap::new();
        for message in messages {
            let audience = &message.notification.routing.audience;
            if known.contains(&message.notification.metadata.id) {
                answers.push(Emitted::Known);
                continue;
            }
            let is_awaited = match (message.notification.routing.retry.ack_required, have_members.get(audience)) {
                (false, _) => true,
                (true, Some(known)) => *known,
                (true, None) => {
                    let found = Self::has_members(&mut session, &audience.kind, &audience.targets).await?;
                    have_members.insert(audience, found);
                    found
                }
            };
            answers.push(if is_awaited { Emitted::Stored } else { Emitted::NoMembers });
        }
        session.commit().await?;
        Ok(answers)
    }

    async fn read_log(&self, after: LogPosition, limit: usize) -> Result<Vec<LogEntry>, StoreError> {
        self.database.read_entries(wide(after), wide(limit)).await
    }

    async fn read_log_of(
        &self,
        scope: &UserScope,
        after: LogPosition,
        up_to: LogPosition,
        limit: usize,
    ) -> Result<Vec<LogEntry>, StoreError> {
        let keys: Vec<&AudienceKey> = scope.keys().collect();
        self.database.read_entries_of(&keys, wide(after), wide(up_to), wide(limit)).await
    }

    async fn scopes_of(&self, users: Vec<String>) -> Result<HashMap<String, UserScope>, StoreError> {
        let rows = self.database.read_scopes(&users).await?;
        let own = |user: &String| Belonging { key: AudienceKey::user(user), since: Some(0) };
        let mut scopes: HashMap<String, UserScope> =
            users.into_iter().map(|user| (user.clone(), UserScope { belongs: vec![own(&user)], user })).collect();
        for (user, belonging) in rows {
            if let Some(scope) = scopes.get_mut(&user) {
                scope.belongs.push(belonging);
            }
        }
        Ok(scopes)
    }

    async fn acknowledged_by(&self, id: Uuid, users: Vec<String>) -> Result<Vec<String>, StoreError> {
        self.database.acknowledged_by(id, &users).await
    }

    async fn acknowledged_of(&self, user: &str, ids: Vec<Uuid>) -> Result<Vec<Uuid>, StoreError> {
        self.database.acknowledged_of(user, &ids).await
    }

    async fn acknowledge(&self, acknowledgements: Vec<Acknowledgement>) -> Result<Vec<Acknowledged>, StoreError> {
        let mut session = self.database.begin().await?;
        // First what is acknowledged, then the locks of all messages at once, in their order.
        let mut chosen = Vec::with_capacity(acknowledgements.len());
        for Acknowledgement { scope, choice } in &acknowledgements {
            let keys: Vec<&AudienceKey> = scope.keys().collect();
            chosen.push(match choice {
                AckChoice::These(ids) => session.visible_notifications(&keys, ids).await?,
                AckChoice::All => session.unread_notifications(&scope.user, &keys, MOST_ACKNOWLEDGED).await?,
            });
        }
        let all: BTreeSet<Uuid> = chosen.iter().flatten().copied().collect();
        let rows = session.lock_notifications(&all.into_iter().collect::<Vec<_>>()).await?;
        let mut rows: BTreeMap<Uuid, NotificationRow> =
            rows.into_iter().map(|row| (row.stored.notification.metadata.id, row)).collect();
        let pairs: BTreeSet<(Uuid, &str)> = acknowledgements
            .iter()
            .zip(&chosen)
            .flat_map(|(Acknowledgement { scope, .. }, ids)| ids.iter().map(|id| (*id, scope.user.as_str())))
            .collect();
        let pairs: Vec<(Uuid, &str)> = pairs.into_iter().collect();
        let fresh = session.write_acknowledgements(&pairs).await?;
        let mut fresh: BTreeSet<(Uuid, String)> = fresh.into_iter().collect();
        let (mut answers, mut written) = (Vec::with_capacity(chosen.len()), Written::default());
        let mut touched = BTreeSet::new();
        for (Acknowledgement { scope, .. }, ids) in acknowledgements.iter().zip(chosen) {
            // Who says it twice at once has said it first, and then again.
            let new: Vec<Uuid> = ids.iter().copied().filter(|id| fresh.remove(&(*id, scope.user.clone()))).collect();
            for id in &new {
                if let Some(row) = rows.get_mut(id) {
                    row.outstanding -= 1;
                    touched.insert(*id);
                }
            }
            if !new.is_empty() {
                let detail = AcknowledgedDetail { user: scope.user.clone(), ids: new.clone() };
                written.entries.push(AppendedEntry {
                    position: 0,
                    kind: ACKNOWLEDGED,
                    notification: None,
                    attempts: 0,
                    detail: Some(serde_json::to_string(&detail).map_err(corrupt)?),
                    keys: vec![AudienceKey::user(&scope.user)],
                });
            }
            let known = ids.into_iter().filter(|id| !new.contains(id)).collect();
            answers.push(Acknowledged { new, known });
        }
        for id in touched {
            let Some(row) = rows.remove(&id).filter(|row| row.policy.retry.ack_required) else { continue };
            Self::settle(&mut session, row, AckEvent::FewerAwaited, jiff::Timestamp::MIN, &mut written).await.map_err(
                // Only a resend is ever refused.
                |refused| corrupt(refused.to_string()),
            )?;
        }
        self.write_notifications(session, written).await?;
        Ok(answers)
    }

    async fn list_of_user(&self, request: ListRequest) -> Result<Vec<ListedNotification>, StoreError> {
        self.database.list_of_user(&request).await
    }

    async fn count_of_user(&self, scope: &UserScope) -> Result<Counts, StoreError> {
        self.database.count_of_user(scope).await
    }

    async fn fire_notification_timers(&self, limit: usize) -> Result<Fired, StoreError> {
        let mut session = self.database.begin().await?;
        let (rows, now) = session.lock_due(wide(limit)).await?;
        let more = rows.len() >= limit;
        let (mut fired, mut written) = (Fired::default(), Written::default());
        for row in rows {
            let outcome = Self::settle(&mut session, row, AckEvent::Due, to_jiff(now), &mut written).await;
            match outcome.map_err(|refused| corrupt(refused.to_string()))? {
                AckEffect::Replay { .. } => fired.replayed += 1,
                AckEffect::LogError => fired.failed += 1,
                AckEffect::None | AckEffect::SettleError | AckEffect::TellWithdrawn => {}
            }
        }
        fired.expired = written.states.iter().filter(|change| change.state.status == AckStatus::Expired).count();
        self.write_notifications(session, written).await?;
        fired.more = more;
        fired.again = self.database.next_notification_due().await?;
        Ok(fired)
    }

    async fn withdraw(
        &self,
        id: Uuid,
        client: Option<String>,
        replacement: Option<NewNotification>,
    ) -> Result<(), ChangeRefused> {
        let (mut session, row) = self.lock_one(id, client).await?;
        match Self::replace_locked(&mut session, row, replacement).await {
            Ok(written) => Ok(self.write_notifications(session, written).await?),
            Err(refused) => Err(release(session, refused).await),
        }
    }

    async fn resend(&self, id: Uuid, client: Option<String>) -> Result<(), ChangeRefused> {
        let (mut session, row) = self.lock_one(id, client).await?;
        let mut written = Written::default();
        let now = to_jiff(session.read_clock().await?.now);
        match Self::settle(&mut session, row, AckEvent::Resend, now, &mut written).await {
            Ok(_) => Ok(self.write_notifications(session, written).await?),
            Err(refused) => Err(release(session, refused).await),
        }
    }

    async fn change_members(&self, key: AudienceKey, change: MembersChange) -> Result<MembersChanged, MembersRefused> {
        if key.kind == USER {
            return Err(MembershipRefused::UserHasMembers(key).into());
        }
        let mut session = self.database.begin().await?;
        // First here: that no target contains itself is judged by what all changes before have left.
        let head = session.lock_head().await?;
        let before: BTreeSet<AudienceKey> = session.members_of(&key).await?.into_iter().collect();
        let (joined, left): (Vec<AudienceKey>, Vec<AudienceKey>) = match change {
            MembersChange::Set(members) => {
                let after: BTreeSet<AudienceKey> = members.into_iter().collect();
                (after.difference(&before).cloned().collect(), before.difference(&after).cloned().collect())
            }
            MembersChange::Add(members) => {
                let new: BTreeSet<AudienceKey> = members.into_iter().filter(|key| !before.contains(key)).collect();
                (new.into_iter().collect(), Vec::new())
            }
            MembersChange::Remove(members) => {
                let gone: BTreeSet<AudienceKey> = members.into_iter().filter(|key| before.contains(key)).collect();
                (Vec::new(), gone.into_iter().collect())
            }
        };
        if joined.is_empty() && left.is_empty() {
            return Ok(MembersChanged::default());
        }
        session.delete_members(&key, &left).await?;
        let targets: Vec<AudienceKey> = joined.iter().filter(|member| member.kind != USER).cloned().collect();
        if targets.contains(&key) || !session.which_contain(&targets, &key).await?.is_empty() {
            return Err(MembershipRefused::Cycle(key).into());
        }
        session.insert_members(&key, &joined, wide(head.position + 1)).await?;
        let pair = |key: &AudienceKey| (key.kind.clone(), key.target.clone());
        let mut keys: Vec<AudienceKey> = joined.iter().chain(&left).cloned().collect();
        let changed = keys.iter().map(pair).collect();
        if keys.len() > TOLD_MEMBERS {
            keys.clear();
        }
        let detail = MembersDetail { key: pair(&key), changed };
        let entry = AppendedEntry {
            position: 0,
            kind: MEMBERS,
            notification: None,
            attempts: 0,
            detail: Some(serde_json::to_string(&detail).map_err(corrupt)?),
            keys,
        };
        self.write_notifications(session, Written { entries: vec![entry], ..Written::default() }).await?;
        if !left.is_empty() {
            // Apart: who locks messages does so before the head. If this is lost, their own timers find out.
            self.settle_open(&key).await?;
        }
        Ok(MembersChanged { joined: joined.len(), left: left.len() })
    }

    async fn list_members(
        &self,
        key: &AudienceKey,
        after: Option<AudienceKey>,
        limit: usize,
    ) -> Result<Vec<Member>, StoreError> {
        self.database.list_members(key, after.as_ref(), wide(limit)).await
    }

    async fn record_deliveries(&self, deliveries: Vec<Delivery>) -> Result<(), StoreError> {
        let mut counted: BTreeMap<(Uuid, String), i32> = BTreeMap::new();
        for Delivery { id, user } in deliveries {
            *counted.entry((id, user)).or_default() += 1;
        }
        let counted: Vec<(Delivery, i32)> =
            counted.into_iter().map(|((id, user), count)| (Delivery { id, user }, count)).collect();
        let mut session = self.database.begin().await?;
        session.write_deliveries(&counted).await?;
        session.commit().await
    }

    async fn list_notifications(&self, filter: NotificationFilter) -> Result<Vec<StoredNotification>, StoreError> {
        self.database.list_notifications(&filter).await
    }

    async fn find_notification(
        &self,
        id: Uuid,
        limit: usize,
    ) -> Result<Option<(StoredNotification, Vec<LedgerLine>)>, StoreError> {
        let Some(stored) = self.database.find_notification(id).await? else { return Ok(None) };
        // Without a need to acknowledge, nobody is awaited.
        let keys = match stored.notification.routing.retry.ack_required {
            true => keys_of(&stored.notification.routing.audience),
            false => Vec::new(),
        };
        let ledger = self.database.read_ledger(id, &keys, wide(stored.position), wide(limit)).await?;
        Ok(Some((stored, ledger)))
    }

    async fn purge_notifications(
        &self,
        log_age: Duration,
        age: Duration,
        limit: usize,
    ) -> Result<NotificationsPurged, StoreError> {
        let mut session = self.database.begin().await?;
        let notifications = session.purge_notifications(age, wide(limit)).await?;
        let entries = session.purge_entries(log_age, wide(limit)).await?;
        session.commit().await?;
        Ok(purged(entries, notifications))
    }

    async fn ticket_key(&self) -> Result<[u8; 32], StoreError> {
        let mut new = [0_u8; 32];
        let random = ring::rand::SystemRandom::new();
        ring::rand::SecureRandom::fill(&random, &mut new).map_err(|failure| corrupt(failure.to_string()))?;
        let mut session = self.database.begin().await?;
        let key = session.ticket_key(&new).await?;
        session.commit().await?;
        key.try_into().map_err(|_| corrupt("the key of tickets is not one"))
    }
}

impl<D: Database> Verbs<D> {
    /// Users are their own members; other targets have some, or messages to them can not be acknowledged.
    async fn has_members(session: &mut D::Session, kind: &str, targets: &BTreeSet<String>) -> Result<bool, StoreError> {
        if kind == USER {
            return Ok(true);
        }
        let keys: Vec<AudienceKey> = targets.iter().map(|target| AudienceKey::new(kind, target)).collect();
        // Nobody has acknowledged a message that there is not. Any fixed id may be that of one.
        Ok(session.count_awaited(&keys, i64::MAX, Uuid::now_v7()).await? > 0)
    }

    async fn lock_one(&self, id: Uuid, client: Option<String>) -> Result<(D::Session, NotificationRow), ChangeRefused> {
        let mut session = self.database.begin().await?;
        let row = session.lock_notifications(&[id]).await?.pop();
        match row.filter(|row| client.is_none() || row.stored.client == client) {
            Some(row) => Ok((session, row)),
            None => Err(release(session, ChangeRefused::NotFound).await),
        }
    }

    /// Withdraws a message that is locked, and notes what takes its place. Writes nothing yet.
    async fn replace_locked(
        session: &mut D::Session,
        row: NotificationRow,
        replacement: Option<NewNotification>,
    ) -> Result<Written, ChangeRefused> {
        let mut written = Written::default();
        if replacement.is_some() && row.state.status == AckStatus::Withdrawn {
            return Err(AckRefused::Withdrawn.into());
        }
        let replaced_by = replacement.as_ref().map(|new| new.notification.metadata.id);
        Self::settle(session, row, AckEvent::Withdraw, jiff::Timestamp::MIN, &mut written).await?;
        // Who withdraws what was replaced already changes nothing.
        for change in &mut written.states {
            change.replaced_by = replaced_by.or(change.replaced_by);
        }
        if let Some(new) = replacement {
            let Audience { kind, targets } = &new.notification.routing.audience;
            if new.notification.routing.retry.ack_required && !Self::has_members(session, kind, targets).await? {
                return Err(ChangeRefused::NoMembers);
            }
            session.lock_head().await?;
            if !session.known_notifications(&[new.notification.metadata.id]).await?.is_empty() {
                return Err(ChangeRefused::IdTaken);
            }
            written.inserts.push(new);
        }
        Ok(written)
    }

    /// Looks whether open messages to a target, or to one that contains it, still lack an acknowledgement.
    async fn settle_open(&self, key: &AudienceKey) -> Result<(), StoreError> {
        let mut after = 0;
        loop {
            let mut session = self.database.begin().await?;
            let found = session.open_notifications(key, after, SETTLED_AT_ONCE).await?;
            let Some((_, last)) = found.last().copied() else { return session.commit().await };
            let mut ids: Vec<Uuid> = found.into_iter().map(|(id, _)| id).collect();
            ids.sort_unstable();
            let mut written = Written::default();
            for mut row in session.lock_notifications(&ids).await? {
                row.outstanding = 0;
                let event = AckEvent::FewerAwaited;
                let settled = Self::settle(&mut session, row, event, jiff::Timestamp::MIN, &mut written).await;
                settled.map_err(|refused| corrupt(refused.to_string()))?;
            }
            self.write_notifications(session, written).await?;
            after = last;
        }
    }

    /// Applies an event to a message that is locked, and notes what is to be written.
    async fn settle(
        session: &mut D::Session,
        row: NotificationRow,
        event: AckEvent,
        now: jiff::Timestamp,
        written: &mut Written,
    ) -> Result<AckEffect, ChangeRefused> {
        let NotificationRow { stored, policy, state, mut outstanding } = row;
        let metadata = &stored.notification.metadata;
        let keys = keys_of(&stored.notification.routing.audience);
        // Members that left are noticed when the timer fires or the last acknowledgement seems to be there.
        if policy.retry.ack_required && (outstanding <= 0 || event != AckEvent::FewerAwaited) {
            outstanding = session.count_awaited(&keys, wide(stored.position), metadata.id).await?;
        }
        let awaited = usize::try_from(outstanding).unwrap_or(0);
        let (after, effect) = apply(&policy, &state, event, awaited, now)?;
        let (kind, attempts) = match effect {
            AckEffect::Replay { attempts } => (REPLAYED, attempts),
            AckEffect::TellWithdrawn => (WITHDRAWN, after.attempts),
            AckEffect::None | AckEffect::LogError | AckEffect::SettleError => (EMITTED, 0),
        };
        if kind != EMITTED {
            written.entries.push(AppendedEntry {
                position: 0,
                kind,
                notification: Some(metadata.id),
                attempts,
                detail: None,
                keys,
            });
        }
        written.states.push(ChangedState {
            id: metadata.id,
            before: state.revision,
            state: after,
            outstanding,
            replaced_by: stored.replaced_by,
        });
        Ok(effect)
    }

    /// Writes states, then appends entries under the lock of the head, and commits.
    async fn write_notifications(&self, mut session: D::Session, written: Written) -> Result<(), StoreError> {
        let Written { states, mut entries, inserts } = written;
        if !states.is_empty() {
            session.write_states(&states).await?;
        }
        let timers = states.iter().any(|change| change.state.due.is_some());
        let appended = entries.len() + inserts.len();
        if appended > 0 {
            let head = session.lock_head().await?;
            let mut rows = Vec::with_capacity(inserts.len());
            for new in &inserts {
                let row = Self::inserted(&mut session, new, head.now).await?;
                entries.push(AppendedEntry {
                    position: 0,
                    kind: EMITTED,
                    notification: Some(row.id),
                    attempts: 0,
                    detail: None,
                    keys: keys_of(&new.notification.routing.audience),
                });
                rows.push(row);
            }
            let mut position = wide(head.position);
            let first_insert = entries.len() - rows.len();
            for (number, entry) in entries.iter_mut().enumerate() {
                position += 1;
                entry.position = position;
                if let Some(row) = number.checked_sub(first_insert).and_then(|at| rows.get_mut(at)) {
                    row.position = position;
                }
            }
            session.insert_notifications(&rows).await?;
            session.append_entries(&entries).await?;
            session.advance_head(position).await?;
        }
        let wakeup = Wakeup { notifications: appended > 0 || timers, ..Wakeup::default() };
        self.finish(session, Ledger::default(), wakeup).await
    }

    async fn inserted(
        session: &mut D::Session,
        new: &NewNotification,
        now: jiff::Timestamp,
    ) -> Result<InsertedRow, StoreError> {
        let NewNotification { notification, client, ack_timeout } = new;
        let (metadata, routing) = (&notification.metadata, &notification.routing);
        let policy = AckPolicy { retry: routing.retry, ack_timeout: *ack_timeout, expiration: metadata.expiration };
        let outstanding = match routing.retry.ack_required {
            true => session.count_awaited(&keys_of(&routing.audience), i64::MAX, metadata.id).await?,
            false => 0,
        };
        Ok(InsertedRow {
            id: metadata.id,
            position: 0,
            client: client.clone(),
            message: serde_json::to_string(notification).map_err(corrupt)?,
            ack_required: routing.retry.ack_required,
            ack_timeout_ms: wide(ack_timeout.as_millis()),
            expiration: from_jiff(metadata.expiration),
            due: policy.emitted(now).due.map(from_jiff),
            outstanding,
        })
    }
}

/// Ends a transaction that has locked and written nothing. One that is dropped keeps its locks for a moment longer, and a timer
/// that passes over locked messages would miss them.
async fn release(session: impl Session, refused: ChangeRefused) -> ChangeRefused {
    match session.commit().await {
        Ok(()) => refused,
        Err(error) => error.into(),
    }
}

fn keys_of(audience: &Audience) -> Vec<AudienceKey> {
    audience.targets.iter().map(|target| AudienceKey::new(&audience.kind, target)).collect()
}
