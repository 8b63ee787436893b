//! Tasks that are done in this very process, by handlers registered with the engine.
//!
//! The process is an *instance*: it has a name, gives signs of life, and answers for all that it has in hand. It takes tasks
//! in hand by the hundred when they are short, runs them side by side, and writes their results together ([`runner`]). What
//! takes longer is said to have begun, is told when somebody cancels it, and can tell its progress ([`keeper`]).
//!
//! When an instance dies, others take care of what it had, as it asked for ([`CrashPolicy`]). One that was only slow learns
//! that it was given up: nothing that it says of those tasks counts any more.

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
    life::Life,
    running::{Running, Tallies},
};
use crate::{Engine, EngineError, error::chain};

/// Called before a task is done.
pub type Before = Arc<dyn Fn(Context) -> BoxFuture<'static, ()> + Send + Sync>;

/// Called after a task was done, with what came of it, before that is written.
pub type After = Arc<dyn for<'a> Fn(Context, &'a Verdict) -> BoxFuture<'a, ()> + Send + Sync>;

/// How an instance behaves.
#[derive(Debug, Clone)]
pub struct InstanceOptions {
    /// What it is called; made of the host's name and chance unless set. Whoever starts under the same name replaces it.
    pub name: Option<String>,
    /// What becomes of the tasks in hand if it dies.
    pub crash_policy: CrashPolicy,
    /// How long it may keep silent before it counts as dead. Signs of life are given three times as often.
    pub silence: Duration,
    /// How long running tasks may go on once it is told to stop. Then they are given back.
    pub grace: Duration,
    /// How long a handler may take to end once its task is told to stop. Then it is dropped.
    pub stop_limit: Duration,
    /// Whether it does one task, the first there is of any of its services, and takes nothing more: for a process that was
    /// started to do one.
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

/// A handler and how many of its tasks run side by side.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) handler: Handler,
    pub(crate) concurrency: usize,
}

/// What happens around every task.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) before: Vec<Before>,
    pub(crate) after: Vec<After>,
}

/// Handlers, and how the instance that runs them behaves.
#[derive(Clone, Default)]
#[must_use]
pub struct Handlers {
    pub(crate) options: InstanceOptions,
    pub(crate) registered: BTreeMap<String, Registered>,
    pub(crate) hooks: Hooks,
}

/// So many tasks of a service run side by side, unless said otherwise.
const CONCURRENCY: usize = 100;

impl Handlers {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How the instance behaves.
    pub fn options(mut self, options: InstanceOptions) -> Self {
        self.options = options;
        self
    }

    /// Does the tasks of a service by an async function from a typed body and a [`Context`] to a typed result or an error.
    /// Up to a hundred run side by side, each in a tokio task of its own; work that blocks belongs in
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

    /// The same, with at most so many side by side.
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

    /// Called after every task, in the order of registration, with what came of it.
    pub fn after(
        mut self,
        hook: impl for<'a> Fn(Context, &'a Verdict) -> BoxFuture<'a, ()> + Send + Sync + 'static,
    ) -> Self {
        self.hooks.after.push(Arc::new(hook));
        self
    }
}

/// What an instance did, from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstanceReport {
    /// Tasks that ended well.
    pub done: u64,
    /// Tasks that ended badly, or are to be tried again.
    pub failed: u64,
    /// Tasks given back unfinished.
    pub returned: u64,
    /// Tasks that were taken away: cancelled, or given to somebody else.
    pub lost: u64,
}

/// An instance that is at work.
///
/// Dropped instead of [stopped](Self::stop), it ends as if its process had died: handlers are told to stop, nothing more is
/// written, and what it had in hand is taken care of when it has been silent for long enough, or when another one begins
/// under its name.
#[must_use = "an instance that is dropped ends at once"]
pub struct Instance {
    life: Arc<Life>,
    tracker: TaskTracker,
    grace: Duration,
    stop: CancellationToken,
    ended: CancellationToken,
    /// Cancelled when it is dropped.
    dropped: CancellationToken,
}

impl Engine {
    /// Begins to do tasks in this process. The services have to be there.
    ///
    /// # Errors
    ///
    /// If a service is not there or has its tasks carried by a broker, if the store does not answer, or if the instance
    /// that had the name before died and somebody has to decide first what becomes of its tasks
    /// ([`EngineError::Conflict`], see [`CrashPolicy::Refuse`]).
    pub async fn work(&self, handlers: Handlers) -> Result<Instance, EngineError> {
        let services = services(self, &handlers)?;
        let keys = services.iter().map(|(service, _)| service.key).collect();
        let life = Arc::new(Life::begin(self.clone(), handlers.options.clone(), keys).await?);
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
        // For as long as anything runs: whoever is silent is given up.
        self.spawn(Arc::clone(&life).beat(ended.clone()));
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

/// What does tasks of one service, one at a time.
pub(crate) fn by_hand(
    engine: &Engine,
    service: Arc<Service>,
    registered: Registered,
    handlers: &Handlers,
) -> runner::Runner {
    // What wants another time is not held until then.
    let stop = CancellationToken::new();
    stop.cancel();
    runner::Runner {
        engine: engine.clone(),
        life: Arc::new(Life::by_hand(engine.clone())),
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
    /// What it is called.
    pub fn name(&self) -> &str {
        self.life.name()
    }

    /// Waits until it has nothing more to do: with [`InstanceOptions::once`], when its task is over. It is still to be
    /// [stopped](Self::stop).
    pub async fn finished(&self) {
        self.tracker.wait().await;
    }

    /// Stops: takes nothing more, lets what runs finish within the grace period, gives back the rest, and tells what it did.
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

/// Has this process known among those on the store, until the engine stops. While the store does not answer it is tried again.
pub(crate) async fn presence(engine: Engine, options: InstanceOptions) {
    let stopping = engine.stopping();
    let life = loop {
        let begun = tokio::select! {
            begun = Life::begin(engine.clone(), options.clone(), Vec::new()) => begun,
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
    Arc::clone(&life).beat(stopping).await;
    life.end().await;
}

/// The number under which the store knows the instance, while it is alive.
type Key = Option<InstanceKey>;
