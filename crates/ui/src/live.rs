//! Tells a page that it may have changed. The page then asks for itself again; nothing else is sent.

use std::{convert::Infallible, time::Duration};

use axum::{
    http::HeaderValue,
    response::{
        IntoResponse as _,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::stream;
use relais_core::TaskId;
use relais_engine::LiveTopic;

use crate::{
    error::{Answer, Explained as _},
    form::Query,
    gate::Visitor,
};

/// So often is a line sent that says nothing, so that proxies do not take a quiet connection for a dead one.
const KEEP_ALIVE: Duration = Duration::from_secs(25);

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
        live.changed().await.then_some((Ok::<_, Infallible>(event), live))
    });
    let begun = stream::iter([Ok(Event::default().comment("live"))]);
    let stream = futures::StreamExt::chain(begun, changes);
    let mut response = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Proxies that gather answers before passing them on would gather this one for ever.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}
