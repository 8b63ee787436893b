//! The errors of use cases. They know nothing of HTTP: the API gives each its number.

use std::sync::Arc;

use relais_core::{Status, StoreError, TaskBrokerError};

use crate::OperatorRole;

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, as a JSON pointer into the request; empty for the whole of it.
    pub path: String,
    /// The problem.
    pub message: String,
}

impl Problem {
    /// Something wrong at a place.
    pub fn at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// Why a use case failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// Unknown client, wrong secret, or no such role on the service.
    #[error("forbidden")]
    Forbidden,
    /// An operator with a lower role than this.
    #[error("the role {0} is needed")]
    NotAllowed(OperatorRole),
    /// No such service.
    #[error("service not found")]
    ServiceNotFound,
    /// No such task, or a task of another client.
    #[error("task not found")]
    TaskNotFound,
    /// No such client.
    #[error("client not found")]
    ClientNotFound,
    /// No such authorization.
    #[error("authorization not found")]
    AuthorizationNotFound,
    /// No such callback.
    #[error("callback not found")]
    CallbackNotFound,
    /// No such dead letter.
    #[error("dead letter not found")]
    DeadLetterNotFound,
    /// No such schedule.
    #[error("schedule not found")]
    ScheduleNotFound,
    /// No such capture.
    #[error("capture not found")]
    CaptureNotFound,
    /// The database of a capture can not be asked, and why.
    #[error("the captured database is unavailable: {0}")]
    CaptureUnavailable(String),
    /// No such notification source.
    #[error("notification source not found")]
    NotificationSourceNotFound,
    /// No such audience is declared.
    #[error("audience not found")]
    AudienceNotFound,
    /// No such outbox.
    #[error("outbox not found")]
    OutboxNotFound,
    /// The database of an outbox can not be asked, and why.
    #[error("the outbox's database is unavailable: {0}")]
    OutboxUnavailable(String),
    /// No such instance.
    #[error("instance not found")]
    InstanceNotFound,
    /// No such batch, or a batch of another client.
    #[error("batch not found")]
    BatchNotFound,
    /// The batch is closed.
    #[error("the batch is closed")]
    BatchClosed,
    /// A dependency does not exist, or belongs to another client; and where in the request it is named.
    #[error("a task to wait for was not found")]
    PrerequisiteNotFound(String),
    /// The parent does not exist, or the caller neither submitted it nor runs it.
    #[error("parent task not found")]
    ParentNotFound,
    /// A batch was refused because of this task of it.
    #[error("task {0} of the batch: {1}")]
    InBatch(usize, #[source] Box<EngineError>),
    /// The broker failed.
    #[error("{0}")]
    Broker(TaskBrokerError),
    /// The body does not conform to the service's schema.
    #[error("the body does not conform to the service's schema")]
    SchemaMismatch(Vec<Problem>),
    /// A number of the body is too long to be validated.
    #[error("a number has too many digits: {0}")]
    NumberTooLong(String),
    /// The validation of the body timed out.
    #[error("judging the body took too long")]
    ValidationTimeout,
    /// Too many bodies wait for validation.
    #[error("too much is waiting to be validated")]
    ValidationBusy,
    /// Too many secrets wait to be checked.
    #[error("too many secrets are waiting to be checked")]
    TooManyChecks,
    /// The request is invalid.
    #[error("invalid request")]
    Invalid(Vec<Problem>),
    /// The JSON is nested too deeply.
    #[error("nested too deeply")]
    TooDeep,
    /// There is no such kind of callback.
    #[error("unknown callback type")]
    UnknownCallbackType(String),
    /// The target of the callback is forbidden.
    #[error("callback URL not allowed: {0}")]
    CallbackUrlNotAllowed(String),
    /// The service has as many pending tasks as it may have.
    #[error("the service's capacity is reached")]
    ServiceFull,
    /// The client has as many pending tasks on the service as it may have.
    #[error("the client's capacity is reached")]
    ClientFull,
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// The task has already ended otherwise.
    #[error("the task has ended ({})", .0.as_str())]
    Ended(Status),
    /// What was declared is not valid.
    #[error("invalid declaration")]
    InvalidDeclaration(Vec<Problem>),
    /// The change contradicts what is there.
    #[error("{0}")]
    Conflict(String),
    /// Too many calls are waiting.
    #[error("too much is waiting")]
    Overloaded,
    /// The process is stopping.
    #[error("stopping")]
    Stopping,
    /// The process is starting.
    #[error("not ready yet: {0}")]
    NotReady(String),
    /// The event bus failed.
    #[error("the event bus could not do it")]
    Bus(#[source] Arc<relais_bus::BusError>),
    /// The store failed.
    #[error("the store could not do it")]
    Store(#[source] Arc<StoreError>),
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict(why) => Self::Conflict(why),
            other => Self::Store(Arc::new(other)),
        }
    }
}

/// An error with all that caused it, for a log.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl relais_group_commit::BatchError for EngineError {
    fn overloaded() -> Self {
        Self::Overloaded
    }

    fn stopping() -> Self {
        Self::Stopping
    }
}
