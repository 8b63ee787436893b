//! Tasks in your own program, without a server: an engine, handlers, and a way to submit.
//!
//! [`Tasks`] is the engine as a library: it creates the tables, declares the services for which there are handlers,
//! runs the handlers, and submits as one client. Everything else is in [`Tasks::engine`]. For tests see
//! [`TasksBuilder::by_hand`].

mod by_hand;

pub use by_hand::{Enqueued, Ran};

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use relais_core::{Declared, Role, Store, StoredSubmission, Task, TaskId};
use relais_protocol::{
    admin::{AuthorizationDeclaration, ClientDeclaration, Declaration, RoleName, ServiceDeclaration},
    consumer::SubmitRequest,
    schedule::ScheduleDeclaration,
};
use serde::Serialize;
use serde_json::value::to_raw_value;
use tokio::{sync::Mutex, time::Instant};

use crate::{Access, Engine, EngineError, Handlers, Instance, InstanceReport, Options, Problem};

/// The wait before a look for a transactional submission that was just stored.
const SOON: Duration = Duration::from_millis(20);

/// The tasks of this program. Cheap to clone.
#[derive(Clone)]
pub struct Tasks(Arc<Shared>);

struct Shared {
    engine: Engine,
    client: String,
    handlers: Handlers,
    by_hand: bool,
    /// None where a test runs the tasks, and after a stop.
    instance: Mutex<Option<Instance>>,
}

/// The settings of [`Tasks`].
#[must_use]
pub struct TasksBuilder {
    store: Arc<dyn Store>,
    options: Options,
    client: String,
    handlers: Handlers,
    services: BTreeMap<String, ServiceDeclaration>,
    schedules: Vec<ScheduleDeclaration>,
    by_hand: bool,
}

impl TasksBuilder {
    /// Sets the handlers.
    pub fn handlers(mut self, handlers: Handlers) -> Self {
        self.handlers = handlers;
        self
    }

    /// The client that the program submits as; `app` unless set.
    pub fn client(mut self, client: impl Into<String>) -> Self {
        self.client = client.into();
        self
    }

    /// Sets the settings of the engine.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Declares a service: its retry policy, its limits. A service with a handler that is not declared here is created
    /// with defaults, unless it exists.
    pub fn service(mut self, service: ServiceDeclaration) -> Self {
        self.services.insert(service.service_name.clone(), service);
        self
    }

    /// Declares a schedule.
    pub fn schedule(mut self, schedule: ScheduleDeclaration) -> Self {
        self.schedules.push(schedule);
        self
    }

    /// For tests: nothing happens by itself. [`Tasks::run_due`] runs tasks, and [`Tasks::advance`] moves the clock.
    pub fn by_hand(mut self) -> Self {
        self.by_hand = true;
        self
    }

    /// Creates the tables if need be, applies the declaration, and starts to run tasks.
    ///
    /// # Errors
    ///
    /// If the store does not answer, if the declaration is invalid, or if an instance of the same name died and an
    /// operator has to decide about its tasks.
    pub async fn start(self) -> Result<Tasks, EngineError> {
        Engine::migrate(&self.store).await?;
        let options = match self.by_hand {
            true => Options { rescue: false, purging: false, scheduling: false, ..self.options },
            false => self.options,
        };
        let engine = Engine::start(self.store, options)?;
        engine.refresh().await?;
        let mut services = self.services;
        let snapshot = engine.snapshot()?;
        let mut names: Vec<String> = services.keys().cloned().collect();
        for name in self.handlers.registered.keys() {
            names.push(name.clone());
            if !snapshot.declared.services.contains_key(name.as_str()) {
                services.entry(name.clone()).or_insert_with(|| ServiceDeclaration::named(name.clone()));
            }
        }
        names.sort_unstable();
        names.dedup();
        let authorizations =
            names.into_iter().filter_map(|service| consumer(&snapshot.declared, &self.client, service));
        let declaration = Declaration {
            services: services.into_values().collect(),
            clients: vec![ClientDeclaration {
                client_id: self.client.clone(),
                client_secret: None,
                signing_secret: None,
                destinations: None,
                notifications: None,
            }],
            authorizations: authorizations.collect(),
            schedules: self.schedules,
            outboxes: Vec::new(),
            captures: Vec::new(),
            audiences: Vec::new(),
            notification_sources: Vec::new(),
        };
        engine.apply(declaration, false, false).await?;
        engine.refresh().await?;
        let instance = match self.by_hand {
            true => None,
            false => Some(engine.work(self.handlers.clone()).await?),
        };
        let instance = Mutex::new(instance);
        let (client, handlers, by_hand) = (self.client, self.handlers, self.by_hand);
        Ok(Tasks(Arc::new(Shared { engine, client, handlers, by_hand, instance })))
    }
}

impl Tasks {
    /// Tasks on this store.
    pub fn builder(store: Arc<dyn Store>) -> TasksBuilder {
        TasksBuilder {
            store,
            options: Options::default(),
            client: "app".to_owned(),
            handlers: Handlers::new(),
            services: BTreeMap::new(),
            schedules: Vec::new(),
            by_hand: false,
        }
    }

    /// Submits a task. It is stored when this returns.
    pub async fn submit(&self, service: &str, body: &impl Serialize) -> Result<TaskId, EngineError> {
        self.submit_request(service, request(body)?).await
    }

    /// Submits a task with terms: delay, priority, unique key, retries.
    pub async fn submit_request(&self, service: &str, request: SubmitRequest) -> Result<TaskId, EngineError> {
        let accepted = self.engine().submit(&self.access(service)?, request, None).await?;
        Ok(accepted.submitted.task_id)
    }

    /// Validates a task now, for a transaction of your own: store what this returns with `relais_store::enqueue`.
    pub fn prepare(&self, service: &str, body: &impl Serialize) -> Result<StoredSubmission, EngineError> {
        self.prepare_request(service, &request(body)?)
    }

    /// Validates a task with terms, for a transaction of your own.
    pub fn prepare_request(&self, service: &str, request: &SubmitRequest) -> Result<StoredSubmission, EngineError> {
        self.engine().prepare(&self.access(service)?, request)
    }

    /// Says that a transaction with a submission was committed. PostgreSQL notifies by itself.
    pub fn collect_submissions(&self) {
        self.engine().collect_submissions();
    }

    /// Waits until a task has ended or the time is up, and returns it.
    pub async fn wait(&self, task_id: TaskId, wait: Duration) -> Result<Task, EngineError> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(task) = self.engine().0.store.find_task(task_id).await? {
                let access = self.access(task.service.as_str())?;
                return self.engine().wait(&access, task_id, deadline.saturating_duration_since(Instant::now())).await;
            }
            // It may be an uncollected transactional submission.
            self.collect_submissions();
            if Instant::now() >= deadline {
                return Err(EngineError::TaskNotFound);
            }
            tokio::time::sleep(SOON).await;
        }
    }

    /// The engine, with all that it can do.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Stops: leases nothing more, lets running tasks finish within the grace period, and returns the rest.
    pub async fn stop(self) -> InstanceReport {
        let instance = self.0.instance.lock().await.take();
        let report = match instance {
            Some(instance) => instance.stop().await,
            None => InstanceReport::default(),
        };
        self.0.engine.clone().stop().await;
        report
    }

    pub(crate) fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    pub(crate) fn access(&self, service: &str) -> Result<Access, EngineError> {
        self.engine().insider(&self.0.client, service, Role::Consume)
    }
}

/// The authorization that lets the client submit to a service; none if it has one. Everything else that an operator
/// declared stays.
fn consumer(declared: &Declared, client_id: &str, service_name: String) -> Option<AuthorizationDeclaration> {
    let keys = declared.clients.get(client_id).zip(declared.services.get(service_name.as_str()));
    let known = keys.and_then(|(client, service)| declared.authorizations.get(&(client.key, service.key)));
    let roles = known.map(|known| known.roles).unwrap_or_default();
    if roles.has(Role::Consume) {
        return None;
    }
    let work = roles.has(Role::Work).then_some(RoleName::Work);
    Some(AuthorizationDeclaration {
        client_id: client_id.to_owned(),
        service_name,
        roles: [RoleName::Consume].into_iter().chain(work).collect(),
        capacity: known.and_then(|known| known.capacity),
        max_running: known.and_then(|known| known.flow.max_running),
        share: known.map(|known| known.flow.share),
    })
}

/// A submission with the service's terms.
fn request(body: &impl Serialize) -> Result<SubmitRequest, EngineError> {
    let body =
        to_raw_value(body).map_err(|error| EngineError::Invalid(vec![Problem::at("/body", error.to_string())]))?;
    Ok(SubmitRequest::new(body))
}
