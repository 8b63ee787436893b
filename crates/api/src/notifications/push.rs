//! Routes of users for Web Push: the key, their subscriptions, and acknowledging by the token of a push.

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};
use relais_notify::{
    PushError, WebPush,
    wire::{
        PushAckAnswer, PushAckRequest, PushKeyView, PushSubscribed, PushSubscriptionRequest, PushSubscriptionViews,
    },
};
use relais_protocol::{ErrorNumber, Success};

use super::User;
use crate::{
    App,
    admin::{Answer, answer},
    error::ApiError,
    openapi::Refusals,
    path::Path,
};

impl App {
    fn push(&self) -> Result<&WebPush, ApiError> {
        let routes = self.options.notifications.as_ref();
        routes.and_then(|routes| routes.push.as_ref()).ok_or_else(|| ApiError::new(ErrorNumber::PushOff))
    }
}

/// The key that browsers subscribe with
///
/// What a page passes to `pushManager.subscribe` as `applicationServerKey`.
#[utoipa::path(get, path = "/v1/notifications/push/key", operation_id = "getPushKey",
    tag = "Notifications", security(()),
    responses((status = 200, description = "The key", body = Success<PushKeyView>), Refusals))]
pub(crate) async fn key(State(app): State<App>) -> Answer<PushKeyView> {
    answer(PushKeyView { key: app.push()?.public_key()?.to_owned() })
}

/// Subscribe a browser to pushes
///
/// Takes what `PushSubscription.toJSON()` gives in a page. The same again changes nothing; a browser that was another user's is
/// this user's from then on.
#[utoipa::path(post, path = "/v1/notifications/push/subscriptions", operation_id = "createPushSubscription",
    tag = "Notifications", security(("user" = [])), request_body = PushSubscriptionRequest,
    responses((status = 201, description = "It is stored", body = Success<PushSubscribed>), Refusals))]
pub(crate) async fn subscribe(
    State(app): State<App>,
    User(identity): User,
    request: Request,
) -> Result<(StatusCode, Json<Success<PushSubscribed>>), ApiError> {
    let push = app.push()?;
    let PushSubscriptionRequest { endpoint, keys, .. } = app.json(request).await?;
    let id = push.subscribe(&identity, &endpoint, &keys.p256dh, &keys.auth).await?;
    Ok((StatusCode::CREATED, Json(Success::new(PushSubscribed { id }))))
}

/// A user's subscriptions to pushes
///
/// The oldest first.
#[utoipa::path(get, path = "/v1/notifications/push/subscriptions", operation_id = "listPushSubscriptions",
    tag = "Notifications", security(("user" = [])),
    params(("ticket" = Option<String>, Query, description = "A ticket, where no header can be sent")),
    responses((status = 200, description = "The subscriptions", body = Success<PushSubscriptionViews>), Refusals))]
pub(crate) async fn list(State(app): State<App>, User(identity): User) -> Answer<PushSubscriptionViews> {
    let subscriptions = app.push()?.subscriptions(&identity).await?;
    answer(PushSubscriptionViews { subscriptions: subscriptions.into_iter().map(Into::into).collect() })
}

/// Forget a subscription to pushes
#[utoipa::path(delete, path = "/v1/notifications/push/subscriptions/{id}", operation_id = "deletePushSubscription",
    tag = "Notifications", security(("user" = [])),
    params(("id" = String, Path, description = "The subscription's id", format = "uuid")),
    responses((status = 200, description = "It is forgotten", body = Success<PushSubscribed>), Refusals))]
pub(crate) async fn unsubscribe(
    State(app): State<App>,
    User(identity): User,
    Path(id): Path<String>,
) -> Answer<PushSubscribed> {
    let push = app.push()?;
    let id = id.parse().map_err(|_| ApiError::from(PushError::NotFound))?;
    push.unsubscribe(&identity, id).await?;
    answer(PushSubscribed { id })
}

/// Acknowledge by the token of a push
///
/// The token is in the push, and is good for its user and its message, once. Nothing else proves who the user is.
#[utoipa::path(post, path = "/v1/notifications/push/ack", operation_id = "reportPushSeen",
    tag = "Notifications", security(()), request_body = PushAckRequest,
    responses((status = 200, description = "It is acknowledged", body = Success<PushAckAnswer>), Refusals))]
pub(crate) async fn acknowledge(State(app): State<App>, request: Request) -> Answer<PushAckAnswer> {
    let push = app.push()?;
    let PushAckRequest { token } = app.json(request).await?;
    answer(PushAckAnswer { id: push.acknowledge(&token).await? })
}

impl From<PushError> for ApiError {
    fn from(error: PushError) -> Self {
        use ErrorNumber as N;
        match error {
            PushError::Invalid(why) => Self::at(N::InvalidPushSubscription, why.field(), why.to_string()),
            PushError::TooMany(_) => Self::at(N::TooManyPushSubscriptions, "", error.to_string()),
            PushError::Taken => Self::new(N::PushEndpointTaken),
            PushError::NotFound => Self::new(N::PushSubscriptionNotFound),
            PushError::Token(why) => {
                tracing::debug!(error = %why, "a token of a push is refused");
                Self::new(N::InvalidToken)
            }
            PushError::Spent => Self::new(N::PushTokenUsed),
            PushError::Notify(error) => error.into(),
        }
    }
}
