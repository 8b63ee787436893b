//! Authentication of clients by Basic credentials, and the limit of concurrent requests of one client.

use std::{convert::Infallible, sync::Arc};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use base64::Engine as _;
use relais_core::{Client, Role};
use relais_engine::{Access, ClientCredentials, EngineError};
use relais_http::Peer;

use crate::{App, concurrency::Slot, error::ApiError};

/// The caller of a request, as the request names it.
pub(crate) struct Caller {
    credentials: Option<ClientCredentials>,
    /// Takes the client's place once it is known, and keeps it until the answer has left.
    slot: Slot,
}

impl FromRequestParts<App> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        let credentials = credentials(&parts.headers);
        let credentials = match parts.extensions.get::<Peer>() {
            Some(peer) => credentials.map(|given| given.sent_from(peer.address())),
            None => credentials,
        };
        Ok(Self { credentials, slot: parts.extensions.get::<Slot>().cloned().unwrap_or_default() })
    }
}

impl App {
    /// Lets the caller in on a service. The order is part of the contract: who, then what, then whether.
    pub(crate) async fn access(&self, caller: &Caller, service: &str, role: Role) -> Result<Access, ApiError> {
        Ok(self.engine.access(self.client(caller).await?, service, role)?)
    }

    /// Lets the caller in on a service on which it may do anything at all.
    pub(crate) async fn access_by_any_role(&self, caller: &Caller, service: &str) -> Result<Access, ApiError> {
        Ok(self.engine.access_by_any_role(self.client(caller).await?, service)?)
    }

    /// Recognises the caller.
    pub(crate) async fn client(&self, caller: &Caller) -> Result<Arc<Client>, ApiError> {
        let given = caller.credentials.as_ref().ok_or(EngineError::Forbidden)?;
        let client = self.engine.authenticate(given).await?;
        caller.slot.take(&self.places, client.key)?;
        Ok(client)
    }
}

fn credentials(headers: &HeaderMap) -> Option<ClientCredentials> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
    let (client_id, secret) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some(ClientCredentials::new(client_id, secret))
}
