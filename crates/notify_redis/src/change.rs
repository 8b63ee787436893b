//! Changes of messages: what is read is given to the rules, and what they answer is written if nobody came between.

use redis::{FromRedisValue, Value};
use relais_core::StoreError;
use relais_notify::{AckEffect, AckEvent, AckRefused, AckState, AckStatus, LogPosition, NewNotification, apply};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    RedisNotifications,
    connection::Known,
    error::{changed_meanwhile, corrupt, store_error},
    message::{LiveMessage, MessageRow, encoded, in_millis, keys_of, status_code},
    scripts,
};

/// A change that others were quicker with is made anew, this often.
pub(crate) const TRIES: usize = 20;

/// What one script writes. Numbers are texts, since those of Lua are not exact.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Plan {
    /// All or nothing: also if a state has changed, or an id is taken.
    pub(crate) strict: bool,
    /// The revision of all members as they were counted for new messages; empty if they were not.
    pub(crate) members: String,
    states: Vec<StatePlan>,
    inserts: Vec<InsertPlan>,
    #[serde(skip)]
    docs: Vec<String>,
    /// How much work it is, in indexes to write, about; large texts count too.
    #[serde(skip)]
    pub(crate) weight: usize,
}

/// The new state of a message.
#[derive(Debug, Serialize)]
struct StatePlan {
    id: Uuid,
    /// The revision that it was made of.
    before: String,
    /// How many were awaited when it was made, if that matters.
    seen: String,
    was: &'static str,
    status: &'static str,
    attempts: String,
    resent_at: String,
    due: String,
    revision: String,
    outstanding: String,
    replaced_by: String,
    client: String,
    keys: Vec<String>,
    live: String,
    is_over: bool,
    is_settled: bool,
    /// The kind of the entry that tells it; empty if none does.
    entry: &'static str,
}

/// A new message.
#[derive(Debug, Serialize)]
struct InsertPlan {
    id: Uuid,
    client: String,
    keys: Vec<String>,
    live: String,
    required: &'static str,
    timeout: String,
    expiration: String,
    due: String,
    outstanding: String,
}

/// What became of a plan.
#[derive(Debug)]
pub(crate) enum Changed {
    /// It was written: which states fitted, and which messages are new.
    Done { fits: Vec<bool>, stored: Vec<bool> },
    /// A state has changed meanwhile; nothing was written.
    Stale,
    /// An id is taken; nothing was written.
    Taken,
}

impl Plan {
    /// One of new messages, whose members were counted at this revision.
    pub(crate) fn of_new(members: &str) -> Self {
        Self { members: members.to_owned(), ..Self::default() }
    }

    /// Adds an event to a message, as far as the rules allow it.
    pub(crate) fn apply(
        &mut self,
        row: &MessageRow,
        event: AckEvent,
        awaited: usize,
        now: jiff::Timestamp,
    ) -> Result<(AckEffect, AckStatus), AckRefused> {
        let (after, effect) = apply(&row.policy, &row.state, event, awaited, now)?;
        let status = after.status;
        // Nobody becomes awaited later: that nobody is stays true, and that somebody is must still be so.
        let seen = if row.is_required() && awaited > 0 { row.outstanding.clone() } else { String::new() };
        self.states.push(StatePlan::new(row, after, effect, seen, awaited));
        Ok((effect, status))
    }

    /// Says what takes the place of the message that was added last.
    pub(crate) fn replace_by(&mut self, id: Uuid) {
        if let Some(state) = self.states.last_mut() {
            state.replaced_by = id.to_string();
        }
    }

    /// Adds a message that `awaited` must acknowledge.
    pub(crate) fn insert(
        &mut self,
        new: &NewNotification,
        awaited: usize,
        now: jiff::Timestamp,
    ) -> Result<(), StoreError> {
        let NewNotification { notification, client, ack_timeout } = new;
        let (metadata, routing) = (&notification.metadata, &notification.routing);
        let expiration = in_millis(metadata.expiration);
        let policy = relais_notify::AckPolicy { retry: routing.retry, ack_timeout: *ack_timeout, expiration };
        let due = policy.emitted(now).due.unwrap_or(expiration);
        let doc = serde_json::to_string(notification).map_err(corrupt)?;
        self.weight += routing.audience.targets.len() + doc.len() / 1024;
        self.docs.push(doc);
        self.inserts.push(InsertPlan {
            id: metadata.id,
            client: client.clone().unwrap_or_default(),
            keys: encoded(&keys_of(&routing.audience)),
            live: LiveMessage::member(metadata.id, expiration, routing.retry.ack_required),
            required: if routing.retry.ack_required { "1" } else { "0" },
            timeout: ack_timeout.as_millis().to_string(),
            expiration: expiration.as_millisecond().to_string(),
            due: due.as_millisecond().to_string(),
            outstanding: awaited.to_string(),
        });
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty() && self.inserts.is_empty()
    }
}

impl StatePlan {
    fn new(row: &MessageRow, after: AckState, effect: AckEffect, seen: String, awaited: usize) -> Self {
        let is_over = matches!(after.status, AckStatus::Expired | AckStatus::Withdrawn);
        let is_awaited = matches!(after.status, AckStatus::Open | AckStatus::Failed);
        Self {
            id: row.id(),
            before: row.state.revision.to_string(),
            seen,
            was: status_code(row.state.status),
            status: status_code(after.status),
            attempts: after.attempts.to_string(),
            resent_at: after.resent_at.to_string(),
            due: after.due.map(|due| due.as_millisecond().to_string()).unwrap_or_default(),
            revision: after.revision.to_string(),
            outstanding: awaited.to_string(),
            replaced_by: String::new(),
            client: row.client().to_owned(),
            keys: encoded(&row.keys()),
            live: LiveMessage::member(row.id(), row.policy.expiration, row.is_required()),
            is_over,
            is_settled: row.is_required() && !is_awaited,
            entry: match effect {
                AckEffect::Replay { .. } => "1",
                AckEffect::TellWithdrawn => "2",
                AckEffect::None | AckEffect::LogError | AckEffect::SettleError => "",
            },
        }
    }
}

impl RedisNotifications {
    /// Writes a plan.
    pub(crate) async fn change(&self, plan: &Plan) -> Result<Changed, StoreError> {
        if plan.is_empty() {
            return Ok(Changed::Done { fits: Vec::new(), stored: Vec::new() });
        }
        let before = self.0.connections.known();
        let mut arguments = vec![serde_json::to_string(plan).map_err(corrupt)?];
        arguments.extend(plan.docs.iter().cloned());
        let answer: Vec<Value> = self.0.connections.run(&scripts::CHANGE, &arguments).await?;
        type Written = (String, LogPosition, LogPosition, Vec<bool>, Vec<bool>);
        let mut answer = answer.into_iter();
        let outcome: String = parsed(answer.next().unwrap_or(Value::Nil))?;
        match outcome.as_str() {
            "stale" => Ok(Changed::Stale),
            "taken" => Ok(Changed::Taken),
            _ => {
                let (epoch, begin, position, fits, stored): Written = parsed(Value::Array(answer.collect()))?;
                self.note_written(&before, &epoch, begin, position).await;
                Ok(Changed::Done { fits, stored })
            }
        }
    }

    pub(crate) async fn note_written(&self, before: &Known, epoch: &str, begin: LogPosition, position: LogPosition) {
        self.0.connections.note_written(before, epoch, begin, position).await;
    }

    /// Looks whether all who must have acknowledged these messages, and settles those.
    pub(crate) async fn settle(&self, ids: Vec<Uuid>) -> Result<(), StoreError> {
        let mut left = ids;
        for _ in 0..TRIES {
            let rows = self.read_messages(&left).await?;
            let rows: Vec<MessageRow> = rows.into_values().filter(MessageRow::is_required).collect();
            let awaited = self.count_awaited(&rows).await?;
            let mut plan = Plan::default();
            for (row, awaited) in rows.iter().zip(awaited) {
                let applied = plan.apply(row, AckEvent::FewerAwaited, awaited, jiff::Timestamp::MIN);
                // Only a resend is ever refused.
                applied.map_err(|refused| corrupt(refused.to_string()))?;
            }
            let Changed::Done { fits, .. } = self.change(&plan).await? else { continue };
            left = rows.iter().zip(fits).filter(|(_, fits)| !fits).map(|(row, _)| row.id()).collect();
            if left.is_empty() {
                return Ok(());
            }
        }
        // The timer has them, and looks again.
        tracing::debug!(messages = left.len(), "messages change too quickly to be settled now");
        Ok(())
    }

    /// Applies an event to one message, and what else is to be written with it.
    pub(crate) async fn change_one(
        &self,
        id: Uuid,
        client: Option<&str>,
        event: AckEvent,
        replacement: Option<&NewNotification>,
    ) -> Result<(), relais_notify::ChangeRefused> {
        use relais_notify::ChangeRefused;
        for _ in 0..TRIES {
            let found = self.read_messages(&[id]).await?.remove(&id);
            let row = found.filter(|row| client.is_none() || row.stored.client.as_deref() == client);
            let row = row.ok_or(ChangeRefused::NotFound)?;
            if replacement.is_some() && row.state.status == AckStatus::Withdrawn {
                return Err(AckRefused::Withdrawn.into());
            }
            let awaited = match row.is_required() && event != AckEvent::Withdraw {
                true => self.count_awaited(std::slice::from_ref(&row)).await?.pop().unwrap_or_default(),
                false => 0,
            };
            let now = self.now().await?;
            let mut plan = Plan { strict: true, ..Plan::default() };
            plan.apply(&row, event, awaited, now)?;
            if let Some(new) = replacement {
                plan.replace_by(new.notification.metadata.id);
                let (members, graph) = self.read_members_of(std::slice::from_ref(new)).await?;
                let awaited = graph.count(new);
                if new.notification.routing.retry.ack_required && awaited == 0 {
                    return Err(ChangeRefused::NoMembers);
                }
                plan.members = members;
                plan.insert(new, awaited, now)?;
            }
            match self.change(&plan).await? {
                Changed::Done { .. } => return Ok(()),
                Changed::Taken => return Err(ChangeRefused::IdTaken),
                Changed::Stale => {}
            }
        }
        Err(changed_meanwhile().into())
    }
}

/// A part of an answer.
pub(crate) fn parsed<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    redis::from_redis_value(value).map_err(|error| store_error(error.into()))
}
