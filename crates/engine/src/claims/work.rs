//! Use cases of workers: claim tasks, report on them, return them.

use std::time::Duration;

use relais_core::{ClaimRequest, Event, Ignored, Outcome, ServiceKey, Status, TaskEvent, TaskId, TraceContext};
use relais_protocol::worker::{
    self, HeldTask, Misunderstood, OutcomeKind, SubmissionMessage, TaskOutcome, WorkerMessage,
};

use crate::{Access, Engine, EngineError, Problem, follow::views::text, submit::payload};

/// The longest lease: beyond it, nobody would notice a dead worker.
const MAX_LEASE: Duration = Duration::from_secs(24 * 3600);

/// The shortest lease that heartbeats can keep.
const MIN_LEASE: Duration = Duration::from_secs(1);

const MAX_HOST_NAME: usize = 255;

/// Longer error messages are cut.
const MAX_ERROR_MESSAGE: usize = 64 * 1024;

/// Longer kinds are cut.
const MAX_ERROR_KIND: usize = 100;

impl Engine {
    /// Claims tasks for a worker, waiting for the first one as long as it asks.
    pub async fn claim(
        &self,
        access: &Access,
        request: worker::ClaimRequest,
        max_wait: Duration,
    ) -> Result<Vec<SubmissionMessage>, EngineError> {
        self.claim_by(access, request, max_wait, None).await
    }

    /// Claims tasks for a worker that names its version.
    pub async fn claim_by(
        &self,
        access: &Access,
        request: worker::ClaimRequest,
        max_wait: Duration,
        version: Option<&str>,
    ) -> Result<Vec<SubmissionMessage>, EngineError> {
        if access.service.transport.is_brokered() {
            let message = format!("the tasks of {} are handed out by the broker", access.service.name);
            return Err(EngineError::Conflict(message));
        }
        let invalid = |path: &str, message: String| Err(EngineError::Invalid(vec![Problem::at(path, message)]));
        let max = request.max.unwrap_or(1);
        if !(1..=worker::MAX_CLAIM).contains(&max) {
            return invalid("/max", format!("must be between 1 and {}", worker::MAX_CLAIM));
        }
        let wait = request.wait.map_or(Duration::ZERO, |wait| wait.0);
        if wait > max_wait {
            return invalid("/wait", format!("must be at most {}", relais_protocol::HumanDuration(max_wait)));
        }
        let lease = lease(request.lease)?;
        let worker_host = match request.host_name {
            Some(host) if host.is_empty() || host.len() > MAX_HOST_NAME || host.chars().any(char::is_control) => {
                return invalid(
                    "/hostName",
                    format!("must have 1 to {MAX_HOST_NAME} bytes, and no control characters"),
                );
            }
            host => host,
        };
        let patience = lease.unwrap_or(access.service.limits.lease);
        let asking = self.0.worker_registry.asks(access.service.key, worker_host.as_deref(), version, max, patience);
        let claim = ClaimRequest { service: access.service.key, max, lease, worker_host, instance: None };
        let tasks = self.0.claims.claim(claim, wait).await?;
        drop(asking);
        let service = access.service.name.as_str();
        metrics::counter!("relais_tasks_claimed_total", "service" => service.to_owned()).increment(tasks.len() as u64);
        Ok(tasks
            .into_iter()
            .map(|task| {
                tracing::debug!(task_id = %task.task_id, service, attempt = task.state.attempt, "claimed");
                if let Some(started) = task.state.started {
                    metrics::histogram!("relais_task_wait_seconds", "service" => service.to_owned())
                        .record(started.since(task.scheduled.unwrap_or(task.submitted)).as_secs_f64());
                }
                SubmissionMessage {
                    attempt: Some(task.state.attempt),
                    lease_expires: task.state.lease_until.map(text),
                    correlation_id: task.correlation_id,
                    traceparent: task.links.trace.as_ref().map(|trace| trace.traceparent().to_owned()),
                    tracestate: task.links.trace.as_ref().and_then(TraceContext::tracestate).map(str::to_owned),
                    deadline: task.state.deadline.map(text),
                    ..SubmissionMessage::new(task.task_id.to_string(), task.request.as_raw().to_owned())
                }
            })
            .collect())
    }

    /// Records messages of a worker; each has its own outcome.
    pub async fn messages(
        &self,
        access: &Access,
        messages: Vec<Result<WorkerMessage, Misunderstood>>,
    ) -> Result<Vec<TaskOutcome>, EngineError> {
        let judged = messages.into_iter().map(|message| {
            let message = message.map_err(|Misunderstood(why)| (None, why))?;
            if let Some(host) = message.host_name.as_deref().filter(|host| host.len() <= MAX_HOST_NAME) {
                self.0.worker_registry.hears(access.service.key, host);
            }
            let task_id = message.task_id.clone();
            wording::event(message, Some(access.service.limits.lease)).map_err(|why| (Some(task_id), why))
        });
        self.outcomes(access, judged.collect()).await
    }

    /// Heartbeats: a worker still runs these tasks.
    pub async fn heartbeat(
        &self,
        access: &Access,
        tasks: Vec<HeldTask>,
        asked: Option<relais_protocol::HumanDuration>,
    ) -> Result<Vec<TaskOutcome>, EngineError> {
        let lease = lease(asked)?.unwrap_or(access.service.limits.lease);
        let judged = tasks.into_iter().map(|task| held(task, |attempt| Event::Renewed { attempt, lease }));
        self.outcomes(access, judged.collect()).await
    }

    /// A worker returns these tasks unfinished.
    pub async fn give_back(&self, access: &Access, tasks: Vec<HeldTask>) -> Result<Vec<TaskOutcome>, EngineError> {
        let judged = tasks.into_iter().map(|task| held(task, |attempt| Event::Returned { attempt }));
        self.outcomes(access, judged.collect()).await
    }

    async fn outcomes(&self, access: &Access, judged: Vec<Judged>) -> Result<Vec<TaskOutcome>, EngineError> {
        let events: Vec<TaskEvent> = judged
            .iter()
            .filter_map(|judged| judged.as_ref().ok())
            .map(|(task_id, event)| TaskEvent {
                task_id: *task_id,
                service: access.service.key,
                client: None,
                event: event.clone(),
            })
            .collect();
        let mut outcomes = self.record_all(events).await?.into_iter();
        Ok(judged
            .into_iter()
            .map(|judged| match judged {
                Ok((task_id, event)) => {
                    let outcome = outcomes.next().unwrap_or(Outcome::NotFound);
                    let renewed = matches!(event, Event::Renewed { .. });
                    tell(task_id, outcome, renewed)
                }
                Err((task_id, why)) => {
                    tracing::warn!(service = %access.service.name, client_id = %access.client.client_id, task_id, why, "a worker's message was rejected");
                    TaskOutcome { task_id, outcome: OutcomeKind::Rejected, reason: Some(why), lease_expires: None }
                }
            })
            .inspect(|outcome| {
                let (service, outcome) = (access.service.name.to_string(), kind_name(outcome.outcome));
                metrics::counter!("relais_worker_messages_total", "service" => service, "outcome" => outcome)
                    .increment(1);
            })
            .collect())
    }

    pub(crate) async fn record_all(&self, events: Vec<TaskEvent>) -> Result<Vec<Outcome>, EngineError> {
        let tasks: Vec<_> = events.iter().map(|event| (event.task_id, event.service)).collect();
        let outcomes = self.0.events.put_all(events).await?;
        for ((task_id, service), outcome) in tasks.into_iter().zip(&outcomes) {
            self.account_outcome(task_id, service, outcome);
        }
        Ok(outcomes)
    }

    pub(crate) async fn record_one(&self, event: TaskEvent) -> Result<Outcome, EngineError> {
        let (task_id, service) = (event.task_id, event.service);
        let outcome = self.0.events.put(event).await?;
        self.account_outcome(task_id, service, &outcome);
        Ok(outcome)
    }

    /// Logs the outcome of an event, and counts the end of a task.
    fn account_outcome(&self, task_id: TaskId, service: ServiceKey, outcome: &Outcome) {
        let state = match outcome {
            Outcome::Applied(state) => state,
            Outcome::Ignored(why) => return tracing::debug!(%task_id, %why, "ignored"),
            Outcome::NotFound => return tracing::debug!(%task_id, "not found"),
        };
        tracing::debug!(%task_id, status = state.status.as_str(), attempt = state.attempt, progress = state.progress, "changed");
        let Some(ended) = state.ended.filter(|_| state.status.is_final()) else { return };
        let name = self
            .snapshot()
            .ok()
            .and_then(|snapshot| snapshot.declared.service_by_key(service).map(|service| service.name.to_string()))
            .unwrap_or_default();
        let status = state.status.as_str();
        metrics::counter!("relais_tasks_finished_total", "service" => name.clone(), "status" => status).increment(1);
        if let Some(started) = state.started {
            metrics::histogram!("relais_task_run_seconds", "service" => name, "status" => status)
                .record(ended.since(started).as_secs_f64());
        }
    }
}

/// Converts messages of workers to events.
pub(crate) mod wording {
    use std::time::Duration;

    use relais_core::{Event, Failure, TaskId};
    use relais_protocol::worker::{FailureReport, Report, WorkerMessage};

    use super::{MAX_ERROR_KIND, MAX_ERROR_MESSAGE, MAX_HOST_NAME, payload};

    /// The task of a message.
    pub(crate) fn task_id(message: &WorkerMessage) -> Result<TaskId, String> {
        TaskId::parse(&message.task_id).ok_or_else(|| "taskId is not a UUID".to_owned())
    }

    /// The name of a host, as a database takes it.
    pub(crate) fn host(name: String) -> String {
        clean(name, MAX_HOST_NAME)
    }

    /// Every message is a sign of life: over HTTP it extends the lease, as a heartbeat does.
    pub(crate) fn event(message: WorkerMessage, lease: Option<Duration>) -> Result<(TaskId, Event), String> {
        let task_id = task_id(&message)?;
        let attempt = message.attempt;
        let event = match message.report {
            Report::Started => Event::Started { attempt, worker_host: message.host_name.map(host), lease },
            Report::Returned => Event::Returned { attempt },
            Report::Progress { progress } if progress.is_finite() => Event::Progressed { attempt, progress, lease },
            Report::Progress { .. } => return Err("progress is not a number between 0 and 100".to_owned()),
            Report::Success { response } => Event::Succeeded {
                attempt,
                response: payload(response, "/data/response").map_err(|error| error.to_string())?,
            },
            Report::Failure(report) => Event::failure(attempt, failure(report)),
        };
        Ok((task_id, event))
    }

    fn failure(report: FailureReport) -> Failure {
        clipped(Failure {
            message: report.error_message,
            kind: report.error_kind,
            trace: report.error_trace,
            retryable: report.retryable,
            retry_after: report.retry_after.map(|wait| wait.0),
        })
    }

    /// A failure as a database takes it.
    pub(crate) fn clipped(failure: Failure) -> Failure {
        Failure {
            message: clean(failure.message, MAX_ERROR_MESSAGE),
            kind: failure.kind.map(|kind| clean(kind, MAX_ERROR_KIND)),
            trace: failure.trace.map(|trace| clean(trace, MAX_ERROR_MESSAGE)),
            ..failure
        }
    }

    /// Text from a worker as a database takes it: no NUL, not endless.
    fn clean(text: String, most: usize) -> String {
        let mut text = if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
        if text.len() > most {
            let end = (0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(end);
        }
        text
    }
}

/// A message of a worker as an event; or its task, and why it is malformed.
type Judged = Result<(TaskId, Event), (Option<String>, String)>;

fn held(task: HeldTask, event: impl Fn(Option<u32>) -> Event) -> Judged {
    match TaskId::parse(&task.task_id) {
        Some(task_id) => Ok((task_id, event(task.attempt))),
        None => Err((Some(task.task_id), "taskId is not a UUID".to_owned())),
    }
}

fn lease(asked: Option<relais_protocol::HumanDuration>) -> Result<Option<Duration>, EngineError> {
    match asked {
        Some(lease) if !(MIN_LEASE..=MAX_LEASE).contains(&lease.0) => {
            Err(EngineError::Invalid(vec![Problem::at("/lease", "must be between 1s and 1d")]))
        }
        lease => Ok(lease.map(|lease| lease.0)),
    }
}

/// The outcome of a message, on the wire.
fn tell(task_id: TaskId, outcome: Outcome, renewed: bool) -> TaskOutcome {
    let (outcome, reason, lease_expires) = match outcome {
        Outcome::Applied(state) => (OutcomeKind::Accepted, None, state.lease_until.filter(|_| renewed).map(text)),
        Outcome::Ignored(ignored) => {
            let kind = match ignored {
                Ignored::Ended(Status::Cancelled) | Ignored::Overdue => OutcomeKind::Cancelled,
                Ignored::Ended(_) => OutcomeKind::Ended,
                Ignored::OtherAttempt(_) | Ignored::NotHeld => OutcomeKind::Lost,
                Ignored::NoEffect | Ignored::KeyTaken => OutcomeKind::Unchanged,
            };
            (kind, Some(ignored.to_string()), None)
        }
        Outcome::NotFound => (OutcomeKind::NotFound, Some("no such task on this service".to_owned()), None),
    };
    TaskOutcome { task_id: Some(task_id.to_string()), outcome, reason, lease_expires }
}

const fn kind_name(kind: OutcomeKind) -> &'static str {
    match kind {
        OutcomeKind::Accepted => "accepted",
        OutcomeKind::Cancelled => "cancelled",
        OutcomeKind::Ended => "ended",
        OutcomeKind::Lost => "lost",
        OutcomeKind::Unchanged => "unchanged",
        OutcomeKind::NotFound => "not_found",
        OutcomeKind::Rejected => "rejected",
    }
}
