//! The links of web pages as WebSockets: the same events as on a stream, and the page may acknowledge over it.

use axum::{
    extract::{
        RawQuery, State,
        ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::{HeaderMap, header},
    response::Response,
};
use futures::{SinkExt as _, StreamExt as _, stream::SplitSink};
use relais_http::{Peer, sse::HEARTBEAT};
use relais_notify::{AckChoice, Notifications, OpenLink};
use relais_protocol::ErrorNumber;
use serde::Deserialize;
use uuid::Uuid;

use super::User;
use crate::{App, error::ApiError, openapi::Refusals, query::Query};

/// Comes with each ping, every [`HEARTBEAT`]: a page does not see pings, and could not tell a quiet link from a dead one.
const HEARTBEAT_FRAME: &str = r#"{"event":"heartbeat","data":{}}"#;

/// What a page may say at once, in bytes.
const LARGEST: usize = 64 * 1024;

/// What a page says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    /// The user has seen these.
    #[serde(default)]
    ack: Vec<Uuid>,
    /// The link goes on under this token.
    token: Option<String>,
}

/// Follow notifications over a WebSocket
///
/// Text frames `{"event", "id", "data"}`, with the events of the stream, and `heartbeat` every 25 s. The page may say `{"ack": [ids]}` and `{"token": "…"}`.
/// Origins are those of CORS.
#[utoipa::path(get, path = "/v1/notifications/socket", operation_id = "followNotificationsOverWebSocket",
    tag = "Notifications", security(("user" = [])),
    params(
        ("lastEventId" = Option<String>, Query, description = "The `id` of the last event that was seen"),
        ("ticket" = Option<String>, Query, description = "A ticket, since browsers send no headers here"),
    ),
    responses((status = 101, description = "The protocol is switched"), Refusals))]
pub(crate) async fn socket(
    State(app): State<App>,
    User(identity): User,
    peer: Option<axum::Extension<Peer>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let query = Query::parse(query.as_deref(), &["lastEventId", "ticket"])?;
    if !is_allowed_origin(&app, &headers) {
        return Err(ApiError::at(ErrorNumber::Forbidden, "", "the origin of the page is not declared"));
    }
    let upgrade = upgrade.map_err(|refused| ApiError::at(ErrorNumber::InvalidHeader, "", refused.body_text()))?;
    let notifications = app.notifications()?.clone();
    let address = peer.map(|axum::Extension(peer)| peer.address());
    let link = notifications.open_link(identity, query.get("lastEventId"), address).await?;
    let upgrade = upgrade.max_message_size(LARGEST).max_frame_size(LARGEST);
    Ok(upgrade.on_upgrade(move |socket| serve(socket, link, notifications)))
}

/// Browsers do not ask CORS for WebSockets: the server must look at the origin itself. Programs send none.
fn is_allowed_origin(app: &App, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok()) else { return true };
    let declared = app.options.notifications.as_ref().map_or(&[][..], |routes| &routes.origins);
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let is_own = host.is_some_and(|host| origin.split_once("://").is_some_and(|(_, named)| named == host));
    is_own || declared.iter().any(|allowed| allowed == "*" || allowed == origin)
}

async fn serve(socket: WebSocket, mut link: OpenLink, notifications: Notifications) {
    let (mut sender, mut receiver) = socket.split();
    let mut ping = tokio::time::interval(HEARTBEAT);
    ping.tick().await;
    // Pings. Who leaves two of them without an answer is gone.
    let mut unanswered = 0;
    loop {
        tokio::select! {
            frames = link.next() => {
                let Some(frames) = frames else { break };
                for frame in frames {
                    if sender.send(Message::text(frame.json())).await.is_err() {
                        return;
                    }
                }
            }
            said = receiver.next() => match said {
                Some(Ok(Message::Text(text))) => {
                    unanswered = 0;
                    if hear(&mut sender, &text, &link, &notifications).await.is_err() {
                        break;
                    }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => unanswered = 0,
                Some(Ok(Message::Binary(_))) => break,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
            _ = ping.tick() => {
                unanswered += 1;
                if unanswered > 2
                    || sender.send(Message::Ping(bytes::Bytes::new())).await.is_err()
                    || sender.send(Message::text(HEARTBEAT_FRAME)).await.is_err()
                {
                    return;
                }
            }
        }
    }
    let _ = sender.send(Message::Close(None)).await;
}

/// Does what the page says; an error ends the link.
async fn hear(
    sender: &mut SplitSink<WebSocket, Message>,
    text: &str,
    link: &OpenLink,
    notifications: &Notifications,
) -> Result<(), ()> {
    let Said { ack, token } = serde_json::from_str(text).map_err(|error| {
        tracing::debug!(%error, "a page said something over its WebSocket that is not understood");
    })?;
    if !ack.is_empty() && notifications.acknowledge(&link.identity(), AckChoice::These(ack)).await.is_err() {
        // The page is not told of success: it acknowledges again.
        let _ = sender.send(Message::text(r#"{"event":"error","data":{"reason":"ack"}}"#)).await;
    }
    if let Some(token) = token {
        let renewed = notifications.identify(&token).await;
        let renewed = renewed.and_then(|new| notifications.renew_link(link.id(), &new));
        if renewed.is_err() {
            let _ = sender.send(Message::text(r#"{"event":"error","data":{"reason":"token"}}"#)).await;
        }
    }
    Ok(())
}
