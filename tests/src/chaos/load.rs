//! Consumers and workers that go on whatever happens to the servers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use relais_worker::Worker;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Api, Ledger};

/// The service that the load uses.
pub const SERVICE: &str = "chaos";

const CLIENT: &str = "chaos-client";
const SECRET: &str = "chaos-secret";

/// Between two tries of a call that got no good answer.
const PAUSE: Duration = Duration::from_millis(20);

/// Declares the service and a client that may do everything on it.
pub async fn declare(url: &str, lease: &str) -> Result<()> {
    declare_service(url, json!({"serviceName": SERVICE, "lease": lease})).await
}

/// The same, with a service of other settings.
pub async fn declare_service(url: &str, service: Value) -> Result<()> {
    let declaration = json!({
        "services": [service],
        "clients": [{"clientId": CLIENT, "clientSecret": SECRET}],
        "authorizations": [{"clientId": CLIENT, "serviceName": SERVICE, "roles": ["consume", "work"]}],
    });
    let answer = Api::admin(url)?.post("/admin/apply", &declaration).await?;
    answer.data().context("declare the service")?;
    Ok(())
}

/// The load's client on a server.
pub fn consumer(url: &str) -> Result<Api> {
    Ok(Api::admin(url)?.with(CLIENT, SECRET))
}

/// How much of each there is.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Consumers that submit one task at a time, and never twice.
    pub single: usize,
    /// Consumers that submit under an idempotency key until they have an answer.
    pub keyed: usize,
    /// Consumers that submit batches.
    pub batches: usize,
    /// Workers written by hand.
    pub workers: usize,
    /// Workers made with the worker library.
    pub library_workers: usize,
    /// As many accepted tasks may be unfinished before consumers hold back.
    pub backlog: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { single: 4, keyed: 4, batches: 1, workers: 2, library_workers: 1, backlog: 200 }
    }
}

/// Consumers and workers at work.
pub struct Load {
    ledger: Arc<Ledger>,
    consumers: JoinSet<Result<()>>,
    workers: JoinSet<Result<()>>,
    stop_consumers: CancellationToken,
    stop_workers: CancellationToken,
}

impl Load {
    /// Starts them, spread over the servers.
    pub fn start(urls: &[String], options: LoadOptions) -> Result<Self> {
        let ledger = Arc::new(Ledger::default());
        let (mut consumers, mut workers) = (JoinSet::new(), JoinSet::new());
        let (stop_consumers, stop_workers) = (CancellationToken::new(), CancellationToken::new());
        let apis = urls.iter().map(|url| consumer(url)).collect::<Result<Vec<_>>>()?;
        let kinds = [(options.single, Kind::Single), (options.keyed, Kind::Keyed), (options.batches, Kind::Batch)];
        let kinds = kinds.into_iter().flat_map(|(count, kind)| std::iter::repeat_n(kind, count));
        for (number, kind) in kinds.enumerate() {
            let consumer = Consumer {
                name: format!("{kind:?}-{number}").to_lowercase(),
                kind,
                // Every consumer uses every server, turn about.
                apis: apis.clone(),
                ledger: Arc::clone(&ledger),
                backlog: options.backlog,
                stop: stop_consumers.clone(),
            };
            consumers.spawn(consumer.run());
        }
        for number in 0..options.workers {
            let (api, ledger) = (apis[number % apis.len()].clone(), Arc::clone(&ledger));
            let stop = stop_workers.clone();
            workers.spawn(async move { stop.run_until_cancelled(work(api, number, ledger)).await.unwrap_or(Ok(())) });
        }
        for number in 0..options.library_workers {
            let url = &urls[number % urls.len()];
            workers.spawn(work_with_library(url.clone(), number, Arc::clone(&ledger), stop_workers.clone()));
        }
        Ok(Self { ledger, consumers, workers, stop_consumers, stop_workers })
    }

    /// What was promised so far.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// No more submissions from now on, and an answer to those that are under way: what is counted after this is all
    /// there is.
    pub async fn stop_consumers(&mut self) -> Result<()> {
        self.stop_consumers.cancel();
        while let Some(ended) = self.consumers.join_next().await {
            ended.context("a consumer panicked")??;
        }
        Ok(())
    }

    /// Ends it all.
    pub async fn stop(mut self) -> Result<Arc<Ledger>> {
        self.stop_consumers().await?;
        self.stop_workers.cancel();
        while let Some(ended) = self.workers.join_next().await {
            ended.context("a worker panicked")??;
        }
        Ok(Arc::clone(&self.ledger))
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Single,
    Keyed,
    Batch,
}

struct Consumer {
    name: String,
    kind: Kind,
    apis: Vec<Api>,
    ledger: Arc<Ledger>,
    backlog: usize,
    stop: CancellationToken,
}

fn path(rest: &str) -> String {
    format!("/v1/services/{SERVICE}/{rest}")
}

fn task(mark: &str, number: u64) -> Value {
    json!({"body": {"mark": mark, "fail": number % 7 == 3}, "correlationId": mark})
}

impl Consumer {
    async fn run(self) -> Result<()> {
        for number in 0.. {
            if self.stop.run_until_cancelled(self.ledger.room(self.backlog)).await.is_none() {
                break;
            }
            let mark = format!("{}-{number}", self.name);
            match self.kind {
                Kind::Single => self.submit_once(&mark, number).await,
                Kind::Keyed => self.submit_until_answered(&mark, number).await,
                Kind::Batch => self.submit_batch(&mark, number).await,
            }
        }
        Ok(())
    }

    fn api(&self, turn: u64) -> &Api {
        &self.apis[turn as usize % self.apis.len()]
    }

    async fn submit_once(&self, mark: &str, number: u64) {
        match self.api(number).post(&path("tasks"), &task(mark, number)).await {
            Ok(answer) if answer.status == 201 => self.taken(&answer.body["data"], mark),
            answer => self.trouble(answer).await,
        }
    }

    async fn submit_until_answered(&self, mark: &str, number: u64) {
        for turn in number.. {
            if self.stop.is_cancelled() {
                return;
            }
            let request = self.api(turn).request(reqwest::Method::POST, &path("tasks"));
            match Api::send(request.header("Idempotency-Key", mark).json(&task(mark, number))).await {
                Ok(answer) if answer.status == 201 => {
                    self.taken(&answer.body["data"], mark);
                    // Now and then somebody asks again although there was an answer.
                    if turn % 5 != 0 {
                        return;
                    }
                }
                answer => self.trouble(answer).await,
            }
        }
    }

    async fn submit_batch(&self, mark: &str, number: u64) {
        let marks: Vec<String> = (0..20).map(|place| format!("{mark}-{place}")).collect();
        let tasks: Vec<Value> = marks.iter().map(|mark| task(mark, number)).collect();
        match self.api(number).post(&path("tasks/batch"), &json!({"tasks": tasks})).await {
            Ok(answer) if answer.status == 200 => {
                let entries = answer.body["data"]["tasks"].as_array().cloned().unwrap_or_default();
                for (mark, entry) in marks.iter().zip(entries) {
                    if entry["status"] == "success" {
                        self.taken(&entry["data"], mark);
                    }
                }
            }
            answer => self.trouble(answer).await,
        }
    }

    fn taken(&self, data: &Value, mark: &str) {
        match data["taskId"].as_str() {
            Some(task_id) => self.ledger.accepted(task_id, mark),
            None => self.ledger.enter(|book| book.wrong.push(format!("{mark} was taken without a name: {data}"))),
        }
    }

    /// No answer, or one that says that something is away. Anything else should not be.
    async fn trouble(&self, answer: Result<super::Answer, reqwest::Error>) {
        self.ledger.enter(|book| match answer {
            Ok(answer) if answer.status == 503 && answer.number() != 0 => book.refused += 1,
            Ok(answer) => book.wrong.push(format!("{} was answered {}: {}", self.name, answer.status, answer.body)),
            Err(_) => book.unanswered += 1,
        });
        tokio::time::sleep(PAUSE).await;
    }
}

/// A worker by hand: claims a few, sends their results together, and does not give up until it knows the outcome of
/// them.
async fn work(api: Api, number: usize, ledger: Arc<Ledger>) -> Result<()> {
    let claim = json!({"max": 10, "wait": "2s", "hostName": format!("worker-{number}")});
    for turn in 0_u64.. {
        let tasks = match api.post(&path("claims"), &claim).await {
            Ok(answer) if answer.status == 200 => answer.data()?["tasks"].as_array().cloned().unwrap_or_default(),
            _ => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if tasks.is_empty() {
            continue;
        }
        let mut results = Vec::new();
        for task in &tasks {
            let (task_id, attempt) = (&task["taskId"], &task["attempt"]);
            let result = format!("by worker-{number} in turn {turn}, attempt {attempt}");
            ledger.enter(|book| {
                book.sent.entry(text(task_id)).or_default().insert(result.clone());
            });
            let data = match task["data"]["body"]["fail"].as_bool() {
                Some(true) => json!({"messageType": "failure", "errorMessage": result}),
                _ => json!({"messageType": "success", "response": {"result": result}}),
            };
            results.push((text(task_id), result, json!({"taskId": task_id, "attempt": attempt, "data": data})));
        }
        let messages: Vec<&Value> = results.iter().map(|(_, _, message)| message).collect();
        let outcomes = loop {
            match api.post(&path("messages"), &json!({"messages": messages})).await {
                Ok(answer) if answer.status == 200 => break answer.data()?["outcomes"].clone(),
                _ => tokio::time::sleep(PAUSE).await,
            }
        };
        for (place, (task_id, result, _)) in results.into_iter().enumerate() {
            ledger.enter(|book| match outcomes[place]["outcome"].as_str() {
                Some("accepted") => {
                    book.told.entry(task_id.clone()).or_default().push(result);
                    book.ended.insert(task_id);
                }
                Some("ended") => {
                    book.ended.insert(task_id);
                }
                Some("lost" | "unchanged") => {}
                _ => book.wrong.push(format!("the result of {task_id} was answered {}", outcomes[place])),
            });
        }
    }
    Ok(())
}

/// A worker as others write them.
async fn work_with_library(url: String, number: usize, ledger: Arc<Ledger>, stop: CancellationToken) -> Result<()> {
    let turns = Arc::new(AtomicU64::new(0));
    let worker = Worker::builder(url, CLIENT, SECRET, SERVICE)
        .concurrency(4)
        .lease(Duration::from_secs(2))
        .host_name(format!("library-{number}"))
        .build()?;
    let handler = move |body: Value, context: relais_worker::Context| {
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        let result = format!("by library-{number} in turn {turn}, attempt {:?}", context.attempt());
        let task_id = context.task_id().to_owned();
        ledger.enter(|book| {
            book.sent.entry(task_id.clone()).or_default().insert(result.clone());
            book.ended.insert(task_id);
        });
        async move {
            match body["fail"].as_bool() {
                Some(true) => Err(result),
                _ => Ok(json!({"result": result})),
            }
        }
    };
    worker.run(handler, stop).await.context("a worker of the library ended badly")?;
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
