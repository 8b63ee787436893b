//! Routes of operators for the event bus: its state, following it, publishing on it.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
    response::Response,
};
use futures::{Stream, stream};
use relais_bus::Subscription;
use relais_engine::{Engine, EngineError};
use relais_http::sse::{Event, event_stream};
use relais_protocol::{
    ErrorNumber, Success,
    events::{
        EventBusStats, EventChannels, EventSubscriptions, PublishAnswer, PublishRequest, StreamedEvent as FollowedEvent,
    },
};

use crate::{App, admin_guard::By, error::ApiError, openapi::Refusals, query::Query};

type Answer<T> = Result<Json<Success<T>>, ApiError>;

/// What is followed unless the request says otherwise.
const ALL_TASKS: &str = "task.>";

/// The most patterns of one request.
const MOST_PATTERNS: usize = 100;

/// The event bus of this process
#[utoipa::path(get, path = "/admin/eventbus/stats", operation_id = "getEventBusStats",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "Its state and its counts", body = Success<EventBusStats>), Refusals))]
pub(crate) async fn stats(State(app): State<App>) -> Answer<EventBusStats> {
    Ok(Json(Success::new(app.engine.event_bus_stats())))
}

/// The channels of the event bus
///
/// As this process has seen them: published to by it, or followed in it.
#[utoipa::path(get, path = "/admin/eventbus/channels", operation_id = "listEventChannels",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their names", body = Success<EventChannels>), Refusals))]
pub(crate) async fn channels(State(app): State<App>) -> Answer<EventChannels> {
    Ok(Json(Success::new(EventChannels { channels: app.engine.event_channels() })))
}

/// The subscriptions of the event bus in this process
#[utoipa::path(get, path = "/admin/eventbus/subscriptions", operation_id = "listEventSubscriptions",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "The oldest first", body = Success<EventSubscriptions>), Refusals))]
pub(crate) async fn subscriptions(State(app): State<App>) -> Answer<EventSubscriptions> {
    Ok(Json(Success::new(EventSubscriptions { subscriptions: app.engine.event_subscriptions() })))
}

/// Publish an event
///
/// On any channel but those that begin with `relais.`, `dlq.` or `$`. Answered when it is known what became of it.
#[utoipa::path(post, path = "/admin/eventbus/publish", operation_id = "publishEvent",
    tag = "Operators", security(("admin" = []), ()),
    request_body = PublishRequest,
    responses((status = 200, description = "What became of it", body = Success<PublishAnswer>), Refusals))]
pub(crate) async fn publish(State(app): State<App>, By(operator): By, request: Request) -> Answer<PublishAnswer> {
    let PublishRequest { channel, payload } = app.json(request).await?;
    Ok(Json(Success::new(operator.publish_event(&channel, payload).await?)))
}

/// Follow the event bus
///
/// Server-sent events, each with one event of the bus as its data. `task.<service>.<what happened>` tells what becomes of
/// tasks: `submitted`, `started`, `progress`, `returned`, `success`, `failure`, `cancelled`; dots in a service's name
/// are tildes there. `*` stands for one word, `>` for the rest.
///
/// A reader that does not keep up loses events, and is told how many by an event `dropped` (`{"dropped":3}`). When the
/// server loses its connection to the other processes, and when it has it back, an event `bus` says so.
#[utoipa::path(get, path = "/admin/events", operation_id = "followEvents",
    tag = "Operators", security(("admin" = []), ()),
    params(("channel" = Option<Vec<String>>, Query, explode, description = "Channels or patterns, one each time; `task.>` if absent", max_items = 100)),
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = FollowedEvent), Refusals))]
pub(crate) async fn follow(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let mut patterns = Query::list(query.as_deref(), "channel", MOST_PATTERNS)?;
    if patterns.is_empty() {
        patterns.push(ALL_TASKS.to_owned());
    }
    let followed = app.engine.follow_bus(&patterns).await.map_err(|error| match error {
        EngineError::Invalid(problems) => {
            ApiError { number: ErrorNumber::InvalidParameter, ..ApiError::from(EngineError::Invalid(problems)) }
        }
        error => error.into(),
    })?;
    Ok(event_stream(events(&app.engine, followed)))
}

fn events(engine: &Engine, followed: Subscription) -> impl Stream<Item = Event> + use<> {
    let stopping = engine.stopping();
    stream::unfold((followed, 0), move |(mut followed, told)| {
        let stopping = stopping.clone();
        async move {
            let dropped = followed.dropped();
            if dropped > told {
                let event = Event::default().event("dropped").data(format!(r#"{{"dropped":{}}}"#, dropped - told));
                return Some((event, (followed, dropped)));
            }
            let event = tokio::select! {
                event = followed.recv() => event?,
                () = stopping.cancelled() => return None,
            };
            let shown = Event::default().id(event.id.to_string());
            let shown = if event.channel.starts_with('$') { shown.event("bus") } else { shown };
            // An event that came over a transport is JSON already; one of this process may be of any type.
            let shown = match event.to_json() {
                Ok(text) => shown.data(text),
                Err(error) => shown.event("unreadable").data(error.to_string()),
            };
            Some((shown, (followed, told)))
        }
    })
}
