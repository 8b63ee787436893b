//! Consumers that submit under a key and repeat themselves until they are answered, look, wait, and change their minds.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use relais_core::{State, TaskId};
use relais_engine::{Access, Engine, EngineError, Idempotency};
use relais_protocol::consumer::SubmitRequest;
use relais_tests::chaos::Random;
use serde_json::json;
use tokio::time::Instant;

use super::{PATIENCE, PAUSE, ledger::Ledger};

/// Somebody who wants things done.
pub struct Consumer {
    pub engine: Engine,
    pub access: Access,
    pub name: String,
    pub ledger: Arc<Ledger>,
    pub random: Random,
}

impl Consumer {
    /// Submits so many, one after the other, and follows some of them.
    pub async fn run(mut self, tasks: usize) -> Result<()> {
        for number in 0..tasks {
            let mark = format!("{}-{number}", self.name);
            let Some(task_id) = self.submit(&mark).await? else { continue };
            match self.random.between(0, 5) {
                0 => self.cancel(task_id).await?,
                1 => self.wait(task_id).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Submits until it is answered; without a key, once.
    async fn submit(&mut self, mark: &str) -> Result<Option<TaskId>> {
        let keyed = !self.random.once_in(5);
        let callback =
            self.random.once_in(3).then(|| json!({"type": "https", "url": format!("https://{}", self.name)}));
        let text = json!({"body": {"mark": mark}, "callback": callback, "correlationId": mark}).to_string();
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
