//! From a typed handler to one that takes and gives JSON, and that can not fail other than with a message.
//!
//! A panic, a body of another shape and a result that is not JSON are failures of that one task. None of them ends the
//! worker.

use std::{any::Any, error::Error, fmt, fmt::Display, panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};

use crate::{Context, outbox::Verdict};

/// Why a handler could not do its task. Any error becomes one with `?`, and its message names the errors behind it.
///
/// A handler may return any other error type that can be shown, too.
pub struct HandlerError(Box<dyn Error + Send + Sync>);

impl HandlerError {
    /// An error that is just a message.
    pub fn new(message: impl Display) -> Self {
        Self(message.to_string().into())
    }
}

// Not an `Error` itself: that would stand in the way of this conversion.
impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A handler whose types are forgotten.
pub(crate) type Handler = Arc<dyn Fn(Box<RawValue>, Context) -> BoxFuture<'static, Verdict> + Send + Sync>;

/// Wraps a typed handler.
pub(crate) fn erase<B, R, E, H, F>(handler: H) -> Handler
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

async fn call<B, R, E, H, F>(handler: &H, body: &RawValue, context: Context) -> Verdict
where
    H: Fn(B, Context) -> F,
    F: Future<Output = Result<R, E>>,
    B: DeserializeOwned,
    R: Serialize,
    E: Display,
{
    let body = match serde_json::from_str(body.get()) {
        Ok(body) => body,
        Err(error) => {
            return Verdict::Failure(format!("the body is not what the handler expects: {error}"));
        }
    };
    match handler(body, context).await {
        Ok(result) => match to_raw_value(&result) {
            Ok(response) => Verdict::Success(response),
            Err(error) => Verdict::Failure(format!("the handler's result can not be written as JSON: {error}")),
        },
        // The alternate form shows what is behind an `anyhow::Error`, and changes nothing for most others.
        Err(error) => Verdict::Failure(format!("{error:#}")),
    }
}

fn panicked(payload: Box<dyn Any + Send>) -> Verdict {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "no message",
    };
    Verdict::Failure(format!("the handler panicked: {text}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::slots::TaskKey;

    async fn run(handler: Handler, body: &str) -> Result<String, String> {
        let key = TaskKey { task_id: "t".into(), attempt: Some(1) };
        let context = Context::new(key, None, CancellationToken::new(), Arc::default());
        match handler(RawValue::from_string(body.to_owned()).unwrap(), context).await {
            Verdict::Success(response) => Ok(response.get().to_owned()),
            Verdict::Failure(message) => Err(message),
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
    async fn an_error_is_told_with_what_is_behind_it() {
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
}
