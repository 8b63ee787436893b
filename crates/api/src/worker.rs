//! Routes of workers: claim, report, heartbeat, return.

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, header},
};
use relais_core::Role;
use relais_protocol::{
    ErrorNumber, Success,
    worker::{
        ClaimAnswer, ClaimRequest, HeartbeatRequest, MAX_MESSAGES, MessagesRequest, Misunderstood, OutcomesAnswer,
        ReturnRequest, TaskOutcome, WireMessage, WorkerMessage,
    },
};
use serde_json::value::RawValue;

use crate::{App, access::Caller, body::parse, error::ApiError, openapi::Refusals, path::Path};

/// Longer words about themselves are not kept of workers.
const MOST_VERSION: usize = 100;

/// Claim tasks
///
/// Hands out up to `max` pending tasks, the oldest first, each under a lease: say something about a task (a heartbeat or
/// a message) before its lease expires, or it is given to another worker. With `wait`, the answer comes when there is
/// work, or empty when the time is up.
#[utoipa::path(post, path = "/v1/services/{service}/claims", operation_id = "claimTasks",
    tag = "Workers", security(("basic" = [])),
    params(("service" = String, Path, description = "The service's name")),
    request_body = ClaimRequest,
    responses((status = 200, description = "The tasks; none if none came in time", body = Success<ClaimAnswer>), Refusals))]
pub(crate) async fn claim(
    State(app): State<App>,
    Path(service): Path<String>,
    caller: Caller,
    headers: HeaderMap,
    request: Request,
) -> Result<Json<Success<ClaimAnswer>>, ApiError> {
    let access = app.access(&caller, &service, Role::Work).await?;
    let request: ClaimRequest = app.json(request).await?;
    let version = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let version = version.filter(|version| version.len() <= MOST_VERSION);
    let tasks = app.engine.claim_by(&access, request, app.options.max_wait, version).await?;
    Ok(Json(Success::new(ClaimAnswer { tasks })))
}

/// Report on tasks
///
/// One message, or many as `{"messages": […]}`; each has its own outcome, in the same order. A message that carries its
/// `attempt` counts only while that attempt is the current one.
#[utoipa::path(post, path = "/v1/services/{service}/messages", operation_id = "reportMessages",
    tag = "Workers", security(("basic" = [])),
    params(("service" = String, Path, description = "The service's name")),
    request_body = MessagesRequest,
    responses((status = 200, description = "What became of each", body = Success<OutcomesAnswer>), Refusals))]
pub(crate) async fn report(
    State(app): State<App>,
    Path(service): Path<String>,
    caller: Caller,
    request: Request,
) -> Result<Json<Success<OutcomesAnswer>>, ApiError> {
    let access = app.access(&caller, &service, Role::Work).await?;
    let messages = read_messages(&app.body(request).await?)?;
    answer(app.engine.messages(&access, messages).await?)
}

/// Keep tasks
///
/// Tells that the worker is alive and still has these tasks; their leases begin anew. An outcome other than `accepted`
/// means: stop working on it.
#[utoipa::path(post, path = "/v1/services/{service}/heartbeats", operation_id = "sendHeartbeats",
    tag = "Workers", security(("basic" = [])),
    params(("service" = String, Path, description = "The service's name")),
    request_body = HeartbeatRequest,
    responses((status = 200, description = "What became of each", body = Success<OutcomesAnswer>), Refusals))]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    Path(service): Path<String>,
    caller: Caller,
    request: Request,
) -> Result<Json<Success<OutcomesAnswer>>, ApiError> {
    let access = app.access(&caller, &service, Role::Work).await?;
    let request: HeartbeatRequest = app.json(request).await?;
    count(request.tasks.len(), "/tasks")?;
    answer(app.engine.heartbeat(&access, request.tasks, request.lease).await?)
}

/// Give tasks back
///
/// Unfinished, e.g. because the worker is told to stop: another worker gets them at once, and nothing is held against
/// them.
#[utoipa::path(post, path = "/v1/services/{service}/returns", operation_id = "returnTasks",
    tag = "Workers", security(("basic" = [])),
    params(("service" = String, Path, description = "The service's name")),
    request_body = ReturnRequest,
    responses((status = 200, description = "What became of each", body = Success<OutcomesAnswer>), Refusals))]
pub(crate) async fn give_back(
    State(app): State<App>,
    Path(service): Path<String>,
    caller: Caller,
    request: Request,
) -> Result<Json<Success<OutcomesAnswer>>, ApiError> {
    let access = app.access(&caller, &service, Role::Work).await?;
    let request: ReturnRequest = app.json(request).await?;
    count(request.tasks.len(), "/tasks")?;
    answer(app.engine.give_back(&access, request.tasks).await?)
}

fn answer(outcomes: Vec<TaskOutcome>) -> Result<Json<Success<OutcomesAnswer>>, ApiError> {
    Ok(Json(Success::new(OutcomesAnswer { outcomes })))
}

fn count(entries: usize, path: &str) -> Result<(), ApiError> {
    if (1..=MAX_MESSAGES).contains(&entries) {
        return Ok(());
    }
    Err(ApiError::at(ErrorNumber::InvalidBatch, path, format!("has {entries} entries")))
}

/// One message stands alone, many stand in `messages`. A message that can not be read is one that is rejected: it does
/// not hold up the others.
fn read_messages(bytes: &[u8]) -> Result<Vec<Result<WorkerMessage, Misunderstood>>, ApiError> {
    let whole: &RawValue = serde_json::from_slice(bytes)
        .map_err(|error| ApiError::at(ErrorNumber::MalformedJson, "", error.to_string()))?;
    let fields: std::collections::BTreeMap<String, serde::de::IgnoredAny> = parse(whole.get().as_bytes())?;
    if !fields.contains_key("messages") {
        return Ok(vec![understand(whole)]);
    }
    let request: MessagesRequest = parse(whole.get().as_bytes())?;
    count(request.messages.len(), "/messages")?;
    Ok(request.messages.iter().map(|message| understand(message)).collect())
}

fn understand(raw: &RawValue) -> Result<WorkerMessage, Misunderstood> {
    if !raw.get().starts_with('{') {
        return Err(Misunderstood("it is not a JSON object".to_owned()));
    }
    serde_json::from_str::<WireMessage>(raw.get())
        .map_err(|error| Misunderstood(error.to_string()))
        .and_then(WireMessage::understand)
}
