//! The four verbs of the worker protocol: claim, report, renew, give back.
//!
//! This is the seam between the worker and the way its messages travel. Nothing outside this module and `http` knows that
//! it is HTTP, and nothing in it tries again or keeps state: one call here is one call to the server.

use std::time::Duration;

use relais_protocol::{
    HumanDuration,
    worker::{
        ClaimAnswer, ClaimRequest, HeartbeatRequest, HeldTask, OutcomesAnswer, ReturnRequest, SubmissionMessage,
        TaskOutcome, WireMessage, WireReport,
    },
};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::{
    CallError,
    http::{ANSWER_TIMEOUT, Http, send},
    outbox::Verdict,
    slots::TaskKey,
};

/// Even with a very short lease, a heartbeat gets this long.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How this worker's messages travel.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    http: Http,
    lease: Duration,
    host_name: Option<String>,
}

/// Something to tell of a task.
#[derive(Debug)]
pub(crate) enum News<'a> {
    Progress(f64),
    Verdict(&'a Verdict),
}

#[derive(Serialize)]
struct Messages {
    messages: Vec<WireMessage>,
}

impl Transport {
    pub fn new(http: Http, lease: Duration, host_name: Option<String>) -> Self {
        Self { http, lease, host_name }
    }

    /// Asks for up to `max` tasks, and waits for the first one. The claim says who asks, so no `started` need follow.
    pub async fn claim(&self, max: usize, wait: Duration) -> Result<Vec<SubmissionMessage>, CallError> {
        let request = ClaimRequest {
            max: Some(max),
            wait: Some(HumanDuration(wait)),
            lease: Some(HumanDuration(self.lease)),
            host_name: self.host_name.clone(),
        };
        let call = self.http.post(&["claims"], &request)?.timeout(wait + ANSWER_TIMEOUT);
        Ok(send::<ClaimAnswer>(call).await?.tasks)
    }

    /// Tells news of many tasks in one call.
    pub async fn report(&self, news: &[(&TaskKey, News<'_>)]) -> Result<Vec<TaskOutcome>, CallError> {
        let messages = news.iter().map(|(key, news)| wire(key, news)).collect::<Result<_, _>>()?;
        outcomes(self.http.post(&["messages"], &Messages { messages })?, news.len()).await
    }

    /// Says that these tasks are still held.
    pub async fn renew(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError> {
        let request = HeartbeatRequest { tasks: held(keys), lease: Some(HumanDuration(self.lease)) };
        // A call that hangs must leave time for another one before the lease is over.
        let limit = (self.lease / 3).clamp(SHORTEST_TIMEOUT, ANSWER_TIMEOUT);
        outcomes(self.http.post(&["heartbeats"], &request)?.timeout(limit), keys.len()).await
    }

    /// Gives these tasks back unfinished.
    pub async fn give_back(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError> {
        outcomes(self.http.post(&["returns"], &ReturnRequest { tasks: held(keys) })?, keys.len()).await
    }
}

async fn outcomes(call: reqwest::RequestBuilder, asked: usize) -> Result<Vec<TaskOutcome>, CallError> {
    let outcomes = send::<OutcomesAnswer>(call).await?.outcomes;
    // They are matched by their order: with one missing, all would be wrong.
    if outcomes.len() != asked {
        return Err(CallError::Outcomes { asked, got: outcomes.len() });
    }
    Ok(outcomes)
}

fn held(keys: &[TaskKey]) -> Vec<HeldTask> {
    keys.iter().map(|key| HeldTask { task_id: key.task_id.to_string(), attempt: key.attempt }).collect()
}

fn wire(key: &TaskKey, news: &News<'_>) -> Result<WireMessage, CallError> {
    let (kind, mut data) = match news {
        News::Progress(progress) => ("progress", WireReport { progress: Some(*progress), ..WireReport::default() }),
        News::Verdict(Verdict::Success(response)) => {
            ("success", WireReport { response: Some(response.clone()), ..WireReport::default() })
        }
        News::Verdict(Verdict::Failure(message)) => {
            ("failure", WireReport { error_message: Some(text(message)?), ..WireReport::default() })
        }
    };
    data.message_type = Some(kind.to_owned());
    Ok(WireMessage { task_id: Some(key.task_id.to_string()), attempt: key.attempt, data, ..WireMessage::default() })
}

fn text(message: &str) -> Result<Box<RawValue>, CallError> {
    to_raw_value(message).map_err(CallError::Unwritable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(news: News<'_>) -> String {
        let key = TaskKey { task_id: "t".into(), attempt: Some(3) };
        serde_json::to_string(&wire(&key, &news).unwrap()).unwrap()
    }

    #[test]
    fn every_message_carries_its_attempt() {
        let success = Verdict::Success(RawValue::from_string(r#"{"n": 1e400}"#.to_owned()).unwrap());
        let failure = Verdict::Failure("no \"paper\"".to_owned());
        assert_eq!(
            written(News::Progress(12.5)),
            r#"{"taskId":"t","attempt":3,"data":{"messageType":"progress","progress":12.5}}"#
        );
        assert_eq!(
            written(News::Verdict(&success)),
            r#"{"taskId":"t","attempt":3,"data":{"messageType":"success","response":{"n": 1e400}}}"#
        );
        assert_eq!(
            written(News::Verdict(&failure)),
            r#"{"taskId":"t","attempt":3,"data":{"messageType":"failure","errorMessage":"no \"paper\""}}"#
        );
    }
}
