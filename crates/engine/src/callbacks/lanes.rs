//! The lanes that this process works on: what waits in each, what is in flight, and the state of its endpoint.
//!
//! Nothing here does I/O or reads a clock.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use relais_core::{ClientKey, DueCallback, LaneChange, ReplyOutcome};

use super::CallbackOptions;

/// How many callbacks are taken from a lane the first time; twice as many each time it had that many, up to [`MOST`].
const FIRST: usize = 8;
const MOST: usize = 64;

/// About how many bytes the callbacks of one lane may take in memory.
const LANE_BYTES: usize = 4 * 1024 * 1024;

/// A callback that was taken, and when.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) due: DueCallback,
    pub(super) at: Instant,
}

#[derive(Debug)]
struct Lane {
    waiting: VecDeque<Taken>,
    running: usize,
    /// Failures in a row.
    failures: u32,
    /// Whether the store has parked it, and must know when its endpoint answers.
    troubled: bool,
    /// Whether it sends one at a time until its endpoint answers once.
    probing: bool,
    /// Whether it is parked: the store says until when.
    parked: bool,
    /// Whether there may be more to take.
    more: bool,
    /// How many to take next time.
    each: usize,
    /// Whether it is among the ready lanes of its client.
    ready: bool,
    /// Its client, once known.
    client: ClientKey,
    /// When something was last taken from it, in rounds: the oldest comes first.
    round: u64,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            running: 0,
            failures: 0,
            troubled: false,
            probing: false,
            parked: false,
            more: false,
            each: FIRST,
            ready: false,
            client: ClientKey(0),
            round: 0,
        }
    }
}

/// The lanes of one client.
#[derive(Debug, Default)]
struct Share {
    /// Its ready lanes, each once, in turn.
    ready: VecDeque<i64>,
    running: usize,
    /// Whether it is among the ready clients.
    queued: bool,
}

/// The lanes that this process works on.
#[derive(Debug, Default)]
pub(super) struct LaneScheduler {
    lanes: HashMap<i64, Lane>,
    clients: HashMap<ClientKey, Share>,
    /// The clients with ready lanes, each once, in turn.
    turns: VecDeque<ClientKey>,
    /// Lanes that may continue when another request has ended.
    held_up: Vec<i64>,
    running: usize,
    waiting: usize,
    round: u64,
}

impl LaneScheduler {
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// A callback may be due in this lane.
    pub(super) fn hint(&mut self, lane: i64) {
        self.lanes.entry(lane).or_default().more = true;
    }

    /// A lane has a due callback and is not parked. With `after_rest`, it is tried for the first time after it was
    /// parked.
    pub(super) fn open(&mut self, lane: i64, after_rest: bool) {
        let lane = self.lanes.entry(lane).or_default();
        lane.more = true;
        lane.parked = false;
        if after_rest {
            lane.troubled = true;
            lane.probing = true;
        }
    }

    /// A lane is parked.
    pub(super) fn rest(&mut self, lane: i64) {
        let lane = self.lanes.entry(lane).or_default();
        (lane.parked, lane.troubled) = (true, true);
    }

    /// The lanes to take from, with how many to take: nearly empty lanes, the longest waiting first, as far as there is
    /// room.
    pub(super) fn hungry(&self, options: &CallbackOptions) -> Vec<(i64, usize)> {
        let mut room = (options.at_once * 8).saturating_sub(self.waiting + self.running);
        let mut hungry: Vec<(&i64, &Lane)> = self
            .lanes
            .iter()
            .filter(|(_, lane)| {
                let idle = lane.waiting.is_empty() && lane.running == 0;
                lane.more && !lane.parked && (idle || !lane.probing && lane.waiting.len() < options.per_lane)
            })
            .collect();
        hungry.sort_unstable_by_key(|(_, lane)| lane.round);
        let mut portions = Vec::new();
        for (&name, lane) in hungry {
            let each = if lane.probing { 1 } else { lane.each.min(room) };
            if each == 0 {
                break;
            }
            room = room.saturating_sub(each);
            portions.push((name, each));
        }
        portions
    }

    /// Callbacks were taken from these lanes, at most `each` of each.
    pub(super) fn took(&mut self, asked: &[i64], each: usize, due: Vec<DueCallback>, now: Instant) {
        self.round += 1;
        let mut found: HashMap<i64, (usize, usize)> = asked.iter().map(|&lane| (lane, (0, 0))).collect();
        for due in due {
            let name = due.record.callback.lane;
            let (count, bytes) = found.entry(name).or_default();
            *count += 1;
            *bytes += due.about.bytes();
            let lane = self.lanes.entry(name).or_default();
            lane.client = due.record.client;
            lane.waiting.push_back(Taken { due, at: now });
            self.waiting += 1;
            self.make_ready(name);
        }
        for (name, (count, bytes)) in found {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            lane.round = self.round;
            lane.more = count >= each;
            if lane.more {
                let fits = LANE_BYTES / (bytes / count.max(1)).max(1);
                lane.each = (lane.each * 2).min(fits).clamp(1, MOST);
            }
            self.forget_if_idle(name);
        }
    }

    /// The next callback to be sent: clients take turns, and so do the lanes of each client.
    pub(super) fn next(&mut self, options: &CallbackOptions) -> Option<Taken> {
        if self.running >= options.at_once {
            return None;
        }
        // No client gets all places, so that another one finds a place.
        let most_of_one = (options.at_once / 2).max(1);
        while let Some(client) = self.turns.pop_front() {
            let Some(share) = self.clients.get_mut(&client) else { continue };
            share.queued = false;
            if share.running >= most_of_one {
                // Its turn comes again when one of its requests ends.
                continue;
            }
            while let Some(name) = share.ready.pop_front() {
                let Some(lane) = self.lanes.get_mut(&name) else { continue };
                lane.ready = false;
                let most = if lane.probing { 1 } else { options.per_lane };
                if lane.running < most
                    && let Some(taken) = lane.waiting.pop_front()
                {
                    lane.running += 1;
                    share.running += 1;
                    self.running += 1;
                    self.waiting -= 1;
                    self.make_ready(name);
                    self.queue(client);
                    return Some(taken);
                }
                // A full lane comes back when one of its requests ends.
            }
        }
        None
    }

    /// A callback cannot be sent now, because its endpoint is at its limit. It is the next one when another request has
    /// ended.
    pub(super) fn put_back(&mut self, taken: Taken) {
        let name = taken.due.record.callback.lane;
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        lane.running = lane.running.saturating_sub(1);
        lane.waiting.push_front(taken);
        let client = lane.client;
        self.running = self.running.saturating_sub(1);
        self.waiting += 1;
        if let Some(share) = self.clients.get_mut(&client) {
            share.running = share.running.saturating_sub(1);
            share.ready.retain(|&other| other != name);
        }
        if let Some(lane) = self.lanes.get_mut(&name) {
            lane.ready = false;
        }
        self.held_up.push(name);
    }

    /// Makes a lane with waiting callbacks ready.
    fn make_ready(&mut self, name: i64) {
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        if lane.waiting.is_empty() || std::mem::replace(&mut lane.ready, true) {
            return;
        }
        let client = lane.client;
        self.clients.entry(client).or_default().ready.push_back(name);
        self.queue(client);
    }

    fn queue(&mut self, client: ClientKey) {
        if let Some(share) = self.clients.get_mut(&client)
            && !share.ready.is_empty()
            && !std::mem::replace(&mut share.queued, true)
        {
            self.turns.push_back(client);
        }
    }

    /// A request has ended. Returns what the store must know of the endpoint, and the callbacks that are not sent after
    /// all.
    pub(super) fn ended(
        &mut self,
        name: i64,
        outcome: Option<ReplyOutcome>,
        options: &CallbackOptions,
    ) -> (Option<LaneChange>, Vec<Taken>) {
        let Some(lane) = self.lanes.get_mut(&name) else { return (None, Vec::new()) };
        let client = lane.client;
        lane.running = lane.running.saturating_sub(1);
        self.running = self.running.saturating_sub(1);
        let mut change = None;
        match outcome {
            None | Some(ReplyOutcome::Forbidden) => {}
            Some(ReplyOutcome::Unwell { retry_after }) => {
                lane.failures += 1;
                if lane.probing || lane.failures >= options.park_after {
                    change = Some(LaneChange::Park { first: options.park_first, most: options.park_most });
                } else if let Some(time) = retry_after {
                    change = Some(LaneChange::Wait(time.min(options.park_most)));
                }
            }
            Some(ReplyOutcome::Refused { retry_after: Some(time) }) => {
                lane.failures = 0;
                change = Some(LaneChange::Wait(time.min(options.park_most)));
            }
            Some(ReplyOutcome::Delivered | ReplyOutcome::Gone | ReplyOutcome::Refused { retry_after: None }) => {
                lane.failures = 0;
                lane.probing = false;
                if std::mem::take(&mut lane.troubled) {
                    change = Some(LaneChange::Open);
                }
            }
        }
        let mut returned = Vec::new();
        if matches!(change, Some(LaneChange::Park { .. } | LaneChange::Wait(_))) {
            (lane.parked, lane.troubled, lane.probing, lane.failures) = (true, true, false, 0);
            returned = lane.waiting.drain(..).collect();
            self.waiting -= returned.len();
        }
        if let Some(share) = self.clients.get_mut(&client) {
            share.running = share.running.saturating_sub(1);
        }
        self.make_ready(name);
        self.queue(client);
        for other in std::mem::take(&mut self.held_up) {
            self.make_ready(other);
        }
        self.forget_if_idle(name);
        (change, returned)
    }

    /// All callbacks that were taken and not sent.
    pub(super) fn drain(&mut self) -> Vec<Taken> {
        self.waiting = 0;
        self.lanes.values_mut().flat_map(|lane| lane.waiting.drain(..)).collect()
    }

    /// Forgets an idle lane without failures.
    fn forget_if_idle(&mut self, name: i64) {
        if let Some(lane) = self.lanes.get(&name)
            && lane.waiting.is_empty()
            && lane.running == 0
            && !lane.more
            && !lane.parked
            && !lane.troubled
            && lane.failures == 0
            && lane.each == FIRST
        {
            self.lanes.remove(&name);
        }
    }

    /// Forgets lanes that were not in a complete list of the store.
    pub(super) fn retain(&mut self, known: impl Fn(i64) -> bool) {
        self.lanes.retain(|&name, lane| {
            known(name) || lane.more && !lane.parked || lane.running > 0 || !lane.waiting.is_empty()
        });
        self.clients.retain(|_, share| share.queued || share.running > 0 || !share.ready.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use relais_core::{
        About, Callback, CallbackEvent, CallbackId, CallbackRecord, CallbackStatus, CallbackType, ClientId, ClientKey,
        Json, ServiceKey, ServiceName, State, Task, TaskId, Timestamp,
    };

    use super::*;

    fn due(lane: i64, row: i64) -> DueCallback {
        due_of(1, lane, row)
    }

    fn due_of(client: i32, lane: i64, row: i64) -> DueCallback {
        let callback = Callback {
            kind: CallbackType::Https,
            target: "https://example.org".to_owned(),
            events: CallbackEvent::ENDS.to_vec(),
            gzip: false,
            lane,
        };
        let (task_id, now) = (TaskId::generate(), Timestamp::from_millis(0));
        DueCallback {
            record: CallbackRecord {
                row,
                id: CallbackId { task_id, revision: 1 },
                service: ServiceKey(1),
                client: ClientKey(client),
                event: CallbackEvent::Success,
                status: CallbackStatus::Pending,
                attempts: 1,
                created: now,
                due: None,
                ended: None,
                callback: callback.clone(),
            },
            tries: 0,
            now,
            about: About::Task(Box::new(Task {
                id: row,
                task_id,
                client_id: ClientId::new("alice").unwrap(),
                service: ServiceName::new("resize").unwrap(),
                state: State::pending(),
                request: Json::parse("null".to_owned()).unwrap(),
                response: None,
                error_message: None,
                error_kind: None,
                error_trace: None,
                priority: relais_core::Priority::default(),
                callback: Some(callback),
                notification: None,
                correlation_id: None,
                submitted: now,
                scheduled: None,
                position: None,
                links: relais_core::Links::default(),
            })),
        }
    }

    fn fill(lanes: &mut LaneScheduler, lane: i64, rows: i64) {
        lanes.hint(lane);
        lanes.took(&[lane], 8, (0..rows).map(|row| due(lane, row)).collect(), Instant::now());
    }

    const WELL: Option<ReplyOutcome> = Some(ReplyOutcome::Delivered);
    const UNWELL: Option<ReplyOutcome> = Some(ReplyOutcome::Unwell { retry_after: None });

    #[test]
    fn callback_lanes_take_turns_whatever_their_backlog() {
        let (mut lanes, options) = (LaneScheduler::default(), CallbackOptions::default());
        fill(&mut lanes, 1, 8);
        fill(&mut lanes, 2, 1);
        fill(&mut lanes, 3, 2);
        let order: Vec<i64> =
            std::iter::from_fn(|| lanes.next(&options)).map(|taken| taken.due.record.callback.lane).collect();
        assert_eq!(order, [1, 2, 3, 1, 3, 1, 1, 1, 1, 1, 1]);
        assert_eq!(lanes.running(), 11);
    }

    #[test]
    fn clients_take_turns_in_sending_callbacks() {
        let mut lanes = LaneScheduler::default();
        let options = CallbackOptions { at_once: 8, ..CallbackOptions::default() };
        for lane in 0..20 {
            lanes.hint(lane);
            lanes.took(&[lane], 8, vec![due_of(1, lane, lane)], Instant::now());
        }
        lanes.hint(99);
        lanes.took(&[99], 8, vec![due_of(2, 99, 1), due_of(2, 99, 2)], Instant::now());
        let order: Vec<i32> =
            std::iter::from_fn(|| lanes.next(&options)).map(|taken| taken.due.record.client.0).collect();
        assert_eq!(order, [1, 2, 1, 2, 1, 1], "in turn; and half of the places at most for one");
        lanes.ended(0, WELL, &options);
        assert_eq!(lanes.next(&options).map(|taken| taken.due.record.client.0), Some(1));
    }

    #[test]
    fn a_callback_over_its_endpoint_limit_is_next_when_one_ends() {
        let (mut lanes, options) = (LaneScheduler::default(), CallbackOptions::default());
        fill(&mut lanes, 1, 1);
        fill(&mut lanes, 2, 2);
        let (first, second) = (lanes.next(&options).unwrap(), lanes.next(&options).unwrap());
        assert_eq!((first.due.record.callback.lane, second.due.record.callback.lane), (1, 2));
        lanes.put_back(second);
        assert!(lanes.next(&options).is_none(), "no place there, and nothing else to do");
        assert_eq!(lanes.running(), 1);
        lanes.ended(1, WELL, &options);
        assert_eq!(lanes.next(&options).map(|taken| taken.due.record.row), Some(0));
    }

    #[test]
    fn no_more_callbacks_are_taken_than_there_is_room_for() {
        let mut lanes = LaneScheduler::default();
        let options = CallbackOptions { at_once: 2, per_lane: 2, ..CallbackOptions::default() };
        for lane in 0..10 {
            lanes.hint(lane);
        }
        let requested: usize = lanes.hungry(&options).iter().map(|(_, each)| each).sum();
        assert_eq!(requested, 16);
        fill(&mut lanes, 1, 8);
        fill(&mut lanes, 2, 8);
        assert!(lanes.hungry(&options).is_empty());
    }

    #[test]
    fn concurrent_callbacks_are_limited_per_lane_and_in_total() {
        let mut lanes = LaneScheduler::default();
        let options = CallbackOptions { per_lane: 2, at_once: 6, ..CallbackOptions::default() };
        fill(&mut lanes, 1, 8);
        fill(&mut lanes, 2, 8);
        assert_eq!(std::iter::from_fn(|| lanes.next(&options)).count(), 3);
        lanes.ended(1, WELL, &options);
        assert_eq!(lanes.next(&options).map(|taken| taken.due.record.callback.lane), Some(2));
        assert!(lanes.next(&options).is_none());
    }

    #[test]
    fn a_failing_endpoint_is_parked_probed_once_and_unparked_when_it_answers() {
        let (mut lanes, options) = (LaneScheduler::default(), CallbackOptions::default());
        fill(&mut lanes, 1, 8);
        let mut change = None;
        for n in 0..options.park_after {
            assert_eq!(change, None, "after {n} failures");
            lanes.next(&options).unwrap();
            let (what, returned) = lanes.ended(1, UNWELL, &options);
            assert_eq!(returned.len(), if what.is_some() { 3 } else { 0 }, "what was not sent is given back");
            change = what;
        }
        assert!(matches!(change, Some(LaneChange::Park { .. })));
        lanes.hint(1);
        assert!(lanes.hungry(&options).is_empty(), "left alone, whatever comes");

        lanes.open(1, true);
        assert_eq!(lanes.hungry(&options), [(1, 1)], "one to try it");
        lanes.took(&[1], 1, vec![due(1, 9)], Instant::now());
        lanes.next(&options).unwrap();
        assert!(lanes.hungry(&options).is_empty());
        assert!(matches!(lanes.ended(1, UNWELL, &options).0, Some(LaneChange::Park { .. })), "at once, this time");
        lanes.open(1, true);
        lanes.took(&[1], 1, vec![due(1, 9)], Instant::now());
        lanes.next(&options).unwrap();
        assert_eq!(lanes.ended(1, WELL, &options).0, Some(LaneChange::Open));
        assert!(lanes.hungry(&options)[0].1 > 1);
    }

    #[test]
    fn retry_after_of_an_endpoint_is_obeyed() {
        let (mut lanes, options) = (LaneScheduler::default(), CallbackOptions::default());
        fill(&mut lanes, 1, 3);
        lanes.next(&options).unwrap();
        let seven_seconds = Some(Duration::from_secs(7));
        let (change, returned) = lanes.ended(1, Some(ReplyOutcome::Refused { retry_after: seven_seconds }), &options);
        assert_eq!((change, returned.len()), (Some(LaneChange::Wait(Duration::from_secs(7))), 2));
        assert!(lanes.next(&options).is_none());
    }

    #[test]
    fn the_number_of_callbacks_taken_adapts_to_backlog_and_size() {
        let (mut lanes, options) = (LaneScheduler::default(), CallbackOptions::default());
        fill(&mut lanes, 1, 8);
        for _ in 0..8 {
            lanes.next(&options).unwrap();
        }
        assert_eq!(lanes.hungry(&options), [(1, 16)]);
        let mut large = due(2, 1);
        let About::Task(task) = &mut large.about else { panic!("it tells of a task") };
        task.response = Some(Json::parse(format!("\"{}\"", "x".repeat(LANE_BYTES / 2))).unwrap());
        lanes.hint(2);
        lanes.took(&[2], 1, vec![large], Instant::now());
        lanes.next(&options).unwrap();
        assert!(lanes.hungry(&options).contains(&(2, 1)));
    }

    #[test]
    fn an_idle_callback_lane_is_forgotten() {
        let (mut lanes, options) = (LaneScheduler::default(), CallbackOptions::default());
        fill(&mut lanes, 1, 1);
        lanes.next(&options).unwrap();
        lanes.ended(1, WELL, &options);
        assert!(lanes.lanes.is_empty());
    }
}
