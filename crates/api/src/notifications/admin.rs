//! Routes of operators: messages with their ledgers, links, members.

use axum::extract::{RawQuery, State};
use relais_notify::{
    AckStatus, AudienceKey, NotificationFilter,
    wire::{EmittedId, LinkView, LinkViews, MembersPage, NotificationView, NotificationViews},
};
use relais_protocol::{ErrorNumber, Success};

use super::emit::{before, notification_id, page};
use crate::{
    App,
    admin::{Answer, answer},
    admin_guard::By,
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// Notifications
///
/// The newest first. `status=FAILED` is the error log.
#[utoipa::path(get, path = "/admin/notifications", operation_id = "listAllNotifications",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("status" = Option<String>, Query, description = "Only in this one", pattern = "^(OPEN|ACKNOWLEDGED|FAILED|EXPIRED|WITHDRAWN)$"),
        ("clientId" = Option<String>, Query, description = "Only of this client"),
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("before" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<NotificationViews>), Refusals))]
pub(crate) async fn list(State(app): State<App>, RawQuery(query): RawQuery) -> Answer<NotificationViews> {
    let query = Query::parse(query.as_deref(), &["status", "clientId", "limit", "before"])?;
    let status = query.get("status").map(|name| {
        AckStatus::parse(name).ok_or_else(|| {
            let message = "must be OPEN, ACKNOWLEDGED, FAILED, EXPIRED or WITHDRAWN";
            ApiError::at(ErrorNumber::InvalidParameter, "status", message)
        })
    });
    let filter = NotificationFilter {
        client: query.get("clientId").map(str::to_owned),
        status: status.transpose()?,
        before: before(&query)?,
        limit: query.limit()?,
    };
    page(&app, filter, false).await
}

/// One notification, with who has seen it
#[utoipa::path(get, path = "/admin/notifications/{id}", operation_id = "getNotification",
    tag = "Operators", security(("admin" = []), ()),
    params(("id" = String, Path, description = "The message's id", format = "uuid")),
    responses((status = 200, description = "The message and its ledger", body = Success<NotificationView>), Refusals))]
pub(crate) async fn show(State(app): State<App>, Path(id): Path<String>) -> Answer<NotificationView> {
    let (stored, ledger) = app.notifications()?.find_notification(notification_id(&id)?).await?;
    answer(NotificationView::new(stored, Some(ledger)))
}

/// Send a notification of the error log again
#[utoipa::path(post, path = "/admin/notifications/{id}/resend", operation_id = "retryNotification",
    tag = "Operators", security(("admin" = []), ()),
    params(("id" = String, Path, description = "The message's id", format = "uuid")),
    responses((status = 200, description = "It is sent to those who have not acknowledged", body = Success<EmittedId>), Refusals))]
pub(crate) async fn resend(State(app): State<App>, By(operator): By, Path(id): Path<String>) -> Answer<EmittedId> {
    let id = notification_id(&id)?;
    let resent = app.notifications()?.resend(id, None);
    operator.act_elsewhere("notification.resend", &id.to_string(), resent).await??;
    answer(EmittedId { id })
}

/// Withdraw any notification
#[utoipa::path(delete, path = "/admin/notifications/{id}", operation_id = "cancelNotification",
    tag = "Operators", security(("admin" = []), ()),
    params(("id" = String, Path, description = "The message's id", format = "uuid")),
    responses((status = 200, description = "It is withdrawn", body = Success<EmittedId>), Refusals))]
pub(crate) async fn withdraw(State(app): State<App>, By(operator): By, Path(id): Path<String>) -> Answer<EmittedId> {
    let id = notification_id(&id)?;
    let withdrawn = app.notifications()?.withdraw(id, None);
    operator.act_elsewhere("notification.withdraw", &id.to_string(), withdrawn).await??;
    answer(EmittedId { id })
}

/// The links of this process
#[utoipa::path(get, path = "/admin/notification-links", operation_id = "listNotificationLinks",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "The links", body = Success<LinkViews>), Refusals))]
pub(crate) async fn links(State(app): State<App>) -> Answer<LinkViews> {
    answer(LinkViews { links: app.notifications()?.links().into_iter().map(LinkView::from).collect() })
}

/// The members of any audience
#[utoipa::path(get, path = "/admin/audiences/{type}/{target}/members", operation_id = "listMembers",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("type" = String, Path, description = "The type of audience"),
        ("target" = String, Path, description = "The target"),
        ("limit" = Option<u32>, Query, description = "At most so many; 1,000 if absent", minimum = 1, maximum = 10000),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "In the order of their names", body = Success<MembersPage>), Refusals))]
pub(crate) async fn members(
    State(app): State<App>,
    Path((kind, target)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<MembersPage> {
    app.members_page(AudienceKey { kind, target }, query.as_deref()).await
}
