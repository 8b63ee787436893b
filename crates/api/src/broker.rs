//! Routes of operators for the broker: its state, dead letters, and publishing tasks again.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
};
use relais_protocol::{
    Success,
    admin::ServiceState,
    broker::{BrokerView, DeadLetterView, DeadLetters, LettersAnswer, LettersRequest},
};

use crate::{App, admin_guard::By, error::ApiError, openapi::Refusals, path::Path, query::Query};

type Answer<T> = Result<Json<Success<T>>, ApiError>;

fn answer<T>(data: T) -> Answer<T> {
    Ok(Json(Success::new(data)))
}

/// How the broker is
#[utoipa::path(get, path = "/admin/broker", operation_id = "getBrokerState",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "Its state, and the services whose tasks it carries", body = Success<BrokerView>), Refusals))]
pub(crate) async fn show(State(app): State<App>) -> Answer<BrokerView> {
    answer(app.engine.broker()?)
}

/// Messages of workers that could not be understood
///
/// They lie in `<queueName>-out.rejected`, the oldest first, until they are replayed or discarded.
#[utoipa::path(get, path = "/admin/deadletters", operation_id = "listDeadLetters",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("service" = Option<String>, Query, description = "Only of this service"),
        ("limit" = Option<u32>, Query, description = "At most so many; 50 if absent", minimum = 1, maximum = 200),
    ),
    responses((status = 200, description = "With the beginning of each message", body = Success<DeadLetters>), Refusals))]
pub(crate) async fn letters(State(app): State<App>, RawQuery(query): RawQuery) -> Answer<DeadLetters> {
    let query = Query::parse(query.as_deref(), &["service", "limit"])?;
    let dead_letters = app.engine.dead_letters(query.get("service"), query.limit()?).await?;
    answer(DeadLetters { dead_letters })
}

/// One message that could not be understood, whole
#[utoipa::path(get, path = "/admin/deadletters/{service}/{letterId}", operation_id = "getDeadLetter",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("service" = String, Path, description = "The service's name"),
        ("letterId" = String, Path, description = "The message's name"),
    ),
    responses((status = 200, description = "The message", body = Success<DeadLetterView>), Refusals))]
pub(crate) async fn letter(
    State(app): State<App>,
    Path((service, id)): Path<(String, String)>,
) -> Answer<DeadLetterView> {
    answer(app.engine.dead_letter(&service, &id).await?)
}

/// Put messages back into `<queueName>-out`, to be understood once more
#[utoipa::path(post, path = "/admin/deadletters/{service}/replay", operation_id = "replayDeadLetters",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    request_body = LettersRequest,
    responses((status = 200, description = "How many", body = Success<LettersAnswer>), Refusals))]
pub(crate) async fn replay(
    State(app): State<App>,
    By(operator): By,
    Path(service): Path<String>,
    request: Request,
) -> Answer<LettersAnswer> {
    let asked: LettersRequest = app.json(request).await?;
    answer(LettersAnswer { count: operator.replay_dead_letters(&service, asked.ids).await? })
}

/// Forget messages that could not be understood
#[utoipa::path(post, path = "/admin/deadletters/{service}/discard", operation_id = "discardDeadLetters",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    request_body = LettersRequest,
    responses((status = 200, description = "How many", body = Success<LettersAnswer>), Refusals))]
pub(crate) async fn discard(
    State(app): State<App>,
    By(operator): By,
    Path(service): Path<String>,
    request: Request,
) -> Answer<LettersAnswer> {
    let asked: LettersRequest = app.json(request).await?;
    answer(LettersAnswer { count: operator.discard_dead_letters(&service, asked.ids).await? })
}

/// Publish a service's unfinished tasks again
///
/// For a broker that has lost them without a trace, e.g. because its queue was purged. Relais notices by itself when a queue
/// is gone. What a worker has is run twice then; at most one result counts.
#[utoipa::path(post, path = "/admin/services/{service}/redispatch", operation_id = "redispatchTasks",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    responses((status = 200, description = "The service", body = Success<ServiceState>), Refusals))]
pub(crate) async fn redispatch(By(operator): By, Path(service): Path<String>) -> Answer<ServiceState> {
    operator.redispatch(&service).await?;
    answer(operator.engine().service_state(&service).await?)
}
