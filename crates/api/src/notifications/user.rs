//! Routes of users: their list, their counts, and what they acknowledge.

use axum::extract::{RawQuery, Request, State};
use relais_notify::{
    AckChoice, ListFilter, NotifyError,
    wire::{AckAnswer, AckRequest, CountsView, UserNotification, UserNotifications},
};
use relais_protocol::{ErrorNumber, Success};

use super::{
    User,
    emit::{before, notification_id},
};
use crate::{
    App,
    admin::{Answer, answer},
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// The most messages that are acknowledged by name at once.
const MOST: usize = 1000;

/// A user's notifications
///
/// The newest first, with exact counts. What has expired or was withdrawn is not there.
#[utoipa::path(get, path = "/v1/notifications", operation_id = "listNotifications",
    tag = "Notifications", security(("user" = [])),
    params(
        ("filter" = Option<String>, Query, description = "`all` if absent", pattern = "^(unread|unacknowledged|all)$"),
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
        ("before" = Option<String>, Query, description = "`next` of the page before"),
        ("ticket" = Option<String>, Query, description = "A ticket, where no header can be sent"),
    ),
    responses((status = 200, description = "A page", body = Success<UserNotifications>), Refusals))]
pub(crate) async fn list(
    State(app): State<App>,
    User(identity): User,
    RawQuery(query): RawQuery,
) -> Answer<UserNotifications> {
    let query = Query::parse(query.as_deref(), &["filter", "limit", "before", "ticket"])?;
    let filter = match query.get("filter") {
        None | Some("all") => ListFilter::All,
        Some("unread") => ListFilter::Unread,
        Some("unacknowledged") => ListFilter::Unacknowledged,
        Some(_) => {
            let message = "must be unread, unacknowledged or all";
            return Err(ApiError::at(ErrorNumber::InvalidParameter, "filter", message));
        }
    };
    let page = app.notifications()?.list(&identity, filter, before(&query)?, query.limit()?).await?;
    let listed = page.notifications.into_iter().map(|listed| {
        let kind = relais_notify::EntryKind::Replayed { attempts: listed.stored.attempts };
        UserNotification { message: listed.stored.as_sent(kind), acknowledged: listed.acknowledged }
    });
    answer(UserNotifications {
        notifications: listed.collect(),
        counts: page.counts.into(),
        cursor: page.cursor,
        next: page.next.map(|position| position.to_string()),
    })
}

/// How many notifications a user has
#[utoipa::path(get, path = "/v1/notifications/counts", operation_id = "getNotificationCounts",
    tag = "Notifications", security(("user" = [])),
    params(("ticket" = Option<String>, Query, description = "A ticket, where no header can be sent")),
    responses((status = 200, description = "The counts", body = Success<CountsView>), Refusals))]
pub(crate) async fn counts(State(app): State<App>, User(identity): User) -> Answer<CountsView> {
    answer(app.notifications()?.counts(&identity).await?.into())
}

/// Acknowledge notifications
///
/// On any device. What the user does not see is passed over. The user's other links are told.
#[utoipa::path(post, path = "/v1/notifications/ack", operation_id = "reportNotificationsSeen",
    tag = "Notifications", security(("user" = [])), request_body = AckRequest,
    responses((status = 200, description = "What was new, and the counts", body = Success<AckAnswer>), Refusals))]
pub(crate) async fn acknowledge(State(app): State<App>, User(identity): User, request: Request) -> Answer<AckAnswer> {
    let notifications = app.notifications()?;
    let AckRequest { ids, all } = app.json(request).await?;
    if ids.is_empty() != all || ids.len() > MOST {
        let message = format!("name 1 to {MOST} `ids`, or say `all`");
        return Err(ApiError::at(ErrorNumber::InvalidRequest, "", message));
    }
    let choice = if all { AckChoice::All } else { AckChoice::These(ids) };
    let (acknowledged, counts) = notifications.acknowledge(&identity, choice).await?;
    answer(AckAnswer { acknowledged: acknowledged.new.len(), counts: counts.into() })
}

/// Acknowledge a notification
#[utoipa::path(post, path = "/v1/notifications/{id}/ack", operation_id = "reportNotificationSeen",
    tag = "Notifications", security(("user" = [])),
    params(("id" = String, Path, description = "The message's id", format = "uuid")),
    responses((status = 200, description = "Whether it was new, and the counts", body = Success<AckAnswer>), Refusals))]
pub(crate) async fn acknowledge_one(
    State(app): State<App>,
    User(identity): User,
    Path(id): Path<String>,
) -> Answer<AckAnswer> {
    let notifications = app.notifications()?;
    let choice = AckChoice::These(vec![notification_id(&id)?]);
    let (acknowledged, counts) = notifications.acknowledge(&identity, choice).await?;
    if acknowledged.new.is_empty() && acknowledged.known.is_empty() {
        return Err(NotifyError::NotFound.into());
    }
    answer(AckAnswer { acknowledged: acknowledged.new.len(), counts: counts.into() })
}
