//! Random operations, compared with a model in memory.
//!
//! The model applies `relais_core::apply` and counts. Leases either expire at once or outlast the test, so that the
//! model needs no clock.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context, Result, ensure};
use relais_core::{
    ClientKey, Event, IdempotencyKey, Json, NewTask, Outcome, PurgeRule, Refusal, ServiceKey, ServiceLimits, State,
    Status, Store, TaskEvent, TaskId, Timestamp, apply,
};

use super::{
    Harness,
    random::Random,
    world::{LONG, a_moment, authorize, client, filter, find, json, limits, list_all, new_task, request, service},
};

const EPOCH: Timestamp = Timestamp::from_millis(0);

#[derive(Debug)]
struct Kept {
    id: TaskId,
    service: usize,
    client: usize,
    state: State,
    response: Option<Json>,
    error_message: Option<String>,
    purged: bool,
}

/// The expected content of the store.
struct Model {
    services: Vec<(ServiceKey, Option<u32>, u32)>,
    clients: Vec<(ClientKey, Option<u32>)>,
    /// In order of submission.
    tasks: Vec<Kept>,
    keys: HashMap<(usize, usize, u8), (u8, TaskId, u64)>,
    random: Random,
}

/// Runs many random steps of all verbs, then compares everything.
pub async fn random_operations_agree_with_a_model(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let mut model = Model::new(store).await?;
    for step in 0..300 {
        let done = match model.random.below(12) {
            0..3 => model.submit(store).await,
            3..5 => model.claim(store).await,
            5..9 => model.record(store, 6).await,
            9 => model.expire(store).await,
            10 if model.random.once_in(4) => model.purge(store).await,
            _ => store.purge_keys(LONG).await.map(drop).map_err(Into::into),
        };
        done.with_context(|| format!("step {step}"))?;
        if step % 10 == 0 {
            model.look(store, 5).await.with_context(|| format!("after step {step}"))?;
        }
    }
    model.look(store, usize::MAX).await
}

/// Runs only messages: a few tasks, and every message about them in every order.
pub async fn late_duplicate_and_reordered_messages_agree_with_a_model(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let mut model = Model::new(store).await?;
    for step in 0..250 {
        if model.tasks.iter().filter(|task| !task.state.status.is_final()).count() < 6 {
            model.submit(store).await?;
        }
        model.claim(store).await?;
        model.record(store, 12).await.with_context(|| format!("step {step}"))?;
    }
    model.look(store, usize::MAX).await
}

impl Model {
    async fn new(store: &dyn Store) -> Result<Self> {
        let mut services = Vec::new();
        for (name, capacity, delivery_limit) in [("one", None, 20), ("two", Some(12), 2), ("three", Some(40), 1)] {
            let limits = ServiceLimits { delivery_limit, ..limits(capacity) };
            services.push((service(store, name, limits).await?, capacity, delivery_limit));
        }
        let mut clients = Vec::new();
        for (name, capacity) in [("alice", Some(7)), ("bob", None)] {
            clients.push((client(store, name).await?, capacity));
            for service in ["one", "two", "three"] {
                store.declare(vec![authorize(name, service, capacity)?]).await?;
            }
        }
        Ok(Self { services, clients, tasks: Vec::new(), keys: HashMap::new(), random: Random::new() })
    }

    fn pending(&self, service: usize, client: Option<usize>) -> u64 {
        let waits = |task: &&Kept| {
            !task.purged
                && task.state.status == Status::Pending
                && task.service == service
                && client.is_none_or(|client| task.client == client)
        };
        self.tasks.iter().filter(waits).count() as u64
    }

    async fn submit(&mut self, store: &dyn Store) -> Result<()> {
        let mut tasks = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..self.random.below(8) {
            let (service, client) = (self.random.below(3), self.random.below(2));
            let key = self.random.once_in(3).then(|| (self.random.below(30) as u8, self.random.below(8).min(1) as u8));
            let mut task = new_task(self.services[service].0, self.clients[client].0)?;
            task.idempotency =
                key.map(|(key, print)| IdempotencyKey { key: format!("k{key}"), fingerprint: vec![print] });
            expected.push(self.admit(&task, service, client, key));
            tasks.push(task);
        }
        let answers = store.submit_many(tasks).await?;
        let answers: Vec<_> =
            answers.into_iter().map(|answer| answer.map(|s| (s.task_id, s.position, s.replayed))).collect();
        ensure!(answers == expected, "answered {answers:?}, expected {expected:?}");
        Ok(())
    }

    fn admit(
        &mut self,
        task: &NewTask,
        service: usize,
        client: usize,
        key: Option<(u8, u8)>,
    ) -> Result<(TaskId, u64, bool), Refusal> {
        if let Some((key, print)) = key
            && let Some(&(first, id, position)) = self.keys.get(&(service, client, key))
        {
            return if first == print { Ok((id, position, true)) } else { Err(Refusal::KeyReused) };
        }
        let position = self.pending(service, None) + 1;
        if self.services[service].1.is_some_and(|capacity| position > u64::from(capacity)) {
            return Err(Refusal::ServiceFull);
        }
        if self.clients[client].1.is_some_and(|capacity| self.pending(service, Some(client)) >= u64::from(capacity)) {
            return Err(Refusal::ClientFull);
        }
        if let Some((key, print)) = key {
            self.keys.insert((service, client, key), (print, task.task_id, position));
        }
        self.tasks.push(Kept {
            id: task.task_id,
            service,
            client,
            state: State::pending(),
            response: None,
            error_message: None,
            purged: false,
        });
        Ok((task.task_id, position, false))
    }

    async fn claim(&mut self, store: &dyn Store) -> Result<()> {
        let (service, max) = (self.random.below(3), self.random.below(5));
        let lease = if self.random.once_in(2) { Duration::ZERO } else { LONG };
        let claimed =
            store.claim_tasks(vec![request(self.services[service].0, max, Some(lease))]).await?.tasks.concat();
        let event = Event::Claimed { worker_host: Some("host".to_owned()), lease };
        let mut expected = Vec::new();
        for task in &mut self.tasks {
            if expected.len() < max && !task.purged && task.service == service && task.state.status == Status::Pending {
                task.state = apply(&task.state, &event, EPOCH)?;
                expected.push(task.id);
            }
        }
        ensure!(claimed.iter().map(|task| task.task_id).eq(expected.iter().copied()), "claimed {claimed:?}");
        Ok(())
    }

    async fn record(&mut self, store: &dyn Store, most: usize) -> Result<()> {
        if self.tasks.is_empty() {
            return Ok(());
        }
        let mut events = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..self.random.below(most) {
            // Mostly about the youngest tasks, so that many events are about the same task.
            let back = self.random.below(self.tasks.len().min(10)) + 1;
            let index =
                if self.random.once_in(5) { self.random.below(self.tasks.len()) } else { self.tasks.len() - back };
            let event = self.event(index)?;
            let (of, by) = (self.random.once_in(12), self.random.once_in(2));
            let task = &mut self.tasks[index];
            let service = self.services[(task.service + usize::from(of)) % 3].0;
            let client = by.then(|| self.clients[task.client].0);
            expected.push(if of || task.purged { None } else { Some(task.tell(&event)) });
            events.push(TaskEvent { task_id: task.id, service, client, event });
        }
        let said = format!("{events:?}");
        let outcomes = store.record_events(events).await?;
        ensure!(outcomes.len() == expected.len());
        for (outcome, expected) in outcomes.iter().zip(&expected) {
            let same = match (outcome, expected) {
                (Outcome::NotFound, None) => true,
                (Outcome::Ignored(is), Some(Err(must))) => is == must,
                (Outcome::Applied(is), Some(Ok(must))) => alike(is, must),
                _ => false,
            };
            ensure!(same, "{outcome:?} instead of {expected:?} of {said}");
        }
        Ok(())
    }

    fn event(&mut self, index: usize) -> Result<Event> {
        let current = self.tasks[index].state.attempt;
        let random = &mut self.random;
        let attempt = *random.pick(&[None, Some(current), Some(current), Some(current.saturating_sub(1))]);
        let worker_host = random.pick(&[None, Some("host".to_owned()), Some("other".to_owned())]).clone();
        let number = random.below(1_000_000) as f64 / 7919.0 - 10.0;
        Ok(match random.below(9) {
            0 | 1 => Event::Started { attempt, worker_host, lease: None },
            2 | 3 => Event::Progressed { attempt, progress: number, lease: None },
            4 => Event::Succeeded { attempt, response: json(&number.to_string())? },
            5 => Event::failed(attempt, format!("because {number}")),
            6 => Event::Renewed { attempt, lease: if random.once_in(2) { Duration::ZERO } else { LONG } },
            7 => Event::Returned { attempt },
            _ if random.once_in(3) => Event::Cancelled,
            _ => Event::Progressed { attempt, progress: f64::NAN, lease: None },
        })
    }

    async fn expire(&mut self, store: &dyn Store) -> Result<()> {
        let taken = store.fire_timers(1000).await?.lost;
        let mut expected = 0;
        for task in &mut self.tasks {
            let delivery_limit = self.services[task.service].2;
            if !task.purged && task.tell(&Event::LeaseExpired { delivery_limit }).is_ok() {
                expected += 1;
            }
        }
        ensure!(taken == expected, "{taken} lost their worker instead of {expected}");
        Ok(())
    }

    /// Purges the finished tasks of one service, sometimes of all.
    async fn purge(&mut self, store: &dyn Store) -> Result<()> {
        a_moment(store).await?;
        let service = self.random.below(3);
        let any = if self.random.once_in(3) { Duration::ZERO } else { LONG };
        let mut rule = PurgeRule {
            service: self.services[service].0,
            finished: Duration::ZERO,
            any,
            dry_run: false,
            batch: self.random.below(9) + 1,
            cursor: None,
        };
        let mut purged = 0;
        loop {
            let report = store.purge_tasks(rule).await?;
            purged += report.purged;
            rule.cursor = report.cursor;
            if rule.cursor.is_none() {
                break;
            }
        }
        let mut expected = 0;
        for task in self.tasks.iter_mut().filter(|task| task.service == service && !task.purged) {
            if any.is_zero() || task.state.status.is_final() {
                task.purged = true;
                expected += 1;
            }
        }
        ensure!(purged == expected, "{purged} were purged instead of {expected}");
        Ok(())
    }

    /// Compares some tasks, or all, the counters and the list.
    async fn look(&mut self, store: &dyn Store, number: usize) -> Result<()> {
        let some: Vec<usize> = if number >= self.tasks.len() {
            (0..self.tasks.len()).collect()
        } else {
            (0..number).map(|_| self.random.below(self.tasks.len())).collect()
        };
        for index in some {
            self.look_at(store, index).await?;
        }
        let mut left: Vec<TaskId> = self.tasks.iter().filter(|task| !task.purged).map(|task| task.id).collect();
        left.reverse();
        let listed: Vec<TaskId> = list_all(store, filter(50)).await?.iter().map(|task| task.task_id).collect();
        ensure!(listed == left, "the listing shows what there is");

        let backlog = store.backlog().await?;
        for (service, &(key, ..)) in self.services.iter().enumerate() {
            for status in Status::ALL {
                // Counters of finished tasks are never reset.
                let counts = |task: &&Kept| {
                    task.service == service && task.state.status == status && (status.is_final() || !task.purged)
                };
                let expected = self.tasks.iter().filter(counts).count() as u64;
                let tally = backlog.counters.iter().find(|tally| tally.service == key && tally.status == status);
                let current = tally.map_or(0, relais_core::StatusCounter::current);
                ensure!(current == expected, "{current} are counted in {status:?} instead of {expected}");
            }
            let oldest = self
                .tasks
                .iter()
                .find(|task| task.service == service && task.state.status == Status::Pending && !task.purged);
            let told = backlog.oldest_pending.iter().find(|(of, _)| *of == key).map(|(_, since)| *since);
            let expected = match oldest {
                Some(task) => Some(find(store, task.id).await?.submitted),
                None => None,
            };
            ensure!(told == expected, "the oldest waits since {told:?} instead of {expected:?}");
        }
        self.depths(store, &backlog).await?;
        Ok(())
    }

    /// Queues that are asked for by name agree with the list of all queues, in the order asked for.
    async fn depths(&self, store: &dyn Store, backlog: &relais_core::Backlog) -> Result<()> {
        let mut asked: Vec<_> = self.services.iter().map(|&(key, ..)| key).rev().collect();
        asked.push(relais_core::ServiceKey(i32::MAX));
        let depths = store.queue_depths(asked.clone()).await?;
        ensure!(depths.iter().map(|depth| depth.service).eq(asked), "{depths:?}");
        for depth in depths {
            let current = |status| {
                let tally = backlog.counters.iter().find(|one| one.service == depth.service && one.status == status);
                tally.map_or(0, relais_core::StatusCounter::current)
            };
            let told = (depth.pending, depth.in_progress);
            let expected = (current(Status::Pending), current(Status::InProgress));
            ensure!(told == expected, "{told:?} instead of {expected:?} wait and run");
            ensure!(depth.oldest_pending.is_some() == (depth.pending > 0), "{depth:?}");
        }
        Ok(())
    }

    async fn look_at(&self, store: &dyn Store, index: usize) -> Result<()> {
        let kept = &self.tasks[index];
        let Some(found) = store.find_task(kept.id).await? else {
            ensure!(kept.purged, "{kept:?} is gone");
            return Ok(());
        };
        ensure!(!kept.purged, "{kept:?} is still there");
        ensure!(alike(&found.state, &kept.state), "{:?} instead of {kept:?}", found.state);
        ensure!(found.response == kept.response, "{:?} instead of {kept:?}", found.response);
        let lost = kept.state.losses > 0 && kept.state.status == Status::Failure && kept.error_message.is_none();
        ensure!(found.error_message == kept.error_message || (lost && found.error_message.is_some()));
        let before =
            |other: &&Kept| other.service == kept.service && other.state.status == Status::Pending && !other.purged;
        let place = (kept.state.status == Status::Pending)
            .then(|| self.tasks[..index].iter().filter(before).count() as u64 + 1);
        ensure!(found.position == place, "{:?} instead of {place:?}", found.position);
        Ok(())
    }
}

impl Kept {
    fn tell(&mut self, event: &Event) -> Result<State, relais_core::Ignored> {
        self.state = apply(&self.state, event, EPOCH)?;
        match event {
            Event::Succeeded { response, .. } => self.response = Some(response.clone()),
            Event::Failed { failure, .. } => self.error_message = Some(failure.message.clone()),
            _ => {}
        }
        Ok(self.state.clone())
    }
}

/// Compares two states without their times, of which only the presence is compared.
fn alike(is: &State, must: &State) -> bool {
    let timeless = |state: &State| State {
        started: state.started.map(|_| EPOCH),
        ended: state.ended.map(|_| EPOCH),
        lease_until: state.lease_until.map(|_| EPOCH),
        ..state.clone()
    };
    timeless(is) == timeless(must)
}
