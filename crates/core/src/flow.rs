//! Flow limits: how many tasks of a service may start now, and whose. The one place that decides it.
//!
//! A store locks the service's flow, reads how many tasks run and wait, and asks [`Flow`]. The flow stays locked until
//! the commit, so the answer is exact: never one task too many, and never none while there is room. Running tasks are
//! counted from the tasks themselves, so a lost worker leaves no count to correct.
//!
//! For a broker service the same is asked before tasks are published: a task that is published and unfinished counts as
//! running.
//!
//! The rate limit is GCRA: one time says how far ahead of its rate a service is. Fair share is start-time fair
//! queueing: every start costs its client some virtual time, and the client with the earliest virtual time is next. A
//! client that was away begins at the virtual time of the service, so that absence earns no credit.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use crate::ClientKey;

/// The virtual time that a start costs a client with share 1. A larger share pays less.
const COST: i64 = 1_000_000;

/// The largest share of a client.
pub const MAX_SHARE: u32 = 1_000;

/// Starts that a rate limit delays are looked for together, if that delays none by more than this.
const TOGETHER: i128 = 5_000_000;

/// A century in nanoseconds: the most that a service can be ahead of its rate.
const FAR: i128 = 3_155_760_000_000_000_000;

/// A rate limit: how many tasks of a service may start in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// How many starts.
    pub count: u32,
    /// The period.
    pub per: Duration,
    /// How many starts at once after a pause: the burst.
    pub burst: u32,
}

impl RateLimit {
    /// The time from one start to the next, in nanoseconds: rounded up, so that the rate is never exceeded.
    fn interval(self) -> i128 {
        let per = i128::try_from(self.per.as_nanos()).unwrap_or(FAR);
        (per + i128::from(self.count.max(1)) - 1).div_euclid(i128::from(self.count.max(1))).clamp(1, FAR)
    }

    /// How far ahead of its rate a service may be.
    fn window(self) -> i128 {
        (self.interval() * i128::from(self.burst.max(1))).min(FAR)
    }

    /// How long until a full burst is possible again.
    pub fn refills_in(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.window()).unwrap_or(u64::MAX))
    }
}

/// The flow limits of a service, over all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowLimits {
    /// How many tasks run at once.
    pub max_running: Option<u32>,
    /// How many tasks of one client run at once, unless its authorization says otherwise.
    pub max_running_per_client: Option<u32>,
    /// How fast tasks start.
    pub rate: Option<RateLimit>,
    /// Whether clients take turns. Otherwise the oldest task is next, whichever client it belongs to.
    pub fair_share: bool,
    /// The dispatch window of a broker service: how many tasks are published and unfinished. The rest wait in the
    /// store.
    pub dispatch_window: Option<u32>,
}

/// The flow limits of one client on one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientFlow {
    /// How many of its tasks run at once; none means the service's limit per client.
    pub max_running: Option<u32>,
    /// Its share where clients take turns.
    pub share: u32,
}

impl Default for ClientFlow {
    fn default() -> Self {
        Self { max_running: None, share: 1 }
    }
}

/// The stored state of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowState {
    /// When the service is back at its rate, in nanoseconds since 1970.
    pub ahead_until: i64,
    /// The virtual time of the service: when the last start began.
    pub time: i64,
    /// How many turns clients have had.
    pub turns: i64,
}

/// The stored state of a client in a fair share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Its virtual time: when its last start was paid for.
    pub time: i64,
    /// The number of its last turn. Of clients with the same virtual time, the one with the older turn is next.
    pub turn: i64,
}

/// What a claim needs to know of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowClient {
    /// The client.
    pub client: ClientKey,
    /// Pending tasks.
    pub pending: u64,
    /// Running tasks.
    pub running: u64,
    /// How many of its tasks run at once, if its authorization says so.
    pub max_running: Option<u32>,
    /// Its share where clients take turns.
    pub share: u32,
    /// Its stored state.
    pub standing: Standing,
}

/// What a claim needs to know of a service, read while its flow is locked.
#[derive(Debug, Clone, Default)]
pub struct FlowFacts {
    /// The limits.
    pub limits: FlowLimits,
    /// The stored state of the flow.
    pub state: FlowState,
    /// The database's time, in nanoseconds since 1970.
    pub now: i64,
    /// Pending tasks.
    pub pending: u64,
    /// Running tasks.
    pub running: u64,
    /// The clients with pending tasks, if the limits are per client.
    pub clients: Option<Vec<FlowClient>>,
}

/// What a claim may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pick {
    /// The first so many, of any client.
    Any(usize),
    /// So many of each of these clients, in the order of their last turns.
    Each(Vec<(ClientKey, usize)>),
    /// The first so many of all, but at most so many of each of these clients: see [`Flow::first_of`].
    First(Vec<(ClientKey, usize)>, usize),
}

/// The flow of one service, while one claim has it locked.
#[derive(Debug, Clone)]
pub struct Flow {
    facts: FlowFacts,
    clients: BTreeMap<ClientKey, FlowClient>,
    /// Clients that have had a turn.
    changed: BTreeMap<ClientKey, Standing>,
}

impl Flow {
    /// With what was read.
    pub fn new(mut facts: FlowFacts) -> Self {
        let clients = facts.clients.iter_mut().flat_map(std::mem::take).map(|client| (client.client, client)).collect();
        if let Some(rate) = facts.limits.rate {
            // Never further ahead than a burst: the limit may be another now, and a clock may have been set back.
            let most = (i128::from(facts.now) + rate.window()).min(i128::from(i64::MAX));
            facts.state.ahead_until = facts.state.ahead_until.min(i64::try_from(most).unwrap_or(i64::MAX));
        }
        Self { facts, clients, changed: BTreeMap::new() }
    }

    /// What may be taken for those who want so many. Nothing changes by it: what was taken is told to [`Flow::took`].
    pub fn pick(&self, wanted: usize) -> Pick {
        let most = wanted.min(self.room()).min(self.starts());
        if self.facts.clients.is_none() {
            return Pick::Any(most.min(size(self.facts.pending)));
        }
        if self.facts.limits.fair_share {
            let mut turns: BTreeMap<ClientKey, (usize, usize)> = BTreeMap::new();
            for (turn, client) in self.turns(most).into_iter().enumerate() {
                let (last, had) = turns.entry(client).or_default();
                (*last, *had) = (turn, *had + 1);
            }
            let mut turns: Vec<_> = turns.into_iter().map(|(client, (last, had))| (last, client, had)).collect();
            turns.sort_unstable();
            return Pick::Each(turns.into_iter().map(|(_, client, had)| (client, had)).collect());
        }
        let shares = self.clients.values().map(|client| (client.client, self.room_of(client).min(most)));
        Pick::First(shares.filter(|&(_, most)| most > 0).collect(), most)
    }

    /// How many of each client the first so many are, given the places in the queue of the first of each: rank and
    /// `id`.
    pub fn first_of(mut places: Vec<(ClientKey, (i64, i64))>, most: usize) -> Vec<(ClientKey, usize)> {
        places.sort_unstable_by_key(|&(client, place)| (place, client));
        let mut shares: BTreeMap<ClientKey, usize> = BTreeMap::new();
        for (client, _) in places.into_iter().take(most) {
            *shares.entry(client).or_default() += 1;
        }
        shares.into_iter().collect()
    }

    /// So many of each client were asked for, and so many were there. Whoever had fewer has no more that could be taken
    /// now.
    pub fn took(&mut self, asked: &[(ClientKey, usize)], got: &BTreeMap<ClientKey, usize>) {
        let (begun, fair) = (self.facts.state.time, self.facts.limits.fair_share);
        for &(client, asked) in asked {
            let got = got.get(&client).copied().unwrap_or(0);
            self.took_any(got);
            let Some(client) = self.clients.get_mut(&client) else { continue };
            client.running += got as u64;
            client.pending = if got < asked { 0 } else { client.pending.saturating_sub(got as u64) };
            if fair && got > 0 {
                let (start, cost) = (client.standing.time.max(begun), cost(client.share));
                let (time, state) = (start.saturating_add(cost.saturating_mul(signed(got))), &mut self.facts.state);
                state.time = state.time.max(time.saturating_sub(cost));
                state.turns = state.turns.saturating_add(1);
                client.standing = Standing { time, turn: state.turns };
                self.changed.insert(client.client, client.standing);
            }
        }
    }

    /// Records that so many tasks were taken, of any client.
    pub fn took_any(&mut self, got: usize) {
        let facts = &mut self.facts;
        facts.running += got as u64;
        facts.pending = facts.pending.saturating_sub(got as u64);
        if let Some(rate) = facts.limits.rate
            && got > 0
        {
            let from = i128::from(facts.state.ahead_until.max(facts.now));
            let until = from + rate.interval() * i128::from(signed(got));
            facts.state.ahead_until = i64::try_from(until).unwrap_or(i64::MAX);
        }
    }

    /// Of what seemed to wait, whosever it is, there was no more.
    pub fn found_no_more(&mut self) {
        self.facts.pending = 0;
    }

    /// Whether nothing waits any more, be it held back or not.
    pub fn nothing_waits(&self) -> bool {
        match self.facts.clients {
            None => self.facts.pending == 0,
            Some(_) => self.clients.values().all(|client| client.pending == 0),
        }
    }

    /// When to look again for those who still want so many; none where whoever makes room will say so.
    pub fn again(&self, wanted: usize) -> Option<Duration> {
        let rate = self.facts.limits.rate?;
        let waits = match self.facts.clients {
            None => self.facts.pending > 0,
            Some(_) => self.clients.values().any(|client| self.room_of(client) > 0),
        };
        if wanted == 0 || !waits || self.room() == 0 || self.starts() > 0 {
            return None;
        }
        let together = (TOGETHER / rate.interval()).clamp(1, i128::from(rate.burst.max(1)).min(wanted as i128));
        let at = i128::from(self.facts.state.ahead_until) + rate.interval() * together - rate.window();
        Some(Duration::from_nanos(u64::try_from((at - i128::from(self.facts.now)).max(1)).unwrap_or(u64::MAX)))
    }

    /// What is to be remembered.
    pub fn state(&self) -> FlowState {
        self.facts.state
    }

    /// The clients that have had a turn, and where they stand now.
    pub fn changed(&self) -> Vec<(ClientKey, Standing)> {
        self.changed.iter().map(|(&client, &standing)| (client, standing)).collect()
    }

    /// How many more may run.
    fn room(&self) -> usize {
        left(self.facts.limits.max_running, self.facts.running)
    }

    /// How many of a client's tasks that wait may run.
    fn room_of(&self, client: &FlowClient) -> usize {
        let most = client.max_running.or(self.facts.limits.max_running_per_client);
        left(most, client.running).min(size(client.pending))
    }

    /// How many may start at this moment.
    fn starts(&self) -> usize {
        let Some(rate) = self.facts.limits.rate else { return usize::MAX };
        let ahead = (i128::from(self.facts.state.ahead_until) - i128::from(self.facts.now)).max(0);
        usize::try_from((rate.window() - ahead).div_euclid(rate.interval())).unwrap_or(0)
    }

    /// Whose turn it is, one after the other for those who want so many: always the client whose next start is the
    /// earliest in virtual time. As many turns of each client as [`Flow::pick`] gives it.
    pub fn turns(&self, wanted: usize) -> Vec<ClientKey> {
        let most = wanted.min(self.room()).min(self.starts());
        let (now, mut turn) = (self.facts.state.time, self.facts.state.turns);
        let mut next: BinaryHeap<Reverse<(i64, i64, ClientKey)>> = self
            .clients
            .values()
            .filter(|client| self.room_of(client) > 0)
            .map(|client| Reverse((client.standing.time.max(now), client.standing.turn, client.client)))
            .collect();
        let mut had: BTreeMap<ClientKey, usize> = BTreeMap::new();
        let mut turns = Vec::new();
        while turns.len() < most
            && let Some(Reverse((start, _, key))) = next.pop()
        {
            let Some(client) = self.clients.get(&key) else { continue };
            let had = had.entry(key).or_default();
            *had += 1;
            turn = turn.saturating_add(1);
            turns.push(key);
            if *had < self.room_of(client) {
                next.push(Reverse((start.saturating_add(cost(client.share)), turn, key)));
            }
        }
        turns
    }
}

fn cost(share: u32) -> i64 {
    COST / i64::from(share.clamp(1, MAX_SHARE))
}

/// How many more may run, of so many.
fn left(most: Option<u32>, running: u64) -> usize {
    most.map_or(usize::MAX, |most| size(u64::from(most).saturating_sub(running)))
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn signed(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
