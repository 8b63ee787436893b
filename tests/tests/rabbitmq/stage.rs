//! A Relais with a broker, a worker and a consumer.

use std::{sync::Arc, time::Duration};

use relais_broker::{RabbitMq, RabbitMqOptions};
use relais_messaging::rabbitmq::BrokerOptions;
use relais_testkit::TestVhost;
use relais_tests::{
    amqp::AmqpWorker,
    app::{Backend, Builder, Caller, DEADLINE, TestApp},
};
use serde_json::{Value, json};
use tokio::time::Instant;

/// A Relais with a virtual host of its own. `resize` and the other services of the usual world use it.
pub struct Stage {
    pub app: TestApp,
    pub vhost: TestVhost,
    pub alice: Caller,
    pub worker: AmqpWorker,
}

impl Stage {
    /// One whose broker has no management API, and so no policies.
    pub async fn start(on: Backend) -> Self {
        let vhost = TestVhost::create().await.unwrap();
        let app = builder(on, vhost.url(), None).start().await;
        Self::set(app, vhost).await
    }

    /// One that sets policies.
    pub async fn managed(on: Backend) -> Self {
        let vhost = TestVhost::create().await.unwrap();
        let app = builder(on, vhost.url(), Some(vhost.management_url())).start().await;
        Self::set(app, vhost).await
    }

    async fn set(app: TestApp, vhost: TestVhost) -> Self {
        let stage = Self::with(app, vhost);
        stage.ready("resize").await;
        stage
    }

    /// One whose queues may not be there yet.
    pub fn with(app: TestApp, vhost: TestVhost) -> Self {
        let (alice, worker) = (app.client("alice"), AmqpWorker::new(vhost.url(), "resize"));
        Self { app, vhost, alice, worker }
    }

    /// Declares `resize` otherwise, and returns when its queues are there.
    pub async fn resize(&self, mut service: Value) {
        service["serviceName"] = json!("resize");
        self.app.apply(json!({"services": [service]})).await;
    }

    /// Returns when a service has both its queues.
    pub async fn ready(&self, queue: &str) {
        for side in ["in", "out"] {
            let name = format!("{queue}-{side}");
            until(&format!("there is a queue {name}"), async || self.vhost.queue(&name).await.is_ok()).await;
        }
    }

    /// Submits a task to `resize`.
    pub async fn submit(&self, body: Value) -> String {
        self.alice.submit("resize", body).await
    }

    /// Submits many, numbered.
    pub async fn submit_many(&self, numbers: std::ops::Range<usize>) -> Vec<String> {
        let tasks: Vec<Value> = numbers.map(|n| json!({"body": {"n": n}})).collect();
        let answer = self.alice.post("/v1/services/resize/tasks/batch", &json!({"tasks": tasks})).await;
        let taken = answer.data()["tasks"].as_array().cloned().unwrap_or_default();
        let ids = taken.iter().map(|result| result["data"]["taskId"].as_str().unwrap_or_else(|| panic!("{result}")));
        ids.map(str::to_owned).collect()
    }

    /// A task of `resize`, as its consumer sees it.
    pub async fn poll(&self, task_id: &str) -> Value {
        self.alice.poll("resize", task_id).await
    }

    /// A task, as operators see it.
    pub async fn task(&self, task_id: &str) -> Value {
        self.app.caller().get(&format!("/admin/tasks/{task_id}")).await.data()
    }

    /// A task, as operators see it, once it is so.
    pub async fn seen(&self, task_id: &str, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let task = self.task(task_id).await;
            if so(&task) {
                return task;
            }
            assert!(begun.elapsed() < DEADLINE, "after {DEADLINE:?} a task is not {what}: {task}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns once a host has a task.
    pub async fn running_on(&self, task_id: &str, host: &str) -> Value {
        self.seen(task_id, &format!("on {host}"), |task| task["workerHost"] == host).await
    }

    /// The end of a task of `resize`, as its consumer sees it, which must come.
    pub async fn end(&self, task_id: &str) -> Value {
        let begun = Instant::now();
        loop {
            let task = self.alice.get(&format!("/v1/services/resize/tasks/{task_id}?wait=20s")).await.data();
            if task["endDate"].is_string() {
                return task;
            }
            assert!(begun.elapsed() < DEADLINE, "after {DEADLINE:?} a task has not ended: {task}");
        }
    }

    /// Its end, which must be a failure, and why.
    pub async fn failure(&self, task_id: &str) -> String {
        let task = self.end(task_id).await;
        assert_eq!(task["status"], "FAILURE", "{task}");
        task["errorMessage"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned()
    }

    /// Its end, which must be a success, and the result.
    pub async fn success(&self, task_id: &str) -> Value {
        let task = self.end(task_id).await;
        assert_eq!(task["status"], "SUCCESS", "{task}");
        task["response"].clone()
    }

    /// The messages of `resize` that were set aside, once there are so many.
    pub async fn dead_letters(&self, count: usize) -> Vec<Value> {
        let mut dead_letters = Vec::new();
        until(&format!("{count} messages were set aside"), async || {
            let answer = self.app.caller().get("/admin/deadletters?service=resize").await.data();
            dead_letters = answer["deadLetters"].as_array().cloned().unwrap();
            dead_letters.len() == count
        })
        .await;
        dead_letters
    }

    /// Says something of a task that is sure to end it, after all that was said before, and returns when that is done:
    /// then all of that was heard.
    pub async fn heard(&self) {
        let marker = self.submit(json!({"marker": true})).await;
        self.worker.success(&marker, json!(null)).await;
        self.success(&marker).await;
    }
}

/// The usual world, with a broker.
pub fn builder(on: Backend, url: &str, management_url: Option<String>) -> Builder {
    let broker = BrokerOptions {
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(200),
        ..BrokerOptions::default()
    };
    let task_broker = RabbitMq::new(url, RabbitMqOptions { broker, management_url }).unwrap();
    TestApp::builder(on).engine(|engine| engine.dispatch.task_broker = Some(Arc::new(task_broker)))
}

/// Asks until it is so.
pub async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !so().await {
        assert!(begun.elapsed() < DEADLINE, "after {DEADLINE:?} it is not so that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
