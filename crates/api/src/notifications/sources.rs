//! Routes of operators for notification sources. They are declared like everything else.

use axum::extract::{RawQuery, Request, State};
use relais_engine::ApplyOptions;
use relais_protocol::{
    Success,
    admin::{ApplyReport, Declaration},
    notification_source::{NotificationSourceDeclaration, NotificationSourceState, NotificationSourceStates},
};

use crate::{
    App,
    admin::{Answer, answer, same},
    admin_guard::By,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// The notification sources, as their processes last reported
#[utoipa::path(get, path = "/admin/notification-sources", operation_id = "listNotificationSources",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their names", body = Success<NotificationSourceStates>), Refusals))]
pub(crate) async fn list(State(app): State<App>) -> Answer<NotificationSourceStates> {
    answer(NotificationSourceStates { notification_sources: app.engine.notification_source_states().await? })
}

/// One notification source
#[utoipa::path(get, path = "/admin/notification-sources/{source}", operation_id = "getNotificationSource",
    tag = "Operators", security(("admin" = []), ()),
    params(("source" = String, Path, description = "The source's name")),
    responses((status = 200, description = "The source", body = Success<NotificationSourceState>), Refusals))]
pub(crate) async fn show(State(app): State<App>, Path(source): Path<String>) -> Answer<NotificationSourceState> {
    answer(app.engine.notification_source_state(&source).await?)
}

/// Declare a notification source
///
/// Creates it, or makes it like this: what is absent gets its default, but for `paused`. Events that happen from then on become
/// notifications.
#[utoipa::path(put, path = "/admin/notification-sources/{source}", operation_id = "putNotificationSource",
    tag = "Operators", security(("admin" = []), ()),
    params(("source" = String, Path, description = "The source's name")),
    request_body = NotificationSourceDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put(
    State(app): State<App>,
    By(operator): By,
    Path(source): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Answer<ApplyReport> {
    Query::parse(query.as_deref(), &[])?;
    let declared: NotificationSourceDeclaration = app.json(request).await?;
    same(&source, &declared.source_name, "/sourceName")?;
    let declaration = Declaration { notification_sources: vec![declared], ..Declaration::default() };
    answer(operator.apply_with(declaration, ApplyOptions::default()).await?)
}

/// Delete a notification source
///
/// Its notifications stay.
#[utoipa::path(delete, path = "/admin/notification-sources/{source}", operation_id = "deleteNotificationSource",
    tag = "Operators", security(("admin" = []), ()),
    params(("source" = String, Path, description = "The source's name")),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete(By(operator): By, Path(source): Path<String>) -> Answer<ApplyReport> {
    answer(operator.delete_notification_source(&source).await?)
}

/// Pause a notification source
///
/// What happens until it is resumed does not become notifications, then or later.
#[utoipa::path(post, path = "/admin/notification-sources/{source}/pause", operation_id = "pauseNotificationSource",
    tag = "Operators", security(("admin" = []), ()),
    params(("source" = String, Path, description = "The source's name")),
    responses((status = 200, description = "The source", body = Success<NotificationSourceState>), Refusals))]
pub(crate) async fn pause(By(operator): By, Path(source): Path<String>) -> Answer<NotificationSourceState> {
    answer(operator.pause_notification_source(&source, true).await?)
}

/// Resume a notification source
#[utoipa::path(post, path = "/admin/notification-sources/{source}/resume", operation_id = "resumeNotificationSource",
    tag = "Operators", security(("admin" = []), ()),
    params(("source" = String, Path, description = "The source's name")),
    responses((status = 200, description = "The source", body = Success<NotificationSourceState>), Refusals))]
pub(crate) async fn resume(By(operator): By, Path(source): Path<String>) -> Answer<NotificationSourceState> {
    answer(operator.pause_notification_source(&source, false).await?)
}
