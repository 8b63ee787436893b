//! Routes of clients that emit: messages, their errors, and tickets for users.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
    http::{HeaderMap, StatusCode},
};
use relais_core::{Client, NotificationRights};
use relais_notify::{
    AckStatus, AudienceKey, Identity, NotificationDraft, NotificationFilter, NotifyError,
    wire::{EmitAnswer, EmittedId, EmittedIds, NotificationView, NotificationViews, TicketAnswer, TicketRequest},
};
use relais_protocol::{ErrorNumber, HumanDuration, Success};
use uuid::Uuid;

use crate::{
    App,
    access::Caller,
    admin::{Answer, answer},
    body::parse,
    consumer::idempotency_key,
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// The most messages in one call.
const MOST: usize = 1000;

/// The refusal of a right that the client has not.
pub(super) fn lacks(right: &str, kind: &str) -> ApiError {
    ApiError::at(
        ErrorNumber::Forbidden,
        "",
        format!("the client has not the right `{right}` for audiences of type {kind}"),
    )
}

fn may_emit(client: &Client, draft: &NotificationDraft) -> Result<(), ApiError> {
    let kind = &draft.routing.audience.kind;
    let rights: &NotificationRights = &client.notifications;
    if rights.may_emit(kind) { Ok(()) } else { Err(lacks("emit", kind)) }
}

/// Emit notifications
///
/// One message, or a list of at most 1,000. All are checked before any is stored. A message whose id is known, or a call whose
/// `Idempotency-Key` is, is answered like the first time and stored once. Needs the right `emit` for the type of audience.
#[utoipa::path(post, path = "/v1/notifications", operation_id = "publishNotifications",
    tag = "Notifications", security(("basic" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes it safe to repeat the call")),
    request_body(content = NotificationDraft, description = "A message, or a list of them"),
    responses((status = 201, description = "They are stored", body = Success<EmitAnswer>), Refusals))]
pub(crate) async fn emit(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    request: Request,
) -> Result<(StatusCode, Json<Success<EmitAnswer>>), ApiError> {
    let client = app.client(&caller).await?;
    let notifications = app.notifications()?;
    let key = idempotency_key(&headers)?;
    let bytes = app.body(request).await?;
    let is_list = bytes.trim_ascii_start().starts_with(b"[");
    let drafts = if is_list { read_list(&bytes)? } else { vec![parse(&bytes)?] };
    for (number, draft) in drafts.iter().enumerate() {
        may_emit(&client, draft)
            .map_err(|refused| if is_list { refused.within(&format!("/{number}")) } else { refused })?;
    }
    let emitted = notifications.emit(drafts, Some(client.client_id.as_str()), key.as_deref()).await;
    let mut ids = emitted.map_err(|error| if is_list { error.into() } else { of_the_only_one(error) })?;
    let answered = match is_list {
        true => EmitAnswer::Many(EmittedIds { ids }),
        false => EmitAnswer::One(EmittedId { id: ids.pop().unwrap_or_default() }),
    };
    Ok((StatusCode::CREATED, Json(Success::new(answered))))
}

/// The refusal of a message that is in no list: it has no number there.
pub(super) fn of_the_only_one(error: NotifyError) -> ApiError {
    let mut refused = ApiError::from(error);
    refused.details.iter_mut().for_each(|detail| detail.path = detail.path.replacen("/0", "", 1));
    refused
}

fn read_list(bytes: &[u8]) -> Result<Vec<NotificationDraft>, ApiError> {
    // Each by itself, so that what is wrong has a place.
    let raw: Vec<Box<serde_json::value::RawValue>> = serde_json::from_slice(bytes)
        .map_err(|error| ApiError::at(ErrorNumber::MalformedJson, "", error.to_string()))?;
    if raw.is_empty() || raw.len() > MOST {
        return Err(ApiError::at(ErrorNumber::InvalidRequest, "", format!("a list has 1 to {MOST} messages")));
    }
    let read = raw.iter().enumerate();
    read.map(|(number, raw)| parse(raw.get().as_bytes()).map_err(|refused| refused.within(&format!("/{number}"))))
        .collect()
}

/// Replace a notification
///
/// The message is withdrawn, and this one takes its place. Pages that show it are told.
#[utoipa::path(put, path = "/v1/notifications/{id}", operation_id = "putNotification",
    tag = "Notifications", security(("basic" = [])),
    params(("id" = String, Path, description = "The message's id", format = "uuid")),
    request_body = NotificationDraft,
    responses((status = 200, description = "The id of the new message", body = Success<EmittedId>), Refusals))]
pub(crate) async fn replace(
    State(app): State<App>,
    Path(id): Path<String>,
    caller: Caller,
    request: Request,
) -> Answer<EmittedId> {
    let client = app.client(&caller).await?;
    let notifications = app.notifications()?;
    let draft: NotificationDraft = app.json(request).await?;
    may_emit(&client, &draft)?;
    let new = notifications.replace(notification_id(&id)?, Some(client.client_id.as_str()), draft).await?;
    answer(EmittedId { id: new })
}

/// Withdraw a notification
///
/// It is not sent any more, and pages that show it are told. Only messages of the client itself.
#[utoipa::path(delete, path = "/v1/notifications/{id}", operation_id = "deleteNotification",
    tag = "Notifications", security(("basic" = [])),
    params(("id" = String, Path, description = "The message's id", format = "uuid")),
    responses((status = 200, description = "It is withdrawn", body = Success<EmittedId>), Refusals))]
pub(crate) async fn withdraw(State(app): State<App>, Path(id): Path<String>, caller: Caller) -> Answer<EmittedId> {
    let client = app.client(&caller).await?;
    let id = notification_id(&id)?;
    app.notifications()?.withdraw(id, Some(client.client_id.as_str())).await?;
    answer(EmittedId { id })
}

/// Your notifications that were not acknowledged
///
/// Messages of the client that were sent as often as their limit allows, the newest first, each with who has not acknowledged.
#[utoipa::path(get, path = "/v1/notifications/errors", operation_id = "listNotificationErrors",
    tag = "Notifications", security(("basic" = [])),
    params(
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("before" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Success<NotificationViews>), Refusals))]
pub(crate) async fn errors(
    State(app): State<App>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Answer<NotificationViews> {
    let client = app.client(&caller).await?;
    let query = Query::parse(query.as_deref(), &["limit", "before"])?;
    let filter = NotificationFilter {
        client: Some(client.client_id.as_str().to_owned()),
        status: Some(AckStatus::Failed),
        before: before(&query)?,
        limit: query.limit()?,
    };
    page(&app, filter, true).await
}

/// A page of messages, perhaps with their ledgers.
pub(super) async fn page(app: &App, filter: NotificationFilter, ledger: bool) -> Answer<NotificationViews> {
    let notifications = app.notifications()?;
    let limit = filter.limit;
    let found = notifications.list_notifications(filter).await?;
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.position.to_string());
    let mut views = Vec::with_capacity(found.len());
    for stored in found {
        let lines = match ledger {
            true => Some(notifications.find_notification(stored.notification.metadata.id).await?.1),
            false => None,
        };
        views.push(NotificationView::new(stored, lines));
    }
    answer(NotificationViews { notifications: views, next })
}

pub(super) fn before(query: &Query) -> Result<Option<u64>, ApiError> {
    let Some(text) = query.get("before") else { return Ok(None) };
    let wrong = || ApiError::at(ErrorNumber::InvalidParameter, "before", "must be one that an answer gave as next");
    text.parse().map(Some).map_err(|_| wrong())
}

pub(super) fn notification_id(text: &str) -> Result<Uuid, ApiError> {
    text.parse().map_err(|_| ApiError::new(ErrorNumber::NotificationNotFound))
}

/// Ask for a ticket
///
/// A ticket proves to Relais who a web page's user is. A backend asks for it on behalf of the user. It is reusable until it
/// expires. Needs the right `ticket`.
#[utoipa::path(post, path = "/v1/notifications/tickets", operation_id = "createNotificationTicket",
    tag = "Notifications", security(("basic" = [])), request_body = TicketRequest,
    responses((status = 201, description = "The ticket", body = Success<TicketAnswer>), Refusals))]
pub(crate) async fn ticket(
    State(app): State<App>,
    caller: Caller,
    request: Request,
) -> Result<(StatusCode, [(&'static str, &'static str); 1], Json<Success<TicketAnswer>>), ApiError> {
    let client = app.client(&caller).await?;
    let notifications = app.notifications()?;
    if !client.notifications.may_issue_tickets() {
        return Err(ApiError::at(ErrorNumber::Forbidden, "", "the client has not the right `ticket`"));
    }
    let TicketRequest { user, audiences, ttl } = app.json(request).await?;
    if let Some(kind) = audiences.keys().find(|kind| !client.notifications.may_name_in_ticket(kind)) {
        return Err(lacks("ticket", kind));
    }
    let invalid = |path: &str, why: String| ApiError::at(ErrorNumber::InvalidRequest, path, why);
    let ttl = ttl.map(|text| text.parse::<HumanDuration>().map_err(|error| invalid("/ttl", error.to_string())));
    let ttl = ttl.transpose()?.map(|duration| duration.0);
    let keys =
        audiences.iter().flat_map(|(kind, targets)| targets.iter().map(move |target| AudienceKey::new(kind, target)));
    let identity = Identity::new(user, keys, None).map_err(|error| invalid("", error.to_string()))?;
    let (ticket, expires) = notifications.issue_ticket(&identity, ttl).await?;
    Ok((StatusCode::CREATED, [("cache-control", "no-store")], Json(Success::new(TicketAnswer { ticket, expires }))))
}
