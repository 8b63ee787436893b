//! Tells a page that it may have changed. The page then asks for itself again; nothing else is sent.

use futures::stream;
use relais_core::TaskId;
use relais_engine::LiveTopic;
use relais_http::sse::{Event, event_stream};

use crate::{
    error::{Answer, Explained as _},
    form::Query,
    gate::Visitor,
};

/// An event for each change, at most one a second.
pub(crate) async fn stream(visitor: Visitor, Query(query): Query) -> Answer {
    let topic = match query.get("topic").unwrap_or_default() {
        "tasks" => LiveTopic::Tasks,
        "declared" => LiveTopic::Declared,
        other => other.strip_prefix("task:").and_then(TaskId::parse).map_or(LiveTopic::Anything, LiveTopic::Task),
    };
    let live = visitor.operator.engine().live(topic).await.or_explain(&visitor)?;
    let changes = stream::unfold(live, |mut live| async move {
        let event = Event::default().event("changed").data("changed");
        live.changed().await.then_some((event, live))
    });
    Ok(event_stream(changes))
}
