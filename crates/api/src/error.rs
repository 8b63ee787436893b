//! Error numbers: the one place that converts errors of the engine to HTTP.
//!
//! Inside, [`EngineError`] and [`ApiError`] are returned with `?`. Internal errors are logged here with all details,
//! and the caller gets only a general message.

use std::any::Any;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use relais_engine::{EngineError, Problem, chain};
use relais_protocol::{ErrorDetail, ErrorNumber, Failure};

/// A refusal on its way out.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) number: ErrorNumber,
    pub(crate) details: Vec<ErrorDetail>,
    pub(crate) retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(number: ErrorNumber) -> Self {
        Self { number, details: Vec::new(), retry_after: None }
    }

    /// With what exactly is wrong, and where.
    pub(crate) fn at(number: ErrorNumber, path: impl Into<String>, message: impl Into<String>) -> Self {
        let detail = ErrorDetail { path: path.into(), message: message.into() };
        Self { details: vec![detail], ..Self::new(number) }
    }

    /// Of a part of the request: what is wrong is wrong there.
    pub(crate) fn within(mut self, path: &str) -> Self {
        if self.details.is_empty() {
            self.details.push(ErrorDetail { path: String::new(), message: "this one is refused".to_owned() });
        }
        for detail in &mut self.details {
            detail.path.insert_str(0, path);
        }
        self
    }

    /// With seconds after which it may be worth trying again.
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    pub(crate) fn into_failure(self) -> Failure {
        Failure::new(self.number, self.details)
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        use ErrorNumber as N;
        let with = |number, problems: Vec<Problem>| Self {
            details: problems.into_iter().map(|p| ErrorDetail { path: p.path, message: p.message }).collect(),
            ..Self::new(number)
        };
        match error {
            EngineError::Forbidden => Self::new(N::Forbidden),
            EngineError::NotAllowed(role) => Self::at(N::RoleTooLow, "", format!("the role {role} is needed")),
            EngineError::ServiceNotFound => Self::new(N::ServiceNotFound),
            EngineError::TaskNotFound => Self::new(N::TaskNotFound),
            EngineError::ClientNotFound => Self::new(N::ClientNotFound),
            EngineError::AuthorizationNotFound => Self::new(N::AuthorizationNotFound),
            EngineError::CallbackNotFound => Self::new(N::CallbackNotFound),
            EngineError::DeadLetterNotFound => Self::new(N::DeadLetterNotFound),
            EngineError::ScheduleNotFound => Self::new(N::ScheduleNotFound),
            EngineError::CaptureNotFound => Self::new(N::CaptureNotFound),
            EngineError::NotificationSourceNotFound => Self::new(N::NotificationSourceNotFound),
            EngineError::AudienceNotFound => Self::new(N::AudienceNotFound),
            EngineError::CaptureUnavailable(why) => Self::at(N::CaptureUnavailable, "", why).retry_after(5),
            EngineError::OutboxNotFound => Self::new(N::OutboxNotFound),
            EngineError::OutboxUnavailable(why) => Self::at(N::OutboxUnavailable, "", why).retry_after(5),
            EngineError::InstanceNotFound => Self::new(N::InstanceNotFound),
            EngineError::BatchNotFound => Self::new(N::BatchNotFound),
            EngineError::BatchClosed => Self::new(N::BatchClosed),
            EngineError::PrerequisiteNotFound(path) => {
                Self::at(N::PrerequisiteNotFound, path, "none of yours, or refused itself")
            }
            EngineError::ParentNotFound => {
                Self::at(N::ParentNotFound, "/parentId", "neither yours nor one that you are working on")
            }
            EngineError::InBatch(place, error) => Self::from(*error).within(&format!("/tasks/{place}")),
            EngineError::Broker(error) => Self::at(N::BrokerUnavailable, "", error.to_string()).retry_after(5),
            EngineError::SchemaMismatch(problems) => with(N::SchemaMismatch, problems),
            EngineError::NumberTooLong(message) => Self::at(N::NumberTooLong, "", message),
            EngineError::ValidationTimeout => Self::new(N::ValidationTimeout),
            EngineError::ValidationBusy => Self::new(N::ValidationBusy).retry_after(1),
            EngineError::TooManyChecks => Self::new(N::TooManyChecks).retry_after(1),
            EngineError::Invalid(problems) => with(N::InvalidRequest, problems),
            EngineError::TooDeep => Self::new(N::NestedTooDeep),
            EngineError::UnknownCallbackType(kind) => Self::at(
                N::UnknownCallbackType,
                "/callback/type",
                format!("{kind:?} is not a type that this server knows"),
            ),
            EngineError::CallbackUrlNotAllowed(why) => Self::at(N::CallbackUrlNotAllowed, "/callback", why),
            EngineError::ServiceFull => Self::new(N::ServiceFull).retry_after(1),
            EngineError::ClientFull => Self::new(N::ClientFull).retry_after(1),
            EngineError::KeyReused => Self::new(N::IdempotencyKeyReused),
            EngineError::Ended(status) => Self::at(N::TaskEnded, "", format!("its status is {}", status.as_str())),
            EngineError::InvalidDeclaration(problems) => with(N::InvalidDeclaration, problems),
            EngineError::Conflict(why) => Self::at(N::Conflict, "", why),
            EngineError::Overloaded => Self::new(N::Overloaded).retry_after(1),
            EngineError::Stopping => Self::new(N::Stopping).retry_after(1),
            EngineError::NotReady(why) => Self::at(N::NotReady, "", why).retry_after(1),
            EngineError::Bus(_) => {
                tracing::debug!(error = %chain(&error), "the event bus is unavailable");
                Self::new(N::BusUnavailable).retry_after(2)
            }
            EngineError::Store(ref cause) if matches!(**cause, relais_core::StoreError::Unavailable(_)) => {
                tracing::debug!(error = %chain(&error), "the store is unavailable");
                Self::new(N::StoreUnavailable).retry_after(2)
            }
            EngineError::Store(_) => {
                tracing::error!(error = %chain(&error), "the store refused what it was asked");
                Self::new(N::Internal)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.number.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        metrics::counter!("relais_http_refusals_total", "number" => self.number.number().to_string()).increment(1);
        let retry_after = self.retry_after;
        // Where the rest of a request is still on its way, its connection is of no use for another one.
        let closes = matches!(self.number, ErrorNumber::BodyTooLarge | ErrorNumber::RequestTimeout);
        let mut response = (status, Json(self.into_failure())).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

pub(crate) async fn route_not_found() -> ApiError {
    ApiError::new(ErrorNumber::RouteNotFound)
}

pub(crate) async fn method_not_allowed() -> ApiError {
    ApiError::new(ErrorNumber::MethodNotAllowed)
}

pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("something that is not a text");
    tracing::error!(panic = what, "a handler panicked");
    ApiError::new(ErrorNumber::Internal).into_response()
}
