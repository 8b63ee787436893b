//! Access to the admin API: callers with a token; without tokens, only callers on this machine.
//!
//! Whether a caller is on this machine is decided by its connection, and denied if the request came through a proxy or
//! from a page of another site. A local proxy that hides itself gives access to everybody: an operator who uses one
//! must set a token, and the server warns at its start if there is none.

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::{ConnectInfo, FromRequestParts, Request, State},
    http::{HeaderMap, Version, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use relais_engine::{Actor, Operator};
use relais_protocol::ErrorNumber;

use crate::{App, error::ApiError};

/// Lets an operator in, and notes who it is.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let credentials = &app.options.operators;
    let actor = if credentials.is_empty() {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
        // Proxies have long spoken 1.0 to what is behind them, and no client of ours does.
        let modern = request.version() >= Version::HTTP_11;
        let here = modern && peer.is_some_and(is_loopback) && is_direct(request.headers());
        here.then(|| Actor::local("api"))
    } else {
        bearer(request.headers()).and_then(|given| credentials.recognise(given, "api"))
    };
    match actor {
        Some(actor) => {
            request.extensions_mut().insert(actor);
            next.run(request).await
        }
        None => ApiError::new(ErrorNumber::AdminForbidden).into_response(),
    }
}

/// The operator whom the [`guard`] has let in.
pub(crate) struct By(pub(crate) Operator);

impl FromRequestParts<App> for By {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let actor = parts.extensions.get::<Actor>().cloned();
        let actor = actor.ok_or_else(|| ApiError::new(ErrorNumber::AdminForbidden))?;
        Ok(Self(app.engine.operator(actor)))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// No proxy in between, no page of another site behind it, and a name that is this machine's (a name that was made to
/// point here is how a page gets around the rules of browsers).
fn is_direct(headers: &HeaderMap) -> bool {
    let forwarded = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];
    let from_page = ["origin", "referer", "sec-fetch-site"];
    if forwarded.iter().chain(&from_page).any(|name| headers.contains_key(*name)) {
        return false;
    }
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_local_proxy_or_web_page_gets_no_admin_access() {
        assert!(is_direct(&headers(&[("host", "127.0.0.1:8080")])));
        assert!(is_direct(&headers(&[("host", "localhost")])));
        assert!(is_direct(&headers(&[("host", "[::1]:8080")])));
        assert!(!is_direct(&headers(&[])));
        assert!(!is_direct(&headers(&[("host", "relais.example.org")])), "a name made to point here");
        for name in ["x-forwarded-for", "forwarded", "x-real-ip", "via", "origin", "referer", "sec-fetch-site"] {
            let pairs = [("host", "localhost"), (name, "x")];
            assert!(!is_direct(&headers(&pairs)), "{name}");
        }
    }

    #[test]
    fn this_machine_is_known_by_all_its_addresses() {
        assert!(is_loopback("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!is_loopback("192.168.0.1".parse().unwrap()));
    }
}
