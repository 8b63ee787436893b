//! Who is calling: Basic credentials, read from the header, judged by the engine.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use relais_core::{Client, Role};
use relais_engine::{Access, EngineError};
use std::sync::Arc;

use crate::{App, error::ApiError};

impl App {
    /// Lets the caller in on a service.
    pub(crate) async fn access(&self, headers: &HeaderMap, service: &str, role: Role) -> Result<Access, ApiError> {
        let (client_id, secret) = credentials(headers).ok_or(EngineError::Forbidden)?;
        Ok(self.engine.access(&client_id, &secret, service, role).await?)
    }

    /// Lets the caller in on a service on which it may do anything at all.
    pub(crate) async fn access_by_any_role(&self, headers: &HeaderMap, service: &str) -> Result<Access, ApiError> {
        let (client_id, secret) = credentials(headers).ok_or(EngineError::Forbidden)?;
        Ok(self.engine.access_by_any_role(&client_id, &secret, service).await?)
    }

    /// Recognises the caller.
    pub(crate) async fn client(&self, headers: &HeaderMap) -> Result<Arc<Client>, ApiError> {
        let (client_id, secret) = credentials(headers).ok_or(EngineError::Forbidden)?;
        Ok(self.engine.authenticate(&client_id, &secret).await?)
    }
}

fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
    let (client_id, secret) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((client_id.to_owned(), secret.to_owned()))
}
