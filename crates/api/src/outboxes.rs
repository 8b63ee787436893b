//! Routes of operators for outboxes. They are declared like everything else.

use axum::extract::{RawQuery, Request, State};
use relais_engine::{ApplyOptions, ParkedChoice};
use relais_protocol::{
    ErrorNumber, Success,
    admin::{ApplyReport, Declaration},
    outbox::{OutboxDeclaration, OutboxState, OutboxStates, ParkedAnswer, ParkedEvents, ParkedRequest},
};

use crate::{
    App,
    admin::{Answer, answer, relay_check, same},
    admin_guard::By,
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// The outboxes, as their relays last reported
#[utoipa::path(get, path = "/admin/outboxes", operation_id = "listOutboxes",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their names", body = Success<OutboxStates>), Refusals))]
pub(crate) async fn list(State(app): State<App>) -> Answer<OutboxStates> {
    answer(OutboxStates { outboxes: app.engine.outbox_states().await? })
}

/// One outbox, with what its database says now
#[utoipa::path(get, path = "/admin/outboxes/{outbox}", operation_id = "getOutbox",
    tag = "Operators", security(("admin" = []), ()),
    params(("outbox" = String, Path, description = "The outbox's name")),
    responses((status = 200, description = "The outbox", body = Success<OutboxState>), Refusals))]
pub(crate) async fn show(State(app): State<App>, Path(outbox): Path<String>) -> Answer<OutboxState> {
    answer(app.engine.outbox_state(&outbox).await?)
}

/// Declare an outbox
///
/// Creates it, or makes it like this: what is absent gets its default, but for `paused` and passwords. Its database and its
/// sink are asked first whether they can be used. `check=false` stores it without asking.
#[utoipa::path(put, path = "/admin/outboxes/{outbox}", operation_id = "putOutbox",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("outbox" = String, Path, description = "The outbox's name"),
        ("check" = Option<bool>, Query, description = "Whether its database and its sink are asked; `true` if absent"),
    ),
    request_body = OutboxDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put(
    State(app): State<App>,
    By(operator): By,
    Path(outbox): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Answer<ApplyReport> {
    let check = relay_check(&Query::parse(query.as_deref(), &["check"])?)?;
    let declared: OutboxDeclaration = app.json(request).await?;
    same(&outbox, &declared.outbox_name, "/outboxName")?;
    let declaration = Declaration { outboxes: vec![declared], ..Declaration::default() };
    answer(operator.apply_with(declaration, ApplyOptions { check, ..ApplyOptions::default() }).await?)
}

/// Remove an outbox
///
/// Its table stays as it is; nobody publishes it any more.
#[utoipa::path(delete, path = "/admin/outboxes/{outbox}", operation_id = "deleteOutbox",
    tag = "Operators", security(("admin" = []), ()),
    params(("outbox" = String, Path, description = "The outbox's name")),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete(By(operator): By, Path(outbox): Path<String>) -> Answer<ApplyReport> {
    answer(operator.delete_outbox(&outbox).await?)
}

/// Pause an outbox
///
/// Nothing is published until it is resumed; its rows wait.
#[utoipa::path(post, path = "/admin/outboxes/{outbox}/pause", operation_id = "pauseOutbox",
    tag = "Operators", security(("admin" = []), ()),
    params(("outbox" = String, Path, description = "The outbox's name")),
    responses((status = 200, description = "The outbox", body = Success<OutboxState>), Refusals))]
pub(crate) async fn pause(By(operator): By, Path(outbox): Path<String>) -> Answer<OutboxState> {
    answer(operator.pause_outbox(&outbox, true).await?)
}

/// Resume an outbox
#[utoipa::path(post, path = "/admin/outboxes/{outbox}/resume", operation_id = "resumeOutbox",
    tag = "Operators", security(("admin" = []), ()),
    params(("outbox" = String, Path, description = "The outbox's name")),
    responses((status = 200, description = "The outbox", body = Success<OutboxState>), Refusals))]
pub(crate) async fn resume(By(operator): By, Path(outbox): Path<String>) -> Answer<OutboxState> {
    answer(operator.pause_outbox(&outbox, false).await?)
}

/// The parked events of an outbox
///
/// They failed as often as the outbox's `retry` allows. Later events of their keys wait until an operator retries or skips
/// them.
#[utoipa::path(get, path = "/admin/outboxes/{outbox}/parked", operation_id = "listParkedEvents",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("outbox" = String, Path, description = "The outbox's name"),
        ("limit" = Option<u32>, Query, description = "So many; 100 if absent", minimum = 1, maximum = 1000),
    ),
    responses((status = 200, description = "The oldest first", body = Success<ParkedEvents>), Refusals))]
pub(crate) async fn list_parked(
    State(app): State<App>,
    Path(outbox): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<ParkedEvents> {
    let limit = Query::parse(query.as_deref(), &["limit"])?.number("limit", DEFAULT_LIMIT, MAX_LIMIT)?;
    let parked = app.engine.list_parked(&outbox, limit).await?;
    answer(ParkedEvents { outbox_name: outbox, parked })
}

/// Retry parked events
///
/// They are tried again at once, as often as if they were new. Events that are not parked are left alone.
#[utoipa::path(post, path = "/admin/outboxes/{outbox}/retry", operation_id = "retryParkedEvents",
    tag = "Operators", security(("admin" = []), ()),
    params(("outbox" = String, Path, description = "The outbox's name")),
    request_body = ParkedRequest,
    responses((status = 200, description = "How many", body = Success<ParkedAnswer>), Refusals))]
pub(crate) async fn retry_parked(
    State(app): State<App>,
    By(operator): By,
    Path(outbox): Path<String>,
    request: Request,
) -> Answer<ParkedAnswer> {
    let which = choice(app.json(request).await?)?;
    answer(ParkedAnswer { changed: operator.retry_parked(&outbox, which).await? })
}

/// Skip parked events
///
/// They are never published: they count as published, and later events of their keys go on. Events that are not parked are
/// left alone.
#[utoipa::path(post, path = "/admin/outboxes/{outbox}/skip", operation_id = "skipParkedEvents",
    tag = "Operators", security(("admin" = []), ()),
    params(("outbox" = String, Path, description = "The outbox's name")),
    request_body = ParkedRequest,
    responses((status = 200, description = "How many", body = Success<ParkedAnswer>), Refusals))]
pub(crate) async fn skip_parked(
    State(app): State<App>,
    By(operator): By,
    Path(outbox): Path<String>,
    request: Request,
) -> Answer<ParkedAnswer> {
    let which = choice(app.json(request).await?)?;
    answer(ParkedAnswer { changed: operator.skip_parked(&outbox, which).await? })
}

fn choice(request: ParkedRequest) -> Result<ParkedChoice, ApiError> {
    let wrong = |path, message| Err(ApiError::at(ErrorNumber::InvalidRequest, path, message));
    match request {
        ParkedRequest { all: true, ids } if ids.is_empty() => Ok(ParkedChoice::All),
        ParkedRequest { all: true, .. } => wrong("/all", "is of no use beside ids"),
        ParkedRequest { ids, .. } if ids.is_empty() => wrong("/ids", "must name at least one event, or say all"),
        ParkedRequest { ids, .. } if ids.len() > MAX_LIMIT => wrong("/ids", "must name at most 1000 events"),
        ParkedRequest { ids, .. } => Ok(ParkedChoice::These(ids)),
    }
}
