//! Workers over RabbitMQ that can be killed, and consumers who wait for the end of every task.
//!
//! Over a broker a worker does not learn whether its result was accepted. So consumers watch: the first result of a
//! task that they see must be its result for good.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use relais_messaging::rabbitmq::{Broker, BrokerOptions, ConsumeOptions, Consumer, Delivery, Publish};
use serde_json::{Value, json};
use tokio::{runtime::Runtime, task::JoinSet};

use super::{Api, Ledger, SERVICE, consumer};

/// Between two tries of something that did not work.
const PAUSE: Duration = Duration::from_millis(50);

/// How patiently a worker talks to its broker: the node is killed often, and comes back.
fn patience() -> BrokerOptions {
    BrokerOptions {
        publish_timeout: Duration::from_secs(5),
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(500),
        ..BrokerOptions::default()
    }
}

/// Workers over RabbitMQ, each with a runtime of its own, so that killing one cuts its connections in whatever they do.
pub struct BrokerWorkers {
    url: String,
    ledger: Arc<Ledger>,
    running: Vec<Option<Runtime>>,
    born: usize,
}

impl BrokerWorkers {
    /// Starts so many on the queues of [`SERVICE`].
    pub fn start(url: &str, count: usize, ledger: &Arc<Ledger>) -> Result<Self> {
        let mut workers = Self { url: url.to_owned(), ledger: Arc::clone(ledger), running: Vec::new(), born: 0 };
        for _ in 0..count {
            let worker = workers.another()?;
            workers.running.push(Some(worker));
        }
        Ok(workers)
    }

    /// Kills one of them. What it had is somebody else's from then on.
    pub fn kill(&mut self, number: usize) {
        let count = self.running.len();
        if let Some(runtime) = self.running[number % count].take() {
            runtime.shutdown_background();
        }
    }

    /// Starts others in the place of those that were killed.
    pub fn replace(&mut self) -> Result<()> {
        for number in 0..self.running.len() {
            if self.running[number].is_none() {
                self.running[number] = Some(self.another()?);
            }
        }
        Ok(())
    }

    fn another(&mut self) -> Result<Runtime> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("start a worker's runtime")?;
        let broker = || Broker::new(&self.url, patience());
        let worker = BrokerWorker {
            name: format!("broker-worker-{}", self.born),
            reader: broker()?,
            publisher: broker()?,
            ledger: Arc::clone(&self.ledger),
            number: self.born,
        };
        self.born += 1;
        runtime.spawn(worker.run());
        Ok(runtime)
    }
}

impl Drop for BrokerWorkers {
    fn drop(&mut self) {
        for runtime in self.running.iter_mut().filter_map(Option::take) {
            runtime.shutdown_background();
        }
    }
}

struct BrokerWorker {
    name: String,
    reader: Broker,
    publisher: Broker,
    ledger: Arc<Ledger>,
    number: usize,
}

impl BrokerWorker {
    async fn run(self) {
        let options = ConsumeOptions { prefetch: 20, ..ConsumeOptions::default() };
        let mut turn = self.number;
        loop {
            if let Ok(mut consumer) = self.reader.consume(&format!("{SERVICE}-in"), options.clone()).await {
                while self.work(&mut consumer, turn).await.is_ok() {
                    turn += 1;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Does what there is. A task whose result could not be sent is not acknowledged, and is redelivered.
    async fn work(&self, consumer: &mut Consumer, turn: usize) -> Result<()> {
        let deliveries = consumer.next_batch(10).await?;
        let mut messages = Vec::new();
        for delivery in &deliveries {
            messages.extend(self.messages(delivery, turn));
        }
        let bodies = if turn.is_multiple_of(3) { vec![Value::Array(messages)] } else { messages };
        let publishes = bodies.iter().enumerate().map(|(place, body)| {
            Publish::new("", format!("{SERVICE}-out"), body.to_string()).message_id(format!("{turn}-{place}"))
        });
        for answer in self.publisher.publish_all(publishes.collect()).await {
            answer?;
        }
        // One by one, as most workers do; whoever is killed in the midst leaves the rest.
        for delivery in &deliveries {
            consumer.ack(delivery.tag)?;
        }
        Ok(())
    }

    /// What it says of a task: as lists with the host's name, as `started` and result, or as the result alone, in turn.
    fn messages(&self, delivery: &Delivery, turn: usize) -> Vec<Value> {
        let Ok(submission) = serde_json::from_slice::<Value>(&delivery.body) else {
            self.ledger.enter(|book| book.wrong.push("a submission is not JSON".to_owned()));
            return Vec::new();
        };
        let task_id = submission["taskId"].as_str().unwrap_or_default().to_owned();
        let result = format!("by {} in turn {turn}", self.name);
        let mut data = match submission["data"]["body"]["fail"].as_bool() {
            Some(true) => json!({"messageType": "failure", "errorMessage": result}),
            _ => json!({"messageType": "success", "response": {"result": result}}),
        };
        self.ledger.sent(&task_id, &result);
        let started = json!({"taskId": task_id, "data": {"messageType": "started", "hostName": self.name}});
        let mut said = Vec::new();
        match turn % 3 {
            0 => data["hostName"] = json!(self.name),
            1 => said.push(started),
            _ => {}
        }
        said.push(json!({"taskId": task_id, "data": data}));
        said
    }
}

/// Those who wait for every task that was answered 201, each until it has ended.
pub struct Watchers {
    tasks: JoinSet<()>,
}

impl Watchers {
    /// So many of them, who ask these servers in turn.
    pub fn start(urls: &[String], count: usize, ledger: &Arc<Ledger>) -> Result<Self> {
        let apis: Arc<[Api]> = urls.iter().map(|url| consumer(url)).collect::<Result<_>>()?;
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let (apis, next, ledger) = (Arc::clone(&apis), Arc::clone(&next), Arc::clone(ledger));
            tasks.spawn(async move {
                loop {
                    let task_id = ledger.nth(next.fetch_add(1, Ordering::Relaxed)).await;
                    watch(&apis, number, &task_id, &ledger).await;
                }
            });
        }
        Ok(Self { tasks })
    }

    /// Waits no more.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn watch(apis: &[Api], first: usize, task_id: &str, ledger: &Ledger) {
    let path = format!("/v1/services/{SERVICE}/tasks/{task_id}?wait=10s");
    for turn in first.. {
        match apis[turn % apis.len()].get(&path).await {
            Ok(answer) if answer.status == 200 => {
                let view = &answer.body["data"];
                let result = match view["status"].as_str() {
                    Some("SUCCESS") => view["response"]["result"].as_str(),
                    Some("FAILURE") => view["errorMessage"].as_str(),
                    // Waited for long enough; once more.
                    _ => continue,
                };
                return ledger.seen(task_id, result.unwrap_or_default());
            }
            Ok(answer) if answer.status != 503 => {
                return ledger.enter(|book| book.wrong.push(format!("{task_id}: {} {}", answer.status, answer.body)));
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}
