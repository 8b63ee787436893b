//! Submission of tasks: single ones, many at once, batches, transactional submissions, and messages.

pub(crate) mod batches;
pub(crate) mod links;
pub(crate) mod schema;
pub(crate) mod sink;
pub(crate) mod stored_submissions;
pub(crate) mod terms;

use std::time::{Duration, Instant};

use relais_core::{
    Callback, CallbackEvent, CallbackType, Client, IdempotencyKey, Json, JsonError, NewTask, Publisher, Refusal,
    Submission, Submitted, TaskId, Timestamp, lane,
};
use relais_protocol::{callback::CallbackRequest, consumer::SubmitRequest};
use serde_json::value::RawValue;

use self::{links::References, schema::check::Judged};
use crate::{Access, CallbackSenders, Engine, EngineError, Problem, registry::Snapshot};

const MAX_CORRELATION_ID: usize = 200;
const MAX_TARGET: usize = 2000;

/// A consumer's idempotency key: makes a request safe to repeat.
#[derive(Debug, Clone)]
pub struct Idempotency {
    /// The key.
    pub key: String,
    /// A digest of the request as it was sent.
    pub fingerprint: Vec<u8>,
}

impl Idempotency {
    pub(crate) fn into_key(self) -> IdempotencyKey {
        IdempotencyKey { key: self.key, fingerprint: self.fingerprint }
    }
}

/// A task that was accepted.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// The store's answer.
    pub submitted: Submitted,
    /// The estimated start.
    pub estimated_start: Option<Timestamp>,
}

impl Engine {
    /// Submits a task. The answer comes after the commit.
    pub async fn submit(
        &self,
        access: &Access,
        request: SubmitRequest,
        idempotency: Option<Idempotency>,
    ) -> Result<Accepted, EngineError> {
        self.account(access, self.put(access, request, idempotency).await)
    }

    async fn put(
        &self,
        access: &Access,
        request: SubmitRequest,
        idempotency: Option<Idempotency>,
    ) -> Result<Submitted, EngineError> {
        let snapshot = self.snapshot()?;
        let mut task = unjudged_task(&self.0.options.callback_senders, access, request, None)?;
        task.idempotency = idempotency.map(Idempotency::into_key);
        self.judge_one(&snapshot, &access.client, task.service, &task.request).await?;
        self.adopt(&access.client, &mut task).await?;
        let task = dispatched(task, self.dispatch_of(&access.service));
        self.0.submissions.put(task).await.and_then(refused)
    }

    /// Submits many tasks; each has its own answer. Invalid ones are answered without the store.
    pub async fn submit_batch(
        &self,
        access: &Access,
        requests: Vec<SubmitRequest>,
    ) -> Result<Vec<Result<Accepted, EngineError>>, EngineError> {
        let snapshot = self.snapshot()?;
        let callback_senders = &self.0.options.callback_senders;
        let dispatch = self.dispatch_of(&access.service);
        let conforms = self.judge_requests(&snapshot, access, &requests).await?;
        let (mut references, mut judged) = (References::default(), Vec::with_capacity(requests.len()));
        for (request, conforms) in requests.into_iter().zip(conforms) {
            let reference = request.reference.clone();
            let task = unjudged_task(callback_senders, access, request, Some(&references));
            let task = match task.and_then(|task| conforms.map(|()| task)) {
                Ok(mut task) => self.adopt(&access.client, &mut task).await.map(|()| task),
                Err(error) => Err(error),
            };
            // A refused task cannot be depended on.
            judged.push(task.and_then(|task| {
                reference.map_or(Ok(()), |reference| references.add(reference, task.task_id))?;
                Ok(dispatched(task, dispatch.clone()))
            }));
        }
        let tasks: Vec<NewTask> = judged.iter().filter_map(|task| task.as_ref().ok().cloned()).collect();
        // Tasks that depend on others of the same call are submitted in one transaction with them.
        let together = tasks.iter().any(|task| task.links.after.is_some());
        let submissions = match together {
            true => self.0.submissions.put_together(tasks).await,
            false => self.0.submissions.put_each(tasks).await,
        };
        // If nothing at all could be written, that is the answer to the whole call.
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

    /// Validates the bodies of many requests at once, before anything else. A body that is not JSON is refused later.
    async fn judge_requests(
        &self,
        snapshot: &Snapshot,
        access: &Access,
        requests: &[SubmitRequest],
    ) -> Result<Judged, EngineError> {
        let service = access.service.key;
        if !snapshot.schemas.contains_key(&service) {
            return Ok(vec![Ok(()); requests.len()]);
        }
        let body = |request: &SubmitRequest| Some((service, payload(request.body.clone(), "/body").ok()?));
        self.judge(snapshot, &access.client, requests.iter().map(body).collect()).await
    }

    /// The estimated time until the service has room for one more task.
    pub fn room_after(&self, access: &Access) -> Duration {
        self.0.pace.interval(access.service.key).unwrap_or(Duration::from_secs(1))
    }

    /// Counts an answer, and adds what only the engine knows.
    pub(crate) fn account(
        &self,
        access: &Access,
        result: Result<Submitted, EngineError>,
    ) -> Result<Accepted, EngineError> {
        let service = access.service.name.to_string();
        match result {
            Ok(submitted) => {
                let name = match submitted {
                    Submitted { replayed: true, .. } => "relais_tasks_replayed_total",
                    Submitted { duplicate: true, .. } => "relais_tasks_duplicate_total",
                    _ => "relais_tasks_submitted_total",
                };
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

/// The publisher of a task. A task that may have to wait has none; nor has one that inherits from others, because only
/// the store knows.
pub(crate) fn dispatched(task: NewTask, mut publisher: Option<Publisher>) -> NewTask {
    if let Some(publisher) = &mut publisher
        && (task.terms.due.is_some() || task.links.after.is_some() || task.links.batch.is_some())
    {
        publisher.held = Duration::ZERO;
    }
    NewTask { dispatch: publisher, ..task }
}

pub(crate) fn refused(submission: Submission) -> Result<Submitted, EngineError> {
    submission.map_err(|refusal| match refusal {
        Refusal::ServiceFull => EngineError::ServiceFull,
        Refusal::ClientFull => EngineError::ClientFull,
        Refusal::KeyReused => EngineError::KeyReused,
        Refusal::ServiceGone => EngineError::ServiceNotFound,
        Refusal::PrerequisiteNotFound => EngineError::PrerequisiteNotFound("/after".to_owned()),
        Refusal::BatchNotFound => EngineError::BatchNotFound,
        Refusal::BatchClosed => EngineError::BatchClosed,
    })
}

/// Why a submission was refused, as a label from a small set.
fn reason(error: &EngineError) -> &'static str {
    match error {
        EngineError::SchemaMismatch(_) | EngineError::NumberTooLong(_) | EngineError::ValidationTimeout => "schema",
        EngineError::Invalid(_) | EngineError::TooDeep => "invalid",
        EngineError::UnknownCallbackType(_) | EngineError::CallbackUrlNotAllowed(_) => "callback",
        EngineError::ServiceFull => "service_capacity",
        EngineError::ClientFull => "client_capacity",
        EngineError::KeyReused => "idempotency_key",
        EngineError::PrerequisiteNotFound(_) | EngineError::ParentNotFound => "dependency",
        EngineError::BatchNotFound | EngineError::BatchClosed => "batch",
        EngineError::Overloaded | EngineError::ValidationBusy => "overloaded",
        EngineError::Store(_) => "store",
        _ => "other",
    }
}

/// Validates a submission, without its capacity. The schema may take milliseconds: a request over HTTP is an
/// [`unjudged_task`] first, and its body is validated by [`Engine::judge`].
pub(crate) fn new_task(
    snapshot: &Snapshot,
    callback_senders: &CallbackSenders,
    access: &Access,
    request: SubmitRequest,
) -> Result<NewTask, EngineError> {
    let task = unjudged_task(callback_senders, access, request, None)?;
    match snapshot.schemas.get(&task.service) {
        Some(schema) => schema.check(&task.request).map(|()| task),
        None => Ok(task),
    }
}

/// Validates a submission without the service's schema. A task of a call may depend on earlier ones of the same call.
pub(crate) fn unjudged_task(
    callback_senders: &CallbackSenders,
    access: &Access,
    request: SubmitRequest,
    references: Option<&References>,
) -> Result<NewTask, EngineError> {
    if request.service.as_ref().is_some_and(|service| *service != access.service.name.as_str()) {
        return Err(EngineError::Invalid(vec![Problem::at("/service", "is not the one of the address")]));
    }
    let links = links::links(&request, references)?;
    let terms = terms::terms(&request, &access.service);
    let body = payload(request.body, "/body")?;
    if !body.is_object() {
        return Err(EngineError::Invalid(vec![Problem::at("/body", "must be a JSON object")]));
    }
    let terms = terms?;
    let callback = request.callback.map(|asked| callback(callback_senders, &access.client, asked)).transpose()?;
    let correlation_id = correlation(request.correlation_id)?;
    Ok(NewTask {
        task_id: TaskId::generate(),
        service: access.service.key,
        client: access.client.key,
        request: body,
        callback,
        correlation_id,
        idempotency: None,
        terms,
        links,
        dispatch: None,
    })
}

/// Checks a correlation id.
pub(crate) fn correlation(given: Option<String>) -> Result<Option<String>, EngineError> {
    match given {
        Some(id) if id.chars().count() > MAX_CORRELATION_ID || id.chars().any(char::is_control) => {
            let message = format!("must have at most {MAX_CORRELATION_ID} characters, and no control characters");
            Err(EngineError::Invalid(vec![Problem::at("/correlationId", message)]))
        }
        fine => Ok(fine),
    }
}

/// Checks a payload.
pub(crate) fn payload(raw: Box<RawValue>, path: &str) -> Result<Json, EngineError> {
    Json::try_from(raw).map_err(|error| match error {
        JsonError::TooDeep => EngineError::TooDeep,
        JsonError::Malformed(error) => EngineError::Invalid(vec![Problem::at(path, error.to_string())]),
    })
}

/// Checks the callback of a submission.
pub(crate) fn callback(
    callback_senders: &CallbackSenders,
    client: &Client,
    request: CallbackRequest,
) -> Result<Callback, EngineError> {
    let unknown = || EngineError::UnknownCallbackType(request.kind.chars().take(50).collect());
    let kind = CallbackType::parse(&request.kind).ok_or_else(unknown)?;
    let callback_sender = callback_senders.get(kind).ok_or_else(unknown)?;
    let wrong =
        |field: &str, message: String| EngineError::Invalid(vec![Problem::at(format!("/callback/{field}"), message)]);
    let audience = request.audience.as_ref().and_then(|audience| serde_json::to_string(audience).ok());
    let mut given = [("url", request.url), ("destination", request.destination), ("audience", audience)];
    let needed = match kind {
        CallbackType::Https | CallbackType::Http => 0,
        CallbackType::Amqp => 1,
        CallbackType::Notification => 2,
    };
    let target = given[needed].1.take();
    let target = target.ok_or_else(|| wrong(given[needed].0, format!("is needed for the type {}", kind.as_str())))?;
    if let Some((other, _)) = given.iter().find(|(_, given)| given.is_some()) {
        return Err(wrong(other, format!("is not for the type {}", kind.as_str())));
    }
    if target.len() > MAX_TARGET {
        return Err(EngineError::CallbackUrlNotAllowed("it is too long".to_owned()));
    }
    let gzip = match request.compression.as_deref() {
        None => false,
        Some("gzip") => true,
        Some(_) => return Err(wrong("compression", "must be gzip, or absent".to_owned())),
    };
    let events = match request.events {
        None => CallbackEvent::ENDS.to_vec(),
        Some(names) => {
            let mut events = Vec::new();
            for (i, name) in names.iter().enumerate() {
                let event = CallbackEvent::parse(name).ok_or_else(|| {
                    let known = CallbackEvent::ALL.map(CallbackEvent::as_str).join(", ");
                    wrong(&format!("events/{i}"), format!("must be one of {known}"))
                })?;
                if events.contains(&event) {
                    return Err(wrong(&format!("events/{i}"), "is there twice".to_owned()));
                }
                events.push(event);
            }
            if events.is_empty() {
                return Err(wrong("events", "must have at least one".to_owned()));
            }
            events
        }
    };
    let endpoint =
        callback_sender.judge(kind, &target, client).map_err(|why| EngineError::CallbackUrlNotAllowed(why.0))?;
    Ok(Callback { kind, target, events, gzip, lane: lane(client.key, &endpoint) })
}
