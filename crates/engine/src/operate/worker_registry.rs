//! The worker registry: workers known to this process, to other processes, and from running tasks.
//!
//! A worker that claims is known to the process that it asks. Each process publishes the workers that it knows every
//! few seconds through the store, and nothing while it knows none. Workers of running tasks are known from the store.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use relais_core::{ServiceKey, Status, Task, TaskFilter, TaskId, TaskTransport};
use relais_protocol::worker_state::{HeldTaskView, WorkerActivity, WorkerStateView};
use serde::{Deserialize, Serialize};

use crate::{Engine, EngineError, follow::views::text};

/// The most workers that are remembered.
const MOST: usize = 10_000;

/// After this time of silence a worker is forgotten.
const FORGET: Duration = Duration::from_secs(15 * 60);

/// The most running tasks that are looked at, the newest first.
const LOOK: usize = 1000;

/// The most tasks that are shown of a worker.
const SHOWN: usize = 5;

/// What another process published longer ago than this is ignored.
const BELIEVED: Duration = Duration::from_secs(45);

/// How many workers are published, the latest first.
const TOLD: usize = 500;

/// A worker, as processes publish it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PublishedWorker {
    service: i32,
    host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// How long ago it was last heard.
    seen_ms: u64,
    waiting: usize,
    slots: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
}

#[derive(Debug)]
struct Entry {
    version: Option<Arc<str>>,
    seen: Instant,
    /// Claims that wait.
    waiting: usize,
    /// How many tasks those claims ask for.
    slots: usize,
    /// Its lease.
    lease: Option<Duration>,
}

/// The workers that this process has heard of.
pub(crate) struct WorkerRegistry {
    book: Mutex<HashMap<(ServiceKey, String), Entry>>,
    /// The name under which this process publishes.
    process: String,
    /// Whether workers were published.
    has_told: AtomicBool,
}

impl Default for WorkerRegistry {
    fn default() -> Self {
        Self { book: Mutex::default(), process: TaskId::generate().to_string(), has_told: AtomicBool::new(false) }
    }
}

impl WorkerRegistry {
    /// Counts a waiting claim of a worker, until the guard is dropped.
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
        Asking { worker_registry: Arc::clone(self), key }
    }

    /// A worker sent a message.
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

    /// All known workers, the latest first, as they are published.
    fn told(&self) -> Vec<PublishedWorker> {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let book = self.book();
        let known = book.iter().map(|((service, host), entry)| PublishedWorker {
            service: service.0,
            host: host.clone(),
            version: entry.version.as_deref().map(str::to_owned),
            seen_ms: if entry.waiting > 0 { 0 } else { millis(entry.seen.elapsed()) },
            waiting: entry.waiting,
            slots: entry.slots,
            lease_ms: entry.lease.map(millis),
        });
        let mut known: Vec<PublishedWorker> =
            known.filter(|told| Duration::from_millis(told.seen_ms) < FORGET).collect();
        known.sort_by_key(|told| told.seen_ms);
        known
    }

    fn book(&self) -> MutexGuard<'_, HashMap<(ServiceKey, String), Entry>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim that waits.
pub(crate) struct Asking {
    worker_registry: Arc<WorkerRegistry>,
    key: (ServiceKey, String),
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(entry) = self.worker_registry.book().get_mut(&self.key) {
            entry.waiting = entry.waiting.saturating_sub(1);
            entry.seen = Instant::now();
        }
    }
}

impl Engine {
    /// The known workers, in the order of services and hosts.
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
                Some(TaskTransport::RabbitMq) => "rabbitmq",
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
        for told in self.0.worker_registry.told().into_iter().chain(self.published_by_others().await?) {
            let Some(service) = declared.service_by_key(ServiceKey(told.service)) else { continue };
            let key = (service.name.to_string(), told.host.clone());
            leases.extend(told.lease_ms.map(|lease| (key.clone(), Duration::from_millis(lease))));
            let worker = workers.entry(key).or_insert_with(|| blank(service.name.as_str(), &told.host));
            let seen = told.seen_ms as f64 / 1000.0;
            worker.seen_seconds_ago = Some(worker.seen_seconds_ago.map_or(seen, |known| known.min(seen)));
            worker.version = told.version.or(worker.version.take());
            worker.asks_for += told.waiting * told.slots;
            if told.waiting > 0 {
                worker.activity = WorkerActivity::Waiting;
            }
        }
        for task in &running {
            let host = task.state.worker_host.clone().unwrap_or_default();
            let service = task.service.to_string();
            let key = (service.clone(), host.clone());
            // A worker sends a heartbeat at a third of its lease: it is late when it has used more than half of it. The
            // lease of another process's worker is not known, so that worker is late when the lease has expired.
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

    /// Whether any process has lately heard of a worker of a service.
    pub(crate) async fn heard_of_worker(&self, service: ServiceKey, within: Duration) -> Result<bool, EngineError> {
        let heard = |told: &[PublishedWorker]| {
            told.iter().any(|told| told.service == service.0 && Duration::from_millis(told.seen_ms) < within)
        };
        Ok(heard(&self.0.worker_registry.told()) || heard(&self.published_by_others().await?))
    }

    /// The workers that other processes published, as of now.
    async fn published_by_others(&self) -> Result<Vec<PublishedWorker>, EngineError> {
        let told = self.0.store.list_published_workers(self.0.worker_registry.process.clone(), BELIEVED).await?;
        let told = told.into_iter().flat_map(|(text, ago)| {
            // A process of another version may say what is not understood here.
            let workers: Vec<PublishedWorker> = serde_json::from_str(&text).unwrap_or_default();
            let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
            workers.into_iter().map(move |told| PublishedWorker { seen_ms: told.seen_ms.saturating_add(ago), ..told })
        });
        Ok(told.collect())
    }

    /// Publishes the workers that this process knows; nothing if it knows none.
    pub(crate) async fn publish_workers(&self) -> Result<(), EngineError> {
        let worker_registry = &self.0.worker_registry;
        let mut told = worker_registry.told();
        told.truncate(TOLD);
        let text = if told.is_empty() { None } else { serde_json::to_string(&told).ok() };
        if text.is_some() || worker_registry.has_told.load(Ordering::Relaxed) {
            let tells = text.is_some();
            self.0.store.publish_workers(worker_registry.process.clone(), text).await?;
            worker_registry.has_told.store(tells, Ordering::Relaxed);
        }
        Ok(())
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
    fn the_worker_registry_counts_waiting_claims_and_is_bounded() {
        const LEASE: Duration = Duration::from_secs(60);
        let (worker_registry, service) = (Arc::new(WorkerRegistry::default()), ServiceKey(1));
        let waiting = |host: &str| worker_registry.book().get(&(service, host.to_owned())).map(|entry| entry.waiting);
        let (one, two) = (
            worker_registry.asks(service, Some("a"), Some("v1"), 4, LEASE),
            worker_registry.asks(service, Some("a"), Some("v1"), 4, LEASE),
        );
        assert_eq!(waiting("a"), Some(2));
        drop(one);
        assert_eq!(waiting("a"), Some(1));
        drop(two);
        assert_eq!(waiting("a"), Some(0));
        for host in 0..MOST + 10 {
            worker_registry.hears(service, &format!("h{host}"));
        }
        assert_eq!(worker_registry.book().len(), MOST);
    }

    #[tokio::test]
    async fn a_worker_that_waits_at_one_process_is_in_every_worker_registry() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("relais.db").display());
        let store = relais_store::open(&url, &relais_store::Options::default()).await.unwrap();
        store.migrate().await.unwrap();
        let one = Engine::start(Arc::clone(&store), crate::Options::default()).unwrap();
        let declaration = serde_json::json!({"services": [{"serviceName": "resize"}]});
        one.apply(serde_json::from_value(declaration).unwrap(), false, false).await.unwrap();
        let other = Engine::start(store, crate::Options::default()).unwrap();
        other.refresh().await.unwrap();
        let service = one.snapshot().unwrap().declared.services["resize"].key;
        let lately = Duration::from_secs(60);
        assert!(!other.heard_of_worker(service, lately).await.unwrap());

        let _asking = one.0.worker_registry.asks(service, Some("w1"), Some("v1"), 4, lately);
        one.publish_workers().await.unwrap();
        assert!(other.heard_of_worker(service, lately).await.unwrap());
        for engine in [&one, &other] {
            let seen = engine.workers().await.unwrap();
            assert_eq!(seen.len(), 1, "once, wherever one looks");
            assert_eq!((seen[0].host_name.as_deref(), seen[0].version.as_deref()), (Some("w1"), Some("v1")));
            assert_eq!((seen[0].activity, seen[0].asks_for), (WorkerActivity::Waiting, 4));
        }
        one.0.worker_registry.book().clear();
        one.publish_workers().await.unwrap();
        assert!(other.workers().await.unwrap().is_empty(), "nor is one that nobody knows any more");
    }
}
