//! Batches: routes of consumers and operators.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
    http::HeaderMap,
    response::Response,
};
use relais_core::BatchId;
use relais_engine::{BatchRequest, task_view};
use relais_protocol::{
    ErrorNumber, Success,
    batch::{AdminBatchPage, AdminBatchView, BatchPage, BatchView, MAX_BATCH, NewBatchAnswer, NewBatchRequest},
    consumer::{SubmitRequest, TaskPage},
};

use crate::{
    App,
    access::Caller,
    admin_guard::By,
    body::parse,
    consumer::{answer, created, keyed, trace_headers},
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// Make a batch
///
/// Tasks of any services that you may use, followed as one: all of them are taken, or none if one is refused, and the answer says
/// which (`/tasks/3`). When all have ended, and the batch was closed if it was made open, its callback tells so once. With an
/// `Idempotency-Key`, repeating the same request within 24 hours gives the same batch.
#[utoipa::path(post, path = "/v1/batches", operation_id = "createBatch", tag = "Consumers", security(("basic" = [])),
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "A word of yours for this request, at most 200 visible ASCII characters", min_length = 1, max_length = 200, pattern = "^[!-~]+$"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context of its tasks; ignored if it is malformed"),
        ("tracestate" = Option<String>, Header, description = "What goes with it"),
    ),
    request_body = NewBatchRequest,
    responses((status = 201, description = "Made", body = Success<NewBatchAnswer>), Refusals))]
pub(crate) async fn make(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    let client = app.client(&caller).await?;
    let (asked, idempotency): (NewBatchRequest, _) = keyed(&app, &headers, request).await?;
    if asked.tasks.is_empty() && !asked.open || asked.tasks.len() > MAX_BATCH {
        return Err(ApiError::at(ErrorNumber::InvalidBatch, "/tasks", format!("has {} entries", asked.tasks.len())));
    }
    let trace = trace_headers(&headers);
    let mut tasks = Vec::with_capacity(asked.tasks.len());
    for (place, raw) in asked.tasks.iter().enumerate() {
        let read = parse(raw.get().as_bytes());
        let task: SubmitRequest = read.map_err(|error| error.within(&format!("/tasks/{place}")))?;
        tasks.push(SubmitRequest { trace: trace.clone(), ..task });
    }
    let (callback, correlation_id, open) = (asked.callback, asked.correlation_id, asked.open);
    let request = BatchRequest { tasks, callback, correlation_id, open, trace: trace.clone() };
    let made = app.engine.create_batch(&client, request, idempotency).await?;
    let tasks = made.tasks.into_iter().map(answer).collect();
    Ok(created(NewBatchAnswer { batch_id: made.batch_id.to_string(), tasks }, made.replayed))
}

/// Your batches
///
/// The newest first. `nextCursor` of one page is `cursor` of the next.
#[utoipa::path(get, path = "/v1/batches", operation_id = "listBatches", tag = "Consumers", security(("basic" = [])),
    params(
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<BatchPage>), Refusals))]
pub(crate) async fn list(
    State(app): State<App>,
    RawQuery(query): RawQuery,
    caller: Caller,
) -> Result<Json<Success<BatchPage>>, ApiError> {
    let client = app.client(&caller).await?;
    let query = Query::parse(query.as_deref(), &["limit", "cursor"])?;
    let page = app.engine.batches(&client, batch_cursor(&query)?, query.limit()?).await?;
    Ok(Json(Success::new(page)))
}

/// Poll a batch
#[utoipa::path(get, path = "/v1/batches/{batchId}", operation_id = "getBatch",
    tag = "Consumers", security(("basic" = [])),
    params(("batchId" = String, Path, description = "The batch's public name", format = "uuid")),
    responses((status = 200, description = "The batch", body = Success<BatchView>), Refusals))]
pub(crate) async fn show(
    State(app): State<App>,
    Path(batch_id): Path<String>,
    caller: Caller,
) -> Result<Json<Success<BatchView>>, ApiError> {
    let client = app.client(&caller).await?;
    Ok(Json(Success::new(app.engine.batch(&client, parse_batch_id(&batch_id)?).await?)))
}

/// The tasks of a batch
///
/// The newest first, without their responses. A page may have fewer tasks than asked for, or none, and yet a `nextCursor`.
#[utoipa::path(get, path = "/v1/batches/{batchId}/tasks", operation_id = "listBatchTasks",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("batchId" = String, Path, description = "The batch's public name", format = "uuid"),
        ("status" = Option<String>, Query, description = "Only in these, separated by commas", pattern = "^(PENDING|IN_PROGRESS|SUCCESS|FAILURE|CANCELLED)(,(PENDING|IN_PROGRESS|SUCCESS|FAILURE|CANCELLED))*$"),
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<TaskPage>), Refusals))]
pub(crate) async fn tasks(
    State(app): State<App>,
    Path(batch_id): Path<String>,
    RawQuery(query): RawQuery,
    caller: Caller,
) -> Result<Json<Success<TaskPage>>, ApiError> {
    let client = app.client(&caller).await?;
    let batch_id = parse_batch_id(&batch_id)?;
    let query = Query::parse(query.as_deref(), &["status", "limit", "cursor"])?;
    let (tasks, next_cursor) = app.engine.batch_tasks(&client, batch_id, query.listing()?).await?;
    Ok(Json(Success::new(TaskPage { tasks: tasks.iter().map(task_view).collect(), next_cursor })))
}

/// Close a batch
///
/// It takes no more tasks, and ends when all of them have. Doing it again changes nothing.
#[utoipa::path(post, path = "/v1/batches/{batchId}/close", operation_id = "closeBatch",
    tag = "Consumers", security(("basic" = [])),
    params(("batchId" = String, Path, description = "The batch's public name", format = "uuid")),
    responses((status = 200, description = "The batch", body = Success<BatchView>), Refusals))]
pub(crate) async fn close(
    State(app): State<App>,
    Path(batch_id): Path<String>,
    caller: Caller,
) -> Result<Json<Success<BatchView>>, ApiError> {
    let client = app.client(&caller).await?;
    Ok(Json(Success::new(app.engine.close_batch(&client, parse_batch_id(&batch_id)?).await?)))
}

/// Cancel a batch
///
/// Closes it, and cancels all of its tasks that have not ended. Doing it again changes nothing.
#[utoipa::path(post, path = "/v1/batches/{batchId}/cancel", operation_id = "cancelBatch",
    tag = "Consumers", security(("basic" = [])),
    params(("batchId" = String, Path, description = "The batch's public name", format = "uuid")),
    responses((status = 200, description = "The batch", body = Success<BatchView>), Refusals))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Path(batch_id): Path<String>,
    caller: Caller,
) -> Result<Json<Success<BatchView>>, ApiError> {
    let client = app.client(&caller).await?;
    Ok(Json(Success::new(app.engine.cancel_batch(&client, parse_batch_id(&batch_id)?).await?)))
}

/// Batches
///
/// The newest first. `nextCursor` of one page is `cursor` of the next.
#[utoipa::path(get, path = "/admin/batches", operation_id = "listAllBatches",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("clientId" = Option<String>, Query, description = "Only of this client"),
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<AdminBatchPage>), Refusals))]
pub(crate) async fn admin_list(
    State(app): State<App>,
    RawQuery(query): RawQuery,
) -> Result<Json<Success<AdminBatchPage>>, ApiError> {
    let query = Query::parse(query.as_deref(), &["clientId", "limit", "cursor"])?;
    let (cursor, limit) = (batch_cursor(&query)?, query.limit()?);
    Ok(Json(Success::new(app.engine.admin_batches(query.get("clientId"), cursor, limit).await?)))
}

/// One batch
#[utoipa::path(get, path = "/admin/batches/{batchId}", operation_id = "getAnyBatch",
    tag = "Operators", security(("admin" = []), ()),
    params(("batchId" = String, Path, description = "The batch's public name", format = "uuid")),
    responses((status = 200, description = "The batch", body = Success<AdminBatchView>), Refusals))]
pub(crate) async fn admin_show(
    State(app): State<App>,
    Path(batch_id): Path<String>,
) -> Result<Json<Success<AdminBatchView>>, ApiError> {
    Ok(Json(Success::new(app.engine.admin_batch(parse_batch_id(&batch_id)?).await?)))
}

/// Close a batch
#[utoipa::path(post, path = "/admin/batches/{batchId}/close", operation_id = "closeAnyBatch",
    tag = "Operators", security(("admin" = []), ()),
    params(("batchId" = String, Path, description = "The batch's public name", format = "uuid")),
    responses((status = 200, description = "The batch", body = Success<AdminBatchView>), Refusals))]
pub(crate) async fn admin_close(
    By(operator): By,
    Path(batch_id): Path<String>,
) -> Result<Json<Success<AdminBatchView>>, ApiError> {
    Ok(Json(Success::new(operator.close_batch(parse_batch_id(&batch_id)?).await?)))
}

/// Cancel a batch
///
/// Closes it, and cancels all of its tasks that have not ended.
#[utoipa::path(post, path = "/admin/batches/{batchId}/cancel", operation_id = "cancelAnyBatch",
    tag = "Operators", security(("admin" = []), ()),
    params(("batchId" = String, Path, description = "The batch's public name", format = "uuid")),
    responses((status = 200, description = "The batch", body = Success<AdminBatchView>), Refusals))]
pub(crate) async fn admin_cancel(
    By(operator): By,
    Path(batch_id): Path<String>,
) -> Result<Json<Success<AdminBatchView>>, ApiError> {
    Ok(Json(Success::new(operator.cancel_batch(parse_batch_id(&batch_id)?).await?)))
}

/// What is not a UUID names no batch.
fn parse_batch_id(text: &str) -> Result<BatchId, ApiError> {
    BatchId::parse(text).ok_or_else(|| ApiError::new(ErrorNumber::BatchNotFound))
}

fn batch_cursor(query: &Query) -> Result<Option<BatchId>, ApiError> {
    let parse = |text| {
        let wrong =
            || ApiError::at(ErrorNumber::InvalidParameter, "cursor", "must be one that an answer gave as nextCursor");
        BatchId::parse(text).ok_or_else(wrong)
    };
    query.get("cursor").map(parse).transpose()
}
