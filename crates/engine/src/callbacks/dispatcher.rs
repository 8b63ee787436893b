//! The callback dispatcher: one actor that takes due callbacks, starts senders, and writes the outcomes.
//!
//! It is woken by the store when a callback is queued, by a sender that has finished, and by the clock when a callback
//! is due. Outcomes that arrive during a write are written together.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use relais_core::{
    About, CallbackAttempt, CallbackDelivery, CallbackOutcome, CallbackRecord, CallbackSender, CallbackVerdict,
    LaneChange, Reply, ReplyOutcome, StoreError,
};
use relais_handler::trace;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{sleep_until, timeout},
};
use tracing::{Instrument as _, field::Empty};

use super::{
    CallbackOptions,
    lanes::{LaneScheduler, Taken},
    schedule,
};
use crate::{
    Engine,
    follow::views::task_view,
    submit::batches::batch_view,
    submit::links::{as_context, as_trail},
};

/// The shortest time between two looks at the lanes.
const REST: Duration = Duration::from_millis(10);

/// After callbacks were taken from a lane, how long until its next due time is known.
const SOON: Duration = Duration::from_millis(100);

/// The wait after an error of the store.
const PAUSE: Duration = Duration::from_secs(1);

/// How many lanes are listed in one call.
const PAGE: usize = 256;

/// How many lanes are taken from in one call.
const LANES_AT_ONCE: usize = 16;

/// How many overdue callbacks are failed in one call.
const GIVE_UP: usize = 500;

/// How many requests one endpoint gets at once, of all clients together.
const PER_ENDPOINT: usize = 64;

/// A callback request, its sender, and the limit of its endpoint.
struct Errand {
    delivery: CallbackDelivery,
    callback_sender: Arc<dyn CallbackSender>,
    places: Arc<Semaphore>,
}

/// The outcome of a sender.
struct Back {
    record: CallbackRecord,
    tries: u32,
    tried: Option<(CallbackAttempt, ReplyOutcome)>,
    /// Whether the endpoint was asked at all. Only then the outcome says something about it.
    reached: bool,
}

struct CallbackDispatcher {
    engine: Engine,
    options: Arc<CallbackOptions>,
    lanes: LaneScheduler,
    callback_senders: JoinSet<Back>,
    endpoints: HashMap<String, Arc<Semaphore>>,
    /// Written with the next transaction.
    outcomes: Vec<CallbackOutcome>,
    changes: BTreeMap<i64, LaneChange>,
    next_look: tokio::time::Instant,
    /// Looking must not become all there is to do, however many lanes there are.
    earliest_look: tokio::time::Instant,
    failing: bool,
}

/// Sends callbacks until the engine stops. Then it waits for requests in flight, and returns the rest.
pub(crate) async fn run(engine: Engine) {
    let stopping = engine.stopping();
    let mut post = CallbackDispatcher {
        lanes: LaneScheduler::default(),
        callback_senders: JoinSet::new(),
        endpoints: HashMap::new(),
        outcomes: Vec::new(),
        changes: BTreeMap::new(),
        next_look: tokio::time::Instant::now(),
        earliest_look: tokio::time::Instant::now(),
        failing: false,
        options: Arc::new(engine.0.options.callbacks.clone()),
        engine,
    };
    loop {
        tokio::select! {
            () = stopping.cancelled() => break,
            () = post.engine.0.hub.callbacks_bell.notified() => post.hear(),
            Some(back) = post.callback_senders.join_next() => post.came_back(back),
            () = sleep_until(post.next_look.max(post.earliest_look)) => post.look().await,
        }
        while let Some(back) = post.callback_senders.try_join_next() {
            post.came_back(back);
        }
        // First what was already taken: senders need not wait for the outcomes of others to be written.
        post.send();
        loop {
            post.write().await;
            let more = post.take().await;
            post.send();
            // A lane that returned as many as were asked for may have more. Outcomes are written first.
            if !more || stopping.is_cancelled() {
                break;
            }
            while let Some(back) = post.callback_senders.try_join_next() {
                post.came_back(back);
            }
        }
    }
    post.stop().await;
}

impl CallbackDispatcher {
    /// Queues the lanes of a wake-up.
    fn hear(&mut self) {
        let (hints, everything) = self.engine.0.hub.take_callbacks();
        for lane in hints {
            self.lanes.hint(lane);
        }
        if everything {
            self.next_look = tokio::time::Instant::now();
        }
    }

    /// How often all lanes are listed, in case a wake-up was lost.
    fn look_by_itself(&self) -> Duration {
        self.engine.0.options.sweep * 2
    }

    /// Lists all lanes with waiting callbacks.
    async fn look(&mut self) {
        let begun = Instant::now();
        match self.look_at_all().await {
            Ok(wait) => {
                self.next_look = tokio::time::Instant::now() + wait;
                self.works();
            }
            Err(error) => self.fails(&error),
        }
        let rest = (begun.elapsed() * 10).clamp(REST, self.look_by_itself());
        self.earliest_look = tokio::time::Instant::now() + rest;
    }

    /// How long until a callback is due.
    async fn look_at_all(&mut self) -> Result<Duration, StoreError> {
        let store = Arc::clone(&self.engine.0.store);
        let options = Arc::clone(&self.options);
        let (mut after, mut wait, mut oldest, mut parked) = (None, self.look_by_itself(), Duration::ZERO, 0_u32);
        let mut known = std::collections::HashSet::new();
        loop {
            let page = store.list_callback_lanes(after, PAGE).await?;
            let Some(now) = page.now else { break };
            for head in &page.heads {
                known.insert(head.lane);
                let rests = head.parked_until.filter(|until| *until > now);
                let ready = rests.unwrap_or(head.due).max(head.due);
                oldest = oldest.max(now.since(head.due));
                if rests.is_some() {
                    parked += 1;
                    self.lanes.rest(head.lane);
                    if now.since(head.due) > options.give_up_after {
                        give_up(&*store, head.lane, options.give_up_after).await?;
                    }
                }
                if ready <= now {
                    self.lanes.open(head.lane, head.parked_until.is_some());
                    // Callbacks after the first of a lane are not known here.
                    wait = wait.min(SOON);
                } else {
                    wait = wait.min(ready.since(now));
                }
            }
            after = page.heads.last().map(|head| head.lane);
            if page.heads.len() < PAGE {
                break;
            }
        }
        self.lanes.retain(|lane| known.contains(&lane));
        self.endpoints.retain(|_, places| Arc::strong_count(places) > 1);
        metrics::gauge!("relais_callbacks_under_way").set(self.lanes.running() as f64);
        metrics::gauge!("relais_callback_lanes").set(known.len() as f64);
        metrics::gauge!("relais_callback_lanes_parked").set(f64::from(parked));
        metrics::gauge!("relais_callback_overdue_seconds").set(oldest.as_secs_f64());
        Ok(wait)
    }

    /// Takes due callbacks from lanes that have room, and returns whether there were any.
    async fn take(&mut self) -> bool {
        // Nothing is sent before the clients are known.
        if self.failing || self.engine.snapshot().is_err() {
            return false;
        }
        let mut found = false;
        let options = Arc::clone(&self.options);
        let mut portions: Vec<(usize, Vec<i64>)> = Vec::new();
        for (lane, each) in self.lanes.hungry(&options) {
            match portions.iter_mut().find(|(size, lanes)| *size == each && lanes.len() < LANES_AT_ONCE) {
                Some((_, lanes)) => lanes.push(lane),
                None => portions.push((each, vec![lane])),
            }
        }
        for (each, lanes) in portions {
            let taken = self.engine.0.store.claim_callbacks(lanes.clone(), each, options.lease()).await;
            match taken {
                Ok(due) => {
                    found |= !due.is_empty();
                    if due.len() < each * lanes.len() {
                        self.next_look = self.next_look.min(tokio::time::Instant::now() + SOON);
                    }
                    self.lanes.took(&lanes, each, due, Instant::now());
                }
                Err(error) => {
                    self.fails(&error);
                    return false;
                }
            }
        }
        found
    }

    /// Starts senders while there are callbacks and room.
    fn send(&mut self) {
        let options = Arc::clone(&self.options);
        // A callback that waited here for too long may be leased by another process by now.
        let fresh = options.lease().saturating_sub(options.timeout + Duration::from_secs(2));
        while let Some(taken) = self.lanes.next(&options) {
            let lane = taken.due.record.callback.lane;
            if taken.at.elapsed() > fresh {
                self.outcomes.push(given_back(&taken.due.record));
                self.lanes.ended(lane, None, &options);
                continue;
            }
            match self.delivery(&taken) {
                Ok(Errand { mut delivery, callback_sender, places }) => {
                    let Ok(place) = places.try_acquire_owned() else {
                        self.lanes.put_back(taken);
                        continue;
                    };
                    let Taken { due, .. } = taken;
                    let span = tracing::debug_span!(
                        "callback", callback_id = %due.record.id, attempt = due.record.attempts, endpoint = %endpoint(&due.record),
                        otel.kind = "client", otel.status_code = Empty, status = Empty,
                    );
                    // Whoever takes the delivery goes on from here.
                    if let Some(from) = &delivery.trace {
                        delivery.trace = as_context(trace::go_on(&span, as_trail(from)));
                    }
                    let carried = async move {
                        let _place = place;
                        let (record, tries) = (due.record, due.tries);
                        let begun = Instant::now();
                        // A sender that panics still frees its place.
                        let reply = std::panic::AssertUnwindSafe(callback_sender.send(&delivery)).catch_unwind().await;
                        let Ok(Reply { outcome, status, error, answer }) = reply else {
                            tracing::error!(callback = %record.id, "a callback sender panicked: its callback is sent again");
                            return Back { record, tries, tried: None, reached: false };
                        };
                        tracing::Span::current().record("status", status);
                        if outcome != ReplyOutcome::Delivered {
                            tracing::Span::current().record("otel.status_code", "ERROR");
                        }
                        let number = record.attempts;
                        let attempt = CallbackAttempt {
                            number,
                            at: delivery.now,
                            duration: begun.elapsed(),
                            status,
                            error,
                            answer,
                        };
                        Back { record, tries, tried: Some((attempt, outcome)), reached: true }
                    };
                    self.callback_senders.spawn(carried.instrument(span));
                }
                Err(why) => {
                    // A callback that cannot be sent is recorded as a failed try, so that somebody sees why.
                    let attempt = CallbackAttempt {
                        number: taken.due.record.attempts,
                        at: taken.due.now,
                        duration: Duration::ZERO,
                        status: None,
                        error: Some(why),
                        answer: None,
                    };
                    let (record, tries) = (taken.due.record, taken.due.tries);
                    let outcome = ReplyOutcome::Refused { retry_after: None };
                    self.callback_senders
                        .spawn(async move { Back { record, tries, tried: Some((attempt, outcome)), reached: false } });
                }
            }
        }
    }

    /// The request of a callback and the limit of its endpoint, or why it cannot be sent.
    fn delivery(&mut self, taken: &Taken) -> Result<Errand, String> {
        let (record, about) = (&taken.due.record, &taken.due.about);
        let callback = &record.callback;
        let snapshot = self.engine.snapshot().map_err(|error| error.to_string())?;
        let client = snapshot.declared.client_by_key(record.client).ok_or("the client is gone")?;
        let callback_sender = self.engine.0.options.callback_senders.get(callback.kind).cloned();
        let callback_sender = callback_sender
            .ok_or_else(|| format!("callbacks of the type {} are not enabled", callback.kind.as_str()))?;
        // The sender itself says why it refuses; here only its endpoint is asked for.
        let endpoint = callback_sender.judge(callback.kind, &callback.target, client).unwrap_or_default();
        let places = self.endpoints.entry(endpoint).or_insert_with(|| Arc::new(Semaphore::new(PER_ENDPOINT)));
        let delivery = CallbackDelivery {
            id: record.id.to_string(),
            kind: callback.kind,
            target: callback.target.clone(),
            client: Arc::clone(client),
            body: match about {
                About::Task(task) => serde_json::to_string(&task_view(task)),
                About::Batch(batch) => serde_json::to_string(&batch_view(batch)),
            }
            .map_err(|error| error.to_string())?,
            gzip: callback.gzip,
            trace: about.trace().cloned(),
            now: taken.due.now.after(taken.at.elapsed()),
        };
        Ok(Errand { delivery, callback_sender, places: Arc::clone(places) })
    }

    /// Handles the outcome of a sender.
    fn came_back(&mut self, back: Result<Back, tokio::task::JoinError>) {
        let Ok(Back { record, tries, tried, reached }) = back else {
            tracing::error!("a callback sender was lost: its callback is sent again later");
            return;
        };
        let options = Arc::clone(&self.options);
        let lane = record.callback.lane;
        let outcome = tried.as_ref().map(|(_, outcome)| *outcome).filter(|_| reached);
        let (change, returned) = self.lanes.ended(lane, outcome, &options);
        if let Some(change) = change {
            if matches!(change, LaneChange::Park { .. }) {
                tracing::warn!(endpoint = %endpoint(&record), "callbacks: left alone for a while, it does not answer");
                metrics::counter!("relais_callback_parks_total").increment(1);
            }
            self.changes.insert(lane, change);
            let wait = match change {
                LaneChange::Wait(wait) => wait.min(options.park_first),
                _ => options.park_first,
            };
            self.next_look = self.next_look.min(tokio::time::Instant::now() + wait);
        }
        for taken in returned {
            self.outcomes.push(given_back(&taken.due.record));
        }
        let Some((attempt, outcome)) = tried else {
            self.outcomes.push(given_back(&record));
            return;
        };
        let declared = self.engine.snapshot().ok();
        let service = declared.as_ref().and_then(|snapshot| snapshot.declared.service_by_key(record.service));
        let retries = service.and_then(|service| service.limits.callback_retries.as_deref());
        let retries = retries.unwrap_or(&options.retries);
        let verdict = schedule::verdict(outcome, retries, tries, schedule::random());
        if let CallbackVerdict::Again(wait) = verdict {
            self.next_look = self.next_look.min(tokio::time::Instant::now() + wait);
        }
        account(&record, &attempt, verdict);
        let (row, chain) = (record.row, record.callback.is_chain());
        let tried = Some(attempt);
        self.outcomes.push(CallbackOutcome { row, attempt: record.attempts, chain, verdict, tried });
    }

    /// Writes the outcomes.
    async fn write(&mut self) {
        if self.outcomes.is_empty() && self.changes.is_empty() {
            return;
        }
        let changes: Vec<(i64, LaneChange)> = self.changes.iter().map(|(lane, change)| (*lane, *change)).collect();
        match self.engine.0.store.complete_callbacks(self.outcomes.clone(), changes).await {
            Ok(()) => {
                self.outcomes.clear();
                self.changes.clear();
                self.works();
            }
            // Kept for the next write. A callback whose outcome is never written is sent again under the same id.
            Err(error) => self.fails(&error),
        }
    }

    fn fails(&mut self, error: &StoreError) {
        if !self.failing {
            tracing::warn!(%error, "callbacks wait for the store");
        }
        self.failing = true;
        self.next_look = tokio::time::Instant::now() + PAUSE;
    }

    fn works(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!("callbacks go on");
            self.next_look = tokio::time::Instant::now();
        }
    }

    /// Waits for requests in flight, returns the rest, and writes all outcomes.
    async fn stop(mut self) {
        for taken in self.lanes.drain() {
            self.outcomes.push(given_back(&taken.due.record));
        }
        self.write().await;
        let limit = self.options.timeout + PAUSE;
        let _ = timeout(limit, async {
            while let Some(back) = self.callback_senders.join_next().await {
                self.came_back(back);
            }
        })
        .await;
        self.write().await;
    }
}

async fn give_up(store: &dyn relais_core::Store, lane: i64, older_than: Duration) -> Result<(), StoreError> {
    let given_up = store.expire_callbacks(lane, older_than, GIVE_UP).await?;
    if given_up > 0 {
        metrics::counter!("relais_callbacks_total", "outcome" => "expired").increment(given_up);
        tracing::warn!(callbacks = given_up, "callbacks given up: their endpoint did not answer for too long");
    }
    Ok(())
}

/// The target of a callback, without what a URL may reveal.
fn endpoint(record: &CallbackRecord) -> String {
    match url::Url::parse(&record.callback.target) {
        Ok(url) => url.origin().ascii_serialization(),
        Err(_) => record.callback.target.clone(),
    }
}

/// The outcome of a callback that was taken and not tried.
fn given_back(record: &CallbackRecord) -> CallbackOutcome {
    let (row, attempt, chain) = (record.row, record.attempts, record.callback.is_chain());
    CallbackOutcome { row, attempt, chain, verdict: CallbackVerdict::Returned, tried: None }
}

/// Counts and logs one try.
fn account(record: &CallbackRecord, attempt: &CallbackAttempt, verdict: CallbackVerdict) {
    let outcome = match verdict {
        CallbackVerdict::Delivered => "delivered",
        CallbackVerdict::GivenUp => "failed",
        CallbackVerdict::Gone => "gone",
        CallbackVerdict::Again(_) => "retried",
        CallbackVerdict::Returned => "returned",
    };
    let kind = record.callback.kind.as_str();
    metrics::counter!("relais_callbacks_total", "outcome" => outcome, "type" => kind).increment(1);
    metrics::histogram!("relais_callback_seconds", "type" => kind).record(attempt.duration.as_secs_f64());
    let id = record.id;
    match (&attempt.error, verdict) {
        (Some(error), CallbackVerdict::GivenUp | CallbackVerdict::Gone) => {
            tracing::warn!(callback = %id, task_id = %id.task_id, attempt = attempt.number, error, "callback failed");
        }
        (Some(error), _) => {
            tracing::info!(callback = %id, task_id = %id.task_id, attempt = attempt.number, error, "callback not taken");
        }
        (None, _) => tracing::debug!(callback = %id, task_id = %id.task_id, attempt = attempt.number, "callback sent"),
    }
}
