//! `relais serve`: puts the parts together, runs them, takes them down in order.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use relais_api::{ApiOptions, NotificationRoutes};
use relais_broker::{RabbitMq, RabbitMqOptions};
use relais_callback::{AmqpSender, HttpSender};
use relais_core::{CallbackSender, CallbackType, Store, StoreError, TaskBroker};
use relais_engine::{
    AuthOptions, BatchOptions, CallbackOptions, CallbackSenders, DispatchOptions, Engine, EngineError, InstanceOptions,
    Options, PurgeDefaults, ValidationOptions, chain,
};
use relais_http::{ServeOptions, TrustedProxies};
use relais_messaging::rabbitmq::{Broker, BrokerOptions};
use relais_notify::{NotificationCallbackSender, Notifications, WebPush};
use relais_relay::{Audiences, Captures, EventResources, Outboxes, RelayResources, Sources, Spool, SpoolOptions};
use relais_store::Ports;
use relais_ui::UiOptions;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    cli::ServeArgs,
    config::{Config, DatabaseConfig, Role, warnings},
    events, limits, logging, notifications, scaler, signals,
    sinks::{SinkOptions, Sinks},
    watcher,
};

/// How long to wait before a database that is away is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// How long links stay open at a stop while events that were heard become notifications.
const DRAIN: Duration = Duration::from_secs(2);

/// How often samples of durations are counted.
const UPKEEP: Duration = Duration::from_secs(5);

/// Runs a server until it is told to stop.
pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let config = args.load()?;
    logging::init(&config.log, &config.telemetry)?;
    for warning in warnings(&config) {
        tracing::warn!("{warning}");
    }
    if config.admin.is_without_token() && config.server.has(Role::Api) {
        tracing::info!(
            "the admin API has no token and answers to this machine only: set one before a proxy speaks for others"
        );
    }
    limits::raise();
    let listener = relais_http::listen(config.server.listen)
        .with_context(|| format!("could not listen on {} (choose another with --listen)", config.server.listen))?;
    let address = listener.local_addr()?;
    let scaler = scaler::listen(&config.scaler).await?;
    let stop = signals::stop()?;
    let server = Server::start(&config, listener, stop.clone()).await?;
    let scaling = scaler::serve(scaler, &server.engine, &config.scaler, &stop).await?;
    tracing::info!(%address, database = %config.database.url, "Relais serves; dashboard at /ui, API documentation at /docs");
    stop.cancelled().await;
    tracing::info!("told to stop: nothing new is taken, what is under way is finished");
    scaling.finished(config.server.shutdown_grace.0).await;
    server.finished().await;
    logging::flush();
    tracing::info!("stopped");
    Ok(())
}

/// A server that runs.
pub struct Server {
    /// Its application layer.
    pub engine: Engine,
    notifications: Option<Notifications>,
    serving: tokio::task::JoinHandle<()>,
    watching: Option<tokio::task::JoinHandle<()>>,
    relaying: Option<tokio::task::JoinHandle<()>>,
    hearing: Option<tokio::task::JoinHandle<()>>,
    grace: Duration,
}

impl Server {
    /// Starts one. A PostgreSQL that is away does not keep it from starting: it says 503 until it is there.
    pub async fn start(config: &Config, listener: TcpListener, stop: CancellationToken) -> anyhow::Result<Self> {
        Self::start_with(config, listener, axum::Router::new(), stop).await
    }

    /// Starts one that serves these routes too.
    pub async fn start_with(
        config: &Config,
        listener: TcpListener,
        more: axum::Router,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let Ports { store, relays, audiences: declared, notifications: stored, pushes } = open_ports(config).await?;
        let render = crate::metrics::install()?;
        // Before the engine, whose background services would find no tables.
        let prepared = prepare(&store, &config.database).await?;
        let mut options = engine_options(config, callback_senders(config)?, task_broker(config)?);
        options.bus = events::bus_options(config, &store)?;
        // Callbacks and relays emit notifications too.
        let uses_them = [Role::Api, Role::Notifications, Role::Callbacks, Role::Relay];
        let (kept, notifications) = match uses_them.into_iter().any(|role| config.server.has(role)) {
            true => {
                let kept = notifications::Kept::open(config, Arc::clone(&stored)).await?;
                let notifications = notifications::start(config, kept.store(), &stop)?;
                (Some(kept), Some(notifications))
            }
            false => (None, None),
        };
        let push = match &notifications {
            Some(notifications) => notifications::start_push(config, notifications, pushes)?,
            None => None,
        };
        if let Some(notifications) = &notifications {
            let sender = NotificationCallbackSender::new(notifications.clone());
            options.callback_senders = options.callback_senders.with(CallbackType::Notification, Arc::new(sender));
            notifications.follow_declared(Arc::clone(&declared));
        }
        let sinks = Arc::new(Sinks::new(SinkOptions {
            broker: config.broker.options(),
            http: http_sender_options(config),
            bus: options.bus.bus.clone(),
            max_body_bytes: config.server.max_body_bytes,
            notifications: notifications.clone().zip(kept.as_ref().map(notifications::Kept::durability)),
        }));
        let events = notifications.clone().map(|notifications| EventResources {
            bus: config.events.enabled.then(|| options.bus.bus.clone()),
            notifications,
        });
        let resources = RelayResources { sinks: Arc::clone(&sinks) as _, spool: spool(config).await?, events };
        let outboxes = Outboxes::new(Arc::clone(&relays), resources.clone(), process_name(config));
        let captures = Captures::new(Arc::clone(&relays), resources.clone(), process_name(config));
        let sources = Sources::new(relays, resources, process_name(config));
        let audiences = Audiences::new(declared, kept.as_ref().map_or(stored, notifications::Kept::store));
        options.outboxes = Some(Arc::new(outboxes.clone()));
        options.captures = Some(Arc::new(captures.clone()));
        options.notification_sources = Some(Arc::new(sources.clone()));
        options.audiences = Some(Arc::new(audiences.clone()));
        let engine = Engine::start(Arc::clone(&store), options)?;
        sinks.set_engine(engine.clone());
        if let (Some(kept), Some(notifications)) = (kept, &notifications) {
            engine.pass_on_wakeups_to(Arc::new(notifications.clone()));
            kept.attend(notifications, &engine, &stop);
        }
        if let Some(push) = &push {
            engine.pass_on_wakeups_to(Arc::new(push.clone()));
        }
        if prepared {
            match engine.refresh().await {
                Ok(()) => {}
                Err(EngineError::Store(error)) if !matches!(*error, StoreError::Unavailable(_)) => {
                    return Err(unusable(&error));
                }
                Err(error) => tracing::warn!(error = %chain(&error), "what is declared could not be read yet"),
            }
        } else {
            tokio::spawn(prepare_when_there(store, config.database.migrate, engine.stopping()));
        }
        let relaying = config.server.has(Role::Relay).then(|| {
            let (changes, also, stop) = (engine.declaration_changes(), engine.declaration_changes(), stop.clone());
            tokio::spawn(async move {
                tokio::join!(outboxes.run(changes, stop.clone()), captures.run(also, stop));
            })
        });
        // What sources have heard is emitted before notifications stop.
        let drained = CancellationToken::new();
        let hearing = config.server.has(Role::Notifications).then(|| {
            let (changes, also, stop) = (engine.declaration_changes(), engine.declaration_changes(), stop.clone());
            let heard = drained.clone();
            tokio::spawn(async move {
                tokio::join!(sources.run(changes, stop.clone()), audiences.run(also, stop));
                heard.cancel();
            })
        });
        if hearing.is_none() {
            drained.cancel();
        }
        let (upkeep, stopped) = (render.clone(), stop.clone());
        tokio::spawn(async move {
            // Samples are kept one by one until they are counted; a server that nobody asks must count them too.
            while tokio::time::timeout(UPKEEP, stopped.cancelled()).await.is_err() {
                upkeep.run_upkeep();
            }
        });
        let render_metrics = Arc::new(move || render.render());
        let router = if config.server.has(Role::Api) {
            let api =
                relais_api::router(engine.clone(), api_options(config, notifications.clone(), push)?, render_metrics);
            if config.admin.dashboard { api.merge(dashboard(config, &engine, notifications.clone())?) } else { api }
        } else {
            relais_api::operations_router(engine.clone(), render_metrics)
        };
        let options = http_options(config)?;
        let watching = (!config.declarations.file.is_empty())
            .then(|| watcher::start(config.declarations.clone(), engine.clone(), stop.clone()));
        let waiting = (engine.clone(), notifications.clone(), stop.clone());
        tokio::spawn(async move {
            let (engine, notifications, stop) = waiting;
            stop.cancelled().await;
            engine.begin_stop();
            let _ = tokio::time::timeout(DRAIN, drained.cancelled()).await;
            if let Some(notifications) = notifications {
                notifications.begin_stop();
            }
        });
        let serving = tokio::spawn(relais_http::serve(listener, router.merge(more), options, stop));
        Ok(Self { engine, notifications, serving, watching, relaying, hearing, grace: config.server.shutdown_grace.0 })
    }

    /// Waits until all that was under way is finished, once the server was told to stop.
    pub async fn finished(self) {
        if let Err(error) = self.serving.await {
            tracing::error!(error = %error, "the HTTP server ended badly");
        }
        if let Some(watching) = self.watching {
            watching.abort();
        }
        if let Some(relaying) = self.relaying {
            // A database that does not answer must not hold up the stop: what was not marked is published again.
            match tokio::time::timeout(self.grace, relaying).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(error = %error, "the relays ended badly"),
                Err(_) => tracing::warn!(grace = ?self.grace, "relays were still busy when the grace period was over"),
            }
        }
        if let Some(hearing) = self.hearing
            && tokio::time::timeout(self.grace, hearing).await.is_err()
        {
            tracing::warn!(grace = ?self.grace, "notification sources were still busy when the grace period was over");
        }
        if let Some(notifications) = self.notifications {
            notifications.stop().await;
        }
        self.engine.stop().await;
    }
}

/// Where large transactions wait for their commit. A directory that can not be used ends the start.
async fn spool(config: &Config) -> anyhow::Result<Option<Spool>> {
    let relay = &config.relay;
    if relay.spool_dir.is_empty() || !config.server.has(Role::Relay) {
        return Ok(None);
    }
    let options = SpoolOptions { directory: relay.spool_dir.clone().into(), limit: relay.spool_max_bytes };
    Ok(Some(Spool::open(options).await.context("relay.spool_dir names a directory that can not be used")?))
}

/// What this process is called where processes tell each other of their relays. No other process has the same name.
fn process_name(config: &Config) -> String {
    let host = || std::env::var("HOSTNAME").unwrap_or_else(|_| "relais".to_owned());
    let name = if config.server.name.is_empty() { host() } else { config.server.name.clone() };
    format!("{name}-{}-{:08x}", std::process::id(), getrandom::u32().unwrap_or_default())
}

/// Opens the store that the configuration names.
pub async fn open(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    Ok(open_ports(config).await?.store)
}

async fn open_ports(config: &Config) -> anyhow::Result<Ports> {
    let options = relais_store::Options {
        max_connections: config.database.max_connections,
        acquire_timeout: config.database.acquire_timeout.0,
        notify: !events::wakeups_on_bus(config)?,
        encryption_keys: config.database.encryption_keys.clone(),
    };
    relais_store::open_ports(config.database.url.expose(), &options).await.map_err(|error| explain(error, config))
}

/// An error of the store, with all that caused it and what it is about.
pub fn explain(error: StoreError, config: &Config) -> anyhow::Error {
    anyhow::anyhow!("could not use the database {}: {}", config.database.url, chain(&error))
}

/// Makes the database ready, and tells whether that was possible. SQLite must be there: what goes wrong with it ends
/// the start. PostgreSQL may be away. Without the key to what is encrypted there is no start.
async fn prepare(store: &Arc<dyn Store>, database: &DatabaseConfig) -> anyhow::Result<bool> {
    match migrate_or_encrypt(store, database.migrate).await {
        Ok(()) => Ok(true),
        Err(error @ StoreError::Unavailable(_)) if !database.url.is_sqlite() => {
            tracing::warn!(error = %chain(&error), "the database is away; it is made ready when it is there");
            Ok(false)
        }
        Err(error) if database.migrate => Err(anyhow::anyhow!("could not migrate the database: {}", chain(&error))),
        Err(error) => Err(unusable(&error)),
    }
}

/// Migrates, which encrypts signing secrets as well; or only encrypts them, where migrating is somebody else's task.
async fn migrate_or_encrypt(store: &Arc<dyn Store>, migrate: bool) -> Result<(), StoreError> {
    if !migrate {
        return Engine::encrypt_secrets(store).await.map(drop);
    }
    let applied = Engine::migrate(store).await?;
    if applied > 0 {
        tracing::info!(applied, "migrated the database");
    }
    Ok(())
}

/// The database is there, and can not be used as it is.
fn unusable(error: &StoreError) -> anyhow::Error {
    match error {
        StoreError::Failed(_) => {
            anyhow::anyhow!("the database's tables can not be used ({}): run `relais migrate` first", chain(error))
        }
        other => anyhow::anyhow!("the database can not be used: {}", chain(other)),
    }
}

/// Makes the database ready as soon as it is there.
async fn prepare_when_there(store: Arc<dyn Store>, migrate: bool, stopping: CancellationToken) {
    let mut told = String::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = stopping.cancelled() => return,
        }
        match migrate_or_encrypt(&store, migrate).await {
            Ok(()) => return tracing::info!("the database is there, and ready"),
            Err(StoreError::Unavailable(_)) => {}
            // One line for each reason, however often it is tried.
            Err(error) if told != chain(&error) => {
                told = chain(&error);
                tracing::error!(error = told, "the database is there, and can not be used");
            }
            Err(_) => {}
        }
    }
}

fn engine_options(
    config: &Config,
    callback_senders: CallbackSenders,
    task_broker: Option<Arc<dyn TaskBroker>>,
) -> Options {
    Options {
        batching: BatchOptions {
            max_batch: config.batching.max_batch,
            queue: config.batching.queue,
            in_flight: config.batching.in_flight,
        },
        auth: AuthOptions {
            cache_size: config.auth.cache_size,
            cache_ttl: config.auth.cache_ttl.0,
            cache_max_age: config.auth.cache_max_age.0,
            bcrypt_cost: config.auth.bcrypt_cost,
            bcrypt_parallel: config.auth.bcrypt_parallel,
        },
        validation: ValidationOptions {
            parallel: config.validation.parallel,
            timeout: config.validation.timeout.0,
            waiting: config.validation.waiting,
            waiting_per_client: config.validation.waiting_per_client,
        },
        purge: PurgeDefaults {
            every: config.purge.every.0,
            finished: config.purge.finished.0,
            any: config.purge.any.0,
            batch: config.purge.batch as usize,
        },
        idempotency_age: config.tasks.idempotency_age.0,
        audit_age: config.admin.audit_age.0,
        rescue: config.server.has(Role::Rescue),
        purging: config.server.has(Role::Purge),
        send_callbacks: config.server.has(Role::Callbacks),
        scheduling: config.server.has(Role::Schedule),
        presence: Some(InstanceOptions {
            name: (!config.server.name.is_empty()).then(|| config.server.name.clone()),
            ..InstanceOptions::default()
        }),
        callback_senders,
        callbacks: CallbackOptions {
            retries: config.callbacks.retries.iter().map(|wait| wait.0).collect(),
            timeout: config.callbacks.timeout.0,
            at_once: config.callbacks.at_once,
            per_lane: config.callbacks.per_endpoint,
            park_after: config.callbacks.park_after,
            park_first: config.callbacks.park_first.0,
            park_most: config.callbacks.park_most.0,
            give_up_after: config.callbacks.give_up_after.0,
        },
        dispatch: DispatchOptions {
            task_broker,
            publish: config.server.has(Role::Dispatch),
            track: config.server.has(Role::Track),
            ahead: config.broker.prefetch,
            ..DispatchOptions::default()
        },
        ..Options::default()
    }
}

/// Who carries callbacks.
fn callback_senders(config: &Config) -> anyhow::Result<CallbackSenders> {
    let callbacks = &config.callbacks;
    let http = HttpSender::new(http_sender_options(config)).context("callbacks can not be sent")?;
    let http: Arc<dyn CallbackSender> = Arc::new(http);
    let mut callback_senders = CallbackSenders::default().with(CallbackType::Https, Arc::clone(&http));
    if callbacks.allow_http {
        callback_senders = callback_senders.with(CallbackType::Http, http);
    }
    if !config.broker.url.is_empty() {
        let options = BrokerOptions { publish_timeout: callbacks.timeout.0, ..config.broker.options() };
        let broker = Broker::new(config.broker.url.expose(), options)
            .with_context(|| format!("the broker {} can not be used", config.broker.url))?;
        callback_senders = callback_senders.with(CallbackType::Amqp, Arc::new(AmqpSender::new(broker)));
    }
    Ok(callback_senders)
}

/// Where requests to others may go: callbacks, and the messages of outboxes.
pub(crate) fn http_sender_options(config: &Config) -> relais_callback::HttpSenderOptions {
    let callbacks = &config.callbacks;
    relais_callback::HttpSenderOptions {
        timeout: callbacks.timeout.0,
        allow_http: callbacks.allow_http,
        allow_hosts: callbacks.allow_hosts.clone(),
        allow_networks: callbacks.allow_networks.clone(),
        ports: callbacks.ports.clone(),
        root_certificates: (!callbacks.root_certificates.is_empty())
            .then(|| callbacks.root_certificates.clone().into()),
        ..relais_callback::HttpSenderOptions::default()
    }
}

/// Who carries tasks to workers, if there is a broker.
fn task_broker(config: &Config) -> anyhow::Result<Option<Arc<dyn TaskBroker>>> {
    let broker = &config.broker;
    if broker.url.is_empty() {
        return Ok(None);
    }
    let management_url = (!broker.management_url.is_empty()).then(|| broker.management_url.expose().to_owned());
    let options = RabbitMqOptions { broker: config.broker.options(), management_url };
    let task_broker = RabbitMq::new(broker.url.expose(), options)
        .with_context(|| format!("the broker {} can not be used", broker.url))?;
    Ok(Some(Arc::new(task_broker)))
}

fn http_options(config: &Config) -> anyhow::Result<ServeOptions> {
    let server = &config.server;
    Ok(ServeOptions {
        max_connections: server.max_connections,
        max_connections_per_peer: server.max_connections_per_peer,
        trusted_proxies: TrustedProxies::parse(&server.trusted_proxies).map_err(anyhow::Error::msg)?,
        head_timeout: server.request_timeout.0,
        idle_timeout: server.idle_timeout.0,
        write_timeout: server.write_timeout.0,
        grace: server.shutdown_grace.0,
    })
}

fn api_options(
    config: &Config,
    notifications: Option<Notifications>,
    push: Option<WebPush>,
) -> anyhow::Result<ApiOptions> {
    let origins = config.notifications.origins.clone();
    Ok(ApiOptions {
        max_body_bytes: config.server.max_body_bytes,
        request_timeout: config.server.request_timeout.0,
        max_wait: config.tasks.max_wait.0,
        max_requests_per_client: config.server.max_requests_per_client,
        operators: config.admin.credentials()?,
        notifications: notifications.map(|notifications| NotificationRoutes { notifications, origins, push }),
    })
}

fn dashboard(config: &Config, engine: &Engine, notifications: Option<Notifications>) -> anyhow::Result<axum::Router> {
    let options = UiOptions {
        operators: config.admin.credentials()?,
        session: config.admin.session.0,
        request_timeout: config.server.request_timeout.0,
        notifications,
    };
    relais_ui::router(engine.clone(), options).context("there can be no dashboard")
}
