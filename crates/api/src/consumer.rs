//! Routes of consumers: submit, follow, list, cancel.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use relais_core::{Role, TaskId};
use relais_engine::{Accepted, EngineError, Idempotency, task_view};
use relais_protocol::{
    ErrorNumber, Success,
    consumer::{
        BacklogView, BatchAnswer, BatchEntry, BatchRequest, ServiceList, ServiceView, SubmitAnswer, SubmitRequest,
        TaskPage, TaskView, TraceHeaders,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use crate::{App, access::Caller, body::parse, error::ApiError, openapi::Refusals, path::Path, query::Query};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const MAX_KEY: usize = 200;
const MAX_BATCH: usize = 1000;

/// The services that you may use
///
/// With what each takes, as JSON Schema.
#[utoipa::path(get, path = "/v1/services", operation_id = "listServices", tag = "Consumers", security(("basic" = [])),
    responses((status = 200, description = "In the order of their names", body = Success<ServiceList>), Refusals))]
pub(crate) async fn list_services(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<Success<ServiceList>>, ApiError> {
    let client = app.client(&caller).await?;
    Ok(Json(Success::new(ServiceList { services: app.engine.services_of(&client)? })))
}

/// One service that you may use
#[utoipa::path(get, path = "/v1/services/{service}", operation_id = "getService",
    tag = "Consumers", security(("basic" = [])),
    params(("service" = String, Path, description = "The service's name")),
    responses((status = 200, description = "The service", body = Success<ServiceView>), Refusals))]
pub(crate) async fn show_service(
    State(app): State<App>,
    Path(service): Path<String>,
    caller: Caller,
) -> Result<Json<Success<ServiceView>>, ApiError> {
    let client = app.client(&caller).await?;
    app.engine.declared_service_name(&service)?;
    let found = app.engine.services_of(&client)?.into_iter().find(|view| view.service_name == service);
    Ok(Json(Success::new(found.ok_or(EngineError::Forbidden)?)))
}

/// How full a service's queue is
///
/// For consumers and workers of the service, and for whatever scales the workers: `backlog` is what waits and what is being
/// worked on, so that a worker that is busy is not taken away. Costs the same however many tasks there are.
#[utoipa::path(get, path = "/v1/services/{service}/backlog", operation_id = "getServiceBacklog",
    tag = "Consumers", security(("basic" = [])),
    params(("service" = String, Path, description = "The service's name")),
    responses((status = 200, description = "Now", body = Success<BacklogView>), Refusals))]
pub(crate) async fn show_backlog(
    State(app): State<App>,
    Path(service): Path<String>,
    caller: Caller,
) -> Result<Json<Success<BacklogView>>, ApiError> {
    app.access_by_any_role(&caller, &service).await?;
    let depth = app.engine.queue_depth(&service).await?;
    Ok(Json(Success::new(BacklogView {
        queued: depth.pending,
        running: depth.in_progress,
        backlog: depth.backlog(),
        oldest_pending_seconds: depth.oldest_pending.unwrap_or_default().as_secs_f64(),
    })))
}

/// Submit a task
///
/// The answer comes once the task is stored for good. With an `Idempotency-Key`, repeating the same request within 24
/// hours gives the same answer and makes no second task. With a `uniqueKey`, the answer is the task that you have already
/// under that key, if there is one, and `duplicate` says so.
#[utoipa::path(post, path = "/v1/services/{service}/tasks", operation_id = "submitTask",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("Idempotency-Key" = Option<String>, Header, description = "A word of yours for this request, at most 200 visible ASCII characters", min_length = 1, max_length = 200, pattern = "^[!-~]+$"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context of the task; ignored if it is malformed"),
        ("tracestate" = Option<String>, Header, description = "What goes with it"),
    ),
    request_body = SubmitRequest,
    responses((status = 201, description = "Taken", body = Success<SubmitAnswer>), Refusals))]
pub(crate) async fn submit(
    State(app): State<App>,
    Path(service): Path<String>,
    caller: Caller,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    let access = app.access(&caller, &service, Role::Consume).await?;
    let (request, idempotency): (SubmitRequest, _) = keyed(&app, &headers, request).await?;
    let request = SubmitRequest { trace: trace_headers(&headers), ..request };
    let accepted = app.engine.submit(&access, request, idempotency).await.map_err(|error| app.full(&access, error))?;
    Ok(created(answer(accepted), accepted.submitted.replayed))
}

/// Submit many tasks
///
/// At most 1000, each with its own answer, in the same order: one that is refused does not hold up the others, but for those
/// that are to wait for it. A task can wait for one before it in the same call (`after.refs`) that has a word of its own (`ref`).
#[utoipa::path(post, path = "/v1/services/{service}/tasks/batch", operation_id = "submitTasks",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context of the tasks; ignored if it is malformed"),
        ("tracestate" = Option<String>, Header, description = "What goes with it"),
    ),
    request_body = BatchRequest,
    responses((status = 200, description = "What became of each", body = Success<BatchAnswer>), Refusals))]
pub(crate) async fn submit_batch(
    State(app): State<App>,
    Path(service): Path<String>,
    caller: Caller,
    headers: HeaderMap,
    request: Request,
) -> Result<Json<Success<BatchAnswer>>, ApiError> {
    let access = app.access(&caller, &service, Role::Consume).await?;
    let batch: BatchRequest = app.json(request).await?;
    if batch.tasks.is_empty() || batch.tasks.len() > MAX_BATCH {
        return Err(ApiError::at(ErrorNumber::InvalidBatch, "/tasks", format!("has {} entries", batch.tasks.len())));
    }
    let mut requests = Vec::with_capacity(batch.tasks.len());
    let trace = trace_headers(&headers);
    let mut take = |request| requests.push(SubmitRequest { trace: trace.clone(), ..request });
    let read: Vec<Option<ApiError>> =
        batch.tasks.iter().map(|raw| parse::<SubmitRequest>(raw.get().as_bytes()).map(&mut take).err()).collect();
    let mut results = app.engine.submit_batch(&access, requests).await?.into_iter();
    let entries = read.into_iter().map(|unread| {
        let result = match unread {
            Some(error) => Err(error),
            None => results.next().unwrap_or(Err(EngineError::Stopping)).map_err(ApiError::from),
        };
        match result {
            Ok(accepted) => BatchEntry::Success { data: answer(accepted) },
            Err(error) => BatchEntry::Error { error: error.into_failure().error },
        }
    });
    Ok(Json(Success::new(BatchAnswer { tasks: entries.collect() })))
}

/// Your tasks on a service
///
/// The newest first, without their responses. `nextCursor` of one page is `cursor` of the next. With `correlationId` or
/// `parentId`, a page may have fewer tasks than asked for, or none, and yet a `nextCursor`.
#[utoipa::path(get, path = "/v1/services/{service}/tasks", operation_id = "listTasks",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("status" = Option<String>, Query, description = "Only in these, separated by commas", pattern = "^(PENDING|IN_PROGRESS|SUCCESS|FAILURE|CANCELLED)(,(PENDING|IN_PROGRESS|SUCCESS|FAILURE|CANCELLED))*$"),
        ("correlationId" = Option<String>, Query, description = "Only with this correlation id", max_length = 200),
        ("parentId" = Option<String>, Query, description = "Only parts of this task; not together with `correlationId`", format = "uuid"),
        ("from" = Option<String>, Query, description = "Submitted at this time or later", format = "date-time"),
        ("before" = Option<String>, Query, description = "Submitted before this time", format = "date-time"),
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<TaskPage>), Refusals))]
pub(crate) async fn list_tasks(
    State(app): State<App>,
    Path(service): Path<String>,
    RawQuery(query): RawQuery,
    caller: Caller,
) -> Result<Json<Success<TaskPage>>, ApiError> {
    let access = app.access(&caller, &service, Role::Consume).await?;
    let query = Query::parse(query.as_deref(), &crate::query::LISTING)?;
    let (tasks, next_cursor) = app.engine.list(&access, query.listing()?).await?;
    Ok(Json(Success::new(TaskPage { tasks: tasks.iter().map(task_view).collect(), next_cursor })))
}

/// Poll a task
///
/// With `wait`, the answer comes the moment the task ends, or when the time is up.
#[utoipa::path(get, path = "/v1/services/{service}/tasks/{taskId}", operation_id = "getTask",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("taskId" = String, Path, description = "The task's public name", format = "uuid"),
        ("wait" = Option<String>, Query, description = "How long to wait for the end, e.g. `30s`; at most `120s`", pattern = "^([1-9]?[0-9]s|1[01][0-9]s|120s|[12]m)$", example = "30s"),
    ),
    responses((status = 200, description = "The task", body = Success<TaskView>), Refusals))]
pub(crate) async fn show_task(
    State(app): State<App>,
    Path((service, task_id)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    caller: Caller,
) -> Result<Json<Success<TaskView>>, ApiError> {
    let access = app.access(&caller, &service, Role::Consume).await?;
    let wait = Query::parse(query.as_deref(), &["wait"])?.duration("wait", app.options.max_wait)?;
    let task_id = parse_task_id(&task_id)?;
    let task = match wait {
        Some(wait) => app.engine.wait(&access, task_id, wait).await?,
        None => app.engine.task(&access, task_id).await?,
    };
    Ok(Json(Success::new(app.engine.view(&task))))
}

/// Cancel a task
///
/// A pending task is never started; the worker of a running one is told at its next heartbeat. Doing it again changes
/// nothing.
#[utoipa::path(delete, path = "/v1/services/{service}/tasks/{taskId}", operation_id = "cancelTask",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("taskId" = String, Path, description = "The task's public name", format = "uuid"),
    ),
    responses((status = 200, description = "The task, CANCELLED", body = Success<TaskView>), Refusals))]
pub(crate) async fn cancel_task(
    State(app): State<App>,
    Path((service, task_id)): Path<(String, String)>,
    caller: Caller,
) -> Result<Json<Success<TaskView>>, ApiError> {
    let access = app.access(&caller, &service, Role::Consume).await?;
    let task = app.engine.cancel(&access, parse_task_id(&task_id)?).await?;
    Ok(Json(Success::new(app.engine.view(&task))))
}

/// Do a task once more
///
/// One that has ended begins anew, with all its retries; one that is to start later comes into its queue now. Refused while
/// it waits for a worker, or runs.
#[utoipa::path(post, path = "/v1/services/{service}/tasks/{taskId}/retry", operation_id = "retryTask",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("taskId" = String, Path, description = "The task's public name", format = "uuid"),
    ),
    responses((status = 200, description = "The task, PENDING", body = Success<TaskView>), Refusals))]
pub(crate) async fn retry_task(
    State(app): State<App>,
    Path((service, task_id)): Path<(String, String)>,
    caller: Caller,
) -> Result<Json<Success<TaskView>>, ApiError> {
    let access = app.access(&caller, &service, Role::Consume).await?;
    let task = app.engine.retry(&access, parse_task_id(&task_id)?).await?;
    Ok(Json(Success::new(app.engine.view(&task))))
}

impl App {
    /// A refusal for lack of room says when there may be some.
    fn full(&self, access: &relais_engine::Access, error: EngineError) -> ApiError {
        let full = matches!(error, EngineError::ServiceFull | EngineError::ClientFull);
        let refusal = ApiError::from(error);
        if full { refusal.retry_after(self.engine.room_after(access).as_secs().clamp(1, 60)) } else { refusal }
    }
}

/// What is not a UUID names no task.
pub(crate) fn parse_task_id(text: &str) -> Result<TaskId, ApiError> {
    TaskId::parse(text).ok_or_else(|| ApiError::new(ErrorNumber::TaskNotFound))
}

pub(crate) fn answer(accepted: Accepted) -> SubmitAnswer {
    SubmitAnswer {
        task_id: accepted.submitted.task_id.to_string(),
        task_position: accepted.submitted.position,
        estimated_start_date: accepted.estimated_start.map(|moment| moment.to_string()),
        duplicate: accepted.submitted.duplicate,
    }
}

/// The trace context that the caller says it is in; what is given twice says nothing.
pub(crate) fn trace_headers(headers: &HeaderMap) -> TraceHeaders {
    let one = |name: &str| {
        let mut values = headers.get_all(name).iter();
        let value = values.next()?.to_str().ok()?.to_owned();
        values.next().is_none().then_some(value)
    };
    // A `tracestate` may be said in parts.
    let state: Vec<&str> = headers.get_all("tracestate").iter().filter_map(|value| value.to_str().ok()).collect();
    TraceHeaders { traceparent: one("traceparent"), tracestate: (!state.is_empty()).then(|| state.join(",")) }
}

/// What is asked for, and under which key, if the caller gave one.
pub(crate) async fn keyed<T: DeserializeOwned>(
    app: &App,
    headers: &HeaderMap,
    request: Request,
) -> Result<(T, Option<Idempotency>), ApiError> {
    let key = idempotency_key(headers)?;
    let bytes = app.body(request).await?;
    let idempotency = key.map(|key| Idempotency { key, fingerprint: Sha256::digest(&bytes).to_vec() });
    Ok((parse(&bytes)?, idempotency))
}

/// The answer to whoever made something; or made it before, under the same key.
pub(crate) fn created<T: Serialize>(made: T, replayed: bool) -> Response {
    let mut response = (StatusCode::CREATED, Json(Success::new(made))).into_response();
    if replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = value.as_bytes();
    let fine = (1..=MAX_KEY).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic) && values.next().is_none();
    match String::from_utf8(key.to_vec()) {
        Ok(key) if fine => Ok(Some(key)),
        _ => {
            let message = format!("must be given once, with 1 to {MAX_KEY} visible ASCII characters");
            Err(ApiError::at(ErrorNumber::InvalidHeader, "Idempotency-Key", message))
        }
    }
}
