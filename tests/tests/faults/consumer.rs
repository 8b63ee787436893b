//! Consumers that submit with an idempotency key and retry until they are answered, read, wait, and cancel. Some of
//! their tasks have dependencies, and some are in batches.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use relais_core::{State, TaskId};
use relais_engine::{Access, BatchRequest, Engine, EngineError, Idempotency};
use relais_protocol::consumer::SubmitRequest;
use relais_tests::chaos::Random;
use serde_json::json;
use tokio::time::Instant;

use super::{PATIENCE, PAUSE, ledger::Ledger, stage::until_answered, world::NOBODY};

/// Somebody who wants things done.
pub struct Consumer {
    pub engine: Engine,
    pub access: Access,
    pub name: String,
    pub ledger: Arc<Ledger>,
    pub random: Random,
    /// Whether its tasks come on terms of their own, and have callbacks to an endpoint that is gone.
    pub demanding: bool,
}

impl Consumer {
    /// Submits so many, one after the other, and follows some of them.
    pub async fn run(mut self, tasks: usize) -> Result<()> {
        let mut before = None;
        // One batch there is to be in any case. Each try is another one.
        let begun = Instant::now();
        for attempt in 0.. {
            if self.batch(&format!("{}-first{attempt}", self.name), true).await? {
                break;
            }
            ensure!(begun.elapsed() < PATIENCE, "{} could make no batch", self.name);
            tokio::time::sleep(PAUSE).await;
        }
        for number in 0..tasks {
            let mark = format!("{}-{number}", self.name);
            if self.random.once_in(6) {
                let open = self.random.once_in(2);
                self.batch(&mark, open).await?;
                continue;
            }
            let Some(task_id) = self.submit(&mark, before).await? else { continue };
            before = Some(task_id);
            match self.random.between(0, 5) {
                0 => self.cancel(task_id).await?,
                1 => self.wait(task_id).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes a batch of a chain, once, without a key that would make it safe to repeat. Tells whether it was made.
    async fn batch(&self, mark: &str, open: bool) -> Result<bool> {
        let service = self.access.service.name.to_string();
        let mut tasks = Vec::new();
        for part in ["a", "b", "c"] {
            let mark = format!("{mark}{part}");
            let after = tasks.last().map(|_| json!({"refs": ["before"], "when": "allSucceeded"}));
            let mut task = json!({"service": service, "body": {"mark": mark}, "correlationId": mark, "after": after});
            if tasks.is_empty() {
                task["ref"] = json!("before");
            }
            tasks.push(serde_json::from_value::<SubmitRequest>(task)?);
            self.ledger.book().unkeyed.insert(mark);
        }
        let callback = serde_json::from_value(json!({"type": "https", "url": format!("https://{}", self.name)}))?;
        let request = BatchRequest { tasks, callback: Some(callback), open, ..BatchRequest::default() };
        match self.engine.create_batch(&self.access.client, request, None).await {
            Ok(made) => {
                if open {
                    let closed = until_answered(|| self.engine.close_batch(&self.access.client, made.batch_id));
                    closed.await.context("close a batch")?;
                }
                for (accepted, part) in made.tasks.iter().zip(["a", "b", "c"]) {
                    self.ledger.accepted(accepted.submitted.task_id, &format!("{mark}{part}"));
                }
                Ok(true)
            }
            Err(EngineError::Store(_)) => Ok(false),
            Err(EngineError::InBatch(_, full)) if matches!(*full, EngineError::ServiceFull) => Ok(false),
            Err(other) => bail!("a batch was refused: {other}"),
        }
    }

    /// Submits until it is answered; without a key, once. Some wait for the one before.
    async fn submit(&mut self, mark: &str, before: Option<TaskId>) -> Result<Option<TaskId>> {
        let keyed = !self.random.once_in(5);
        let nobody = self.demanding && self.random.once_in(3);
        let url = if nobody { NOBODY.to_owned() } else { format!("https://{}", self.name) };
        let callback = self.random.once_in(3).then(|| json!({"type": "https", "url": url}));
        let when = if self.random.once_in(2) { "allEnded" } else { "allSucceeded" };
        let before = before.filter(|_| self.random.once_in(3));
        let after = before.map(|before| json!({"tasks": [before.to_string()], "when": when}));
        let mut request = json!({"body": {"mark": mark}, "callback": callback, "correlationId": mark, "after": after});
        match self.random.between(0, 6) {
            0 if self.demanding => request["timeout"] = json!("200ms"),
            1 if self.demanding => request["expiresAfter"] = json!("300ms"),
            2 if self.demanding => request["delay"] = json!("150ms"),
            _ => {}
        }
        let text = request.to_string();
        if !keyed {
            self.ledger.book().unkeyed.insert(mark.to_owned());
        }
        let begun = Instant::now();
        loop {
            let request: SubmitRequest = serde_json::from_str(&text)?;
            let key = keyed.then(|| Idempotency { key: mark.to_owned(), fingerprint: text.clone().into_bytes() });
            match self.engine.submit(&self.access, request, key).await {
                Ok(accepted) => {
                    let task_id = accepted.submitted.task_id;
                    self.ledger.accepted(task_id, mark);
                    // Sometimes the answer does not reach it, and it asks once more.
                    if !keyed || !self.random.once_in(4) {
                        return Ok(Some(task_id));
                    }
                }
                Err(EngineError::Store(_)) if !keyed => return Ok(None),
                Err(EngineError::Store(_) | EngineError::ServiceFull) => {}
                Err(other) => bail!("a submission was refused: {other}"),
            }
            if begun.elapsed() > PATIENCE {
                bail!("{mark} could not be submitted");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn cancel(&self, task_id: TaskId) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.engine.cancel(&self.access, task_id).await {
                Ok(relais_core::Task { state: State { status, .. }, .. }) | Err(EngineError::Ended(status)) => {
                    self.ledger.seen(task_id, status);
                    return Ok(());
                }
                Err(EngineError::Store(_)) => {}
                Err(other) => bail!("task {task_id} could not be cancelled: {other}"),
            }
            if begun.elapsed() > PATIENCE {
                bail!("task {task_id} could not be cancelled");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits a little for its end; another time it would ask again.
    async fn wait(&self, task_id: TaskId) -> Result<()> {
        match self.engine.wait(&self.access, task_id, Duration::from_millis(500)).await {
            Ok(task) if task.state.status.is_final() => self.ledger.seen(task_id, task.state.status),
            Ok(_) | Err(EngineError::Store(_)) => {}
            Err(other) => bail!("task {task_id} could not be waited for: {other}"),
        }
        Ok(())
    }
}
