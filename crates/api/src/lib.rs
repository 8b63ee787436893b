//! Relais over HTTP: routes for consumers, workers and operators, and every error as a number.
//!
//! A handler reads a request, calls one method of the engine and writes its answer; it decides nothing and never touches
//! the store. What the routes take and answer is described once, beside each handler, and becomes the OpenAPI document.

mod access;
mod admin;
mod admin_guard;
mod admin_tasks;
mod batches;
mod body;
mod broker;
mod callbacks;
mod captures;
mod concurrency;
mod consumer;
mod docs;
mod error;
mod event_bus;
mod events;
mod instances;
mod leftover;
mod notifications;
mod openapi;
mod operations;
mod outboxes;
mod path;
mod query;
pub mod reference;
mod schedules;
mod worker;

use std::{sync::Arc, time::Duration};

use axum::Router;
use relais_engine::{Credentials, Engine};
use tower_http::catch_panic::CatchPanicLayer;

use concurrency::Places;
pub use notifications::NotificationRoutes;
pub use openapi::document as openapi_document;

/// How requests are treated.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// The largest request body.
    pub max_body_bytes: usize,
    /// How long a request may take to arrive.
    pub request_timeout: Duration,
    /// The longest `?wait=`, and the longest wait of a claim.
    pub max_wait: Duration,
    /// How many requests of one client are answered at once.
    pub max_requests_per_client: usize,
    /// The operators of the admin API; without any, it answers to loopback only.
    pub operators: Credentials,
    /// Notifications, if this process has them.
    pub notifications: Option<NotificationRoutes>,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            max_body_bytes: 1 << 20,
            request_timeout: Duration::from_secs(30),
            max_wait: relais_protocol::consumer::MAX_WAIT.0,
            max_requests_per_client: 2_500,
            operators: Credentials::default(),
            notifications: None,
        }
    }
}

/// Writes the metrics as Prometheus reads them.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The state that every handler gets.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) options: Arc<ApiOptions>,
    pub(crate) render_metrics: RenderMetrics,
    pub(crate) places: Places,
}

impl App {
    fn new(engine: Engine, options: ApiOptions, render_metrics: RenderMetrics) -> Self {
        let places = Places::new(options.max_requests_per_client);
        Self { engine, options: Arc::new(options), render_metrics, places }
    }
}

/// All routes. To be served by [`relais_http::serve`]: the admin API asks for the address of the connection, and limits for
/// the peer.
pub fn router(engine: Engine, options: ApiOptions, render_metrics: RenderMetrics) -> Router {
    let app = App::new(engine, options, render_metrics);
    openapi::described(&app)
        .merge(operations::documentation())
        .method_not_allowed_fallback(error::method_not_allowed)
        .fallback(error::route_not_found)
        .layer(axum::middleware::from_fn(concurrency::hold))
        .layer(axum::middleware::from_fn(leftover::clear))
        .layer(axum::middleware::from_fn(operations::measure))
        .layer(CatchPanicLayer::custom(error::panicked))
        .with_state(app)
}

/// The routes of a process that does not answer consumers, workers or operators: health and metrics.
pub fn operations_router(engine: Engine, render_metrics: RenderMetrics) -> Router {
    let app = App::new(engine, ApiOptions::default(), render_metrics);
    operations::routes().fallback(error::route_not_found).with_state(app)
}
