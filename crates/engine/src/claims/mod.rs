//! The claim coordinator: workers wait here for tasks, and the store is asked once for all of them.
//!
//! One actor has the queues of waiters. A service has at most one claim under way, and a waiter costs nothing until
//! there is work. Tasks that were claimed for a worker that disconnected meanwhile are returned at once.

pub(crate) mod pace;
pub(crate) mod work;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use relais_core::{ClaimRequest, Claimed, Event, NewTask, ServiceKey, Store, StoreError, Submission, Task, TaskEvent};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{EngineError, follow::hub::WakeupHub};

/// The most tasks of one claim transaction.
const MAX_CLAIM: usize = 1000;

/// The most waiters.
const MAX_WAITING: usize = 100_000;

struct Waiter {
    request: ClaimRequest,
    deadline: Instant,
    /// Whether the store was asked for it once. Until then it does not time out, however short its wait.
    asked: bool,
    reply: oneshot::Sender<Result<Vec<Task>, EngineError>>,
}

/// How long no waiter of a service joins a submission, after one did so in vain.
const FRUITLESS: Duration = Duration::from_secs(1);

/// A request of a submission for a waiter of its service.
struct Asked {
    service: ServiceKey,
    tasks: usize,
    reply: oneshot::Sender<Waiter>,
}

/// The handle of the coordinator. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ClaimCoordinator {
    store: Arc<dyn Store>,
    waiters: mpsc::Sender<Waiter>,
    asked: mpsc::Sender<Asked>,
    finished: mpsc::UnboundedSender<Answered>,
    /// Whether there has ever been a waiter.
    in_use: Arc<AtomicBool>,
}

impl ClaimCoordinator {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        hub: Arc<WakeupHub>,
        sweep: Duration,
        stopping: CancellationToken,
        tracker: &TaskTracker,
    ) -> Self {
        let (waiters, queue) = mpsc::channel(1024);
        // A service has one claim under way: there are never more answers than services.
        let (finished, claimed) = mpsc::unbounded_channel();
        let (asked, questions) = mpsc::channel(64);
        let coordinator = Coordinator {
            store: Arc::clone(&store),
            hub,
            sweep,
            stopping,
            tracker: tracker.clone(),
            finished: finished.clone(),
            waiting: HashMap::new(),
            waiting_count: 0,
            busy: HashSet::new(),
            fresh: HashSet::new(),
            again: HashMap::new(),
            fruitless: HashMap::new(),
        };
        tracker.spawn(coordinator.run(queue, claimed, questions));
        Self { store, waiters, asked, finished, in_use: Arc::default() }
    }

    /// Waits for tasks until there is one, or the time is up; then there may be none.
    pub(crate) async fn claim(&self, request: ClaimRequest, wait: Duration) -> Result<Vec<Task>, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.in_use.store(true, Ordering::Relaxed);
        let waiter = Waiter { request, deadline: Instant::now() + wait, asked: false, reply };
        self.waiters.send(waiter).await.map_err(|_| EngineError::Stopping)?;
        answer.await.map_err(|_| EngineError::Stopping)?
    }

    /// Submits tasks. If a worker waits for tasks of that service, the same commit may give them to it.
    pub(crate) async fn submit(&self, tasks: Vec<NewTask>) -> Result<Vec<Submission>, StoreError> {
        let Some(waiter) = self.who_waits_for(&tasks).await else { return self.store.submit_many(tasks).await };
        let request = waiter.request.clone();
        let mut under_way = UnderWay::new(request.service, vec![waiter], &self.finished);
        match self.store.submit_and_claim(tasks, request).await {
            Ok((answers, taken)) => {
                under_way.answer(Ok(Claimed { tasks: vec![taken], again: None }), true);
                Ok(answers)
            }
            Err(error) => {
                // If it got any, its next claim finds out.
                let waiters = std::mem::take(&mut under_way.waiters);
                under_way.answer(Ok(Claimed { tasks: Vec::new(), again: None }), false);
                for waiter in waiters {
                    let _ = self.waiters.send(waiter).await;
                }
                Err(error)
            }
        }
    }

    /// The longest waiter for the service of all of these tasks.
    async fn who_waits_for(&self, tasks: &[NewTask]) -> Option<Waiter> {
        let service = tasks.first()?.service;
        if !self.in_use.load(Ordering::Relaxed) || tasks.iter().any(|task| task.service != service) {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        self.asked.send(Asked { service, tasks: tasks.len(), reply }).await.ok()?;
        answer.await.ok()
    }
}

/// The waiters of one service that a claim was made for, and the answer of the store.
struct Answered {
    service: ServiceKey,
    waiters: Vec<Waiter>,
    result: Result<Claimed, StoreError>,
    /// Whether it was made together with a submission.
    lent: bool,
}

/// A claim under way. The coordinator is notified however it ends: until then nobody else claims for its service.
struct UnderWay {
    service: ServiceKey,
    waiters: Vec<Waiter>,
    finished: mpsc::UnboundedSender<Answered>,
    answered: bool,
}

impl UnderWay {
    fn new(service: ServiceKey, waiters: Vec<Waiter>, finished: &mpsc::UnboundedSender<Answered>) -> Self {
        Self { service, waiters, finished: finished.clone(), answered: false }
    }

    fn answer(&mut self, result: Result<Claimed, StoreError>, lent: bool) {
        self.answered = true;
        let waiters = std::mem::take(&mut self.waiters);
        // The coordinator outlives all claims; when it is gone, nobody waits.
        let _ = self.finished.send(Answered { service: self.service, waiters, result, lent });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(Err(StoreError::Failed("the claim ended without an answer".into())), false);
        }
    }
}

struct Coordinator {
    store: Arc<dyn Store>,
    hub: Arc<WakeupHub>,
    /// How often waiters look without a wake-up.
    sweep: Duration,
    stopping: CancellationToken,
    tracker: TaskTracker,
    finished: mpsc::UnboundedSender<Answered>,
    waiting: HashMap<ServiceKey, VecDeque<Waiter>>,
    waiting_count: usize,
    /// Services with a claim under way.
    busy: HashSet<ServiceKey>,
    /// Services that may have tasks that no claim has seen.
    fresh: HashSet<ServiceKey>,
    /// Services whose rate limit delays tasks that workers wait for, and when to look again.
    again: HashMap<ServiceKey, Instant>,
    /// Services of which a waiter joined a submission in vain, and when.
    fruitless: HashMap<ServiceKey, Instant>,
}

impl Coordinator {
    async fn run(
        mut self,
        mut queue: mpsc::Receiver<Waiter>,
        mut claimed: mpsc::UnboundedReceiver<Answered>,
        mut questions: mpsc::Receiver<Asked>,
    ) {
        let hub = Arc::clone(&self.hub);
        let mut sweep = tokio::time::interval(self.sweep);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let next_deadline = self.next_deadline();
            tokio::select! {
                waiter = queue.recv() => match waiter {
                    Some(waiter) => self.arrive(waiter),
                    None => break,
                },
                Some(done) = claimed.recv() => self.hand_out(done),
                Some(asked) = questions.recv() => self.lend(asked),
                () = hub.work_bell.notified() => self.fresh.extend(hub.take_work()),
                () = hub.sweep_bell.notified() => self.look_everywhere(),
                _ = sweep.tick(), if self.waiting_count > 0 => self.look_everywhere(),
                () = tokio::time::sleep_until(next_deadline.unwrap_or_else(Instant::now)), if next_deadline.is_some() => {
                    self.answer_the_late(Instant::now());
                    self.look_again(Instant::now());
                }
                () = self.stopping.cancelled() => break,
            }
            self.claim_for_those_who_wait();
        }
        // Claims under way are finished and answered; the remaining waiters get an empty answer.
        drop(questions);
        while !self.busy.is_empty() {
            let Some(done) = claimed.recv().await else { break };
            self.hand_out(done);
        }
        queue.close();
        while let Some(waiter) = queue.recv().await {
            let _ = waiter.reply.send(Ok(Vec::new()));
        }
        for waiter in self.waiting.into_values().flatten() {
            let _ = waiter.reply.send(Ok(Vec::new()));
        }
    }

    fn arrive(&mut self, waiter: Waiter) {
        if self.waiting_count >= MAX_WAITING {
            let _ = waiter.reply.send(Err(EngineError::Overloaded));
            return;
        }
        let service = waiter.request.service;
        self.waiting_count += 1;
        self.waiting.entry(service).or_default().push_back(waiter);
        // Nobody has looked on behalf of this waiter yet.
        self.fresh.insert(service);
    }

    /// Gives the longest waiter to a claim that is made together with a submission, as if its claim were under way. Not
    /// if there may be pending tasks already: those are first. A claim with a lease writes to its tasks and makes the
    /// submission longer, so it is done for one task alone, not for many.
    fn lend(&mut self, Asked { service, tasks, reply }: Asked) {
        if self.busy.contains(&service) || self.fresh.contains(&service) {
            return;
        }
        self.fruitless.retain(|_, since| since.elapsed() < FRUITLESS);
        if self.fruitless.contains_key(&service) {
            return;
        }
        let Some(waiting) = self.waiting.get_mut(&service) else { return };
        while waiting.pop_front_if(|waiter| waiter.reply.is_closed()).is_some() {
            self.waiting_count -= 1;
        }
        let Some(waiter) = waiting.pop_front_if(|waiter| tasks == 1 || waiter.request.instance.is_some()) else {
            return;
        };
        match reply.send(waiter) {
            Ok(()) => {
                self.waiting_count -= 1;
                self.busy.insert(service);
            }
            Err(waiter) => waiting.push_front(waiter),
        }
        if waiting.is_empty() {
            self.waiting.remove(&service);
        }
    }

    /// Any service may have tasks: those that workers wait for, and those with a claim under way, which may have begun
    /// too early to see them.
    fn look_everywhere(&mut self) {
        self.fresh.extend(self.waiting.keys().chain(&self.busy).copied());
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiters = self.waiting.values().flatten().filter(|waiter| waiter.asked).map(|waiter| waiter.deadline);
        waiters.chain(self.again.values().copied()).min()
    }

    /// Services whose rate limit allows the next start now.
    fn look_again(&mut self, now: Instant) {
        self.fresh.extend(self.again.extract_if(|_, at| *at <= now).map(|(service, _)| service));
    }

    fn answer_the_late(&mut self, now: Instant) {
        for waiters in self.waiting.values_mut() {
            let (late, rest): (VecDeque<Waiter>, VecDeque<Waiter>) = std::mem::take(waiters)
                .into_iter()
                .partition(|waiter| waiter.asked && waiter.deadline <= now || waiter.reply.is_closed());
            *waiters = rest;
            self.waiting_count -= late.len();
            for waiter in late {
                let _ = waiter.reply.send(Ok(Vec::new()));
            }
        }
        self.waiting.retain(|_, waiters| !waiters.is_empty());
    }

    /// Starts a claim for each service that may have tasks and has waiters.
    fn claim_for_those_who_wait(&mut self) {
        let ready: Vec<ServiceKey> =
            self.fresh.iter().copied().filter(|service| !self.busy.contains(service)).collect();
        for service in ready {
            self.fresh.remove(&service);
            let Some(waiting) = self.waiting.get_mut(&service) else { continue };
            let (mut waiters, mut requested) = (Vec::new(), 0);
            while let Some(waiter) = waiting.pop_front() {
                self.waiting_count -= 1;
                if waiter.reply.is_closed() {
                    continue;
                }
                // An instance claims on its own, because it must know the outcome.
                let alone = waiter.request.instance.is_some()
                    || waiters.iter().any(|waiter: &Waiter| waiter.request.instance.is_some());
                if requested > 0 && (alone || requested + waiter.request.max > MAX_CLAIM) {
                    // It has its turn if these get all that they asked for.
                    waiting.push_front(waiter);
                    self.waiting_count += 1;
                    break;
                }
                requested += waiter.request.max;
                waiters.push(waiter);
            }
            if waiting.is_empty() {
                self.waiting.remove(&service);
            }
            if waiters.is_empty() {
                continue;
            }
            self.busy.insert(service);
            self.again.remove(&service);
            let requests = waiters.iter().map(|waiter| waiter.request.clone()).collect();
            let (store, mut under_way) = (Arc::clone(&self.store), UnderWay::new(service, waiters, &self.finished));
            self.tracker.spawn(async move { under_way.answer(store.claim_tasks(requests).await, false) });
        }
    }

    fn hand_out(&mut self, done: Answered) {
        self.busy.remove(&done.service);
        let claimed = match done.result {
            Ok(claimed) => claimed,
            Err(error) => {
                let error = EngineError::from(error);
                // Waiters that arrived meanwhile would only wait for the same answer.
                let waiting = self.waiting.remove(&done.service).unwrap_or_default();
                self.waiting_count -= waiting.len();
                for waiter in done.waiters.into_iter().chain(waiting) {
                    let _ = waiter.reply.send(Err(error.clone()));
                }
                return;
            }
        };
        let requested: usize = done.waiters.iter().map(|waiter| waiter.request.max).sum();
        let got = claimed.tasks.iter().map(Vec::len).sum::<usize>();
        if done.lent && got == 0 {
            self.fruitless.insert(done.service, Instant::now());
        }
        let exhausted = got < requested;
        let mut unanswered = VecDeque::new();
        let now = Instant::now();
        for (mut waiter, tasks) in done.waiters.into_iter().zip(claimed.tasks) {
            waiter.asked = true;
            if tasks.is_empty() && waiter.deadline > now && !self.stopping.is_cancelled() {
                unanswered.push_back(waiter);
            } else if let Err(Ok(tasks)) = waiter.reply.send(Ok(tasks)) {
                self.give_back(done.service, tasks);
            }
        }
        self.waiting_count += unanswered.len();
        let waiting = self.waiting.entry(done.service).or_default();
        // They came first.
        unanswered.append(waiting);
        *waiting = unanswered;
        if !exhausted {
            self.fresh.insert(done.service);
        } else if !self.fresh.contains(&done.service) {
            // There is nothing left for the others either.
            waiting.iter_mut().for_each(|waiter| waiter.asked = true);
        }
        if waiting.is_empty() {
            self.waiting.remove(&done.service);
        } else if let Some(again) = claimed.again {
            self.again.insert(done.service, now + again);
        }
    }

    /// The worker disconnected while its tasks were being claimed.
    fn give_back(&self, service: ServiceKey, tasks: Vec<Task>) {
        if tasks.is_empty() {
            return;
        }
        let store = Arc::clone(&self.store);
        self.tracker.spawn(async move {
            let events = tasks
                .into_iter()
                .map(|task| TaskEvent {
                    task_id: task.task_id,
                    service,
                    client: None,
                    event: Event::Returned { attempt: Some(task.state.attempt) },
                })
                .collect();
            if let Err(error) = store.record_events(events).await {
                tracing::warn!(error = %error, "tasks whose worker hung up wait for their lease to expire");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_fails_lets_other_claims_of_its_service_continue() {
        let (finished, mut answers) = mpsc::unbounded_channel();
        drop(UnderWay::new(ServiceKey(7), Vec::new(), &finished));
        assert!(matches!(answers.try_recv(), Ok(Answered { service: ServiceKey(7), result: Err(_), .. })));
        let mut under_way = UnderWay::new(ServiceKey(8), Vec::new(), &finished);
        under_way.answer(Ok(Claimed { tasks: Vec::new(), again: None }), false);
        drop(under_way);
        assert!(matches!(answers.try_recv(), Ok(Answered { service: ServiceKey(8), result: Ok(_), .. })));
        assert!(answers.try_recv().is_err(), "said once");
    }
}
