//! Tasks, workers and the audit log, as operators look at them, and acting on tasks.

use axum::extract::{RawQuery, Request, State};
use relais_engine::Selection;
use relais_protocol::{
    Success,
    admin::{AdminTaskPage, AdminTaskView, CancelAnswer, RetryAnswer, TasksRequest},
    audit::AuditLog,
    worker_state::WorkerStates,
};

use crate::{
    App,
    admin::{Answer, answer},
    admin_guard::By,
    consumer::parse_task_id,
    openapi::Refusals,
    path::Path,
    query::{LISTING, Query},
};

/// Tasks
///
/// The newest first, without requests and responses. `nextCursor` of one page is `cursor` of the next.
#[utoipa::path(get, path = "/admin/tasks", operation_id = "listAllTasks",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("service" = Option<String>, Query, description = "Only of this service"),
        ("clientId" = Option<String>, Query, description = "Only of this client"),
        ("correlationId" = Option<String>, Query, description = "Only with this correlation id", max_length = 200),
        ("parentId" = Option<String>, Query, description = "Only parts of this task; only one of `correlationId`, `parentId`, `batchId`, `waitsFor`", format = "uuid"),
        ("batchId" = Option<String>, Query, description = "Only those of this batch", format = "uuid"),
        ("waitsFor" = Option<String>, Query, description = "Only those that wait for this task", format = "uuid"),
        ("status" = Option<String>, Query, description = "Only in these, separated by commas", pattern = "^(PENDING|IN_PROGRESS|SUCCESS|FAILURE|CANCELLED)(,(PENDING|IN_PROGRESS|SUCCESS|FAILURE|CANCELLED))*$"),
        ("from" = Option<String>, Query, description = "Submitted at this time or later", format = "date-time"),
        ("before" = Option<String>, Query, description = "Submitted before this time", format = "date-time"),
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<AdminTaskPage>), Refusals))]
pub(crate) async fn list_tasks(State(app): State<App>, RawQuery(query): RawQuery) -> Answer<AdminTaskPage> {
    let known: Vec<&str> = ["service", "clientId", "batchId", "waitsFor"].into_iter().chain(LISTING).collect();
    let query = Query::parse(query.as_deref(), &known)?;
    let (tasks, next_cursor) =
        app.engine.admin_list(query.get("service"), query.get("clientId"), query.listing()?).await?;
    answer(AdminTaskPage { tasks, next_cursor })
}

/// One task
#[utoipa::path(get, path = "/admin/tasks/{taskId}", operation_id = "getAnyTask",
    tag = "Operators", security(("admin" = []), ()),
    params(("taskId" = String, Path, description = "The task's public name", format = "uuid")),
    responses((status = 200, description = "The task", body = Success<AdminTaskView>), Refusals))]
pub(crate) async fn show_task(State(app): State<App>, Path(task_id): Path<String>) -> Answer<AdminTaskView> {
    answer(app.engine.admin_task(parse_task_id(&task_id)?).await?)
}

/// Cancel a task
#[utoipa::path(delete, path = "/admin/tasks/{taskId}", operation_id = "cancelAnyTask",
    tag = "Operators", security(("admin" = []), ()),
    params(("taskId" = String, Path, description = "The task's public name", format = "uuid")),
    responses((status = 200, description = "The task, CANCELLED", body = Success<AdminTaskView>), Refusals))]
pub(crate) async fn cancel_task(By(operator): By, Path(task_id): Path<String>) -> Answer<AdminTaskView> {
    answer(operator.cancel_task(parse_task_id(&task_id)?).await?)
}

/// Do a task once more
///
/// One that has ended begins anew, with all its retries; one that is to start later comes into its queue now.
#[utoipa::path(post, path = "/admin/tasks/{taskId}/retry", operation_id = "retryAnyTask",
    tag = "Operators", security(("admin" = []), ()),
    params(("taskId" = String, Path, description = "The task's public name", format = "uuid")),
    responses((status = 200, description = "The task, PENDING", body = Success<AdminTaskView>), Refusals))]
pub(crate) async fn retry_task(By(operator): By, Path(task_id): Path<String>) -> Answer<AdminTaskView> {
    answer(operator.retry_task(parse_task_id(&task_id)?).await?)
}

/// Do many tasks once more
///
/// Those that are named, or those that match, a batch of 500 at a time: `nextCursor` of one answer is `cursor` of the next.
/// With `dryRun`, only counts.
#[utoipa::path(post, path = "/admin/tasks/retry", operation_id = "retryTasks",
    tag = "Operators", security(("admin" = []), ()),
    request_body = TasksRequest,
    responses((status = 200, description = "How many", body = Success<RetryAnswer>), Refusals))]
pub(crate) async fn retry_tasks(State(app): State<App>, By(operator): By, request: Request) -> Answer<RetryAnswer> {
    let asked: TasksRequest = app.json(request).await?;
    let done = operator.retry_tasks(Selection::of(&asked)?, asked.dry_run).await?;
    answer(RetryAnswer { retried: done.changed, passed_over: done.passed_over, next_cursor: done.next_cursor })
}

/// Give many tasks up
///
/// Those that are named, or those that match, a batch of 500 at a time: `nextCursor` of one answer is `cursor` of the next.
/// With `dryRun`, only counts.
#[utoipa::path(post, path = "/admin/tasks/cancel", operation_id = "cancelTasks",
    tag = "Operators", security(("admin" = []), ()),
    request_body = TasksRequest,
    responses((status = 200, description = "How many", body = Success<CancelAnswer>), Refusals))]
pub(crate) async fn cancel_tasks(State(app): State<App>, By(operator): By, request: Request) -> Answer<CancelAnswer> {
    let asked: TasksRequest = app.json(request).await?;
    let done = operator.cancel_tasks(Selection::of(&asked)?, asked.dry_run).await?;
    answer(CancelAnswer { cancelled: done.changed, passed_over: done.passed_over, next_cursor: done.next_cursor })
}

/// The workers that are known of
///
/// Those that have tasks, and those that wait for some, or did lately, at whatever process; those of other processes as these
/// told of them in the last seconds.
#[utoipa::path(get, path = "/admin/workers", operation_id = "listWorkers",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of services and hosts", body = Success<WorkerStates>), Refusals))]
pub(crate) async fn list_workers(State(app): State<App>) -> Answer<WorkerStates> {
    answer(WorkerStates { workers: app.engine.workers().await? })
}

/// Who did what
///
/// All that operators did, over this API, in the dashboard or by a file, the newest first.
#[utoipa::path(get, path = "/admin/audit", operation_id = "listAuditEntries",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<AuditLog>), Refusals))]
pub(crate) async fn audit(State(app): State<App>, RawQuery(query): RawQuery) -> Answer<AuditLog> {
    let query = Query::parse(query.as_deref(), &["limit", "cursor"])?;
    answer(app.engine.list_audit(query.cursor()?.as_deref(), query.limit()?).await?)
}
