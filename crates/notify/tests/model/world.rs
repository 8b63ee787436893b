//! One message to a group of two, to which a third may belong later.

use std::{collections::BTreeSet, time::Duration};

use jiff::{SignedDuration, Timestamp};
use relais_explore::Model;
use relais_notify::{
    AckEffect, AckEvent, AckPolicy, AckState, AckStatus, AudienceKey, Backoff, EntryKind, Memberships, Recipient,
    Retry, apply,
};

const EMITTED: Timestamp = Timestamp::constant(1_000_000, 0);
const FIRST_MEMBERS: [&str; 2] = ["ann", "bob"];
const LATE_MEMBER: &str = "cem";

/// The position of the message; the two joined before it.
const EMITTED_AT: u64 = 2;

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// An instance writes without looking whether another was faster.
    Unfenced,
    /// A replay is delivered like a first sending.
    ReplaysToAll,
    /// Who has left must still acknowledge.
    AwaitsWhoLeft,
    /// Who is there now must acknowledge.
    AwaitsWhoJoined,
    /// A replay begins to count anew.
    ForgetsAcknowledgements,
}

/// How large the world is.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub instances: usize,
    pub limit: u32,
    pub resends: u32,
    /// How often members join or leave.
    pub changes: u32,
    pub withdraws: bool,
    pub expires: bool,
    pub flaw: Flaw,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    message: AckState,
    memberships: Memberships,
    /// What is stored.
    acknowledged: BTreeSet<&'static str>,
    /// Entries of the log, with their positions.
    log: Vec<(u64, EntryKind)>,
    position: u64,
    /// What each instance has read when its timer fired.
    read: Vec<Option<(AckState, usize)>>,
    /// How many entries of the log the links of the first and of the late member have passed.
    links: [usize; 2],
    resends: u32,
    changes: u32,
    /// Who has ever acknowledged, and who has ever left: what the promises are judged by.
    has_acknowledged: BTreeSet<&'static str>,
    has_left: BTreeSet<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Acknowledge(&'static str),
    Join(&'static str),
    Leave(&'static str),
    /// The timer of an instance fires: it reads.
    Read(usize),
    /// It writes what it has decided.
    Write(usize),
    Deliver(usize),
    Resend,
    Withdraw,
    Expire,
}

const LINKS: [&str; 2] = ["ann", LATE_MEMBER];

fn group() -> AudienceKey {
    AudienceKey::new("GROUP", "g")
}

impl World {
    fn policy(&self) -> AckPolicy {
        let retry = Retry { ack_required: true, limit: self.limit, backoff: Backoff::Linear, ..Retry::default() };
        AckPolicy { retry, ack_timeout: Duration::from_secs(30), expiration: EMITTED + SignedDuration::from_hours(24) }
    }

    fn awaited(&self, state: &State) -> BTreeSet<String> {
        match self.flaw {
            Flaw::AwaitsWhoLeft => state.memberships.members_at(&group(), EMITTED_AT),
            Flaw::AwaitsWhoJoined => state.memberships.members_at(&group(), u64::MAX),
            _ => state.memberships.awaited([&group()], EMITTED_AT),
        }
    }

    fn outstanding(&self, state: &State) -> usize {
        self.awaited(state).iter().filter(|user| !state.acknowledged.contains(user.as_str())).count()
    }

    /// One transaction: the state of the message, and what follows.
    fn write(
        &self,
        state: &mut State,
        event: AckEvent,
        base: &AckState,
        awaited: usize,
        now: Timestamp,
    ) -> Result<(), String> {
        let Ok((message, effect)) = apply(&self.policy(), base, event, awaited, now) else { return Ok(()) };
        if message.attempts < state.message.attempts {
            return Err("attempts never go back".to_owned());
        }
        let entry = match effect {
            AckEffect::Replay { attempts } => {
                if self.flaw == Flaw::ForgetsAcknowledgements {
                    state.acknowledged.clear();
                }
                Some(EntryKind::Replayed { attempts })
            }
            AckEffect::TellWithdrawn => Some(EntryKind::Withdrawn),
            AckEffect::None | AckEffect::LogError | AckEffect::SettleError => None,
        };
        if let Some(entry) = entry {
            state.position += 1;
            state.log.push((state.position, entry));
        }
        state.message = message;
        Ok(())
    }

    /// An event that reads and writes in one transaction.
    fn happens(&self, state: &mut State, event: AckEvent, now: Timestamp) -> Result<(), String> {
        let (base, awaited) = (state.message.clone(), self.outstanding(state));
        self.write(state, event, &base, awaited, now)
    }

    fn deliver(&self, state: &mut State, link: usize) -> Result<(), String> {
        let (user, (_, entry)) = (LINKS[link], state.log[state.links[link]]);
        state.links[link] += 1;
        let is_awaited = self.awaited(state).contains(user);
        let has_acknowledged = state.acknowledged.contains(user) && self.flaw != Flaw::ReplaysToAll;
        let is_member = state.memberships.is_member_now([&group()], user);
        let recipient = Recipient { is_member, is_awaited, has_acknowledged };
        let reached = entry.reaches(recipient, state.message.status);
        let is_over = matches!(state.message.status, AckStatus::Expired | AckStatus::Withdrawn);
        if is_over && reached && entry != EntryKind::Withdrawn {
            return Err("what is expired or withdrawn is not sent".to_owned());
        }
        if let EntryKind::Replayed { .. } = entry
            && !is_over
        {
            let should = FIRST_MEMBERS.contains(&user)
                && !state.has_left.contains(user)
                && !state.has_acknowledged.contains(user);
            if reached != should {
                return Err("a replay goes to exactly those who have not acknowledged".to_owned());
            }
        }
        Ok(())
    }

    fn time_of(&self, state: &State) -> Timestamp {
        state.message.due.unwrap_or(EMITTED)
    }
}

impl Model for World {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        let mut memberships = Memberships::default();
        for user in FIRST_MEMBERS {
            memberships.join(&group(), &AudienceKey::user(user), 1).expect("the first members");
        }
        State {
            message: self.policy().emitted(EMITTED),
            memberships,
            acknowledged: BTreeSet::new(),
            log: vec![(EMITTED_AT, EntryKind::Emitted)],
            position: EMITTED_AT,
            read: vec![None; self.instances],
            links: [0, 0],
            resends: self.resends,
            changes: self.changes,
            has_acknowledged: BTreeSet::new(),
            has_left: BTreeSet::new(),
        }
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        let members = state.memberships.members_at(&group(), u64::MAX);
        for user in [FIRST_MEMBERS[0], FIRST_MEMBERS[1], LATE_MEMBER] {
            let is_member = members.contains(user);
            if is_member && !state.has_acknowledged.contains(user) {
                steps.push(Step::Acknowledge(user));
            }
            if state.changes > 0 {
                steps.push(if is_member { Step::Leave(user) } else { Step::Join(user) });
            }
        }
        for instance in 0..self.instances {
            match &state.read[instance] {
                Some(_) => steps.push(Step::Write(instance)),
                None if state.message.due.is_some() => steps.push(Step::Read(instance)),
                None => {}
            }
        }
        steps.extend((0..LINKS.len()).filter(|link| state.links[*link] < state.log.len()).map(Step::Deliver));
        if state.resends > 0 && state.message.status == AckStatus::Failed {
            steps.push(Step::Resend);
        }
        if self.withdraws && state.message.status != AckStatus::Withdrawn {
            steps.push(Step::Withdraw);
        }
        if self.expires && state.message.status == AckStatus::Open {
            steps.push(Step::Expire);
        }
        steps
    }

    fn take(&self, state: &State, step: &Step) -> Result<State, String> {
        let mut next = state.clone();
        let now = self.time_of(state);
        match *step {
            Step::Acknowledge(user) => {
                next.acknowledged.insert(user);
                next.has_acknowledged.insert(user);
                self.happens(&mut next, AckEvent::FewerAwaited, now)?;
            }
            Step::Join(user) | Step::Leave(user) => {
                next.changes -= 1;
                next.position += 1;
                let (key, position) = (AudienceKey::user(user), next.position);
                let changed = match step {
                    Step::Join(_) => next.memberships.join(&group(), &key, position),
                    _ => {
                        next.has_left.insert(user);
                        next.memberships.leave(&group(), &key, position)
                    }
                };
                changed.map_err(|refused| refused.to_string())?;
                self.happens(&mut next, AckEvent::FewerAwaited, now)?;
            }
            Step::Read(instance) => next.read[instance] = Some((state.message.clone(), self.outstanding(state))),
            Step::Write(instance) => {
                let Some((base, awaited)) = next.read[instance].take() else { return Ok(next) };
                if base.revision == state.message.revision || self.flaw == Flaw::Unfenced {
                    let now = base.due.unwrap_or(EMITTED);
                    self.write(&mut next, AckEvent::Due, &base, awaited, now)?;
                }
            }
            Step::Deliver(link) => self.deliver(&mut next, link)?,
            Step::Resend => {
                next.resends -= 1;
                let now = EMITTED + SignedDuration::from_hours(1);
                self.happens(&mut next, AckEvent::Resend, now)?;
            }
            Step::Withdraw => self.happens(&mut next, AckEvent::Withdraw, now)?,
            Step::Expire => self.happens(&mut next, AckEvent::Due, self.policy().expiration)?,
        }
        Ok(next)
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if state.acknowledged != state.has_acknowledged {
            return Err("an acknowledgement is never forgotten".to_owned());
        }
        let replays = state.log.iter().filter(|(_, entry)| matches!(entry, EntryKind::Replayed { .. }));
        let attempts: Vec<EntryKind> = replays.map(|(_, entry)| *entry).collect();
        let expected: Vec<EntryKind> =
            (1..=state.message.attempts).map(|attempts| EntryKind::Replayed { attempts }).collect();
        if attempts != expected {
            return Err("a message is sent again once for each attempt".to_owned());
        }
        if state.message.attempts - state.message.resent_at > self.limit {
            return Err("a message is not sent more often than its limit allows".to_owned());
        }
        let awaits =
            FIRST_MEMBERS.iter().any(|user| !state.has_left.contains(user) && !state.has_acknowledged.contains(user));
        match state.message.status {
            AckStatus::Open if !awaits => Err("an open message awaits somebody".to_owned()),
            AckStatus::Failed if !awaits => Err("a failed message lacks somebody's acknowledgement".to_owned()),
            AckStatus::Acknowledged if awaits => Err("all have acknowledged what is acknowledged".to_owned()),
            _ => Ok(()),
        }
    }

    fn end(&self, state: &State) -> Option<String> {
        let is_done = state.message.due.is_none()
            && state.read.iter().all(Option::is_none)
            && state.links.iter().all(|passed| *passed == state.log.len());
        is_done.then(|| format!("{:?}", state.message.status))
    }

    fn is_certain(&self, step: &Step) -> bool {
        matches!(step, Step::Read(_) | Step::Write(_) | Step::Deliver(_))
    }
}
