//! A flow under random clients, limits, starts and ends: never too much, never too little, fair, and at its rate.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use proptest::prelude::*;
use relais_core::{ClientKey, Flow, FlowClient, FlowFacts, FlowLimits, FlowState, Pick, RateLimit, Standing};

const NONE: FlowLimits = FlowLimits {
    max_running: None,
    max_running_per_client: None,
    rate: None,
    fair_share: false,
    dispatch_window: None,
};
const SECOND: i64 = 1_000_000_000;

/// A service in memory, as a store keeps it.
#[derive(Debug, Clone, Default)]
struct World {
    limits: FlowLimits,
    state: FlowState,
    now: i64,
    arrived: i64,
    clients: BTreeMap<ClientKey, Kept>,
}

#[derive(Debug, Clone, Default)]
struct Kept {
    pending: VecDeque<i64>,
    running: u64,
    max_running: Option<u32>,
    share: u32,
    standing: Standing,
    /// Tasks that somebody else has locked: they are counted, and can not be taken.
    locked: usize,
    started: u64,
}

impl World {
    fn new(limits: FlowLimits, clients: usize) -> Self {
        let client = || Kept { share: 1, ..Kept::default() };
        let clients = (0..clients).map(|key| (ClientKey(key as i32 + 1), client())).collect();
        Self { limits, clients, now: 1_800_000_000 * SECOND, ..Self::default() }
    }

    fn client(&mut self, key: i32) -> &mut Kept {
        self.clients.get_mut(&ClientKey(key)).expect("a client")
    }

    fn submit(&mut self, key: i32, tasks: usize) {
        for _ in 0..tasks {
            self.arrived += 1;
            let place = self.arrived;
            self.client(key).pending.push_back(place);
        }
    }

    fn running(&self) -> u64 {
        self.clients.values().map(|client| client.running).sum()
    }

    fn pending(&self) -> u64 {
        self.clients.values().map(|client| client.pending.len() as u64).sum()
    }

    /// How many could be taken now if somebody wanted all of them, by counting.
    fn possible(&self) -> u64 {
        let limit = |most: Option<u32>, running: u64| most.map_or(u64::MAX, |m| u64::from(m).saturating_sub(running));
        let of_clients = self.clients.values().map(|client| {
            let most = client.max_running.or(self.limits.max_running_per_client);
            limit(most, client.running).min(client.pending.len().saturating_sub(client.locked) as u64)
        });
        of_clients.sum::<u64>().min(limit(self.limits.max_running, self.running()))
    }

    fn by_client(&self) -> bool {
        self.limits.fair_share
            || self.limits.max_running_per_client.is_some()
            || self.clients.values().any(|client| client.max_running.is_some())
    }

    /// A claim, as a store makes it; whose tasks were started, in the order of their places.
    fn claim(&mut self, wanted: usize) -> (Vec<(ClientKey, i64)>, Option<Duration>) {
        let clients =
            self.clients.iter().filter(|(_, kept)| !kept.pending.is_empty()).map(|(&client, kept)| FlowClient {
                client,
                pending: kept.pending.len() as u64,
                running: kept.running,
                max_running: kept.max_running,
                share: kept.share,
                standing: kept.standing,
            });
        let clients = self.by_client().then(|| clients.collect());
        let mut flow = Flow::new(FlowFacts {
            limits: self.limits,
            state: self.state,
            now: self.now,
            pending: self.pending(),
            running: self.running(),
            clients,
        });
        let mut taken = Vec::new();
        loop {
            let asked = match flow.pick(wanted - taken.len()) {
                Pick::Any(most) => {
                    let mut all: Vec<(i64, ClientKey)> = Vec::new();
                    for (&client, kept) in &self.clients {
                        all.extend(kept.pending.iter().skip(kept.locked).map(|&place| (place, client)));
                    }
                    all.sort_unstable();
                    all.truncate(most);
                    flow.took_any(all.len());
                    for (place, client) in all {
                        let kept = self.clients.get_mut(&client).expect("a client");
                        kept.pending.retain(|&other| other != place);
                        taken.push((client, place));
                    }
                    break;
                }
                Pick::Each(asked) => {
                    let mut turns: BTreeMap<ClientKey, usize> = BTreeMap::new();
                    for client in flow.turns(wanted - taken.len()) {
                        *turns.entry(client).or_default() += 1;
                    }
                    assert_eq!(turns, asked.iter().copied().collect(), "one after the other, the same");
                    asked
                }
                Pick::First(most, all) => {
                    let places = most.iter().flat_map(|&(client, most)| {
                        let kept = &self.clients[&client];
                        kept.pending.iter().take(most).map(move |&place| (client, (0, place))).collect::<Vec<_>>()
                    });
                    Flow::first_of(places.collect(), all)
                }
            };
            if asked.is_empty() {
                break;
            }
            let mut got = BTreeMap::new();
            for &(client, asked) in &asked {
                let kept = self.clients.get_mut(&client).expect("a client");
                let locked = kept.locked.min(kept.pending.len());
                let there = (kept.pending.len() - locked).min(asked);
                let places: Vec<i64> = kept.pending.drain(locked..locked + there).collect();
                taken.extend(places.into_iter().map(|place| (client, place)));
                got.insert(client, there);
            }
            flow.took(&asked, &got);
        }
        assert!(taken.len() <= wanted);
        for (client, _) in &taken {
            let kept = self.clients.get_mut(client).expect("a client");
            kept.running += 1;
            kept.started += 1;
        }
        self.state = flow.state();
        for (client, standing) in flow.changed() {
            self.clients.get_mut(&client).expect("a client").standing = standing;
        }
        (taken.clone(), flow.again(wanted - taken.len()))
    }

    fn end(&mut self, key: i32, tasks: u64) {
        let client = self.client(key);
        client.running = client.running.saturating_sub(tasks);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Submit(i32, usize),
    Claim(usize),
    End(i32, u64),
    Lock(i32, usize),
}

fn steps(clients: i32) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..=clients, 0usize..30).prop_map(|(client, tasks)| Step::Submit(client, tasks)),
        4 => (0usize..20).prop_map(Step::Claim),
        3 => (1..=clients, 0u64..6).prop_map(|(client, tasks)| Step::End(client, tasks)),
        1 => (1..=clients, 0usize..3).prop_map(|(client, tasks)| Step::Lock(client, tasks)),
    ];
    prop::collection::vec(step, 1..60)
}

fn most() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), (0u32..12).prop_map(Some)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the limits, a claim takes exactly as many as there are and may run, and never a locked one.
    #[test]
    fn a_claim_takes_all_that_may_run_and_no_more(
        (max_running, per_client, own) in (most(), most(), most()),
        fair_share in any::<bool>(),
        share in 1u32..5,
        steps in steps(4),
    ) {
        let limits = FlowLimits { max_running, max_running_per_client: per_client, fair_share, ..NONE };
        let mut world = World::new(limits, 4);
        world.client(1).max_running = own;
        world.client(2).share = share;
        for step in steps {
            match step {
                Step::Submit(client, tasks) => world.submit(client, tasks),
                Step::End(client, tasks) => world.end(client, tasks),
                Step::Lock(client, tasks) => world.client(client).locked = tasks,
                Step::Claim(wanted) => {
                    let possible = world.possible().min(wanted as u64);
                    let before = world.clone();
                    let (taken, again) = world.claim(wanted);
                    prop_assert_eq!(taken.len() as u64, possible, "{:?}", before);
                    prop_assert_eq!(again, None, "nothing but a rate is waited for by the clock");
                }
            }
        }
    }

    /// Without turns, what is taken are the oldest of those that may be taken.
    #[test]
    fn without_fair_share_the_oldest_tasks_start_first(
        per_client in most(),
        tasks in prop::collection::vec((1i32..5, 1usize..4), 1..30),
        wanted in 0usize..30,
    ) {
        let mut world = World::new(FlowLimits { max_running_per_client: per_client, ..NONE }, 4);
        for (client, tasks) in tasks {
            world.submit(client, tasks);
        }
        // Oldest first, passing over clients that have as many as they may.
        let mut all: Vec<(i64, ClientKey)> = Vec::new();
        for (&client, kept) in &world.clients {
            all.extend(kept.pending.iter().map(|&place| (place, client)));
        }
        all.sort_unstable();
        let mut running: BTreeMap<ClientKey, u32> = BTreeMap::new();
        let mut expected = Vec::new();
        for (place, client) in all {
            let running = running.entry(client).or_default();
            if expected.len() < wanted && per_client.is_none_or(|most| *running < most) {
                *running += 1;
                expected.push(place);
            }
        }
        let mut taken: Vec<i64> = world.claim(wanted).0.into_iter().map(|(_, place)| place).collect();
        taken.sort_unstable();
        prop_assert_eq!(taken, expected);
    }

    /// Between clients that always have something to do, starts differ by at most one, over any window of any claims.
    #[test]
    fn fair_share_keeps_equal_clients_within_one_task(
        clients in 2usize..7,
        claims in prop::collection::vec(0usize..9, 1..80),
        before in prop::collection::vec((1i32..7, 1usize..6), 0..10),
    ) {
        let mut world = World::new(FlowLimits { fair_share: true, ..NONE }, clients);
        // Some of them have had something before, alone.
        for (client, tasks) in before {
            if (client as usize) <= clients {
                world.submit(client, tasks);
                world.claim(tasks);
            }
        }
        for client in 1..=clients as i32 {
            world.submit(client, 1_000);
        }
        let mut history = vec![started(&world)];
        for wanted in claims {
            world.claim(wanted);
            history.push(started(&world));
        }
        for from in 0..history.len() {
            for to in from..history.len() {
                let grown: Vec<u64> = history[to].iter().zip(&history[from]).map(|(to, from)| to - from).collect();
                let (least, most) = (grown.iter().min().unwrap_or(&0), grown.iter().max().unwrap_or(&0));
                prop_assert!(most - least <= 1, "{grown:?} between {from} and {to}");
            }
        }
    }

    /// Weights share the starts among them, to within a task for each client.
    #[test]
    fn fair_share_starts_follow_the_shares(shares in prop::collection::vec(1u32..8, 2..5), claims in prop::collection::vec(1usize..9, 1..80)) {
        let mut world = World::new(FlowLimits { fair_share: true, ..NONE }, shares.len());
        for (client, &share) in (1..).zip(&shares) {
            world.client(client).share = share;
            world.submit(client, 1_000);
        }
        let mut total = 0;
        for wanted in claims {
            world.claim(wanted);
            total += wanted as u64;
            let weight: u32 = shares.iter().sum();
            for (kept, &share) in world.clients.values().zip(&shares) {
                let due = total as f64 * f64::from(share) / f64::from(weight);
                prop_assert!((kept.started as f64 - due).abs() <= shares.len() as f64, "{} of {due}", kept.started);
            }
        }
    }

    /// Against the definition: in any window no more than a burst and what the rate gives, and whatever that allows at
    /// once.
    #[test]
    fn starts_follow_the_rate_limit(
        (count, per, burst) in (1u32..50, 1u64..5_000, 1u32..20),
        steps in prop::collection::vec((0i64..400_000_000, 0usize..15), 1..80),
    ) {
        let rate = RateLimit { count, per: Duration::from_millis(per), burst };
        let mut world = World::new(FlowLimits { rate: Some(rate), ..NONE }, 1);
        world.submit(1, 2_000);
        let interval = (i128::from(per) * 1_000_000 + i128::from(count) - 1) / i128::from(count);
        let mut starts: Vec<i64> = Vec::new();
        for (later, wanted) in steps {
            world.now += later;
            // A bucket of `burst` starts that fills by one in each interval, gone through start by start.
            let allowed = |starts: &[i64]| -> usize {
                let mut empty_at = 0;
                for &at in starts {
                    empty_at = empty_at.max(i128::from(at)) + interval;
                }
                let ahead = (empty_at - i128::from(world.now)).max(0);
                usize::try_from((interval * i128::from(burst) - ahead) / interval).unwrap_or(0)
            };
            let expected = allowed(&starts).min(wanted);
            let (taken, again) = world.claim(wanted);
            prop_assert_eq!(taken.len(), expected);
            starts.extend(taken.iter().map(|_| world.now));
            match again {
                None => prop_assert_eq!(taken.len(), wanted),
                Some(after) => {
                    prop_assert!(taken.len() < wanted);
                    let mut early = world.clone();
                    early.now += i64::try_from(after.as_nanos()).unwrap_or(0);
                    prop_assert!(!early.claim(wanted).0.is_empty(), "whoever looks again then finds something");
                }
            }
        }
        for (i, &from) in starts.iter().enumerate() {
            for (j, &to) in starts.iter().enumerate().skip(i) {
                let most = i128::from(burst) + i128::from(to - from) / interval;
                prop_assert!(((j - i + 1) as i128) <= most, "{} starts in {} ns", j - i + 1, to - from);
            }
        }
    }
}

fn started(world: &World) -> Vec<u64> {
    world.clients.values().map(|client| client.started).collect()
}

#[test]
fn a_client_with_a_million_tasks_does_not_delay_another() {
    let mut world = World::new(FlowLimits { fair_share: true, max_running: Some(4), ..NONE }, 2);
    world.submit(1, 1_000);
    for _ in 0..50 {
        assert_eq!(world.claim(4).0.len(), 4);
        world.end(1, 4);
    }
    world.submit(2, 1);
    world.claim(1);
    assert_eq!(world.client(2).started, 1, "one that was away is next");
}

#[test]
fn fair_share_turns_are_listed_in_order() {
    let client = |key, share| FlowClient {
        client: ClientKey(key),
        pending: 9,
        running: 0,
        max_running: None,
        share,
        standing: Standing::default(),
    };
    let limits = FlowLimits { fair_share: true, max_running: Some(8), ..NONE };
    let facts = FlowFacts { limits, clients: Some(vec![client(1, 1), client(2, 2)]), ..FlowFacts::default() };
    let turns: Vec<i32> = Flow::new(facts).turns(20).into_iter().map(|client| client.0).collect();
    assert_eq!(turns, [1, 2, 2, 1, 2, 2, 1, 2], "as many as may run, and nobody twice before the other's turn");
}

#[test]
fn fair_share_gives_no_credit_for_absence() {
    let mut world = World::new(FlowLimits { fair_share: true, ..NONE }, 2);
    world.submit(1, 1_000);
    world.claim(500);
    world.submit(2, 1_000);
    let before = started(&world);
    world.claim(100);
    assert_eq!(world.client(1).started - before[0], 50);
    assert_eq!(world.client(2).started, 50);
    // Nor does it cost: one who had its share while alone is not made to wait.
    let mut world = World::new(FlowLimits { fair_share: true, ..NONE }, 2);
    world.submit(1, 1_000);
    world.submit(2, 100);
    world.claim(300);
    world.submit(2, 1_000);
    let before = started(&world);
    world.claim(100);
    assert!(world.client(1).started - before[0] >= 49);
}

#[test]
fn a_lowered_limit_starts_nothing_until_there_is_room() {
    let mut world = World::new(FlowLimits { max_running: Some(10), ..NONE }, 1);
    world.submit(1, 100);
    assert_eq!(world.claim(50).0.len(), 10);
    world.limits.max_running = Some(4);
    assert!(world.claim(50).0.is_empty());
    world.end(1, 7);
    assert_eq!(world.claim(50).0.len(), 1);
    world.limits.max_running = None;
    assert_eq!(world.claim(50).0.len(), 50);
}

#[test]
fn a_raised_rate_takes_effect_at_once_and_a_clock_step_blocks_briefly() {
    let slow = RateLimit { count: 1, per: Duration::from_secs(86_400), burst: 1 };
    let mut world = World::new(FlowLimits { rate: Some(slow), ..NONE }, 1);
    world.submit(1, 100);
    assert_eq!(world.claim(5).0.len(), 1);
    let (taken, again) = world.claim(5);
    assert!(taken.is_empty());
    assert_eq!(again, Some(Duration::from_secs(86_400)));
    world.limits.rate = Some(RateLimit { count: 10, per: Duration::from_secs(1), burst: 10 });
    assert!(world.claim(5).1.is_some_and(|again| again <= Duration::from_millis(100)));
    world.now -= 3_600 * SECOND;
    assert!(world.claim(5).1.is_some_and(|again| again <= Duration::from_millis(100)));
}

#[test]
fn extreme_limits_do_not_overflow() {
    let rate = RateLimit { count: 1, per: Duration::MAX, burst: u32::MAX };
    let mut world = World::new(FlowLimits { rate: Some(rate), fair_share: true, ..NONE }, 1);
    world.submit(1, 3);
    world.client(1).standing = Standing { time: i64::MAX, turn: i64::MAX };
    world.state.turns = i64::MAX;
    world.client(1).share = u32::MAX;
    assert_eq!(world.claim(usize::MAX).0.len(), 1);
    assert!(world.claim(usize::MAX).1.is_some());
    assert!(rate.refills_in() > Duration::from_secs(1_000_000_000));
}
