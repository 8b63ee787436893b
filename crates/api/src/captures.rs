//! Routes of operators for captures. They are declared like everything else.

use axum::extract::{RawQuery, Request, State};
use relais_engine::ApplyOptions;
use relais_protocol::{
    Success,
    admin::{ApplyReport, Declaration},
    capture::{CaptureDeclaration, CaptureState, CaptureStates, SnapshotRequest},
};

use crate::{
    App,
    admin::{Answer, answer, relay_check, same},
    admin_guard::By,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// The captures, as their processes last reported
#[utoipa::path(get, path = "/admin/captures", operation_id = "listCaptures",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their names", body = Success<CaptureStates>), Refusals))]
pub(crate) async fn list(State(app): State<App>) -> Answer<CaptureStates> {
    answer(CaptureStates { captures: app.engine.capture_states().await? })
}

/// One capture, with what its database says now
#[utoipa::path(get, path = "/admin/captures/{capture}", operation_id = "getCapture",
    tag = "Operators", security(("admin" = []), ()),
    params(("capture" = String, Path, description = "The capture's name")),
    responses((status = 200, description = "The capture", body = Success<CaptureState>), Refusals))]
pub(crate) async fn show(State(app): State<App>, Path(capture): Path<String>) -> Answer<CaptureState> {
    answer(app.engine.capture_state(&capture).await?)
}

/// Declare a capture
///
/// Creates it, or makes it like this: what is absent gets its default, but for `paused` and passwords. Its database and its
/// sink are asked first whether they can be used. `check=false` stores it without asking.
#[utoipa::path(put, path = "/admin/captures/{capture}", operation_id = "putCapture",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("capture" = String, Path, description = "The capture's name"),
        ("check" = Option<bool>, Query, description = "Whether its database and its sink are asked; `true` if absent"),
    ),
    request_body = CaptureDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put(
    State(app): State<App>,
    By(operator): By,
    Path(capture): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Answer<ApplyReport> {
    let check = relay_check(&Query::parse(query.as_deref(), &["check"])?)?;
    let declared: CaptureDeclaration = app.json(request).await?;
    same(&capture, &declared.capture_name, "/captureName")?;
    let declaration = Declaration { captures: vec![declared], ..Declaration::default() };
    answer(operator.apply_with(declaration, ApplyOptions { check, ..ApplyOptions::default() }).await?)
}

/// Drop a capture
///
/// Its slot and its publication are dropped, and how far it was is forgotten. Its tables stay as they are. If its database
/// does not answer, the capture is deleted all the same, and the answer says what is left to do.
#[utoipa::path(delete, path = "/admin/captures/{capture}", operation_id = "deleteCapture",
    tag = "Operators", security(("admin" = []), ()),
    params(("capture" = String, Path, description = "The capture's name")),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete(By(operator): By, Path(capture): Path<String>) -> Answer<ApplyReport> {
    answer(operator.drop_capture(&capture).await?)
}

/// Pause a capture
///
/// Nothing is published until it is resumed. The slot stays, so that no change is lost: the database keeps its WAL meanwhile.
#[utoipa::path(post, path = "/admin/captures/{capture}/pause", operation_id = "pauseCapture",
    tag = "Operators", security(("admin" = []), ()),
    params(("capture" = String, Path, description = "The capture's name")),
    responses((status = 200, description = "The capture", body = Success<CaptureState>), Refusals))]
pub(crate) async fn pause(By(operator): By, Path(capture): Path<String>) -> Answer<CaptureState> {
    answer(operator.pause_capture(&capture, true).await?)
}

/// Resume a capture
#[utoipa::path(post, path = "/admin/captures/{capture}/resume", operation_id = "resumeCapture",
    tag = "Operators", security(("admin" = []), ()),
    params(("capture" = String, Path, description = "The capture's name")),
    responses((status = 200, description = "The capture", body = Success<CaptureState>), Refusals))]
pub(crate) async fn resume(By(operator): By, Path(capture): Path<String>) -> Answer<CaptureState> {
    answer(operator.pause_capture(&capture, false).await?)
}

/// Read tables of a capture again
///
/// A snapshot: the rows are published with `op` `r`, in chunks beside the stream, which does not stop.
#[utoipa::path(post, path = "/admin/captures/{capture}/snapshot", operation_id = "requestSnapshot",
    tag = "Operators", security(("admin" = []), ()),
    params(("capture" = String, Path, description = "The capture's name")),
    request_body = SnapshotRequest,
    responses((status = 200, description = "The capture", body = Success<CaptureState>), Refusals))]
pub(crate) async fn snapshot(
    State(app): State<App>,
    By(operator): By,
    Path(capture): Path<String>,
    request: Request,
) -> Answer<CaptureState> {
    let SnapshotRequest { tables } = app.json(request).await?;
    answer(operator.request_snapshot(&capture, &tables).await?)
}
