//! Reading JSON bodies: bounded in size and time, and refused with a number.
//!
//! Handlers call this after authentication, never before: strangers must not fill our memory.

use axum::{
    body::Bytes,
    extract::Request,
    http::{HeaderMap, header},
};
use relais_core::MAX_DEPTH;
use relais_http::{BodyError, read_body};
use relais_protocol::ErrorNumber;
use serde::de::DeserializeOwned;

use crate::{App, error::ApiError};

impl App {
    /// The bytes of a JSON body.
    pub(crate) async fn body(&self, request: Request) -> Result<Bytes, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::new(ErrorNumber::WrongContentType));
        }
        let most = self.options.max_body_bytes;
        read_body(request.into_body(), most, self.options.request_timeout).await.map_err(|error| match error {
            BodyError::TooLarge => {
                ApiError::at(ErrorNumber::BodyTooLarge, "", format!("at most {most} bytes are taken"))
            }
            BodyError::TimedOut => ApiError::new(ErrorNumber::RequestTimeout),
            BodyError::Broken(error) => ApiError::at(ErrorNumber::MalformedJson, "", error.to_string()),
        })
    }

    /// A JSON body, read.
    pub(crate) async fn json<T: DeserializeOwned>(&self, request: Request) -> Result<T, ApiError> {
        parse(&self.body(request).await?)
    }
}

/// Reads a JSON object: what is no JSON at all, what is nested too deeply and what has other fields than expected are
/// told apart.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let read = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => ApiError::at(ErrorNumber::InvalidRequest, "", tidy(&error.to_string())),
        _ if error.to_string().starts_with("recursion limit") => {
            let message = format!("at most {MAX_DEPTH} levels are taken");
            ApiError::at(ErrorNumber::NestedTooDeep, "", message)
        }
        _ => ApiError::at(ErrorNumber::MalformedJson, "", error.to_string()),
    })?;
    // serde would take an array for an object, its entries for the fields in their order.
    if bytes.trim_ascii_start().starts_with(b"{") {
        Ok(read)
    } else {
        Err(ApiError::at(ErrorNumber::InvalidRequest, "", "it must be a JSON object"))
    }
}

/// A message may quote what was sent, which may be long.
fn tidy(message: &str) -> String {
    message.chars().take(500).collect()
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}
