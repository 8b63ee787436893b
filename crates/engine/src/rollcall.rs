//! Which workers have been heard of: by this process, and through the tasks that they have.
//!
//! Nothing is kept of a worker but in memory, so what is known of those that wait for tasks is what this process knows. The
//! tasks that workers have are in the store, and so are known wherever they were taken.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use relais_core::{ServiceKey, Status, Task, TaskFilter, Transport};
use relais_protocol::worker_state::{HeldTaskView, WorkerActivity, WorkerStateView};

use crate::{Engine, EngineError, views::text};

/// So many are remembered.
const MOST: usize = 10_000;

/// A worker that was not heard of for so long is forgotten.
const FORGET: Duration = Duration::from_secs(15 * 60);

/// So many running tasks are looked at, the newest.
const LOOK: usize = 1000;

/// A worker shows so many of its tasks.
const SHOWN: usize = 5;

#[derive(Debug)]
struct Entry {
    version: Option<Arc<str>>,
    seen: Instant,
    /// Claims that wait.
    waiting: usize,
    /// As many tasks as those claims ask for.
    slots: usize,
    /// How long it may keep silent.
    lease: Option<Duration>,
}

/// The workers that this process has heard of.
#[derive(Default)]
pub(crate) struct RollCall(Mutex<HashMap<(ServiceKey, String), Entry>>);

impl RollCall {
    /// A worker asks for tasks, until what is returned is dropped.
    pub(crate) fn asks(
        self: &Arc<Self>,
        service: ServiceKey,
        host: Option<&str>,
        version: Option<&str>,
        slots: usize,
        lease: Duration,
    ) -> Asking {
        let key = (service, host.unwrap_or_default().to_owned());
        if let Some(entry) = Self::entry(&mut self.book(), &key) {
            entry.waiting += 1;
            entry.slots = slots;
            entry.lease = Some(lease);
            if entry.version.as_deref() != version {
                entry.version = version.map(Into::into);
            }
        }
        Asking { roll_call: Arc::clone(self), key }
    }

    /// A worker said something.
    pub(crate) fn hears(&self, service: ServiceKey, host: &str) {
        Self::entry(&mut self.book(), &(service, host.to_owned()));
    }

    fn entry<'b>(
        book: &'b mut HashMap<(ServiceKey, String), Entry>,
        key: &(ServiceKey, String),
    ) -> Option<&'b mut Entry> {
        let now = Instant::now();
        if book.len() >= MOST && !book.contains_key(key) {
            book.retain(|_, entry| entry.waiting > 0 || now.saturating_duration_since(entry.seen) < FORGET);
            if book.len() >= MOST {
                return None;
            }
        }
        let entry =
            book.entry(key.clone()).or_insert(Entry { version: None, seen: now, waiting: 0, slots: 0, lease: None });
        entry.seen = now;
        Some(entry)
    }

    fn book(&self) -> MutexGuard<'_, HashMap<(ServiceKey, String), Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim that waits.
pub(crate) struct Asking {
    roll_call: Arc<RollCall>,
    key: (ServiceKey, String),
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(entry) = self.roll_call.book().get_mut(&self.key) {
            entry.waiting = entry.waiting.saturating_sub(1);
            entry.seen = Instant::now();
        }
    }
}

impl Engine {
    /// The workers that are known of, in the order of services and hosts.
    pub async fn workers(&self) -> Result<Vec<WorkerStateView>, EngineError> {
        let snapshot = self.snapshot()?;
        let declared = &snapshot.declared;
        let filter = TaskFilter { statuses: vec![Status::InProgress], limit: LOOK, ..TaskFilter::default() };
        let running = self.0.store.list_tasks(filter).await?.tasks;
        let now = self.0.store.ping().await?;
        let mut workers: BTreeMap<(String, String), WorkerStateView> = BTreeMap::new();
        let mut leases: HashMap<(String, String), Duration> = HashMap::new();
        let blank = |service: &str, host: &str| WorkerStateView {
            host_name: Some(host.to_owned()).filter(|host| !host.is_empty()),
            service: service.to_owned(),
            transport: match declared.services.get(service).map(|service| service.transport) {
                Some(Transport::RabbitMq) => "rabbitmq",
                _ => "builtin",
            }
            .to_owned(),
            version: None,
            activity: WorkerActivity::Quiet,
            seen_seconds_ago: None,
            asks_for: 0,
            running: 0,
            tasks: Vec::new(),
        };
        for ((service, host), entry) in self.0.roll_call.book().iter() {
            let age = entry.seen.elapsed();
            let Some(service) = declared.service_by_key(*service) else { continue };
            if entry.waiting == 0 && age > FORGET {
                continue;
            }
            let key = (service.name.to_string(), host.clone());
            leases.extend(entry.lease.map(|lease| (key.clone(), lease)));
            let worker = workers.entry(key).or_insert_with(|| blank(service.name.as_str(), host));
            worker.version = entry.version.as_deref().map(str::to_owned);
            worker.seen_seconds_ago = Some(if entry.waiting > 0 { 0.0 } else { age.as_secs_f64() });
            worker.asks_for = entry.waiting * entry.slots;
            if entry.waiting > 0 {
                worker.activity = WorkerActivity::Waiting;
            }
        }
        for task in &running {
            let host = task.state.worker_host.clone().unwrap_or_default();
            let service = task.service.to_string();
            let key = (service.clone(), host.clone());
            // A worker renews at a third of its lease: one that has used up more than half of it is late. What the lease of
            // another process's worker was is not known: it is late when it is over.
            let patience = leases.get(&key).map_or(Duration::ZERO, |lease| *lease / 2);
            let late = task.state.lease_until.is_some_and(|until| until < now.after(patience));
            let worker = workers.entry(key).or_insert_with(|| blank(&service, &host));
            worker.running += 1;
            worker.activity = match worker.activity {
                _ if late => WorkerActivity::Silent,
                WorkerActivity::Silent => WorkerActivity::Silent,
                _ => WorkerActivity::Busy,
            };
            if worker.tasks.len() < SHOWN {
                worker.tasks.push(held(task));
            }
        }
        Ok(workers.into_values().collect())
    }

    /// Whether a worker of a service has been heard of lately, by this process or through a task that it has.
    pub(crate) fn heard_of_worker(&self, service: ServiceKey, within: Duration) -> bool {
        let book = self.0.roll_call.book();
        book.iter().any(|((of, _), entry)| *of == service && (entry.waiting > 0 || entry.seen.elapsed() < within))
    }
}

fn held(task: &Task) -> HeldTaskView {
    HeldTaskView {
        task_id: task.task_id.to_string(),
        start_date: task.state.started.map(text),
        lease_expires: task.state.lease_until.map(text),
        progress: task.state.progress,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_waits_for_as_long_as_it_asks_and_no_more_are_kept_than_there_is_room_for() {
        const LEASE: Duration = Duration::from_secs(60);
        let (roll_call, service) = (Arc::new(RollCall::default()), ServiceKey(1));
        let waiting = |host: &str| roll_call.book().get(&(service, host.to_owned())).map(|entry| entry.waiting);
        let (one, two) = (
            roll_call.asks(service, Some("a"), Some("v1"), 4, LEASE),
            roll_call.asks(service, Some("a"), Some("v1"), 4, LEASE),
        );
        assert_eq!(waiting("a"), Some(2));
        drop(one);
        assert_eq!(waiting("a"), Some(1));
        drop(two);
        assert_eq!(waiting("a"), Some(0));
        for host in 0..MOST + 10 {
            roll_call.hears(service, &format!("h{host}"));
        }
        assert_eq!(roll_call.book().len(), MOST);
    }
}
