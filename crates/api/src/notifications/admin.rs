//! Routes of operators: messages with their ledgers, links, members.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
    http::StatusCode,
};
use relais_notify::{
    AckChoice, AckStatus, AudienceKey, Identity, MembersChange, NotificationDraft, NotificationFilter, NotifyError,
    wire::{
        AckAnswer, AckForRequest, EmittedId, LinkView, LinkViews, MembersAnswer, MembersPage, MembersRequest,
        NotificationView, NotificationViews,
    },
};
use relais_protocol::{ErrorNumber, Success};
use uuid::Uuid;

use super::emit::{before, notification_id, of_the_only_one, page};
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
        ("ledger" = Option<bool>, Query, description = "Each with who has seen it"),
    ),
    responses((status = 200, description = "A page", body = Success<NotificationViews>), Refusals))]
pub(crate) async fn list(State(app): State<App>, RawQuery(query): RawQuery) -> Answer<NotificationViews> {
    let query = Query::parse(query.as_deref(), &["status", "clientId", "limit", "before", "ledger"])?;
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
    page(&app, filter, query.boolean("ledger")?).await
}

/// Emit a notification as an operator
///
/// Its emitter is the operator, unless it says another. A message whose id is known is answered like the first time and stored
/// once.
#[utoipa::path(post, path = "/admin/notifications", operation_id = "publishNotificationAsOperator",
    tag = "Operators", security(("admin" = []), ()), request_body = NotificationDraft,
    responses((status = 201, description = "It is stored", body = Success<EmittedId>), Refusals))]
pub(crate) async fn emit(
    State(app): State<App>,
    By(operator): By,
    request: Request,
) -> Result<(StatusCode, Json<Success<EmittedId>>), ApiError> {
    let notifications = app.notifications()?;
    let mut draft: NotificationDraft = app.json(request).await?;
    let id = *draft.metadata.id.get_or_insert_with(Uuid::now_v7);
    draft.metadata.emitter.get_or_insert_with(|| operator.actor().name.clone());
    let emitted = notifications.emit(vec![draft], None, None);
    operator.act_elsewhere("notification.emit", &id.to_string(), emitted).await?.map_err(of_the_only_one)?;
    Ok((StatusCode::CREATED, Json(Success::new(EmittedId { id }))))
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

/// Acknowledge a notification on behalf of a user
///
/// The user's links are told. A user who belongs to the audience only by a token is not known here, and does not see the message.
#[utoipa::path(post, path = "/admin/notifications/{id}/ack", operation_id = "reportNotificationSeenBy",
    tag = "Operators", security(("admin" = []), ()), request_body = AckForRequest,
    params(("id" = String, Path, description = "The message's id", format = "uuid")),
    responses((status = 200, description = "Whether it was new, and the user's counts", body = Success<AckAnswer>), Refusals))]
pub(crate) async fn acknowledge(
    State(app): State<App>,
    By(operator): By,
    Path(id): Path<String>,
    request: Request,
) -> Answer<AckAnswer> {
    let notifications = app.notifications()?;
    let id = notification_id(&id)?;
    let AckForRequest { user } = app.json(request).await?;
    let target = format!("{id}/{user}");
    let identity = Identity::new(user, [], None)
        .map_err(|error| ApiError::at(ErrorNumber::InvalidRequest, "/user", error.to_string()))?;
    let acknowledged = async {
        let (acknowledged, counts) = notifications.acknowledge(&identity, AckChoice::These(vec![id])).await?;
        match acknowledged.new.is_empty() && acknowledged.known.is_empty() {
            true => Err(NotifyError::NotFound),
            false => Ok(AckAnswer { acknowledged: acknowledged.new.len(), counts: counts.into() }),
        }
    };
    answer(operator.act_elsewhere("notification.ack", &target, acknowledged).await??)
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

/// Set the members of any audience
///
/// It has exactly these from now on.
#[utoipa::path(put, path = "/admin/audiences/{type}/{target}/members", operation_id = "putMembers",
    tag = "Operators", security(("admin" = []), ()),
    params(("type" = String, Path, description = "The type of audience"), ("target" = String, Path, description = "The target")),
    request_body = MembersRequest,
    responses((status = 200, description = "What has changed", body = Success<MembersAnswer>), Refusals))]
pub(crate) async fn set_members(
    State(app): State<App>,
    By(operator): By,
    Path((kind, target)): Path<(String, String)>,
    request: Request,
) -> Answer<MembersAnswer> {
    let members = app.members(request).await?;
    app.change_any_audience(&operator, AudienceKey { kind, target }, MembersChange::Set(members)).await
}

/// Add members to any audience
#[utoipa::path(post, path = "/admin/audiences/{type}/{target}/members", operation_id = "changeMembers",
    tag = "Operators", security(("admin" = []), ()),
    params(("type" = String, Path, description = "The type of audience"), ("target" = String, Path, description = "The target")),
    request_body = MembersRequest,
    responses((status = 200, description = "What has changed", body = Success<MembersAnswer>), Refusals))]
pub(crate) async fn add_members(
    State(app): State<App>,
    By(operator): By,
    Path((kind, target)): Path<(String, String)>,
    request: Request,
) -> Answer<MembersAnswer> {
    let members = app.members(request).await?;
    app.change_any_audience(&operator, AudienceKey { kind, target }, MembersChange::Add(members)).await
}

/// Remove a member from any audience
#[utoipa::path(delete, path = "/admin/audiences/{type}/{target}/members/{memberType}/{member}",
    operation_id = "deleteMember", tag = "Operators", security(("admin" = []), ()),
    params(
        ("type" = String, Path, description = "The type of audience"),
        ("target" = String, Path, description = "The target"),
        ("memberType" = String, Path, description = "`USER`, or another type"),
        ("member" = String, Path, description = "The user, or the target"),
    ),
    responses((status = 200, description = "What has changed", body = Success<MembersAnswer>), Refusals))]
pub(crate) async fn remove_member(
    State(app): State<App>,
    By(operator): By,
    Path((kind, target, member_kind, member)): Path<(String, String, String, String)>,
) -> Answer<MembersAnswer> {
    let change = MembersChange::Remove(vec![AudienceKey::new(member_kind, member)]);
    app.change_any_audience(&operator, AudienceKey { kind, target }, change).await
}
