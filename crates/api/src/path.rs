//! The names in a path. A path that is not UTF-8 is not found.

use axum::{
    extract::{FromRequestParts, path::Path as Segments},
    http::request::Parts,
};
use relais_protocol::ErrorNumber;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// The names in an address, decoded.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Segments::from_request_parts(parts, state).await {
            Ok(Segments(names)) => Ok(Self(names)),
            Err(_) => Err(ApiError::new(ErrorNumber::RouteNotFound)),
        }
    }
}
