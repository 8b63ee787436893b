//! Workers that run tasks correctly, twice, half, too late, or not at all.

use std::{sync::Arc, time::Duration};

use relais_core::{Status, Store, TaskId};
use relais_engine::{Access, Engine, EngineError};
use relais_protocol::{
    HumanDuration,
    worker::{ClaimRequest, HeldTask, OutcomeKind, SubmissionMessage, TaskOutcome, WireMessage},
};
use relais_tests::chaos::Random;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{PATIENCE, PAUSE, ledger::Ledger};

/// Somebody who does things.
pub struct Worker {
    pub voice: Voice,
    pub random: Random,
    /// Whether it does nothing but its work.
    pub calm: watch::Receiver<bool>,
}

/// How a worker speaks; also after it was given up.
#[derive(Clone)]
pub struct Voice {
    pub engine: Engine,
    pub access: Access,
    pub name: String,
    pub ledger: Arc<Ledger>,
    pub underneath: Arc<dyn Store>,
}

/// A task that a worker has.
#[derive(Debug, Clone, Copy)]
struct Held {
    task_id: TaskId,
    attempt: u32,
}

/// What it says of it.
enum Saying {
    Renewed,
    Returned,
    Message(Value),
}

impl Worker {
    /// Works until it is stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut late = JoinSet::new();
        while !stop.is_cancelled() {
            let claimed = tokio::select! {
                claimed = self.claim() => claimed,
                () = stop.cancelled() => break,
            };
            for held in claimed {
                self.work(held, &mut late).await;
            }
        }
        late.join_all().await;
    }

    /// Asks for some; sometimes it hangs up before it is answered.
    async fn claim(&mut self) -> Vec<Held> {
        let request = ClaimRequest {
            max: Some(self.random.between(1, 4)),
            wait: Some(HumanDuration(Duration::from_millis(200))),
            lease: None,
            host_name: Some(self.voice.name.clone()),
        };
        let hangs_up = !*self.calm.borrow() && self.random.once_in(8);
        let patience = Duration::from_millis(if hangs_up { self.random.between(0, 6) as u64 } else { 60_000 });
        let claim = self.voice.engine.claim(&self.voice.access, request, Duration::from_secs(1));
        match tokio::time::timeout(patience, claim).await {
            Ok(Ok(tasks)) => tasks.iter().filter_map(|task| self.voice.take(task)).collect(),
            Ok(Err(_)) => {
                tokio::time::sleep(PAUSE).await;
                Vec::new()
            }
            Err(_) => Vec::new(),
        }
    }

    async fn work(&mut self, held: Held, late: &mut JoinSet<()>) {
        let voice = self.voice.clone();
        if *self.calm.borrow() {
            return voice.end(held, "calm", true).await;
        }
        let success = !self.random.once_in(4);
        match self.random.between(0, 12) {
            // It dies.
            0 => {}
            // It gives it back.
            1 => voice.give_back(held).await,
            // It is slow: somebody else has it when it speaks.
            2 => {
                late.spawn(async move {
                    voice.until_lost(held).await;
                    voice.end(held, "late", success).await;
                });
            }
            // It says the same twice at once.
            3 => {
                tokio::join!(voice.end(held, "once", success), voice.end(held, "twice", success));
            }
            // It speaks in the wrong order.
            4 => {
                voice.end(held, "early", success).await;
                voice.start(held).await;
            }
            // It lives for a while.
            5 => {
                for _ in 0..self.random.between(1, 4) {
                    voice.renew(held).await;
                    voice.say(held, json!({"messageType": "progress", "progress": 50})).await;
                }
                voice.end(held, "long", success).await;
            }
            // It says something, and dies.
            6 => voice.start(held).await,
            _ => {
                voice.start(held).await;
                voice.end(held, "good", success).await;
            }
        }
    }
}

/// What a worker says that has a result.
pub fn result_data(result: &str, success: bool) -> Value {
    if success {
        json!({"messageType": "success", "response": {"result": result}})
    } else {
        json!({"messageType": "failure", "errorMessage": result})
    }
}

impl Voice {
    fn take(&self, task: &SubmissionMessage) -> Option<Held> {
        let (Some(task_id), Some(attempt)) = (TaskId::parse(&task.task_id), task.attempt) else {
            self.ledger.wrong(format!("a worker was given {task:?}"));
            return None;
        };
        self.ledger.claimed(task_id, attempt);
        Some(Held { task_id, attempt })
    }

    async fn start(&self, held: Held) {
        self.say(held, json!({"messageType": "started", "hostName": self.name})).await;
    }

    /// Sends a result, and notes whether it counts.
    async fn end(&self, held: Held, how: &str, success: bool) {
        let result = format!("{}/{}/{how}", self.name, held.attempt);
        self.ledger.sent(held.task_id, &result);
        if self.say(held, result_data(&result, success)).await == Some(OutcomeKind::Accepted) {
            self.ledger.told(held.task_id, &result);
        }
    }

    async fn renew(&self, held: Held) {
        self.until_answered(held, Saying::Renewed).await;
    }

    async fn give_back(&self, held: Held) {
        self.until_answered(held, Saying::Returned).await;
    }

    async fn say(&self, held: Held, data: Value) -> Option<OutcomeKind> {
        self.until_answered(held, Saying::Message(data)).await
    }

    async fn ask(&self, held: Held, saying: &Saying) -> Result<Vec<TaskOutcome>, EngineError> {
        let (task_id, attempt) = (held.task_id.to_string(), Some(held.attempt));
        match saying {
            Saying::Renewed => self.engine.heartbeat(&self.access, vec![HeldTask { task_id, attempt }], None).await,
            Saying::Returned => self.engine.give_back(&self.access, vec![HeldTask { task_id, attempt }]).await,
            Saying::Message(data) => {
                let message = json!({"taskId": task_id, "attempt": attempt, "data": data});
                let message = serde_json::from_value::<WireMessage>(message).map(WireMessage::understand);
                let message = message.map_err(|error| EngineError::Conflict(error.to_string()))?;
                self.engine.messages(&self.access, vec![message]).await
            }
        }
    }

    /// Says something until it is answered.
    async fn until_answered(&self, held: Held, saying: Saying) -> Option<OutcomeKind> {
        let begun = Instant::now();
        loop {
            match self.ask(held, &saying).await {
                Ok(outcomes) => {
                    let outcome = outcomes.first().map(|outcome| outcome.outcome);
                    if matches!(outcome, None | Some(OutcomeKind::NotFound | OutcomeKind::Rejected)) {
                        self.ledger.wrong(format!("a worker was answered {outcomes:?}"));
                    }
                    return outcome;
                }
                Err(EngineError::Store(_)) if begun.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
                Err(error) => {
                    self.ledger.wrong(format!("a worker was not heard: {error}"));
                    return None;
                }
            }
        }
    }

    /// Keeps silent until somebody else may have the task.
    async fn until_lost(&self, held: Held) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match self.underneath.find_task(held.task_id).await {
                Ok(Some(task)) if task.state.status == Status::InProgress && task.state.attempt == held.attempt => {
                    tokio::time::sleep(PAUSE).await;
                }
                _ => return,
            }
        }
        self.ledger.wrong(format!("{held:?} was never taken away from a silent worker"));
    }
}
