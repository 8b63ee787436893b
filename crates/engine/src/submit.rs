//! Taking tasks in.

use std::time::{Duration, Instant};

use relais_core::{
    Callback, CallbackType, IdempotencyKey, Json, JsonError, NewTask, Refusal, Submission, Submitted, TaskId, Timestamp,
};
use relais_protocol::consumer::{CallbackRequest, SubmitRequest};
use serde_json::value::RawValue;

use crate::{Access, Engine, EngineError, Problem, registry::Snapshot};

const MAX_CORRELATION_ID: usize = 200;
const MAX_URL: usize = 2000;

/// A consumer's word for its request, so that it can repeat it without fear.
#[derive(Debug, Clone)]
pub struct Idempotency {
    /// The word.
    pub key: String,
    /// A digest of the request as it was sent.
    pub fingerprint: Vec<u8>,
}

/// A task that was taken in.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// The store's answer.
    pub submitted: Submitted,
    /// When it may start, judging by the last minutes.
    pub estimated_start: Option<Timestamp>,
}

impl Engine {
    /// Takes a task in. The answer comes after the commit.
    pub async fn submit(
        &self,
        access: &Access,
        request: SubmitRequest,
        idempotency: Option<Idempotency>,
    ) -> Result<Accepted, EngineError> {
        let snapshot = self.snapshot()?;
        let result = match new_task(&snapshot, access, request, idempotency) {
            Ok(task) => self.0.submissions.put(task).await.and_then(refused),
            Err(error) => Err(error),
        };
        self.account(access, result)
    }

    /// Takes many tasks in; each has its own answer. Those that can not be taken for what they say are answered without
    /// troubling the store.
    pub async fn submit_batch(
        &self,
        access: &Access,
        requests: Vec<SubmitRequest>,
    ) -> Result<Vec<Result<Accepted, EngineError>>, EngineError> {
        let snapshot = self.snapshot()?;
        let judged: Vec<_> = requests.into_iter().map(|request| new_task(&snapshot, access, request, None)).collect();
        let tasks: Vec<NewTask> = judged.iter().filter_map(|task| task.as_ref().ok().cloned()).collect();
        let submissions = self.0.submissions.put_each(tasks).await;
        // If nothing at all could be written, that is the answer to the whole.
        if let Some(Err(error)) = submissions.first()
            && submissions.iter().all(Result::is_err)
        {
            return Err(error.clone());
        }
        let mut submissions = submissions.into_iter();
        let mut answer = |task: Result<NewTask, EngineError>| {
            task?;
            submissions.next().unwrap_or(Err(EngineError::Stopping)).and_then(refused)
        };
        Ok(judged.into_iter().map(|task| self.account(access, answer(task))).collect())
    }

    /// How long it may take until the service has room for one more, judging by the last minutes.
    pub fn room_after(&self, access: &Access) -> Duration {
        self.0.pace.interval(access.service.key).unwrap_or(Duration::from_secs(1))
    }

    /// Counts an answer, and adds what only the engine knows.
    fn account(&self, access: &Access, result: Result<Submitted, EngineError>) -> Result<Accepted, EngineError> {
        let service = access.service.name.to_string();
        match result {
            Ok(submitted) => {
                let name =
                    if submitted.replayed { "relais_tasks_replayed_total" } else { "relais_tasks_submitted_total" };
                metrics::counter!(name, "service" => service).increment(1);
                tracing::debug!(
                    task_id = %submitted.task_id,
                    service = %access.service.name,
                    client_id = %access.client.client_id,
                    replayed = submitted.replayed,
                    "submitted"
                );
                let estimated_start = self.0.pace.estimate(access.service.key, submitted.position, Instant::now());
                Ok(Accepted { submitted, estimated_start })
            }
            Err(error) => {
                metrics::counter!("relais_tasks_refused_total", "service" => service, "reason" => reason(&error))
                    .increment(1);
                Err(error)
            }
        }
    }
}

fn refused(submission: Submission) -> Result<Submitted, EngineError> {
    submission.map_err(|refusal| match refusal {
        Refusal::ServiceFull => EngineError::ServiceFull,
        Refusal::ClientFull => EngineError::ClientFull,
        Refusal::KeyReused => EngineError::KeyReused,
        Refusal::ServiceGone => EngineError::ServiceNotFound,
    })
}

/// Why a submission was refused, as a label: a small set of words.
fn reason(error: &EngineError) -> &'static str {
    match error {
        EngineError::SchemaMismatch(_) => "schema",
        EngineError::Invalid(_) | EngineError::TooDeep => "invalid",
        EngineError::UnknownCallbackType(_) | EngineError::CallbackUrlNotAllowed(_) => "callback",
        EngineError::ServiceFull => "service_capacity",
        EngineError::ClientFull => "client_capacity",
        EngineError::KeyReused => "idempotency_key",
        EngineError::Overloaded => "overloaded",
        EngineError::Store(_) => "store",
        _ => "other",
    }
}

/// Judges what a request says, by everything but the room there is.
fn new_task(
    snapshot: &Snapshot,
    access: &Access,
    request: SubmitRequest,
    idempotency: Option<Idempotency>,
) -> Result<NewTask, EngineError> {
    let body = payload(request.body, "/body")?;
    if !body.is_object() {
        return Err(EngineError::Invalid(vec![Problem::at("/body", "must be a JSON object")]));
    }
    let callback = request.callback.map(callback).transpose()?;
    if let Some(id) = &request.correlation_id
        && (id.chars().count() > MAX_CORRELATION_ID || id.chars().any(char::is_control))
    {
        let message = format!("must have at most {MAX_CORRELATION_ID} characters, and no control characters");
        return Err(EngineError::Invalid(vec![Problem::at("/correlationId", message)]));
    }
    if let Some(schema) = snapshot.schemas.get(&access.service.key) {
        let problems = schema.problems(&body);
        if !problems.is_empty() {
            return Err(EngineError::SchemaMismatch(problems));
        }
    }
    Ok(NewTask {
        task_id: TaskId::generate(),
        service: access.service.key,
        client: access.client.key,
        request: body,
        callback,
        correlation_id: request.correlation_id,
        idempotency: idempotency.map(|given| IdempotencyKey { key: given.key, fingerprint: given.fingerprint }),
    })
}

/// Checks a payload that is carried as it is.
pub(crate) fn payload(raw: Box<RawValue>, path: &str) -> Result<Json, EngineError> {
    Json::try_from(raw).map_err(|error| match error {
        JsonError::TooDeep => EngineError::TooDeep,
        JsonError::Malformed(error) => EngineError::Invalid(vec![Problem::at(path, error.to_string())]),
    })
}

/// Checks what can be seen of a callback when it is asked for.
fn callback(request: CallbackRequest) -> Result<Callback, EngineError> {
    let kind = match request.kind.as_str() {
        "https" => CallbackType::Https,
        other => return Err(EngineError::UnknownCallbackType(other.chars().take(50).collect())),
    };
    let refuse = |why: &str| Err(EngineError::CallbackUrlNotAllowed(why.to_owned()));
    if request.url.len() > MAX_URL {
        return refuse("the URL is too long");
    }
    if request.url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return refuse("the URL has white space or control characters");
    }
    let Ok(url) = url::Url::parse(&request.url) else { return refuse("the URL is malformed") };
    if url.scheme() != "https" {
        return refuse("the URL's scheme must be https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("the URL has credentials in it");
    }
    if url.host_str().is_none_or(str::is_empty) {
        return refuse("the URL has no host");
    }
    Ok(Callback { kind, url: request.url })
}
