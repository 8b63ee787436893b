//! A service as a sink: each message becomes a task of it, once.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::{IdempotencyKey, NewTask, Role};
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink, header, in_waves};
use relais_protocol::consumer::{SubmitRequest, TraceHeaders};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{dispatched, refused, unjudged_task};
use crate::{Access, Engine, EngineError, Problem, registry::Snapshot, timers::schedule::explained};

/// The longest id that is part of a key as it is.
const MAX_ID: usize = 100;

/// The longest name of a source.
const MAX_SOURCE: usize = 100;

/// The same for every message: its id alone decides. A message that became a task must be confirmed when it comes again, also
/// if its envelope was changed in the meantime. What a client submitted under such a key by itself has another one.
const FINGERPRINT: &[u8] = b"message";

/// How messages become tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSinkOptions {
    /// The client that submits. It must be declared, and its authorizations and capacities hold.
    pub client_id: String,
    /// Where the messages come from, for example the name of the outbox. Messages of two sources may have the same id.
    pub source: String,
    /// How long a wave of messages may take.
    pub timeout: Duration,
    /// The largest payload.
    pub max_body_bytes: usize,
}

impl TaskSinkOptions {
    /// Submits as this client messages that come from `source`; 10 s and 1 MiB.
    pub fn new(client_id: impl Into<String>, source: impl Into<String>) -> Self {
        let (client_id, source) = (client_id.into(), source.into());
        Self { client_id, source, timeout: Duration::from_secs(10), max_body_bytes: 1 << 20 }
    }
}

/// Why there can be no sink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a source has 1 to {MAX_SOURCE} characters, no colon and no control characters, unlike {0:?}")]
pub struct TaskSinkError(String);

/// Submits messages as tasks: the destination is the service's name, and the payload is the task's body.
///
/// The idempotency key of the task is `message:<source>:<id>`, so a message that comes again is confirmed and makes no second
/// task, for as long as idempotency keys are kept ([`Options::idempotency_age`](crate::Options::idempotency_age), 24 hours
/// unless set). The message's trace context and its correlation id are the task's. Other headers, the type and the key do not
/// travel; with an envelope they are in the payload.
///
/// Refused are messages to a service that does not exist or that the client may not use, payloads that are no JSON object or do
/// not conform to the service's schema, payloads that are too large, and tombstones. So are messages beyond a capacity.
#[derive(Clone)]
pub struct TaskSink(std::sync::Arc<Inner>);

struct Inner {
    engine: Engine,
    options: TaskSinkOptions,
    closed: AtomicBool,
}

impl std::fmt::Debug for TaskSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskSink").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl TaskSink {
    /// A sink on this engine. [`close`](Sink::close) does not stop the engine.
    pub fn new(engine: Engine, options: TaskSinkOptions) -> Result<Self, TaskSinkError> {
        let length = options.source.chars().count();
        let fine = |c: char| c != ':' && !c.is_control();
        if !(1..=MAX_SOURCE).contains(&length) || !options.source.chars().all(fine) {
            return Err(TaskSinkError(options.source));
        }
        Ok(Self(std::sync::Arc::new(Inner { engine, options, closed: AtomicBool::new(false) })))
    }
}

#[async_trait]
impl Sink for TaskSink {
    fn durability(&self) -> Durability {
        Durability::Disk
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let Inner { options, closed, .. } = &*self.0;
        if closed.load(Ordering::Acquire) {
            return vec![PublishOutcome::Refused("the sink is closed".to_owned()); batch.len()];
        }
        in_waves(batch, options.timeout, |wave| async {
            let (number, limit) = (wave.len(), options.timeout);
            match timeout(limit, self.0.wave(wave)).await {
                Ok(outcomes) => outcomes,
                Err(_) => vec![PublishOutcome::Unknown(format!("the store did not answer within {limit:?}")); number],
            }
        })
        .await
    }

    async fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

impl Inner {
    async fn wave(&self, wave: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let number = wave.len();
        match self.submit(wave).await {
            Ok(answers) => answers
                .into_iter()
                .map(|answer| answer.map_or_else(|error| outcome(&error), |()| PublishOutcome::Confirmed))
                .collect(),
            Err(error) => vec![outcome(&error); number],
        }
    }

    /// Submits a wave in as few transactions as possible; each message has its own answer.
    async fn submit(&self, wave: Vec<RoutedMessage>) -> Result<Vec<Result<(), EngineError>>, EngineError> {
        let snapshot = self.engine.snapshot()?;
        let mut accesses = HashMap::new();
        let prepared: Vec<_> = wave
            .into_iter()
            .map(|RoutedMessage { destination, message, .. }| {
                let access = accesses
                    .entry(destination)
                    .or_insert_with_key(|service| self.engine.insider(&self.options.client_id, service, Role::Consume))
                    .clone()?;
                let task = self.task(&access, message)?;
                Ok((access, task))
            })
            .collect();
        let judged = self.judge(&snapshot, prepared).await?;
        let tasks = judged.iter().filter_map(|one| one.as_ref().ok().map(|(_, task)| task.clone())).collect();
        let mut submissions = self.engine.0.submissions.put_each(tasks).await.into_iter();
        let answers = judged.into_iter().map(|one| {
            let (access, _) = one?;
            let answer = submissions.next().unwrap_or(Err(EngineError::Stopping)).and_then(refused);
            self.engine.account(&access, answer).map(drop)
        });
        Ok(answers.collect())
    }

    /// Judges the bodies by their services' schemas, all at once.
    async fn judge(
        &self,
        snapshot: &Snapshot,
        prepared: Vec<Result<(Access, NewTask), EngineError>>,
    ) -> Result<Vec<Result<(Access, NewTask), EngineError>>, EngineError> {
        let Some(client) = prepared.iter().find_map(|one| one.as_ref().ok()).map(|(access, _)| access.client.clone())
        else {
            return Ok(prepared);
        };
        let body = |one: &Result<(Access, NewTask), EngineError>| {
            one.as_ref().ok().map(|(_, task)| (task.service, task.request.clone()))
        };
        let judged = self.engine.judge(snapshot, &client, prepared.iter().map(body).collect()).await?;
        let both = prepared.into_iter().zip(judged).map(|(one, conforms)| one.and_then(|one| conforms.map(|()| one)));
        Ok(both.collect())
    }

    fn task(&self, access: &Access, message: Message) -> Result<NewTask, EngineError> {
        let wrong = |message: String| EngineError::Invalid(vec![Problem::at("/body", message)]);
        let Some(payload) = &message.payload else {
            return Err(wrong("is missing: a tombstone is no task".to_owned()));
        };
        let limit = self.options.max_body_bytes;
        if payload.len() > limit {
            return Err(wrong(format!("has {} bytes, and may have {limit}", payload.len())));
        }
        let body = serde_json::from_slice(payload).map_err(|error| wrong(format!("is not JSON: {error}")))?;
        let header = |name: &str| message.headers.get(name).map(str::to_owned);
        let trace = TraceHeaders { traceparent: header(header::TRACEPARENT), tracestate: header(header::TRACESTATE) };
        let correlation_id = header(header::CORRELATION_ID);
        let request = SubmitRequest { correlation_id, trace, ..SubmitRequest::new(body) };
        let mut task = unjudged_task(&self.engine.0.options.callback_senders, access, request, None)?;
        let key = key(&self.options.source, &message.id);
        task.idempotency = Some(IdempotencyKey { key, fingerprint: FINGERPRINT.to_vec() });
        Ok(dispatched(task, self.engine.dispatch_of(&access.service)))
    }
}

/// The idempotency key of a message. An id that is too long for one, or has what a database can not keep, is hashed.
fn key(source: &str, id: &str) -> String {
    if id.chars().count() <= MAX_ID && !id.chars().any(char::is_control) {
        return format!("message:{source}:{id}");
    }
    let digest = Sha256::digest(id.as_bytes());
    digest.iter().fold(format!("message:{source}:sha256:"), |key, byte| format!("{key}{byte:02x}"))
}

/// What is said of one message is a refusal; what is said of the engine or the store is not.
fn outcome(error: &EngineError) -> PublishOutcome {
    let passing = matches!(
        error,
        EngineError::Store(_)
            | EngineError::Stopping
            | EngineError::NotReady(_)
            | EngineError::Overloaded
            | EngineError::ValidationBusy
    );
    if passing { PublishOutcome::Unknown(explained(error)) } else { PublishOutcome::Refused(explained(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_task_is_the_source_and_the_id() {
        assert_eq!(key("orders", "7d9c"), "message:orders:7d9c");
        let (long, longer) = (key("orders", &"x".repeat(101)), key("orders", &"x".repeat(102)));
        assert!(long.starts_with("message:orders:sha256:") && long.len() < 200 && long != longer, "{long}");
        assert_ne!(key("orders", "a\0"), key("orders", "a"), "databases leave the zero out");
    }
}
