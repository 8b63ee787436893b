//! The worker protocol over HTTP: long polls, leases, heartbeats. See `docs/guides/worker-http.md`.

use std::time::Duration;

use async_trait::async_trait;
use relais_protocol::{
    HumanDuration,
    worker::{
        ClaimAnswer, ClaimRequest, HeartbeatRequest, OutcomesAnswer, ReturnRequest, SubmissionMessage, TaskOutcome,
        WireMessage,
    },
};
use serde::Serialize;

use super::{Delivery, Keeping, News, Transport, held, matched, wire};
use crate::{
    CallError,
    http::{ANSWER_TIMEOUT, Http, send},
    slots::TaskKey,
};

/// Even with a very short lease, a heartbeat gets this long.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);

/// A service of a server, as its worker calls it.
#[derive(Debug)]
pub(crate) struct OverHttp {
    http: Http,
    lease: Duration,
    host_name: Option<String>,
}

#[derive(Serialize)]
struct Messages {
    messages: Vec<WireMessage>,
}

impl OverHttp {
    pub fn new(http: Http, lease: Duration, host_name: Option<String>) -> Self {
        Self { http, lease, host_name }
    }
}

#[async_trait]
impl Transport for OverHttp {
    /// The claim says who asks, so no `started` need follow.
    async fn claim(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, CallError> {
        let request = ClaimRequest {
            max: Some(max),
            wait: Some(HumanDuration(wait)),
            lease: Some(HumanDuration(self.lease)),
            host_name: self.host_name.clone(),
        };
        let call = self.http.post(&["claims"], &request)?.timeout(wait + ANSWER_TIMEOUT);
        Ok(send::<ClaimAnswer>(call).await?.tasks.into_iter().map(delivery).collect())
    }

    async fn report(&self, news: &[(&TaskKey, News<'_>)]) -> Result<Vec<TaskOutcome>, CallError> {
        let messages = news.iter().map(|(key, news)| wire(key, news, None)).collect::<Result<_, _>>()?;
        outcomes(self.http.post(&["messages"], &Messages { messages })?, news.len()).await
    }

    async fn give_back(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError> {
        outcomes(self.http.post(&["returns"], &ReturnRequest { tasks: held(keys) })?, keys.len()).await
    }

    fn keeping(&self) -> Keeping {
        Keeping::of(self.lease)
    }

    async fn renew(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError> {
        let request = HeartbeatRequest { tasks: held(keys), lease: Some(HumanDuration(self.lease)) };
        // A call that hangs must leave time for another one before the lease is over.
        let limit = (self.lease / 3).clamp(SHORTEST_TIMEOUT, ANSWER_TIMEOUT);
        outcomes(self.http.post(&["heartbeats"], &request)?.timeout(limit), keys.len()).await
    }

    fn tells_start(&self) -> bool {
        false
    }
}

/// A task that was claimed from a server, which counts attempts.
fn delivery(task: SubmissionMessage) -> Delivery {
    Delivery {
        key: TaskKey { task_id: task.task_id.as_str().into(), attempt: task.attempt, delivery: 0 },
        redelivered: task.attempt.is_some_and(|attempt| attempt > 1),
        task,
    }
}

async fn outcomes(call: reqwest::RequestBuilder, asked: usize) -> Result<Vec<TaskOutcome>, CallError> {
    matched(send::<OutcomesAnswer>(call).await?.outcomes, asked)
}
