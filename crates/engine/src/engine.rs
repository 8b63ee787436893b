//! The engine: what it is made of, how it starts and stops.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use relais_core::{
    Client, DeclarationStore, MaintenanceStore, NewTask, Outcome, Role, Roles, Service, Store, StoreError, Submission,
    TaskEvent, WakeupListener,
};
use relais_group_commit::{BatchOptions, Batcher};
use tokio::{sync::watch, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    EngineError,
    auth::{AuthOptions, Authenticator, ClientCredentials},
    bus::{BusOptions, EventBus},
    callbacks::{CallbackOptions, CallbackSenders},
    claims::ClaimCoordinator,
    claims::pace::Pace,
    dispatch::{self, DispatchOptions, Dispatcher, give_back},
    follow::hub::WakeupHub,
    local::{InstanceOptions, presence},
    measured::Measured,
    operate::admin::PurgeDefaults,
    operate::trend::Trends,
    operate::worker_registry::WorkerRegistry,
    operate::{
        audiences::DeclaredAudiences, captures::CaptureRelays, notification_sources::NotificationSources,
        outboxes::OutboxRelays,
    },
    readiness::Readiness,
    registry::{Registry, Snapshot},
    submit::schema::check::{Validation, ValidationOptions},
    timers,
};

/// How long it may take to leave tasks to other processes when there is no room here.
const GIVE_BACK: Duration = Duration::from_secs(2);

/// The settings of the engine.
#[derive(Debug, Clone)]
pub struct Options {
    /// Group commit.
    pub batching: BatchOptions,
    /// Secrets.
    pub auth: AuthOptions,
    /// The validation of bodies by JSON Schemas.
    pub validation: ValidationOptions,
    /// How long tasks are kept.
    pub purge: PurgeDefaults,
    /// How long idempotency keys are kept.
    pub idempotency_age: Duration,
    /// How long audit records are kept.
    pub audit_age: Duration,
    /// The period of sweeps, which find what a lost wake-up left behind; 5 s unless set. They also find what a process
    /// left that died while it published to a broker.
    pub sweep: Duration,
    /// Whether this process rescues tasks from silent workers.
    pub rescue: bool,
    /// Whether this process purges.
    pub purging: bool,
    /// Whether this process sends callbacks.
    pub send_callbacks: bool,
    /// Whether this process makes the runs of schedules.
    pub scheduling: bool,
    /// The senders of callbacks; a kind without a sender is refused.
    pub callback_senders: CallbackSenders,
    /// How callbacks are sent.
    pub callbacks: CallbackOptions,
    /// The dispatch of tasks to a broker.
    pub dispatch: DispatchOptions,
    /// The event bus.
    pub bus: BusOptions,
    /// What knows the outboxes; without it none can be declared.
    pub outboxes: Option<Arc<dyn OutboxRelays>>,
    /// What knows the captures; without it none can be declared.
    pub captures: Option<Arc<dyn CaptureRelays>>,
    /// What knows the declared audiences; without it none can be declared.
    pub audiences: Option<Arc<dyn DeclaredAudiences>>,
    /// What knows the notification sources; without it none can be declared.
    pub notification_sources: Option<Arc<dyn NotificationSources>>,
    /// How this process registers as an instance, if it does. A process that runs handlers ([`Engine::work`]) always
    /// does.
    pub presence: Option<InstanceOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            batching: BatchOptions::default(),
            auth: AuthOptions::default(),
            validation: ValidationOptions::default(),
            purge: PurgeDefaults::default(),
            idempotency_age: Duration::from_secs(24 * 3600),
            audit_age: Duration::from_secs(180 * 86_400),
            sweep: Duration::from_secs(5),
            rescue: true,
            purging: true,
            send_callbacks: true,
            scheduling: true,
            callback_senders: CallbackSenders::default(),
            callbacks: CallbackOptions::default(),
            dispatch: DispatchOptions::default(),
            bus: BusOptions::default(),
            outboxes: None,
            captures: None,
            audiences: None,
            notification_sources: None,
            presence: None,
        }
    }
}

/// An authenticated client, and a service that it may use.
#[derive(Debug, Clone)]
pub struct Access {
    /// The caller.
    pub client: Arc<Client>,
    /// The service.
    pub service: Arc<Service>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Options,
    pub(crate) registry: Registry,
    pub(crate) hub: Arc<WakeupHub>,
    pub(crate) bus: EventBus,
    pub(crate) pace: Pace,
    pub(crate) trends: Trends,
    pub(crate) worker_registry: Arc<WorkerRegistry>,
    pub(crate) readiness: Arc<Readiness>,
    /// Whether this process took the turn to purge and has not done it yet.
    pub(crate) purge_owed: AtomicBool,
    pub(crate) auth: Authenticator,
    pub(crate) validation: Validation,
    pub(crate) submissions: Batcher<NewTask, Submission, EngineError>,
    pub(crate) events: Batcher<TaskEvent, Outcome, EngineError>,
    pub(crate) claims: ClaimCoordinator,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) stopping: CancellationToken,
    pub(crate) closing: CancellationToken,
    tracker: TaskTracker,
}

/// The application layer. Cheap to clone.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Inner>);

impl Engine {
    /// Starts the engine on a store whose tables exist or will exist: until the store answers, every use case fails.
    pub fn start(store: Arc<dyn Store>, mut options: Options) -> Result<Self, EngineError> {
        options.sweep = options.sweep.clamp(Duration::from_millis(100), Duration::from_secs(86_400));
        let store: Arc<dyn Store> = Arc::new(Measured(store));
        let (tracker, stopping, closing) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
        let hub = Arc::new(WakeupHub::default());
        store.listen(Arc::clone(&hub) as _);
        let (dispatcher, publications) = Dispatcher::new();
        let dispatcher = Arc::new(dispatcher);
        let claims =
            ClaimCoordinator::start(Arc::clone(&store), Arc::clone(&hub), options.sweep, stopping.clone(), &tracker);
        let submissions = {
            let (claims, dispatcher) = (claims.clone(), Arc::clone(&dispatcher));
            let (store, hub) = (Arc::clone(&store), Arc::clone(&hub));
            Batcher::start(
                "submissions",
                options.batching,
                &tracker,
                closing.clone(),
                Arc::new(move |tasks| {
                    let (claims, dispatcher) = (claims.clone(), Arc::clone(&dispatcher));
                    let (store, hub) = (Arc::clone(&store), Arc::clone(&hub));
                    Box::pin(async move {
                        let picked = Dispatcher::pick(&tasks);
                        let answers = claims.submit(tasks).await?;
                        let left = dispatcher.offer(picked, &answers);
                        if !left.is_empty() {
                            // Whoever submitted them does not wait for long: they are found anyway.
                            let _ = timeout(GIVE_BACK, give_back(store.as_ref(), &hub, left)).await;
                        }
                        Ok(answers)
                    })
                }),
            )
        };
        let events = {
            let store = Arc::clone(&store);
            Batcher::start(
                "events",
                options.batching,
                &tracker,
                closing.clone(),
                Arc::new(move |events| {
                    let store = Arc::clone(&store);
                    Box::pin(async move { store.record_events(events).await })
                }),
            )
        };
        let engine = Self(Arc::new(Inner {
            auth: Authenticator::new(options.auth)?,
            validation: Validation::new(options.validation),
            registry: Registry::default(),
            bus: EventBus::new(&options.bus)?,
            pace: Pace::default(),
            trends: Trends::default(),
            worker_registry: Arc::default(),
            readiness: Arc::default(),
            purge_owed: AtomicBool::new(false),
            submissions,
            events,
            claims,
            dispatcher,
            store,
            hub,
            options,
            stopping,
            closing,
            tracker,
        }));
        EventBus::start(&engine);
        timers::start(&engine);
        dispatch::start(&engine, publications);
        if let Some(options) = engine.0.options.presence.clone() {
            engine.spawn(presence(engine.clone(), options));
        }
        Ok(engine)
    }

    /// Ends all waits. Submissions are still accepted.
    pub fn begin_stop(&self) {
        self.0.stopping.cancel();
    }

    /// Stops: refuses new calls, answers waiting callers, and writes what was accepted.
    pub async fn stop(self) {
        self.begin_stop();
        self.0.closing.cancel();
        self.0.tracker.close();
        self.0.tracker.wait().await;
        self.0.bus.finish().await;
        self.0.store.close().await;
    }

    /// Says when what is declared may have changed, here or in another process. The number is that of the declaration.
    pub fn declaration_changes(&self) -> watch::Receiver<i64> {
        self.0.registry.changes()
    }

    /// From now on `listener` gets the wake-ups of this process and of others, over the store or over Redis.
    pub fn pass_on_wakeups_to(&self, listener: Arc<dyn WakeupListener>) {
        self.0.hub.pass_on_to(listener);
    }

    /// Cancelled when the engine begins to stop, which ends all waits.
    pub fn stopping(&self) -> CancellationToken {
        self.0.stopping.clone()
    }

    /// Whether the store answers, the declaration is known, and there is no other reason [why not](Self::not_ready).
    pub async fn ready(&self) -> Result<(), EngineError> {
        if self.0.stopping.is_cancelled() {
            return Err(EngineError::Stopping);
        }
        self.0.registry.current()?;
        self.0.readiness.check()?;
        self.0.store.ping().await?;
        Ok(())
    }

    /// Creates or upgrades the store's tables; tells how many migrations were applied.
    pub async fn migrate(store: &Arc<dyn Store>) -> Result<usize, StoreError> {
        MaintenanceStore::migrate(&Measured(Arc::clone(store))).await
    }

    /// What [`DeclarationStore::encrypt_secrets`] does, for a process that does not migrate.
    pub async fn encrypt_secrets(store: &Arc<dyn Store>) -> Result<u64, StoreError> {
        DeclarationStore::encrypt_secrets(&Measured(Arc::clone(store))).await
    }

    /// Authenticates a caller.
    pub async fn authenticate(&self, given: &ClientCredentials) -> Result<Arc<Client>, EngineError> {
        let snapshot = self.snapshot()?;
        self.0.auth.authenticate(&snapshot.declared, given).await
    }

    /// Authorizes an authenticated client on a service.
    pub fn access(&self, client: Arc<Client>, service: &str, role: Role) -> Result<Access, EngineError> {
        self.allow(client, service, |roles| roles.has(role))
    }

    /// Authorizes a client with any role on the service.
    pub fn access_by_any_role(&self, client: Arc<Client>, service: &str) -> Result<Access, EngineError> {
        self.allow(client, service, |roles| !roles.to_vec().is_empty())
    }

    /// Lets a program that embeds the engine act as one of the clients, without a secret. The client's authorizations
    /// hold all the same.
    pub fn insider(&self, client_id: &str, service: &str, role: Role) -> Result<Access, EngineError> {
        let client = self.snapshot()?.declared.clients.get(client_id).cloned().ok_or(EngineError::Forbidden)?;
        self.allow(client, service, |roles| roles.has(role))
    }

    pub(crate) fn allow(
        &self,
        client: Arc<Client>,
        service: &str,
        allowed: impl Fn(Roles) -> bool,
    ) -> Result<Access, EngineError> {
        let snapshot = self.snapshot()?;
        let service = snapshot.declared.services.get(service).ok_or(EngineError::ServiceNotFound)?;
        if !allowed(snapshot.declared.roles(client.key, service.key)) {
            return Err(EngineError::Forbidden);
        }
        Ok(Access { client, service: Arc::clone(service) })
    }

    pub(crate) fn snapshot(&self) -> Result<Arc<Snapshot>, EngineError> {
        self.0.registry.current()
    }

    pub(crate) fn spawn(&self, service: impl Future<Output = ()> + Send + 'static) {
        self.0.tracker.spawn(service);
    }
}
