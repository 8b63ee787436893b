//! What went wrong with Redis, and whether that may pass.

use redis::{ErrorKind, RedisError};
use relais_core::StoreError;

/// Why there can be no log.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRedis {
    /// The URL can not be used.
    #[error("the URL of the Redis server is not acceptable: {0}")]
    Url(#[source] RedisError),
    /// The prefix can not be used.
    #[error("the prefix of the keys must not be empty, and have no braces, spaces or control characters")]
    Prefix,
}

/// The code with which scripts say that there is no log.
pub(crate) const GONE: &str = "GONE";

/// The server is there but can not do it for now, whatever it is; or it is not there.
fn is_passing(error: &RedisError) -> bool {
    match error.code() {
        None => error.kind() == ErrorKind::Io || is_refusal(error),
        Some(code) => {
            is_refusal(error)
                || matches!(
                    code,
                    "LOADING"
                        | "MASTERDOWN"
                        | "READONLY"
                        | "MOVED"
                        | "ASK"
                        | "CLUSTERDOWN"
                        | "TRYAGAIN"
                        | "BUSY"
                        | "NOREPLICAS"
                        | "OOM"
                        | "MISCONF"
                        | GONE
                )
        }
    }
}

/// The server does not accept who speaks to it, or what is asked of it. An operator must do something.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig)
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
}

/// Whether waiting does not help: the server is there, and refuses.
pub(crate) fn is_refused(error: &StoreError) -> bool {
    match error {
        StoreError::Unavailable(cause) => cause.downcast_ref::<RedisError>().is_some_and(is_refusal),
        _ => true,
    }
}

/// Whether another connection may do better: to the server that took over, or to this one when it is there again.
pub(crate) fn is_of_connection(error: &RedisError) -> bool {
    is_passing(error) && !matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "TRYAGAIN" | GONE))
}

pub(crate) fn store_error(error: RedisError) -> StoreError {
    if is_passing(&error) { StoreError::Unavailable(error.into()) } else { StoreError::Failed(error.into()) }
}

/// What is stored is not what this driver writes.
pub(crate) fn corrupt(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Failed(why.into())
}

/// Others were always quicker.
pub(crate) fn changed_meanwhile() -> StoreError {
    StoreError::Unavailable("what was to be changed was changed by others again and again".into())
}
