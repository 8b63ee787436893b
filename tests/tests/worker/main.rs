//! Workers: one set of promises on every transport, for the libraries of three languages; then what is special about
//! each transport, for the Rust library.
//!
//! The server is a real one in each case: over HTTP, by way of RabbitMQ (classic and quorum queues), and in the same
//! process.

mod cases;
mod control;
mod ends;
mod foreign;
mod guide;
mod health;
mod hired;
mod poison;
mod rabbitmq;
mod stage;

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use relais_broker::{RabbitMq, RabbitMqOptions};
use relais_testkit::TestVhost;
use relais_tests::app::{Backend, TestApp, secret};
use relais_worker::{Worker, WorkerBuilder};
use serde_json::{Value, json};

use self::{
    foreign::{Foreign, Language},
    hired::Hired,
};

const SERVICE: &str = "resize";

/// How long a worker may keep silent: longer than a busy machine does.
const LEASE: Duration = Duration::from_secs(60);

/// How tasks come to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Http,
    RabbitMq,
    InProcess,
}

/// A Relais, a way to its tasks, and a library to do them with.
struct World {
    app: TestApp,
    way: Way,
    /// Rust's if there is none.
    language: Option<Language>,
    vhost: Option<TestVhost>,
}

impl World {
    async fn http() -> Result<Self> {
        Self::start(Way::Http, json!({"serviceName": SERVICE})).await
    }

    async fn in_process() -> Result<Self> {
        Self::start(Way::InProcess, json!({"serviceName": SERVICE})).await
    }

    async fn rabbitmq_classic() -> Result<Self> {
        Self::start(Way::RabbitMq, json!({"serviceName": SERVICE, "transport": "rabbitmq"})).await
    }

    async fn rabbitmq_quorum() -> Result<Self> {
        let queue = json!({"type": "quorum"});
        Self::start(Way::RabbitMq, json!({"serviceName": SERVICE, "transport": "rabbitmq", "queue": queue})).await
    }

    async fn python_http() -> Result<Self> {
        Self::http().await?.of(Language::Python)
    }

    async fn python_rabbitmq_classic() -> Result<Self> {
        Self::rabbitmq_classic().await?.of(Language::Python)
    }

    async fn python_rabbitmq_quorum() -> Result<Self> {
        Self::rabbitmq_quorum().await?.of(Language::Python)
    }

    async fn javascript_http() -> Result<Self> {
        Self::http().await?.of(Language::JavaScript)
    }

    async fn javascript_rabbitmq_classic() -> Result<Self> {
        Self::rabbitmq_classic().await?.of(Language::JavaScript)
    }

    async fn javascript_rabbitmq_quorum() -> Result<Self> {
        Self::rabbitmq_quorum().await?.of(Language::JavaScript)
    }

    fn of(self, language: Language) -> Result<Self> {
        // What is missing is said at once, and not only by a worker that never comes.
        language.program()?;
        Ok(Self { language: Some(language), ..self })
    }

    async fn start(way: Way, service: Value) -> Result<Self> {
        let may = |client: &str, role: &str| json!({"clientId": client, "serviceName": SERVICE, "roles": [role]});
        let client = |id: &str| json!({"clientId": id, "clientSecret": secret(id)});
        let mut builder = TestApp::builder(Backend::Sqlite).declaring(json!({
            "services": [&service],
            "clients": [client("alice"), client("worker")],
            "authorizations": [may("alice", "consume"), may("worker", "work")],
        }));
        let vhost = match way {
            Way::RabbitMq => Some(TestVhost::create().await?),
            Way::Http | Way::InProcess => None,
        };
        if let Some(vhost) = &vhost {
            // As they are on every day but the first: what is submitted while they are made may be handed out twice.
            let kind = service["queue"]["type"].as_str().unwrap_or("classic");
            for queue in ["resize-in", "resize-out"] {
                vhost.declare_queue_with(queue, json!({"x-queue-type": kind})).await?;
            }
            let task_broker = RabbitMq::new(vhost.url(), RabbitMqOptions::default())?;
            builder = builder.engine(|options| options.dispatch.task_broker = Some(Arc::new(task_broker)));
        }
        Ok(Self { app: builder.start().await, way, language: None, vhost })
    }

    /// A worker for the service, which is not to be waited for long.
    fn worker(&self) -> Hired {
        self.worker_at(&self.url())
    }

    fn url(&self) -> String {
        match &self.vhost {
            Some(vhost) => vhost.url().to_owned(),
            None => format!("http://{}", self.app.address()),
        }
    }

    /// The same, that comes this way.
    fn worker_at(&self, url: &str) -> Hired {
        match (self.language, self.way) {
            (Some(language), _) => Hired::Foreign(self.worker_in(language, url)),
            (None, Way::Http | Way::RabbitMq) => Hired::Elsewhere(self.remote_worker_at(url)),
            (None, Way::InProcess) => Hired::in_process(&self.app.engine, "pod-1"),
        }
    }

    fn worker_in(&self, language: Language, url: &str) -> Foreign {
        let settings = json!({
            "url": url, "service": SERVICE, "clientId": "worker", "clientSecret": secret("worker"),
            "lease": LEASE.as_secs(), "hostName": "pod-1",
        });
        Foreign::new(language, settings)
    }

    /// One of the Rust library that is not in the server's own process.
    fn remote_worker(&self) -> WorkerBuilder {
        self.remote_worker_at(&self.url())
    }

    fn remote_worker_at(&self, url: &str) -> WorkerBuilder {
        let builder = match self.way {
            Way::RabbitMq => Worker::rabbitmq(url, SERVICE),
            Way::Http | Way::InProcess => Worker::builder(url, "worker", secret("worker"), SERVICE),
        };
        builder.lease(LEASE).host_name("pod-1")
    }

    async fn submit(&self, body: Value) -> String {
        self.app.client("alice").submit(SERVICE, body).await
    }

    /// A task that has ended.
    async fn ended(&self, task_id: &str) -> Value {
        let view =
            self.app.client("alice").get(&format!("/v1/services/{SERVICE}/tasks/{task_id}?wait=30s")).await.data();
        assert!(view["endDate"].is_string(), "it has not ended: {view}");
        view
    }

    /// A task as an operator sees it.
    async fn seen(&self, task_id: &str) -> Value {
        self.app.caller().get(&format!("/admin/tasks/{task_id}")).await.data()
    }

    /// Looks at a task until it is as wanted.
    async fn until(&self, task_id: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let looking = async {
            loop {
                let seen = self.seen(task_id).await;
                if wanted(&seen) {
                    break seen;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(relais_tests::app::DEADLINE, looking).await {
            Ok(seen) => seen,
            Err(_) => panic!("it was never {what}: {}", self.seen(task_id).await),
        }
    }
}

/// Every promise on every transport, in every language.
macro_rules! suite {
    ($home:ident, $worlds:tt, $cases:tt) => { suite!(@each $home, $worlds, $cases); };
    (@each $home:ident, [$($world:ident),*], $cases:tt) => { $(suite!(@one $home, $world, $cases);)* };
    (@one $home:ident, $world:ident, [$($case:ident),*]) => {
        mod $world {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() -> anyhow::Result<()> {
                    crate::$home::$case(&crate::World::$world().await?).await
                }
            )*
        }
    };
}

suite!(
    cases,
    [
        http,
        rabbitmq_classic,
        rabbitmq_quorum,
        in_process,
        python_http,
        python_rabbitmq_classic,
        python_rabbitmq_quorum,
        javascript_http,
        javascript_rabbitmq_classic,
        javascript_rabbitmq_quorum
    ],
    [
        a_result_comes_back_with_the_host_that_made_it,
        a_handler_knows_its_task,
        a_failure_comes_back_with_its_message,
        a_panic_fails_its_task_and_no_other,
        a_body_of_another_shape_fails_its_task,
        progress_is_reported_and_a_flood_of_it_is_limited,
        a_cancelled_task_is_stopped,
        a_worker_runs_as_many_tasks_as_it_has_slots,
        many_tasks_run_once_each,
        a_stopping_worker_lets_tasks_finish,
        a_stopping_worker_returns_unfinished_tasks,
        a_stopping_worker_returns_tasks_whose_handler_does_not_stop,
        a_worker_with_once_runs_exactly_one_task,
        a_worker_with_once_can_be_stopped,
        a_task_is_retried_after_its_backoff,
        a_task_of_a_crashed_worker_is_run_by_another
    ]
);

/// What goes from the server to workers by way of a broker beside tasks.
mod revocations {
    suite!(
        control,
        [
            rabbitmq_classic,
            rabbitmq_quorum,
            python_rabbitmq_classic,
            python_rabbitmq_quorum,
            javascript_rabbitmq_classic,
            javascript_rabbitmq_quorum
        ],
        [
            a_worker_that_missed_a_cancellation_is_told_when_it_starts_the_task,
            a_revoked_attempt_is_stopped_and_the_next_attempt_is_not,
            a_task_past_its_timeout_is_stopped,
            a_cancelled_task_that_does_not_stop_is_not_redelivered,
            a_worker_without_permission_for_the_control_exchange_still_works
        ]
    );
}

/// The same, of tasks that wait for a slot. The library for Python has none: it goes on with what it has when the
/// connection is back, and begins at once with all else.
mod revocations_of_waiting_tasks {
    suite!(
        control,
        [rabbitmq_classic, rabbitmq_quorum, javascript_rabbitmq_classic, javascript_rabbitmq_quorum],
        [a_cancelled_task_that_waits_for_a_slot_is_not_started]
    );
}
