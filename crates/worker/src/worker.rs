//! The worker as its user sees it: settings with defaults, one method that runs, and what it says in the end.

#[cfg(feature = "health")]
use std::net::SocketAddr;
#[cfg(feature = "rabbitmq")]
use std::path::PathBuf;
use std::{fmt::Display, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "rabbitmq")]
use crate::transport::rabbitmq::OverRabbitMq;
use crate::{
    Context, WorkerError, environment,
    http::Http,
    run,
    transport::{Transport, http::OverHttp},
};

/// What a worker did, from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Tasks that ended well.
    pub done: u64,
    /// Tasks that ended badly.
    pub failed: u64,
    /// Tasks given back unfinished: when the worker was stopped, or because their handlers wanted another try.
    pub returned: u64,
    /// Tasks that were taken away: cancelled, or handed to another worker because the lease was lost.
    pub lost: u64,
    /// Tasks that have a result which the server did not take before the end. It will hand them out again.
    pub unsent: u64,
}

/// Does the tasks of one service.
#[derive(Debug)]
pub struct Worker {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) concurrency: usize,
    pub(crate) once: bool,
    pub(crate) idle: Option<Duration>,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) stop_limit: Duration,
    #[cfg(feature = "health")]
    pub(crate) health: Option<SocketAddr>,
}

impl Worker {
    /// A worker for a service of the server at `url`. The client needs the role `work` on it.
    pub fn builder(
        url: impl Into<String>,
        client_id: impl Into<String>,
        client_secret: impl Into<String>,
        service: impl Into<String>,
    ) -> WorkerBuilder {
        WorkerBuilder::new(Source::Http {
            url: url.into(),
            client_id: client_id.into(),
            client_secret: client_secret.into(),
            service: service.into(),
        })
    }

    /// A worker for the tasks on a broker: it takes submissions from `<queue_name>-in` and tells results to
    /// `<queue_name>-out`. Both queues are declared, plain and durable, unless they exist.
    ///
    /// A broker that is away is tried again for as long as it takes.
    #[cfg(feature = "rabbitmq")]
    pub fn rabbitmq(url: impl Into<String>, queue_name: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder::new(Source::RabbitMq { url: url.into(), queue_name: queue_name.into() })
    }

    /// A worker that is told everything by its environment, as the Helm chart tells an image with `runner: false`. What
    /// is called on the builder afterwards wins.
    ///
    /// | variable | is |
    /// |---|---|
    /// | `RELAIS_BROKER_URL` | [RabbitMQ](Self::rabbitmq); without it, tasks come [over HTTP](Self::builder) |
    /// | `RELAIS_QUEUE` | the service's queue name, over RabbitMQ; the service's name if absent |
    /// | `RELAIS_BROKER_ROOT_CERTIFICATES` | `WorkerBuilder::root_certificates`, over RabbitMQ |
    /// | `RELAIS_SERVICE` | the service |
    /// | `RELAIS_URL` | the server, over HTTP; `http://127.0.0.1:8080` if absent |
    /// | `RELAIS_CLIENT`, `RELAIS_SECRET` | who works, over HTTP |
    /// | `RELAIS_CONCURRENCY` | [`WorkerBuilder::concurrency`] |
    /// | `RELAIS_TIMEOUT` | [`WorkerBuilder::time_limit`], e.g. `10m` |
    /// | `RELAIS_GRACE` | [`WorkerBuilder::grace`], e.g. `30s` |
    /// | `RELAIS_INTERRUPTIBLE` | `true`: no grace, and `RELAIS_GRACE` is the [`WorkerBuilder::stop_limit`] |
    /// | `RELAIS_ONCE` | [`WorkerBuilder::once`], `true` or `false` |
    /// | `RELAIS_IDLE` | [`WorkerBuilder::idle`], e.g. `1m` |
    ///
    /// # Errors
    ///
    /// If a variable that is needed is missing, or one can not be understood.
    pub fn from_env() -> Result<WorkerBuilder, WorkerError> {
        environment::builder(|name| std::env::var(name).ok())
    }

    /// Takes tasks and does them until `shutdown` is cancelled, then finishes or gives back what it has.
    ///
    /// The handler is an async function of a body and a [`Context`]. Up to the set concurrency, several run at the same
    /// time, each in a tokio task of its own; work that blocks belongs in [`tokio::task::spawn_blocking`]. An error, a
    /// panic or a body of another shape fails that task only.
    ///
    /// A server that is away, at the start or later, is waited for. At `shutdown`, no new task is taken; running ones
    /// have the grace period to finish; then their contexts are cancelled, and one second later they are dropped and
    /// their tasks given back, which burns no attempt. What there is to tell is told for up to seven seconds more. With
    /// the default grace period of 20 s the whole fits into the 30 s that Kubernetes gives.
    ///
    /// Dropping the future stops everything at once; the leases then run out by themselves.
    ///
    /// # Errors
    ///
    /// [`WorkerError::Refused`] if, before the first claim has worked, the server says that this will never do: no such
    /// service, wrong credentials, no right to work on it, a lease that it does not accept. Once a claim has worked,
    /// refusals are waited out like an outage: secrets are rotated, and services declared again.
    /// `WorkerError::BrokerRefused` likewise, if the broker does not let this worker in at its first connection.
    pub async fn run<B, R, E, H, F>(self, handler: H, shutdown: CancellationToken) -> Result<WorkerReport, WorkerError>
    where
        H: Fn(B, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, E>> + Send + 'static,
        B: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        E: Display + Send + 'static,
    {
        run::run(self, relais_handler::erase(handler), shutdown).await
    }
}

/// Where tasks come from.
#[derive(Clone)]
enum Source {
    Http {
        url: String,
        client_id: String,
        client_secret: String,
        service: String,
    },
    #[cfg(feature = "rabbitmq")]
    RabbitMq {
        url: String,
        queue_name: String,
    },
}

impl std::fmt::Debug for Source {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Http { url, client_id, service, .. } => write!(f, "{service} of {url} as {client_id}"),
            // The URL may have a password.
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq { queue_name, .. } => write!(f, "{queue_name} on RabbitMQ"),
        }
    }
}

/// The settings of a [`Worker`].
#[derive(Debug, Clone)]
#[must_use]
pub struct WorkerBuilder {
    source: Source,
    concurrency: usize,
    once: bool,
    idle: Option<Duration>,
    time_limit: Option<Duration>,
    #[cfg(feature = "rabbitmq")]
    root_certificates: Option<PathBuf>,
    lease: Duration,
    host_name: Option<String>,
    grace: Duration,
    stop_limit: Duration,
    #[cfg(feature = "health")]
    health: Option<SocketAddr>,
}

impl WorkerBuilder {
    fn new(source: Source) -> Self {
        Self {
            source,
            concurrency: 1,
            once: false,
            idle: None,
            time_limit: None,
            #[cfg(feature = "rabbitmq")]
            root_certificates: None,
            lease: Duration::from_secs(60),
            host_name: None,
            grace: Duration::from_secs(20),
            stop_limit: Duration::from_secs(1),
            #[cfg(feature = "health")]
            health: None,
        }
    }

    /// How many tasks at the same time; 1 unless set, and at least 1.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Takes exactly one task, waits for it if need be, does it, and ends: for a Job that is started for each task.
    pub fn once(mut self, once: bool) -> Self {
        self.once = once;
        self
    }

    /// Ends a worker that has nothing to do once no task has come for so long; it waits for ever unless set. For a Job
    /// whose task somebody else took.
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// How long a handler may take for a task; for ever unless set, or unless the task itself says less. Then its
    /// context is cancelled, it has the [stop limit](Self::stop_limit) to end, and the task fails with the kind
    /// `timeout`.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// A PEM file with certificates of authorities that are trusted besides those of the system, for a broker whose URL
    /// begins with `amqps://`.
    #[cfg(feature = "rabbitmq")]
    pub fn root_certificates(mut self, file: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(file.into());
        self
    }

    /// How long the server waits for a sign of life before it hands a task to another worker; 60 s unless set. Signs of
    /// life are sent three times as often. Over RabbitMQ there is no lease: the broker watches the connection.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The name shown beside the tasks that this worker runs; the host's unless set.
    pub fn host_name(mut self, host_name: impl Into<String>) -> Self {
        self.host_name = Some(host_name.into());
        self
    }

    /// How long running tasks may go on once the worker is told to stop; 20 s unless set. Zero interrupts them at once.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long a handler may take to end once its context is cancelled because the worker stops or its time is over; 1
    /// s unless set. Then it is dropped.
    pub fn stop_limit(mut self, limit: Duration) -> Self {
        self.stop_limit = limit;
        self
    }

    /// Answers `/livez`, `/readyz` and `/metrics` at this address while the worker runs.
    #[cfg(feature = "health")]
    pub fn health(mut self, address: SocketAddr) -> Self {
        self.health = Some(address);
        self
    }

    /// Checks the settings. Does not talk to the server yet.
    ///
    /// # Errors
    ///
    /// If the address is not one, or what speaks to it can not be set up (over https: no certificates on this machine;
    /// over amqps: none in the file that was named).
    pub fn build(self) -> Result<Worker, WorkerError> {
        let host_name = self.host_name.or_else(this_host);
        let concurrency = if self.once { 1 } else { self.concurrency };
        let transport: Box<dyn Transport> = match self.source {
            Source::Http { url, client_id, client_secret, service } => {
                let http = Http::new(&url, &client_id, &client_secret, &service)?;
                Box::new(OverHttp::new(http, self.lease, host_name))
            }
            #[cfg(feature = "rabbitmq")]
            Source::RabbitMq { url, queue_name } => {
                Box::new(OverRabbitMq::new(&url, self.root_certificates, &queue_name, concurrency, host_name)?)
            }
        };
        Ok(Worker {
            transport,
            concurrency,
            once: self.once,
            idle: self.idle,
            time_limit: self.time_limit,
            grace: self.grace,
            stop_limit: self.stop_limit,
            #[cfg(feature = "health")]
            health: self.health,
        })
    }
}

/// The host's or pod's name, as Kubernetes or Linux gives it. Without either the server shows none.
fn this_host() -> Option<String> {
    let name = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Keeping;

    #[test]
    fn a_worker_has_at_least_one_slot_and_heartbeats_thrice_a_lease() {
        let worker = Worker::builder("http://h", "me", "hush", "s")
            .concurrency(0)
            .lease(Duration::from_secs(30))
            .build()
            .unwrap();
        assert_eq!((worker.concurrency, worker.transport.keeping()), (1, Keeping::Lease(Duration::from_secs(10))));
    }

    #[test]
    fn the_secret_is_not_shown() {
        let builder = Worker::builder("http://h", "me", "hush", "s");
        assert!(!format!("{builder:?}").contains("hush"));
        assert!(!format!("{:?}", builder.build().unwrap()).contains("hush"));
    }

    #[test]
    fn a_wrong_address_says_so() {
        let error = Worker::builder("localhost:8080", "me", "hush", "s").build().unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), r#""localhost:8080" is not an http or https address"#);
    }

    #[cfg(feature = "rabbitmq")]
    #[test]
    fn certificates_that_are_not_there_are_said_before_anything_is_taken() {
        let worker = |url| Worker::rabbitmq(url, "s").root_certificates("/nonexistent/ca.pem").build();
        let error = worker("amqps://broker").unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, "failed to read the certificates in /nonexistent/ca.pem");
        worker("amqp://broker").unwrap();
    }
}
