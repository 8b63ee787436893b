//! Handlers in this process: the engine runs tasks itself.
//!
//! The process is an *instance*: it has a name, sends heartbeats, and leases tasks. It prefetches short tasks by the
//! hundred, runs them concurrently, and writes their results together ([`runner`]). A long task reports its start and
//! its progress, and can be cancelled ([`keeper`]).
//!
//! When an instance dies, its crash policy decides what happens to its leased tasks ([`CrashPolicy`]). An instance that
//! was only slow learns that it was reaped: its messages about those tasks are ignored.

mod keeper;
mod life;
mod runner;
mod running;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::future::BoxFuture;
use relais_core::{CrashPolicy, InstanceKey, Service};
use relais_handler::{Context, Handler, Verdict, erase};
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    life::InstanceLife,
    running::{Running, Tallies},
};
use crate::{Engine, EngineError, error::chain};

/// Called before a task runs.
pub type Before = Arc<dyn Fn(Context) -> BoxFuture<'static, ()> + Send + Sync>;

/// Called after a task has run, with its outcome, before that is written.
pub type After = Arc<dyn for<'a> Fn(Context, &'a Verdict) -> BoxFuture<'a, ()> + Send + Sync>;

/// The settings of an instance.
#[derive(Debug, Clone)]
pub struct InstanceOptions {
    /// Its name; the host's name and a random part unless set. An instance with the same name is replaced.
    pub name: Option<String>,
    /// The crash policy: what happens to its leased tasks if it dies.
    pub crash_policy: CrashPolicy,
    /// How long it may be silent before it counts as dead. Heartbeats are three times as frequent.
    pub silence: Duration,
    /// How long running tasks may continue after a stop. Then they are returned.
    pub grace: Duration,
    /// How long a handler may take to end after its task was stopped. Then it is dropped.
    pub stop_limit: Duration,
    /// Whether it runs only one task, the first of any of its services: for a process that was started for one task.
    pub once: bool,
}

impl Default for InstanceOptions {
    fn default() -> Self {
        Self {
            name: None,
            crash_policy: CrashPolicy::default(),
            silence: Duration::from_secs(15),
            grace: Duration::from_secs(20),
            stop_limit: Duration::from_secs(1),
            once: false,
        }
    }
}

/// A handler and its concurrency.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) handler: Handler,
    pub(crate) concurrency: usize,
}

/// The hooks around every task.
#[derive(Clone, Default)]
pub(crate) struct TaskHooks {
    pub(crate) before: Vec<Before>,
    pub(crate) after: Vec<After>,
}

/// The handlers, and the settings of the instance that runs them.
#[derive(Clone, Default)]
#[must_use]
pub struct Handlers {
    pub(crate) options: InstanceOptions,
    pub(crate) registered: BTreeMap<String, Registered>,
    pub(crate) hooks: TaskHooks,
}

/// The default concurrency of a service.
const CONCURRENCY: usize = 100;

impl Handlers {
    /// No handlers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the settings of the instance.
    pub fn options(mut self, options: InstanceOptions) -> Self {
        self.options = options;
        self
    }

    /// Registers an async function for the tasks of a service, from a typed body and a [`Context`] to a typed result or
    /// an error. Up to a hundred run concurrently, each in a tokio task of its own; work that blocks belongs in
    /// [`tokio::task::spawn_blocking`].
    pub fn on<B, R, E, H, F>(self, service: impl Into<String>, handler: H) -> Self
    where
        H: Fn(B, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, E>> + Send + 'static,
        B: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        self.on_up_to(CONCURRENCY, service, handler)
    }

    /// Registers a handler with this concurrency.
    pub fn on_up_to<B, R, E, H, F>(mut self, concurrency: usize, service: impl Into<String>, handler: H) -> Self
    where
        H: Fn(B, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, E>> + Send + 'static,
        B: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let registered = Registered { handler: erase(handler), concurrency: concurrency.max(1) };
        self.registered.insert(service.into(), registered);
        self
    }

    /// Called before every task, in the order of registration.
    pub fn before<F>(mut self, hook: impl Fn(Context) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.hooks.before.push(Arc::new(move |context| Box::pin(hook(context))));
        self
    }

    /// Called after every task, in the order of registration, with its outcome.
    pub fn after(
        mut self,
        hook: impl for<'a> Fn(Context, &'a Verdict) -> BoxFuture<'a, ()> + Send + Sync + 'static,
    ) -> Self {
        self.hooks.after.push(Arc::new(hook));
        self
    }
}

/// What an instance did from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstanceReport {
    /// Tasks that succeeded.
    pub done: u64,
    /// Tasks that failed or are retried.
    pub failed: u64,
    /// Tasks that were returned unfinished.
    pub returned: u64,
    /// Tasks that were taken away: cancelled, or given to another worker.
    pub lost: u64,
}

/// A running instance.
///
/// If it is dropped instead of [stopped](Self::stop), it ends as if its process had died: handlers are stopped, nothing
/// more is written, and its leased tasks are recovered when it is reaped, or when another instance registers under its
/// name.
#[must_use = "an instance that is dropped ends at once"]
pub struct Instance {
    life: Arc<InstanceLife>,
    tracker: TaskTracker,
    grace: Duration,
    stop: CancellationToken,
    ended: CancellationToken,
    /// Cancelled when it is dropped.
    dropped: CancellationToken,
}

impl Engine {
    /// Starts to run tasks in this process. The services must exist.
    ///
    /// # Errors
    ///
    /// If a service does not exist or uses a broker, if the store does not answer, or if the instance that had the name
    /// before died and an operator has to decide about its tasks first ([`EngineError::Conflict`], see
    /// [`CrashPolicy::Refuse`]).
    pub async fn work(&self, handlers: Handlers) -> Result<Instance, EngineError> {
        let services = services(self, &handlers)?;
        let keys = services.iter().map(|(service, _)| service.key).collect();
        let life = Arc::new(InstanceLife::begin(self.clone(), handlers.options.clone(), keys).await?);
        let (tracker, stop, dropped) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
        let running = Arc::new(Running::default());
        let only = handlers.options.once.then(Arc::<AtomicBool>::default);
        for (service, mut registered) in services {
            if only.is_some() {
                registered.concurrency = 1;
            }
            let runner = runner::Runner {
                engine: self.clone(),
                life: Arc::clone(&life),
                service,
                registered,
                hooks: handlers.hooks.clone(),
                running: Arc::clone(&running),
                stop: stop.clone(),
                stop_limit: handlers.options.stop_limit,
                only: only.clone(),
            };
            tracker.spawn(dropped.clone().run_until_cancelled_owned(runner.run()));
        }
        let keeper = keeper::run(self.clone(), Arc::clone(&life), running, stop.clone());
        tracker.spawn(dropped.clone().run_until_cancelled_owned(keeper));
        let ended = CancellationToken::new();
        // For as long as anything runs: a silent instance is reaped.
        self.spawn(Arc::clone(&life).send_heartbeats(ended.clone()));
        tracker.close();
        Ok(Instance { life, tracker, grace: handlers.options.grace, stop, ended, dropped })
    }
}

/// The services for which there are handlers.
pub(crate) fn services(engine: &Engine, handlers: &Handlers) -> Result<Vec<(Arc<Service>, Registered)>, EngineError> {
    let snapshot = engine.snapshot()?;
    let find = |(name, registered): (&String, &Registered)| {
        let service = snapshot.declared.services.get(name.as_str()).ok_or(EngineError::ServiceNotFound)?;
        if service.transport.is_brokered() {
            return Err(EngineError::Conflict(format!("the tasks of {name} are handed out by the broker")));
        }
        Ok((Arc::clone(service), registered.clone()))
    };
    handlers.registered.iter().map(find).collect()
}

/// Runs tasks of one service, one at a time.
pub(crate) fn by_hand(
    engine: &Engine,
    service: Arc<Service>,
    registered: Registered,
    handlers: &Handlers,
) -> runner::Runner {
    // A task that wants a retry is not kept until then.
    let stop = CancellationToken::new();
    stop.cancel();
    runner::Runner {
        engine: engine.clone(),
        life: Arc::new(InstanceLife::by_hand(engine.clone())),
        service,
        registered,
        hooks: handlers.hooks.clone(),
        running: Arc::default(),
        stop,
        stop_limit: handlers.options.stop_limit,
        only: None,
    }
}

impl Instance {
    /// Its name.
    pub fn name(&self) -> &str {
        self.life.name()
    }

    /// Waits until it has nothing more to do: with [`InstanceOptions::once`], when its task has ended. It must still be
    /// [stopped](Self::stop).
    pub async fn finished(&self) {
        self.tracker.wait().await;
    }

    /// Stops: leases nothing more, lets running tasks finish within the grace period, returns the rest, and reports
    /// what it did.
    pub async fn stop(self) -> InstanceReport {
        self.stop.cancel();
        if tokio::time::timeout(self.grace, self.tracker.wait()).await.is_err() {
            self.life.interrupt();
            self.tracker.wait().await;
        }
        self.ended.cancel();
        self.life.end().await;
        self.life.report()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.dropped.cancel();
        self.stop.cancel();
        self.ended.cancel();
        self.life.interrupt();
    }
}

/// Registers this process as an instance until the engine stops. Retries while the store does not answer.
pub(crate) async fn presence(engine: Engine, options: InstanceOptions) {
    let stopping = engine.stopping();
    let life = loop {
        let begun = tokio::select! {
            begun = InstanceLife::begin(engine.clone(), options.clone(), Vec::new()) => begun,
            () = stopping.cancelled() => return,
        };
        match begun {
            Ok(life) => break Arc::new(life),
            Err(error) => tracing::debug!(error = %chain(&error), "this process can not be made known yet"),
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stopping.cancelled() => return,
        }
    };
    Arc::clone(&life).send_heartbeats(stopping).await;
    life.end().await;
}

/// The key under which the instance is registered, while it is alive.
type Key = Option<InstanceKey>;
