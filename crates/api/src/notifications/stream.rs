//! The links of web pages as server-sent events and by long-poll, and the renewal of their tokens.

use axum::{
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use bytes::Bytes;
use futures::stream;
use relais_http::{Handover, Peer, sse::byte_stream};
use relais_notify::wire::{PollAnswer, PolledEvent};
use relais_protocol::{ErrorNumber, Success};
use std::time::Duration;
use uuid::Uuid;

use super::User;
use crate::{
    App,
    admin::{Answer, answer},
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// The longest wait of a poll, unless all waits are shorter.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Follow notifications
///
/// Server-sent events: `hello` with the link's id, then `notification`, `withdrawn`, `acknowledged`, `audiences`, `gap` and `bye`.
/// The `id` of an event is a cursor: `Last-Event-ID` resumes after it, across all of the user's audiences, on any instance. If
/// what came since is not known any more, the stream says `gap`; read the list then.
#[utoipa::path(get, path = "/v1/notifications/stream", operation_id = "followNotifications",
    tag = "Notifications", security(("user" = [])),
    params(
        ("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last event that was seen"),
        ("lastEventId" = Option<String>, Query, description = "The same, where no header can be sent"),
        ("ticket" = Option<String>, Query, description = "A ticket, where no header can be sent"),
    ),
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = PolledEvent), Refusals))]
pub(crate) async fn stream(
    State(app): State<App>,
    User(identity): User,
    peer: Option<axum::Extension<Peer>>,
    handover: Option<axum::Extension<Handover>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = Query::parse(query.as_deref(), &["lastEventId", "ticket"])?;
    let header = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let cursor = header.filter(|cursor| !cursor.is_empty()).or_else(|| query.get("lastEventId"));
    let address = peer.map(|axum::Extension(peer)| peer.address());
    let link = app.notifications()?.open_link(identity, cursor, address).await?;
    let events = stream::unfold(link, |mut link| async move {
        let frames = link.next().await?;
        let written = match &frames[..] {
            // As a rule it is one, which all links share.
            [frame] => Bytes::from_owner(frame.sse()),
            frames => frames.iter().flat_map(|frame| frame.sse().to_vec()).collect(),
        };
        Some((written, link))
    });
    Ok(byte_stream(events, handover.as_deref()))
}

/// Ask for notifications
///
/// What has come after a cursor, for networks that hold streams back. Without `after` it answers at once with the present cursor.
#[utoipa::path(get, path = "/v1/notifications/poll", operation_id = "getNotificationEvents",
    tag = "Notifications", security(("user" = [])),
    params(
        ("after" = Option<String>, Query, description = "The cursor of the answer before"),
        ("wait" = Option<String>, Query, description = "How long to wait if there is nothing, such as `30s`; at most `60s`"),
        ("ticket" = Option<String>, Query, description = "A ticket, where no header can be sent"),
    ),
    responses((status = 200, description = "Events, perhaps none", body = Success<PollAnswer>), Refusals))]
pub(crate) async fn poll(
    State(app): State<App>,
    User(identity): User,
    peer: Option<axum::Extension<Peer>>,
    RawQuery(query): RawQuery,
) -> Answer<PollAnswer> {
    let query = Query::parse(query.as_deref(), &["after", "wait", "ticket"])?;
    let wait = query.duration("wait", MAX_WAIT.min(app.options.max_wait))?.unwrap_or_default();
    let address = peer.map(|axum::Extension(peer)| peer.address());
    let (frames, cursor) = app.notifications()?.poll(identity, query.get("after"), wait, address).await?;
    let events = frames.iter().map(|frame| {
        let data = serde_json::value::RawValue::from_string(frame.data.clone()).unwrap_or_default();
        PolledEvent { event: frame.event.as_str().to_owned(), id: frame.cursor.clone(), data }
    });
    answer(PollAnswer { events: events.collect(), cursor })
}

/// Renew the token of a link
///
/// The bearer is the new token, of the same user. The open link lives on until that one expires.
#[utoipa::path(post, path = "/v1/notifications/links/{link}/token", operation_id = "changeLinkToken",
    tag = "Notifications", security(("user" = [])),
    params(("link" = String, Path, description = "The link's id, as `hello` says it", format = "uuid")),
    responses((status = 204, description = "The link goes on"), Refusals))]
pub(crate) async fn renew(
    State(app): State<App>,
    User(identity): User,
    Path(link): Path<String>,
) -> Result<StatusCode, ApiError> {
    let unknown = || ApiError::new(ErrorNumber::LinkNotFound);
    let link = link.parse::<Uuid>().map_err(|_| unknown())?;
    app.notifications()?.renew_link(link, &identity).map_err(|_| unknown())?;
    Ok(StatusCode::NO_CONTENT)
}
