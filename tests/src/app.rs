//! A Relais of one's own for one test: real store, real engine, real routes, on a loopback port.
//!
//! Every test has its own database, so tests may run at once and in any order. What a test waits for is an event: a
//! request that is under way ([`TestApp::under_way`]), an answer, an event of a stream; all of them with a deadline,
//! which is there to fail a test that would hang and never to pace one.

mod answer;
mod caller;
mod redact;
mod sse;
mod wire;

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
};
use relais_api::{ApiOptions, NotificationRoutes, RenderMetrics};
use relais_callback::{HttpPushSender, HttpSender, HttpSenderOptions};
use relais_core::{CallbackType, Store};
use relais_engine::{AuthOptions, CallbackSenders, Engine, Options};
use relais_http::ServeOptions;
use relais_notify::{Identities, NotificationOptions, NotificationStore, Notifications, PushOptions, WebPush};
use relais_notify_redis::{RedisNotificationOptions, RedisNotifications};
use relais_testkit::{RedisServer, TestDatabase};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

pub use answer::Answer;
pub use caller::Caller;
pub use redact::redacted;
pub use sse::{Event, Events};
pub use wire::{Wire, basic};

/// How long anything may take before a test is failed for it. A broker that was away is looked for every 15 s at most,
/// and the first attempt may come while it still starts.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The sweep does not run within a test: a waiter that wakes was woken by a wake-up, however long that took.
const NEVER: Duration = Duration::from_secs(3600);

/// Which store is under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A file in a temporary folder.
    Sqlite,
    /// A fresh database on a real server.
    Postgres,
    /// The same, with notifications in a Redis of its own.
    Redis,
}

/// What keeps the database alive.
enum Keeper {
    Folder {
        _folder: tempfile::TempDir,
    },
    Database {
        _database: Box<TestDatabase>,
    },
    /// The tests may kill the server of notifications.
    WithRedis {
        _database: Box<TestDatabase>,
        redis: Box<tokio::sync::Mutex<RedisServer>>,
        url: String,
    },
}

/// How many requests are under way, by path.
type UnderWay = watch::Sender<HashMap<String, usize>>;

/// A Relais that runs for one test.
pub struct TestApp {
    /// Its application layer, for what no route can do: to stop it.
    pub engine: Engine,
    /// Its store, to be another process on it.
    pub store: Arc<dyn Store>,
    /// Its log of notifications, for what no route can do: to purge it.
    pub notification_store: Arc<dyn NotificationStore>,
    notifications: Option<Notifications>,
    address: SocketAddr,
    http: reqwest::Client,
    under_way: Arc<UnderWay>,
    database: String,
    keeper: Arc<Keeper>,
}

/// Web pages of this origin may use notifications.
pub const ORIGIN: &str = "https://shop.example";

/// How a [`TestApp`] is to be.
pub struct Builder {
    backend: Backend,
    api: ApiOptions,
    http: ServeOptions,
    engine: Options,
    declaration: Value,
    migrate: bool,
    render_metrics: RenderMetrics,
    notifications: Option<(Identities, NotificationOptions)>,
    without_notifications: bool,
    push: Option<PushOptions>,
    hears_sources: bool,
    beside: Option<(String, Arc<Keeper>)>,
}

impl TestApp {
    /// One with [`world`] declared.
    pub async fn start(backend: Backend) -> Self {
        Self::builder(backend).start().await
    }

    /// One that is to be a little different.
    pub fn builder(backend: Backend) -> Builder {
        let auth = AuthOptions { bcrypt_cost: 4, bcrypt_parallel: 2, ..AuthOptions::default() };
        Builder {
            backend,
            api: ApiOptions::default(),
            http: ServeOptions::default(),
            engine: Options { auth, callback_senders: callback_senders(), sweep: NEVER, ..Options::default() },
            declaration: world(),
            migrate: true,
            render_metrics: Arc::new(String::new),
            notifications: None,
            without_notifications: false,
            push: None,
            hears_sources: false,
            beside: None,
        }
    }

    /// Another instance on the database of this one, which must not be on SQLite.
    pub fn beside(&self) -> Builder {
        Builder { beside: Some((self.database.clone(), Arc::clone(&self.keeper))), ..Self::builder(Backend::Postgres) }
    }

    /// The server of its notifications, to be killed.
    pub async fn redis(&self) -> tokio::sync::MutexGuard<'_, RedisServer> {
        match &*self.keeper {
            Keeper::WithRedis { redis, .. } => redis.lock().await,
            Keeper::Folder { .. } | Keeper::Database { .. } => panic!("its notifications are in the database"),
        }
    }

    /// Its notifications, which it was started with.
    pub fn notifications(&self) -> &Notifications {
        self.notifications.as_ref().unwrap_or_else(|| panic!("it was started without notifications"))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Somebody who calls with the credentials of a client of [`world`].
    pub fn client(&self, client_id: &str) -> Caller {
        self.caller().basic(client_id, &secret(client_id))
    }

    /// Somebody who calls without credentials: an operator on this machine, or a stranger.
    pub fn caller(&self) -> Caller {
        Caller::new(self.http.clone(), format!("http://{}", self.address))
    }

    /// A bare connection, for what no HTTP client would send.
    pub async fn wire(&self) -> Wire {
        Wire::open(self.address).await
    }

    /// Returns once exactly `count` requests to this path are being answered: they have arrived, and have no answer
    /// yet.
    pub async fn under_way(&self, path: &str, count: usize) {
        let mut seen = self.under_way.subscribe();
        let reached = seen.wait_for(|paths| paths.get(path).copied().unwrap_or_default() == count);
        let reached = tokio::time::timeout(DEADLINE, reached).await;
        assert!(reached.is_ok(), "there were never {count} requests to {path} under way at once");
    }

    /// The pending tasks of a service, as an operator sees them.
    pub async fn pending(&self, service: &str) -> u64 {
        self.count(service, "pending").await
    }

    /// One of a service's counters, as an operator sees it.
    pub async fn count(&self, service: &str, counter: &str) -> u64 {
        let state = self.caller().get(&format!("/admin/services/{service}")).await.data();
        state[counter].as_u64().unwrap_or_else(|| panic!("{counter} is not a number in {state}"))
    }

    /// Declares something more.
    pub async fn apply(&self, declaration: Value) -> Answer {
        let answer = self.caller().post("/admin/apply", &declaration).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }
}

impl Builder {
    /// Declares something else than [`world`].
    pub fn declaring(mut self, declaration: Value) -> Self {
        self.declaration = declaration;
        self
    }

    /// Changes the API's options.
    pub fn api(mut self, change: impl FnOnce(&mut ApiOptions)) -> Self {
        change(&mut self.api);
        self
    }

    /// Changes how connections are served.
    pub fn http(mut self, change: impl FnOnce(&mut ServeOptions)) -> Self {
        change(&mut self.http);
        self
    }

    /// Changes the engine's options.
    pub fn engine(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.engine);
        self
    }

    /// Hears events for the declared notification sources.
    pub fn hearing_sources(mut self) -> Self {
        self.hears_sources = true;
        self
    }

    /// Is a process that has no notifications.
    pub fn without_notifications(mut self) -> Self {
        self.without_notifications = true;
        self
    }

    /// Serves notifications. The log is read every second although nobody announced an entry: another instance may not listen
    /// yet.
    pub fn notifications(self, change: impl FnOnce(&mut NotificationOptions)) -> Self {
        self.notifications_for(Identities::new(None, None), change)
    }

    /// The same, for users who prove otherwise than by tickets who they are.
    pub fn notifications_for(mut self, identities: Identities, change: impl FnOnce(&mut NotificationOptions)) -> Self {
        let mut options = NotificationOptions { sweep: Duration::from_secs(1), ..NotificationOptions::default() };
        change(&mut options);
        self.notifications = Some((identities, options));
        self
    }

    /// Pushes messages, to push services on this machine only.
    pub fn push(mut self, options: PushOptions) -> Self {
        self.push = Some(options);
        self
    }

    /// Renders metrics otherwise.
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.render_metrics = Arc::new(render);
        self
    }

    /// Leaves the database without tables, as it is when the server comes up before it.
    pub fn unmigrated(mut self) -> Self {
        self.migrate = false;
        self
    }

    /// Starts it. A test that can not have its Relais has failed.
    pub async fn start(self) -> TestApp {
        self.try_start().await.unwrap_or_else(|error| panic!("Relais could not be started for a test: {error:#}"))
    }

    async fn try_start(self) -> anyhow::Result<TestApp> {
        let (url, keeper) = match (self.beside, self.backend) {
            (Some(beside), _) => beside,
            (None, Backend::Sqlite) => {
                let folder = tempfile::tempdir()?;
                let url = format!("sqlite:{}", folder.path().join("relais.db").display());
                (url, Arc::new(Keeper::Folder { _folder: folder }))
            }
            (None, Backend::Postgres) => {
                let database = TestDatabase::create().await?;
                (database.url().to_owned(), Arc::new(Keeper::Database { _database: Box::new(database) }))
            }
            (None, Backend::Redis) => {
                let (database, redis) = (TestDatabase::create().await?, RedisServer::start().await?);
                let (url, at) = (database.url().to_owned(), redis.url());
                let redis = Box::new(tokio::sync::Mutex::new(redis));
                (url, Arc::new(Keeper::WithRedis { _database: Box::new(database), redis, url: at }))
            }
        };
        let relais_store::Ports { store, relays, audiences: declared, notifications: mut notification_store, pushes } =
            relais_store::open_ports(&url, &relais_store::Options::default()).await?;
        let redis = match &*keeper {
            Keeper::WithRedis { url, .. } => Some(RedisNotifications::new(url, RedisNotificationOptions::default())?),
            Keeper::Folder { .. } | Keeper::Database { .. } => None,
        };
        if let Some(redis) = &redis {
            notification_store = Arc::new(redis.clone());
        }
        if self.migrate {
            store.migrate().await?;
        }
        let (identities, options) = self
            .notifications
            .unwrap_or_else(|| (relais_notify::Identities::new(None, None), NotificationOptions::default()));
        let notifications = (!self.without_notifications)
            .then(|| Notifications::start(Arc::clone(&notification_store), identities, options));
        if let Some(notifications) = &notifications {
            notifications.follow_declared(Arc::clone(&declared));
        }
        let events = notifications.clone().map(|notifications| relais_relay::EventResources {
            bus: Some(self.engine.bus.bus.clone()),
            notifications,
        });
        // Outboxes and captures are declared and shown, not published.
        let resources = relais_relay::RelayResources { sinks: Arc::new(NoSinks), spool: None, events };
        let outboxes = relais_relay::Outboxes::new(Arc::clone(&relays), resources.clone(), "test".to_owned());
        let captures = relais_relay::Captures::new(Arc::clone(&relays), resources.clone(), "test".to_owned());
        let sources = relais_relay::Sources::new(relays, resources, "test".to_owned());
        let options = Options {
            outboxes: Some(Arc::new(outboxes)),
            captures: Some(Arc::new(captures)),
            notification_sources: Some(Arc::new(sources.clone())),
            audiences: Some(Arc::new(relais_relay::Audiences::new(declared, Arc::clone(&notification_store)))),
            ..self.engine
        };
        let engine = Engine::start(Arc::clone(&store), options)?;
        if self.hears_sources {
            // Ends with the test's runtime.
            tokio::spawn(sources.run(engine.declaration_changes(), CancellationToken::new()));
        }
        if self.migrate {
            let declaration = serde_json::from_value(self.declaration).context("the declaration does not parse")?;
            engine.apply(declaration, false, false).await?;
        }
        let under_way = Arc::new(watch::channel(HashMap::new()).0);
        let mut api = self.api;
        if let Some(notifications) = &notifications {
            store.listen(Arc::new(notifications.clone()));
            if let Some(redis) = redis {
                // Ends with the test's runtime.
                drop(tokio::spawn(redis.follow(Arc::new(notifications.clone()))));
            }
            let origins = vec![ORIGIN.to_owned()];
            let push = self.push.map(|options| {
                let sender = HttpPushSender::new(loopback()).unwrap_or_else(|error| panic!("no pushes: {error}"));
                WebPush::start(notifications.clone(), pushes, Arc::new(sender), options)
            });
            if let Some(push) = &push {
                store.listen(Arc::new(push.clone()));
            }
            api.notifications = Some(NotificationRoutes { notifications: notifications.clone(), origins, push });
        }
        // The dashboard knows the operators that the admin API knows.
        let ui = relais_ui::UiOptions {
            operators: api.operators.clone(),
            request_timeout: api.request_timeout,
            notifications: notifications.clone(),
            ..relais_ui::UiOptions::default()
        };
        let router = relais_api::router(engine.clone(), api, self.render_metrics)
            .merge(relais_ui::router(engine.clone(), ui)?)
            .layer(from_fn_with_state(Arc::clone(&under_way), count));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        // Ends with the test's runtime.
        tokio::spawn(relais_http::serve(listener, router, self.http, CancellationToken::new()));
        let http = http_client()?;
        Ok(TestApp {
            engine,
            store,
            notification_store,
            notifications,
            address,
            http,
            under_way,
            database: url,
            keeper,
        })
    }
}

/// What is declared unless a test says otherwise. `alice` and `bob` consume, `worker` works, on `resize` and on `ocr`;
/// `stranger` may do nothing. `strict` takes what its schema says, from `alice`. A client's secret is [`secret`].
pub fn world() -> Value {
    let may =
        |client: &str, service: &str, role: &str| json!({"clientId": client, "serviceName": service, "roles": [role]});
    let client = |id: &str| json!({"clientId": id, "clientSecret": secret(id)});
    json!({
        "services": [
            {"serviceName": "resize"},
            {"serviceName": "ocr"},
            {"serviceName": "strict", "jsonSchema": {
                "type": "object",
                "required": ["sleep"],
                "properties": {"sleep": {"type": "number", "maximum": 10}},
            }},
        ],
        "clients": [client("alice"), client("bob"), client("worker"), client("stranger")],
        "authorizations": [
            may("alice", "resize", "consume"),
            may("alice", "ocr", "consume"),
            may("alice", "strict", "consume"),
            may("bob", "resize", "consume"),
            may("worker", "resize", "work"),
            may("worker", "ocr", "work"),
        ],
    })
}

/// The secret of a client of [`world`].
pub fn secret(client_id: &str) -> String {
    format!("the secret of {client_id}")
}

/// The rules of a push service that a test has made: plain HTTP, to this machine, on any port that is named.
fn loopback() -> HttpSenderOptions {
    HttpSenderOptions {
        allow_http: true,
        allow_networks: vec!["127.0.0.1".to_owned()],
        ports: (443..=u16::MAX).collect(),
        ..HttpSenderOptions::default()
    }
}

/// Callbacks go out as they do by default: to public addresses only, over https.
fn callback_senders() -> CallbackSenders {
    match HttpSender::new(HttpSenderOptions::default()) {
        Ok(callback_sender) => CallbackSenders::default().with(CallbackType::Https, Arc::new(callback_sender)),
        Err(error) => panic!("callbacks could not be set up: {error}"),
    }
}

/// Nothing is published in these tests.
struct NoSinks;

#[async_trait::async_trait]
impl relais_relay::SinkFactory for NoSinks {
    async fn open(
        &self,
        _: &str,
        _: &relais_protocol::outbox::SinkDeclaration,
    ) -> Result<Arc<dyn relais_message::Sink>, relais_relay::SinkError> {
        Err(relais_relay::SinkError::Away { field: String::new(), message: "there are no sinks here".to_owned() })
    }

    async fn check(
        &self,
        _: &str,
        _: &relais_protocol::outbox::SinkDeclaration,
    ) -> Result<(), relais_relay::SinkError> {
        Ok(())
    }
}

fn http_client() -> anyhow::Result<reqwest::Client> {
    // Only the first one can be installed; the others find it there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(150)).build()?)
}

/// Keeps count of a request for as long as it is under way, however it ends.
async fn count(State(under_way): State<Arc<UnderWay>>, request: Request, next: Next) -> axum::response::Response {
    let _counted = Counted::new(under_way, request.uri().path().to_owned());
    next.run(request).await
}

struct Counted(Arc<UnderWay>, String);

impl Counted {
    fn new(under_way: Arc<UnderWay>, path: String) -> Self {
        under_way.send_modify(|paths| *paths.entry(path.clone()).or_default() += 1);
        Self(under_way, path)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|paths| {
            if let Some(count) = paths.get_mut(&self.1) {
                *count -= 1;
            }
        });
    }
}
