//! The stream of one task as server-sent events.
//!
//! Each event carries the whole view, so that a reader that missed some needs only the newest. The `id` is the task's
//! revision. A reader that reconnects with `Last-Event-ID` gets the current state if it is newer.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use futures::{Stream, stream};
use relais_core::{Role, Status, Task};
use relais_engine::{Engine, Following};
use relais_http::sse::{Event, event_stream};
use utoipa::ToSchema;

use crate::{App, access::Caller, consumer::parse_task_id, error::ApiError, openapi::Refusals, path::Path};

/// One event of the stream.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only described: the fields are written by the stream itself")]
pub(crate) struct StreamedEvent {
    /// What changed: `status`, `progress` or `position`.
    #[schema(pattern = "^(status|progress|position)$", example = "status")]
    event: String,
    /// The task's revision, for `Last-Event-ID`.
    #[schema(pattern = "^[0-9]+$", example = "3")]
    id: String,
    /// The poll's `data`, as JSON.
    data: String,
}

/// Follow a task
///
/// Server-sent events: `status` when the status changes, `progress` when only the progress does, `position` when only the
/// place in the queue does. Each has the poll's `data` as its data. The stream ends with the final status. Changes that
/// come faster than they can be sent are sent as one.
#[utoipa::path(get, path = "/v1/services/{service}/tasks/{taskId}/events", operation_id = "followTask",
    tag = "Consumers", security(("basic" = [])),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("taskId" = String, Path, description = "The task's public name", format = "uuid"),
        ("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last event that was seen"),
    ),
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = StreamedEvent),
        (status = 204, description = "The final status was seen: nothing will follow"), Refusals))]
pub(crate) async fn follow_task(
    State(app): State<App>,
    Path((service, task_id)): Path<(String, String)>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let access = app.access(&caller, &service, Role::Consume).await?;
    let following = app.engine.follow(&access, parse_task_id(&task_id)?).await?;
    // An id that was never given says nothing about what was seen.
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let seen = seen.filter(|id| *id <= following.task.state.revision);
    if following.task.state.status.is_final() && seen == Some(following.task.state.revision) {
        // Nothing will ever follow; an empty stream would make a browser ask again and again.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(event_stream(events(app.engine, following, seen)))
}

/// What was sent last.
struct Sent {
    status: Option<Status>,
    revision: Option<u64>,
}

fn events(engine: Engine, following: Following, seen: Option<u64>) -> impl Stream<Item = Event> {
    // Who has seen the present state knows its status, and waits for the next change.
    let known = (seen == Some(following.task.state.revision)).then_some(following.task.state.status);
    let sent = Sent { status: known, revision: seen };
    stream::unfold((engine, Some(following), sent), |(engine, following, mut sent)| async move {
        let mut following = following?;
        let stopping = engine.stopping();
        if sent.revision == Some(following.task.state.revision) {
            tokio::select! {
                changed = following.changed() => changed.ok()?,
                () = stopping.cancelled() => return None,
            }
        }
        let event = event(&engine, &following.task, &sent);
        sent = Sent { status: Some(following.task.state.status), revision: Some(following.task.state.revision) };
        let going_on = (!following.task.state.status.is_final()).then_some(following);
        Some((event, (engine, going_on, sent)))
    })
}

fn event(engine: &Engine, task: &Task, sent: &Sent) -> Event {
    let name = if sent.status != Some(task.state.status) {
        "status"
    } else if sent.revision != Some(task.state.revision) {
        "progress"
    } else {
        "position"
    };
    let data = serde_json::to_string(&engine.view(task)).unwrap_or_default();
    Event::default().event(name).id(task.state.revision.to_string()).data(data)
}
