//! Converts a typed handler to one that takes and returns JSON, and that fails only with a message.
//!
//! A panic, a body of another shape and a result that is not JSON fail only that task. None of them ends the worker.

use std::{any::Any, error::Error, fmt, fmt::Display, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};

use crate::Context;

/// Why a handler could not do its task. Any error becomes one with `?`, and its message names the errors behind it.
///
/// A handler may return any other error type that can be shown, too. What only this one can say: whether trying again
/// may help, what kind of error it is, where it happened, and that the task is to be [given back](Self::again) instead
/// of failed.
pub struct HandlerError {
    error: Box<dyn Error + Send + Sync>,
    retryable: Option<bool>,
    kind: Option<String>,
    trace: Option<String>,
    retry_after: Option<Duration>,
    again: bool,
}

impl HandlerError {
    /// An error that is just a message. Whether the task is tried again is up to its service.
    pub fn new(message: impl Display) -> Self {
        Self::of(message.to_string().into())
    }

    /// An error that no other try would get around.
    pub fn permanent(message: impl Display) -> Self {
        Self::new(message).retryable(false)
    }

    /// It can not be done now, but it is no failure: the task is given back, and handed out again to whoever is there.
    ///
    /// Not at once: the worker holds it for half a second first, twice as long every time the same task comes back, up
    /// to half a minute. Its slot is taken meanwhile.
    pub fn again(message: impl Display) -> Self {
        Self { again: true, ..Self::new(message) }
    }

    /// Whether another try may help.
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = Some(retryable);
        self
    }

    /// What kind of error it is: a word for programs, `errorKind` on the wire.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Where it happened, for people: a [`Backtrace`](std::backtrace::Backtrace), say; `errorTrace` on the wire. Kept
    /// with the attempt.
    pub fn trace(mut self, trace: impl Display) -> Self {
        self.trace = Some(trace.to_string());
        self
    }

    /// How long to wait before the next try, if the service's policy has one.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    fn of(error: Box<dyn Error + Send + Sync>) -> Self {
        Self { error, retryable: None, kind: None, trace: None, retry_after: None, again: false }
    }
}

// Not an `Error` itself: that would stand in the way of this conversion.
impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::of(Box::new(error))
    }
}

impl Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        let mut source = self.error.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

/// How a task ended.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// With this result.
    Success(Box<RawValue>),
    /// Badly.
    Failure(Failure),
}

/// Why a task could not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The reason, for people.
    pub message: String,
    /// Whether trying again may help, where that is known.
    pub retryable: Option<bool>,
    /// A word for programs.
    pub kind: Option<String>,
    /// Where it happened, where that is known.
    pub trace: Option<String>,
    /// How long to wait before it is tried again, if it is.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of which nothing is known but its message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryable: None, kind: None, trace: None, retry_after: None }
    }
}

/// What came of running a handler.
#[derive(Debug)]
pub enum Return {
    /// The task has ended.
    Ended(Verdict),
    /// The task is to be given back, for this reason.
    Again(String),
}

impl Return {
    fn failure(kind: &str, retryable: Option<bool>, message: String) -> Self {
        Self::Ended(Verdict::Failure(Failure { retryable, kind: Some(kind.to_owned()), ..Failure::new(message) }))
    }
}

/// A handler whose types are forgotten.
pub type Handler = Arc<dyn Fn(Box<RawValue>, Context) -> BoxFuture<'static, Return> + Send + Sync>;

/// Wraps a typed handler.
pub fn erase<B, R, E, H, F>(handler: H) -> Handler
where
    H: Fn(B, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<R, E>> + Send + 'static,
    B: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
    E: Display + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |body, context| {
        let handler = handler.clone();
        // The call itself can panic too, not only the future that it returns: both are inside.
        let work = async move { call(&*handler, &body, context).await };
        AssertUnwindSafe(work).catch_unwind().map(|ended| ended.unwrap_or_else(panicked)).boxed()
    })
}

async fn call<B, R, E, H, F>(handler: &H, body: &RawValue, context: Context) -> Return
where
    H: Fn(B, Context) -> F,
    F: Future<Output = Result<R, E>>,
    B: DeserializeOwned,
    R: Serialize,
    E: Display + 'static,
{
    let body = match serde_json::from_str(body.get()) {
        Ok(body) => body,
        Err(error) => {
            let message = format!("the body is not what the handler expects: {error}");
            return Return::failure("body", Some(false), message);
        }
    };
    match handler(body, context).await {
        Ok(result) => match to_raw_value(&result) {
            Ok(response) => Return::Ended(Verdict::Success(response)),
            Err(error) => {
                Return::failure("result", None, format!("the handler's result can not be written as JSON: {error}"))
            }
        },
        Err(error) => failed(&error),
    }
}

fn failed<E: Display + 'static>(error: &E) -> Return {
    // The alternate form shows what is behind an `anyhow::Error`, and changes nothing for most others.
    let message = format!("{error:#}");
    match (error as &dyn Any).downcast_ref::<HandlerError>() {
        Some(error) if error.again => Return::Again(message),
        Some(error) => Return::Ended(Verdict::Failure(Failure {
            message,
            retryable: error.retryable,
            kind: error.kind.clone(),
            trace: error.trace.clone(),
            retry_after: error.retry_after,
        })),
        None => Return::Ended(Verdict::Failure(Failure::new(message))),
    }
}

fn panicked(payload: Box<dyn Any + Send>) -> Return {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "no message",
    };
    Return::failure("panic", None, format!("the handler panicked: {text}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::Known;

    async fn returned(handler: Handler, body: &str) -> Return {
        let context = Context::new(Known::default(), CancellationToken::new(), Arc::new(|_| ()));
        handler(RawValue::from_string(body.to_owned()).unwrap(), context).await
    }

    async fn run(handler: Handler, body: &str) -> Result<String, String> {
        match returned(handler, body).await {
            Return::Ended(Verdict::Success(response)) => Ok(response.get().to_owned()),
            Return::Ended(Verdict::Failure(failure)) => Err(failure.message),
            Return::Again(why) => panic!("to be given back: {why}"),
        }
    }

    #[tokio::test]
    async fn a_typed_handler_takes_and_gives_json() {
        let handler = erase(async |numbers: BTreeMap<String, u32>, context: Context| {
            context.progress(50.0);
            Ok::<_, HandlerError>(numbers.values().sum::<u32>())
        });
        assert_eq!(run(handler, r#"{"a":1,"b":2}"#).await, Ok("3".to_owned()));
    }

    #[tokio::test]
    async fn a_body_of_another_shape_fails_the_task_and_says_why() {
        let handler = erase(async |_: BTreeMap<String, u32>, _: Context| Ok::<_, HandlerError>(()));
        assert_eq!(
            run(handler, r#"{"a":"x"}"#).await.unwrap_err(),
            "the body is not what the handler expects: invalid type: string \"x\", expected u32 at line 1 column 8"
        );
    }

    #[tokio::test]
    async fn a_panic_fails_the_task_and_says_why() {
        async fn in_the_future(_: (), _: Context) -> Result<(), HandlerError> {
            panic!("no paper")
        }
        fn in_the_call(_: (), _: Context) -> BoxFuture<'static, Result<(), HandlerError>> {
            panic!("no {}", "ink")
        }
        assert_eq!(run(erase(in_the_future), "null").await.unwrap_err(), "the handler panicked: no paper");
        assert_eq!(run(erase(in_the_call), "null").await.unwrap_err(), "the handler panicked: no ink");
    }

    #[tokio::test]
    async fn an_error_is_reported_with_its_sources() {
        async fn handler(_: (), _: Context) -> Result<(), HandlerError> {
            #[derive(Debug, thiserror::Error)]
            #[error("failed to read the number")]
            struct Outer(#[from] std::num::ParseIntError);
            "x".parse::<u32>().map_err(Outer)?;
            Ok(())
        }
        assert_eq!(
            run(erase(handler), "null").await.unwrap_err(),
            "failed to read the number: invalid digit found in string"
        );
    }

    #[tokio::test]
    async fn a_result_that_is_not_json_fails_the_task() {
        let handler = erase(async |_: (), _: Context| Ok::<_, HandlerError>(BTreeMap::from([((1, 2), 3)])));
        assert!(run(handler, "null").await.unwrap_err().starts_with("the handler's result can not be written as JSON"));
    }

    #[tokio::test]
    async fn an_error_carries_its_retry_its_kind_and_its_trace() {
        async fn of(error: fn() -> HandlerError) -> Failure {
            match returned(erase(move |(), _| async move { Err::<(), _>(error()) }), "null").await {
                Return::Ended(Verdict::Failure(failure)) => failure,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(of(|| HandlerError::new("no")).await, Failure::new("no"));
        assert_eq!(of(|| HandlerError::permanent("no")).await.retryable, Some(false));
        let failure = of(|| HandlerError::from(std::fmt::Error).retryable(true).kind("ink").trace("tray 2")).await;
        let (kind, trace) = (failure.kind.as_deref(), failure.trace.as_deref());
        assert_eq!((failure.retryable, kind, trace), (Some(true), Some("ink"), Some("tray 2")));
    }

    #[tokio::test]
    async fn an_error_can_ask_for_a_retry_at_another_time() {
        let handler = erase(async |_: (), _: Context| Err::<(), _>(HandlerError::again("no paper yet")));
        assert!(matches!(returned(handler, "null").await, Return::Again(why) if why == "no paper yet"));
    }
}
