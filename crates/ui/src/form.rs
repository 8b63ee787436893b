//! What a browser sends: queries and forms, as names and values.

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use relais_http::{BodyError, read_body};

use crate::Ui;

/// The largest form, and the largest of somebody who has not signed in.
const MAX_BYTES: usize = 1 << 20;
const MAX_SIGN_IN_BYTES: usize = 8 << 10;

/// Names and values, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(text: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(text).into_owned().collect())
    }

    /// A value that is not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.any(name).map(str::trim).filter(|value| !value.is_empty())
    }

    /// A value, empty or not.
    pub(crate) fn any(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All values of a name.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    }
}

/// The fields of an address.
pub(crate) struct Query(pub(crate) Fields);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(Fields::parse(parts.uri.query().unwrap_or_default().as_bytes())))
    }
}

/// The fields of a form.
pub(crate) struct Form(pub(crate) Fields);

impl FromRequest<Ui> for Form {
    type Rejection = Response;

    async fn from_request(request: Request, ui: &Ui) -> Result<Self, Response> {
        let most = if request.uri().path() == "/ui/sign-in" { MAX_SIGN_IN_BYTES } else { MAX_BYTES };
        let read = read_body(request.into_body(), most, ui.options.request_timeout).await;
        read.map(|bytes| Self(Fields::parse(&bytes))).map_err(|error| {
            let status = match error {
                BodyError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
                BodyError::TimedOut => StatusCode::REQUEST_TIMEOUT,
                BodyError::Broken(_) => StatusCode::BAD_REQUEST,
            };
            // What is left of the form lies in the connection's way.
            (status, [(header::CONNECTION, "close")]).into_response()
        })
    }
}

/// A text as part of an address.
pub(crate) fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// A name as a segment of a path.
pub(crate) fn segment(text: &str) -> String {
    // In a path a plus is a plus.
    encoded(text).replace('+', "%20")
}
