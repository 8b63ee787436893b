//! Callbacks over HTTP: their status, sending them again, and their signing secrets.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
};
use relais_core::{CallbackId, CallbackStatus, Role, Timestamp};
use relais_engine::{CallbackQuery, signing_secrets};
use relais_protocol::{
    ErrorNumber, Success,
    callback::{
        CallbackPageView, CallbackView, RedeliverAnswer, RedeliverRequest, RotateSigningRequest, SigningSecrets,
    },
};

use crate::{
    App, access::Caller, admin_guard::By, consumer::parse_task_id, error::ApiError, openapi::Refusals, path::Path,
    query::Query,
};

type Answer<T> = Result<Json<Success<T>>, ApiError>;

fn answer<T>(data: T) -> Answer<T> {
    Ok(Json(Success::new(data)))
}

/// What was told of a task
///
/// Its callbacks, the newest first, each with its tries: when, how long, what the receiver answered. At most 50.
#[utoipa::path(get, path = "/v1/services/{service}/tasks/{taskId}/callbacks", operation_id = "listTaskCallbacks",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("taskId" = String, Path, description = "The task's public name", format = "uuid"),
    ),
    responses((status = 200, description = "The callbacks", body = Success<CallbackPageView>), Refusals))]
pub(crate) async fn of_task(
    State(app): State<App>,
    Path((service, task_id)): Path<(String, String)>,
    caller: Caller,
) -> Answer<CallbackPageView> {
    let access = app.access(&caller, &service, Role::Consume).await?;
    let callbacks = app.engine.callbacks_of_task(&access, parse_task_id(&task_id)?).await?;
    answer(CallbackPageView { callbacks, next_cursor: None })
}

/// What your callbacks are signed with
///
/// By the convention of Standard Webhooks. Two while one replaces the other: accept either.
#[utoipa::path(get, path = "/v1/signing-secrets", operation_id = "listSigningSecrets",
    tag = "Consumers", security(("basic" = [])),
    responses((status = 200, description = "The newest first", body = Success<SigningSecrets>), Refusals))]
pub(crate) async fn own_signing_secrets(State(app): State<App>, caller: Caller) -> Answer<SigningSecrets> {
    answer(signing_secrets(&*app.client(&caller).await?))
}

/// Callbacks
///
/// The newest first, without their tries. `nextCursor` of one page is `cursor` of the next; a page may be short, or empty,
/// and not be the last.
#[utoipa::path(get, path = "/admin/callbacks", operation_id = "listCallbacks",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("service" = Option<String>, Query, description = "Only of this service"),
        ("clientId" = Option<String>, Query, description = "Only of this client"),
        ("taskId" = Option<String>, Query, description = "Only of this task", format = "uuid"),
        ("status" = Option<String>, Query, description = "Only in this one", pattern = "^(PENDING|SUCCESS|FAILURE)$"),
        ("from" = Option<String>, Query, description = "That came to be at this time or later", format = "date-time"),
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<CallbackPageView>), Refusals))]
pub(crate) async fn list(State(app): State<App>, RawQuery(query): RawQuery) -> Answer<CallbackPageView> {
    let known = ["service", "clientId", "taskId", "status", "from", "limit", "cursor"];
    let query = Query::parse(query.as_deref(), &known)?;
    let owned = |name: &str| query.get(name).map(str::to_owned);
    let status = query.get("status").map(|name| {
        CallbackStatus::parse(name)
            .ok_or_else(|| ApiError::at(ErrorNumber::InvalidParameter, "status", "must be PENDING, SUCCESS or FAILURE"))
    });
    let page = CallbackQuery {
        service: owned("service"),
        client_id: owned("clientId"),
        task: query.get("taskId").map(parse_task_id).transpose()?,
        status: status.transpose()?,
        from: query.date("from")?,
        cursor: query.cursor()?,
        limit: query.limit()?,
    };
    answer(app.engine.callbacks(page).await?)
}

/// One callback
///
/// With its tries.
#[utoipa::path(get, path = "/admin/callbacks/{callbackId}", operation_id = "getCallback",
    tag = "Operators", security(("admin" = []), ()),
    params(("callbackId" = String, Path, description = "Its `webhook-id`")),
    responses((status = 200, description = "The callback", body = Success<CallbackView>), Refusals))]
pub(crate) async fn show(State(app): State<App>, Path(id): Path<String>) -> Answer<CallbackView> {
    answer(app.engine.callback(parse(&id)?).await?)
}

/// Send a callback again
///
/// Whatever became of it, at once, under the same `webhook-id`, with the whole schedule of retries before it.
#[utoipa::path(post, path = "/admin/callbacks/{callbackId}/redeliver", operation_id = "redeliverCallback",
    tag = "Operators", security(("admin" = []), ()),
    params(("callbackId" = String, Path, description = "Its `webhook-id`")),
    responses((status = 200, description = "The callback, PENDING", body = Success<CallbackView>), Refusals))]
pub(crate) async fn redeliver(By(operator): By, Path(id): Path<String>) -> Answer<CallbackView> {
    answer(operator.redeliver(parse(&id)?).await?)
}

/// Send all callbacks again that failed since then
#[utoipa::path(post, path = "/admin/callbacks/redeliver", operation_id = "redeliverFailedCallbacks",
    tag = "Operators", security(("admin" = []), ()),
    request_body = RedeliverRequest,
    responses((status = 200, description = "How many", body = Success<RedeliverAnswer>), Refusals))]
pub(crate) async fn redeliver_failed(
    State(app): State<App>,
    By(operator): By,
    request: Request,
) -> Answer<RedeliverAnswer> {
    let asked: RedeliverRequest = app.json(request).await?;
    let since = Timestamp::parse(&asked.failed_since).ok_or_else(|| {
        ApiError::at(ErrorNumber::InvalidRequest, "/failedSince", "must be a date like 2026-01-31T08:30:00Z")
    })?;
    let (service, client_id) = (asked.service.as_deref(), asked.client_id.as_deref());
    let redelivered = operator.redeliver_failed(since, service, client_id).await?;
    answer(RedeliverAnswer { redelivered })
}

/// What a client's callbacks are signed with
#[utoipa::path(get, path = "/admin/clients/{clientId}/signing-secrets", operation_id = "listClientSigningSecrets",
    tag = "Operators", security(("admin" = []), ()),
    params(("clientId" = String, Path, description = "The client's name")),
    responses((status = 200, description = "The newest first", body = Success<SigningSecrets>), Refusals))]
pub(crate) async fn client_signing_secrets(By(operator): By, Path(client_id): Path<String>) -> Answer<SigningSecrets> {
    answer(operator.signing_secrets(&client_id).await?)
}

/// Sign a client's callbacks with another secret
///
/// Callbacks are signed with both for a while; one that was on its way out already goes at once.
#[utoipa::path(post, path = "/admin/clients/{clientId}/signing-secrets", operation_id = "rotateClientSigningSecret",
    tag = "Operators", security(("admin" = []), ()),
    params(("clientId" = String, Path, description = "The client's name")),
    request_body = RotateSigningRequest,
    responses((status = 200, description = "The newest first", body = Success<SigningSecrets>), Refusals))]
pub(crate) async fn rotate_signing_secret(
    State(app): State<App>,
    By(operator): By,
    Path(client_id): Path<String>,
    request: Request,
) -> Answer<SigningSecrets> {
    let asked: RotateSigningRequest = app.json(request).await?;
    answer(operator.rotate_signing_secret(&client_id, asked.overlap).await?)
}

/// What is not the name of a callback names none.
fn parse(id: &str) -> Result<CallbackId, ApiError> {
    CallbackId::parse(id).ok_or_else(|| ApiError::new(ErrorNumber::CallbackNotFound))
}
