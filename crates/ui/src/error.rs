//! What could not be done, as a page.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use relais_core::StoreError;
use relais_engine::{EngineError, chain};
use relais_notify::NotifyError;

use crate::{
    gate::{Taste, Visitor},
    layout,
    show::fill,
    words::Words,
};

/// What a handler answers.
pub(crate) type Answer = Result<Response, Response>;

/// Says to a visitor why it could not be done. Faults of ours are logged, and only said to be one.
pub(crate) fn explain(visitor: &Visitor, error: EngineError) -> Response {
    let words = visitor.words();
    let (status, text) = match &error {
        EngineError::NotAllowed(role) => {
            (StatusCode::FORBIDDEN, fill(words.not_allowed, &[("role", words.role(*role))]))
        }
        EngineError::ServiceNotFound
        | EngineError::TaskNotFound
        | EngineError::ClientNotFound
        | EngineError::CallbackNotFound
        | EngineError::DeadLetterNotFound
        | EngineError::ScheduleNotFound
        | EngineError::OutboxNotFound
        | EngineError::CaptureNotFound
        | EngineError::NotificationSourceNotFound
        | EngineError::AudienceNotFound
        | EngineError::AuthorizationNotFound => (StatusCode::NOT_FOUND, words.gone.to_owned()),
        EngineError::Store(cause) if matches!(**cause, StoreError::Unavailable(_)) => {
            (StatusCode::SERVICE_UNAVAILABLE, words.store_away.to_owned())
        }
        EngineError::Store(_) => {
            tracing::error!(error = %chain(&error), "a page of the dashboard could not be made");
            (StatusCode::INTERNAL_SERVER_ERROR, words.internal.to_owned())
        }
        EngineError::Broker(why) => (StatusCode::SERVICE_UNAVAILABLE, why.to_string()),
        EngineError::Invalid(problems)
        | EngineError::InvalidDeclaration(problems)
        | EngineError::SchemaMismatch(problems) => {
            let said: Vec<String> =
                problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
            (StatusCode::BAD_REQUEST, said.join("; "))
        }
        EngineError::Ended(_) | EngineError::Conflict(_) => (StatusCode::CONFLICT, error.to_string()),
        EngineError::Overloaded
        | EngineError::Stopping
        | EngineError::NotReady(_)
        | EngineError::OutboxUnavailable(_)
        | EngineError::CaptureUnavailable(_)
        | EngineError::Bus(_) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        other => (StatusCode::BAD_REQUEST, other.to_string()),
    };
    layout::problem(visitor, status, &text)
}

/// Says to a visitor why notifications could not do it.
pub(crate) fn explain_notify(visitor: &Visitor, error: &NotifyError) -> Response {
    let words = visitor.words();
    let (status, text) = match error {
        NotifyError::NotFound => (StatusCode::NOT_FOUND, words.gone.to_owned()),
        NotifyError::Store(cause) if matches!(**cause, StoreError::Unavailable(_)) => {
            (StatusCode::SERVICE_UNAVAILABLE, words.store_away.to_owned())
        }
        NotifyError::Store(_) => {
            tracing::error!(error = %chain(error), "a page of notifications could not be made");
            (StatusCode::INTERNAL_SERVER_ERROR, words.internal.to_owned())
        }
        NotifyError::NoMembers(_) => (StatusCode::BAD_REQUEST, words.no_members.to_owned()),
        NotifyError::Invalid(_, why) => (StatusCode::BAD_REQUEST, why.to_string()),
        NotifyError::Declared(_) => (StatusCode::CONFLICT, error.to_string()),
        NotifyError::State(why) => (StatusCode::CONFLICT, why.to_string()),
        NotifyError::Overloaded | NotifyError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        other => (StatusCode::BAD_REQUEST, other.to_string()),
    };
    layout::problem(visitor, status, &text)
}

/// For the addresses under `/ui` where there is nothing.
pub(crate) async fn nothing_here(visitor: Result<Visitor, Response>, taste: Taste) -> Response {
    let words: &Words = taste.words();
    match visitor {
        Ok(visitor) => layout::problem(&visitor, StatusCode::NOT_FOUND, words.gone),
        Err(response) => response,
    }
}

/// Shows what an engine says, or why it did not.
pub(crate) trait Explained<T> {
    /// The value, or the page that says why there is none.
    fn or_explain(self, visitor: &Visitor) -> Result<T, Response>;
}

impl<T> Explained<T> for Result<T, NotifyError> {
    fn or_explain(self, visitor: &Visitor) -> Result<T, Response> {
        self.map_err(|error| explain_notify(visitor, &error))
    }
}

impl<T> Explained<T> for Result<T, EngineError> {
    fn or_explain(self, visitor: &Visitor) -> Result<T, Response> {
        self.map_err(|error| explain(visitor, error).into_response())
    }
}
