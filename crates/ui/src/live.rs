//! Tells a page that it may have changed. The page then asks for itself again; nothing else is sent.

use std::time::Duration;

use axum::extract::State;
use futures::{Stream, stream};
use relais_core::TaskId;
use relais_engine::LiveTopic;
use relais_http::sse::{Event, event_stream};
use relais_notify::Notifications;
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    Ui,
    error::{Answer, Explained as _},
    form::Query,
    gate::Visitor,
};

/// Pages of notifications are told of a change at most this often.
const PACE: Duration = Duration::from_secs(1);

/// They are told so often although nothing was heard of: what goes to the error log has no entry in the log.
const ANYWAY: Duration = Duration::from_secs(30);

/// An event for each change, at most one a second.
pub(crate) async fn stream(visitor: Visitor, State(ui): State<Ui>, Query(query): Query) -> Answer {
    if let (Some("notifications"), Some(notifications)) = (query.get("topic"), &ui.options.notifications) {
        return Ok(event_stream(changes_of(notifications.clone())));
    }
    let topic = match query.get("topic").unwrap_or_default() {
        "tasks" => LiveTopic::Tasks,
        "declared" => LiveTopic::Declared,
        other => other.strip_prefix("task:").and_then(TaskId::parse).map_or(LiveTopic::Anything, LiveTopic::Task),
    };
    let live = visitor.operator.engine().live(topic).await.or_explain(&visitor)?;
    let changes = stream::unfold(live, |mut live| async move { live.changed().await.then_some((changed(), live)) });
    Ok(event_stream(changes))
}

fn changed() -> Event {
    Event::default().event("changed").data("changed")
}

/// An event when the log of notifications has grown, or when links were opened or closed.
fn changes_of(notifications: Notifications) -> impl Stream<Item = Event> + Send {
    let (log, links) = (notifications.follow_log_position(), notifications.link_count());
    let seen = (*log.borrow(), links);
    stream::unfold((notifications, log, seen, Instant::now()), |(notifications, mut log, mut seen, told)| async move {
        let news = async {
            loop {
                // The reader of the log speaks up at each of its rounds, whether it has found something or not.
                match timeout(ANYWAY, log.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return false,
                    Err(_) => return true,
                }
                let now = (*log.borrow_and_update(), notifications.link_count());
                if std::mem::replace(&mut seen, now) != now || told.elapsed() >= ANYWAY {
                    return true;
                }
            }
        };
        let is_news = tokio::select! {
            is_news = news => is_news,
            () = notifications.stopped() => false,
        };
        if !is_news {
            return None;
        }
        tokio::select! {
            () = sleep_until(told + PACE) => {}
            () = notifications.stopped() => return None,
        }
        Some((changed(), (notifications, log, seen, Instant::now())))
    })
}
