//! A worker over RabbitMQ, as they exist in the field: it knows two queues and JSON, and nothing of Relais.
//!
//! It opens a connection for each message that it sends, and one to listen. What it says is the test's.

use relais_messaging::rabbitmq::{Broker, BrokerOptions, ConsumeOptions, Consumer, Delivery, Publish};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::app::DEADLINE;

/// How a worker spells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// `taskId`, `messageType`, `hostName`, `errorMessage`
    Camel,
    /// `task_id`, `message_type`, `hostname`, `error_message`
    Snake,
}

/// A worker of one service.
#[derive(Debug, Clone)]
pub struct AmqpWorker {
    url: String,
    queue: String,
    spelling: Spelling,
}

impl AmqpWorker {
    /// One that takes from `<queue>-in` and speaks to `<queue>-out`.
    pub fn new(url: &str, queue: &str) -> Self {
        Self { url: url.to_owned(), queue: queue.to_owned(), spelling: Spelling::Camel }
    }

    /// The same, with another spelling.
    #[must_use]
    pub fn spelling(mut self, spelling: Spelling) -> Self {
        self.spelling = spelling;
        self
    }

    /// Takes tasks, at most so many at once that are not acknowledged. The queue must be there.
    pub async fn listen(&self, prefetch: u16) -> Listening {
        let options = ConsumeOptions { prefetch, ..ConsumeOptions::default() };
        match broker(&self.url).consume(&format!("{}-in", self.queue), options).await {
            Ok(consumer) => Listening(consumer),
            Err(error) => panic!("a worker could not listen: {error}"),
        }
    }

    /// Says something of a task, in its own spelling.
    pub async fn say(&self, task_id: &str, data: Value) {
        self.send(self.message(task_id, data).to_string()).await;
    }

    /// Says several things at once, in one message.
    pub async fn say_all(&self, messages: impl IntoIterator<Item = (&str, Value)>) {
        let list: Vec<Value> = messages.into_iter().map(|(task_id, data)| self.message(task_id, data)).collect();
        self.send(Value::Array(list).to_string()).await;
    }

    /// It has begun.
    pub async fn started(&self, task_id: &str, host: &str) {
        self.say(task_id, json!({"messageType": "started", "hostName": host})).await;
    }

    /// How far it is.
    pub async fn progress(&self, task_id: &str, progress: f64) {
        self.say(task_id, json!({"messageType": "progress", "progress": progress})).await;
    }

    /// It has a result.
    pub async fn success(&self, task_id: &str, response: Value) {
        self.say(task_id, json!({"messageType": "success", "response": response})).await;
    }

    /// Sends whatever it is, over a connection of its own, and returns when the broker has it.
    pub async fn send(&self, body: impl Into<Vec<u8>>) {
        let message = Publish::new("", format!("{}-out", self.queue), body.into());
        if let Err(error) = broker(&self.url).publish(message).await {
            panic!("a worker could not speak: {error}");
        }
    }

    /// Sends many messages in their order, over one connection.
    pub async fn send_many(&self, bodies: impl IntoIterator<Item = String>) {
        let messages = bodies
            .into_iter()
            .enumerate()
            .map(|(number, body)| Publish::new("", format!("{}-out", self.queue), body).message_id(number.to_string()));
        for answer in broker(&self.url).publish_all(messages.collect()).await {
            answer.unwrap_or_else(|error| panic!("a worker could not speak: {error}"));
        }
    }

    /// A message about a task, in its own spelling.
    pub fn message(&self, task_id: &str, data: Value) -> Value {
        let data = data.as_object().cloned().unwrap_or_default();
        let data: Map<String, Value> = data.into_iter().map(|(name, value)| (self.spelt(&name), value)).collect();
        let mut message = Map::new();
        message.insert(self.spelt("taskId"), json!(task_id));
        message.insert("data".to_owned(), Value::Object(data));
        Value::Object(message)
    }

    fn spelt(&self, name: &str) -> String {
        let snake = match name {
            "taskId" => "task_id",
            "messageType" => "message_type",
            "hostName" => "hostname",
            "errorMessage" => "error_message",
            same => same,
        };
        if self.spelling == Spelling::Snake { snake } else { name }.to_owned()
    }
}

/// A worker that takes tasks. Dropped, it is as good as killed: what it did not acknowledge goes to another one.
pub struct Listening(Consumer);

/// A task that was taken.
#[derive(Debug)]
pub struct Job {
    /// What to acknowledge it by.
    pub tag: u64,
    /// The task.
    pub task_id: String,
    /// What it is told, whole.
    pub message: Value,
    /// Whether somebody else had it before.
    pub redelivered: bool,
    /// As the broker gave it.
    pub delivery: Delivery,
}

impl Job {
    /// The arguments.
    pub fn body(&self) -> &Value {
        &self.message["data"]["body"]
    }
}

impl Listening {
    /// The next task, which must come.
    pub async fn take(&mut self) -> Job {
        let taken = timeout(DEADLINE, self.0.next()).await;
        let taken = taken.unwrap_or_else(|_| panic!("no task came within {DEADLINE:?}"));
        job(taken.unwrap_or_else(|error| panic!("a worker lost its queue: {error}")))
    }

    /// So many tasks, acknowledged as they come.
    pub async fn take_all(&mut self, count: usize) -> Vec<Job> {
        let mut jobs = Vec::with_capacity(count);
        while jobs.len() < count {
            let job = self.take().await;
            self.ack(&job);
            jobs.push(job);
        }
        jobs
    }

    /// It is done with.
    pub fn ack(&self, job: &Job) {
        settled(self.0.ack(job.tag));
    }

    /// Somebody else is to have it.
    pub fn give_back(&self, job: &Job) {
        settled(self.0.nack(job.tag, true));
    }

    /// Nobody is to have it.
    pub fn reject(&self, job: &Job) {
        settled(self.0.nack(job.tag, false));
    }
}

fn settled<E: std::fmt::Display>(result: Result<(), E>) {
    result.unwrap_or_else(|error| panic!("a worker could not settle its task: {error}"));
}

fn job(delivery: Delivery) -> Job {
    let message: Value = serde_json::from_slice(&delivery.body).unwrap_or_else(|error| panic!("not JSON: {error}"));
    let task_id = message["taskId"].as_str().unwrap_or_else(|| panic!("no taskId in {message}")).to_owned();
    Job { tag: delivery.tag, task_id, message, redelivered: delivery.redelivered, delivery }
}

/// A broker that is there, however long a busy machine takes to connect.
pub fn broker(url: &str) -> Broker {
    let options = BrokerOptions {
        connection_name: "a test".to_owned(),
        publish_timeout: DEADLINE,
        patience: DEADLINE,
        ..BrokerOptions::default()
    };
    Broker::new(url, options).unwrap_or_else(|error| panic!("no broker: {error}"))
}
