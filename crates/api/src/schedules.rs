//! Routes of operators for schedules. They are declared like everything else.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
    http::StatusCode,
};
use relais_protocol::{
    Success,
    admin::{ApplyReport, Declaration},
    consumer::SubmitAnswer,
    schedule::{ScheduleDeclaration, ScheduleRuns, ScheduleState, ScheduleStates},
};

use crate::{
    App,
    admin::{Answer, answer, same},
    admin_guard::By,
    consumer,
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

const DEFAULT_COUNT: usize = 10;
const MAX_COUNT: usize = 1000;

/// The schedules, and how far they have come
#[utoipa::path(get, path = "/admin/schedules", operation_id = "listSchedules",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their names", body = Success<ScheduleStates>), Refusals))]
pub(crate) async fn list(State(app): State<App>) -> Answer<ScheduleStates> {
    answer(ScheduleStates { schedules: app.engine.schedule_states().await? })
}

/// One schedule, and how far it has come
#[utoipa::path(get, path = "/admin/schedules/{schedule}", operation_id = "getSchedule",
    tag = "Operators", security(("admin" = []), ()),
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses((status = 200, description = "The schedule", body = Success<ScheduleState>), Refusals))]
pub(crate) async fn show(State(app): State<App>, Path(schedule): Path<String>) -> Answer<ScheduleState> {
    answer(app.engine.schedule_state(&schedule).await?)
}

/// Declare a schedule
///
/// Creates it, or makes it like this: what is absent gets its default, but for `paused`. What it would submit is judged now,
/// as a submission would be, and again by each run. How far it has come stays; its next run too, if its times are the same.
#[utoipa::path(put, path = "/admin/schedules/{schedule}", operation_id = "putSchedule",
    tag = "Operators", security(("admin" = []), ()),
    params(("schedule" = String, Path, description = "The schedule's name")),
    request_body = ScheduleDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put(
    State(app): State<App>,
    By(operator): By,
    Path(schedule): Path<String>,
    request: Request,
) -> Answer<ApplyReport> {
    let declared: ScheduleDeclaration = app.json(request).await?;
    same(&schedule, &declared.schedule_name, "/scheduleName")?;
    let declaration = Declaration { schedules: vec![declared], ..Declaration::default() };
    answer(operator.apply(declaration, false, false).await?)
}

/// Remove a schedule
///
/// Its tasks stay.
#[utoipa::path(delete, path = "/admin/schedules/{schedule}", operation_id = "deleteSchedule",
    tag = "Operators", security(("admin" = []), ()),
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete(By(operator): By, Path(schedule): Path<String>) -> Answer<ApplyReport> {
    answer(operator.delete_schedule(&schedule).await?)
}

/// Pause a schedule
///
/// There are no runs until it goes on, and none are missed.
#[utoipa::path(post, path = "/admin/schedules/{schedule}/pause", operation_id = "pauseSchedule",
    tag = "Operators", security(("admin" = []), ()),
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses((status = 200, description = "The schedule", body = Success<ScheduleState>), Refusals))]
pub(crate) async fn pause(By(operator): By, Path(schedule): Path<String>) -> Answer<ScheduleState> {
    answer(operator.pause_schedule(&schedule, true).await?)
}

/// Let a schedule go on
#[utoipa::path(post, path = "/admin/schedules/{schedule}/resume", operation_id = "resumeSchedule",
    tag = "Operators", security(("admin" = []), ()),
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses((status = 200, description = "The schedule", body = Success<ScheduleState>), Refusals))]
pub(crate) async fn resume(By(operator): By, Path(schedule): Path<String>) -> Answer<ScheduleState> {
    answer(operator.pause_schedule(&schedule, false).await?)
}

/// Run a schedule now
///
/// Paused or not, and besides its other runs. Refused like any submission, and while the task of the run before is
/// unfinished if its runs do not overlap.
#[utoipa::path(post, path = "/admin/schedules/{schedule}/run", operation_id = "runSchedule",
    tag = "Operators", security(("admin" = []), ()),
    params(("schedule" = String, Path, description = "The schedule's name")),
    responses((status = 201, description = "The task", body = Success<SubmitAnswer>), Refusals))]
pub(crate) async fn run(
    By(operator): By,
    Path(schedule): Path<String>,
) -> Result<(StatusCode, Json<Success<SubmitAnswer>>), ApiError> {
    let accepted = operator.run_schedule(&schedule).await?;
    Ok((StatusCode::CREATED, Json(Success::new(consumer::answer(accepted)))))
}

/// The next runs of a schedule
///
/// As if it were not paused.
#[utoipa::path(get, path = "/admin/schedules/{schedule}/next", operation_id = "listNextRuns",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("schedule" = String, Path, description = "The schedule's name"),
        ("count" = Option<u32>, Query, description = "So many; 10 if absent", minimum = 1, maximum = 1000),
    ),
    responses((status = 200, description = "In their order", body = Success<ScheduleRuns>), Refusals))]
pub(crate) async fn next(
    State(app): State<App>,
    Path(schedule): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<ScheduleRuns> {
    let count = Query::parse(query.as_deref(), &["count"])?.number("count", DEFAULT_COUNT, MAX_COUNT)?;
    answer(app.engine.next_runs(&schedule, count).await?)
}
