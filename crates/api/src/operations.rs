//! Routes for probes, monitoring and documentation.

use std::time::Instant;

use axum::{
    Json, Router,
    extract::{MatchedPath, Request, State},
    http::{HeaderName, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
    routing::get,
};
use relais_core::TraceContext;
use relais_engine::trace::{self, Trail};
use relais_protocol::consumer::TraceHeaders;
use serde::Serialize;
use tracing::{Instrument as _, field::Empty};
use utoipa::ToSchema;

use crate::{
    App,
    consumer::trace_headers,
    error::ApiError,
    openapi::{Refusals, published},
};

/// The state of the process.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
    /// What an operator should look at all the same, such as an outbox that can not be published, or notifications.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Is the process alive?
#[utoipa::path(get, path = "/healthz", operation_id = "checkHealth",
    tag = "Operations", responses((status = 200, description = "It is", body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok", notes: Vec::new() })
}

/// Can it take requests?
///
/// Not while the store is away, nor before the declarations file, if there is one, was applied once, nor once the server
/// is told to stop. An outbox in trouble, or notifications whose Redis is away, are named in `notes`, and the process is ready.
#[utoipa::path(get, path = "/readyz", operation_id = "checkReadiness",
    tag = "Operations", responses((status = 200, description = "It can", body = Health), Refusals))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Health>, ApiError> {
    app.engine.ready().await?;
    Ok(Json(Health { status: "ok", notes: app.engine.notes() }))
}

/// Metrics, as Prometheus reads them
#[utoipa::path(get, path = "/metrics", operation_id = "getMetrics", tag = "Operations",
    responses((status = 200, description = "Metrics", content_type = "text/plain", body = String)))]
pub(crate) async fn render_metrics(State(app): State<App>) -> Response {
    // With the store away the gauges stay as they were, and the rest is still worth reading.
    if let Err(error) = app.engine.observe_if_due().await {
        tracing::debug!(error = %error, "the gauges could not be set");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (app.render_metrics)()).into_response()
}

/// Health and metrics alone.
pub(crate) fn routes() -> Router<App> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz)).route("/metrics", get(render_metrics))
}

/// The OpenAPI document, and a page to read it.
pub(crate) fn documentation() -> Router<App> {
    const POLICY: (HeaderName, &str) = (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    );
    let json = async || ([(header::CONTENT_TYPE, "application/json")], published().document.as_str());
    let html = async || ([(header::CONTENT_TYPE, "text/html; charset=utf-8"), POLICY], published().page.as_str());
    Router::new().route("/openapi.json", get(json)).route("/docs", get(html))
}

/// A method as a label. A stranger can send any word for a method, and each new one would be a series for ever.
fn method_label(method: &Method) -> &'static str {
    const KNOWN: [Method; 7] =
        [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD, Method::OPTIONS];
    const NAMES: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    KNOWN.iter().position(|known| known == method).map_or("other", |place| NAMES[place])
}

/// Times every request by its route, in a span of its own, which is part of the caller's trace where there is one.
pub(crate) async fn measure(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or("none", MatchedPath::as_str);
    let method = method_label(request.method());
    let span = tracing::debug_span!(
        "request", otel.name = %format_args!("{method} {route}"), method, route, status = Empty,
        otel.kind = "server", otel.status_code = Empty,
    );
    if trace::is_installed()
        && let TraceHeaders { traceparent: Some(parent), tracestate } = trace_headers(request.headers())
        && let Some(context) = TraceContext::parse(&parent, tracestate.as_deref())
    {
        let tracestate = context.tracestate().map(str::to_owned);
        trace::go_on(&span, Trail { traceparent: Some(context.traceparent().to_owned()), tracestate });
    }
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status().as_u16();
    span.record("status", status);
    if response.status().is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    metrics::histogram!(
        "relais_http_request_seconds",
        "route" => route.to_owned(), "method" => method, "status" => status.to_string()
    )
    .record(begun.elapsed().as_secs_f64());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_nobody_knows_share_one_label() {
        assert_eq!(method_label(&Method::DELETE), "DELETE");
        for unknown in ["BREW", "get", "TRACE", "CONNECT", &"X".repeat(4_000)] {
            assert_eq!(method_label(&Method::from_bytes(unknown.as_bytes()).unwrap()), "other");
        }
    }
}
