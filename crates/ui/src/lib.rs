//! The dashboard: pages for operators, rendered by the server.
//!
//! A page asks the engine, and shows what it is told; what a page does is done by [`relais_engine::Operator`], with the
//! same rights and the same audit entries as over the admin API. Notifications are asked for their own. Everything works without JavaScript, but that pages
//! change by themselves; scripts and styles are files of their own, and nothing comes from elsewhere.

#![expect(clippy::result_large_err, reason = "what is returned instead of a page is a page")]

mod assets;
mod error;
mod form;
mod gate;
mod json;
mod layout;
mod live;
mod pages;
mod search;
mod show;
mod words;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, header},
    middleware::{Next, from_fn},
    response::Response,
    routing::{get, post},
};
use relais_engine::{Credentials, Engine, EngineError, SessionKey};
use relais_notify::Notifications;
use tower_http::catch_panic::CatchPanicLayer;

/// How the dashboard is to be.
#[derive(Debug, Clone)]
pub struct UiOptions {
    /// Who may sign in; where nobody can, whoever is on this machine may use it.
    pub operators: Credentials,
    /// How long a session lasts.
    pub session: Duration,
    /// How long a form may take to arrive.
    pub request_timeout: Duration,
    /// Notifications, if this process has them.
    pub notifications: Option<Notifications>,
}

impl Default for UiOptions {
    fn default() -> Self {
        Self {
            operators: Credentials::default(),
            session: Duration::from_secs(12 * 3600),
            request_timeout: Duration::from_secs(30),
            notifications: None,
        }
    }
}

/// Since when sign-ins fail, and how many did, by the address that they came from.
type Failures = HashMap<Option<IpAddr>, (Instant, u32)>;

/// The state that every page gets.
#[derive(Clone)]
pub(crate) struct Ui {
    pub(crate) engine: Engine,
    pub(crate) options: Arc<UiOptions>,
    pub(crate) key: SessionKey,
    /// Sign-ins that failed lately.
    pub(crate) failures: Arc<Mutex<Failures>>,
}

/// What a page may do: its own scripts and styles, its own forms, and to be in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// All pages, under `/ui`. To be served by [`relais_http::serve`]: the gate asks for the address of the connection.
pub fn router(engine: Engine, options: UiOptions) -> Result<Router, EngineError> {
    let key = options.operators.session_key()?;
    let failures = Arc::default();
    let ui = Ui { engine, options: Arc::new(options), key, failures };
    let routes = Router::new()
        .route("/ui", get(pages::overview::page))
        .route("/ui/tasks", get(pages::tasks::page))
        .route("/ui/tasks/act", post(pages::bulk::act))
        .route("/ui/tasks/{task}", get(pages::task::page))
        .route("/ui/tasks/{task}/retry", post(pages::task::retry))
        .route("/ui/tasks/{task}/cancel", post(pages::task::cancel))
        .route("/ui/batches/{batch}", get(pages::batch::page))
        .route("/ui/batches/{batch}/close", post(pages::batch::close))
        .route("/ui/batches/{batch}/cancel", post(pages::batch::cancel))
        .route("/ui/services", get(pages::services::page))
        .route("/ui/services/{service}", get(pages::service::page))
        .route("/ui/services/{service}/pause", post(pages::service::pause))
        .route("/ui/services/{service}/resume", post(pages::service::resume))
        .route("/ui/services/{service}/limits", post(pages::service::limits))
        .route("/ui/workers", get(pages::workers::page))
        .route("/ui/instances/{instance}", post(pages::workers::resolve))
        .route("/ui/schedules", get(pages::schedules::page))
        .route("/ui/schedules/{schedule}", get(pages::schedules::one))
        .route("/ui/schedules/{schedule}/run", post(pages::schedules::run))
        .route("/ui/schedules/{schedule}/pause", post(pages::schedules::pause))
        .route("/ui/schedules/{schedule}/resume", post(pages::schedules::resume))
        .route("/ui/captures", get(pages::captures::page))
        .route("/ui/captures/{capture}", get(pages::captures::one))
        .route("/ui/captures/{capture}/pause", post(pages::captures::pause))
        .route("/ui/captures/{capture}/resume", post(pages::captures::resume))
        .route("/ui/captures/{capture}/snapshot", post(pages::captures::snapshot))
        .route("/ui/outboxes", get(pages::outboxes::page))
        .route("/ui/outboxes/{outbox}", get(pages::outboxes::one))
        .route("/ui/outboxes/{outbox}/pause", post(pages::outboxes::pause))
        .route("/ui/outboxes/{outbox}/resume", post(pages::outboxes::resume))
        .route("/ui/outboxes/{outbox}/retry", post(pages::outboxes::retry))
        .route("/ui/outboxes/{outbox}/skip", post(pages::outboxes::skip))
        .route("/ui/audiences", get(pages::audiences::page))
        .route("/ui/notification-sources", get(pages::notification_sources::page))
        .route("/ui/notification-sources/{source}", get(pages::notification_sources::one))
        .route("/ui/notification-sources/{source}/pause", post(pages::notification_sources::pause))
        .route("/ui/notification-sources/{source}/resume", post(pages::notification_sources::resume))
        .route("/ui/notifications", get(pages::notifications::page).post(pages::notifications::send))
        .route("/ui/notifications/{notification}", get(pages::notification::page))
        .route("/ui/notifications/{notification}/resend", post(pages::notification::resend))
        .route("/ui/notifications/{notification}/withdraw", post(pages::notification::withdraw))
        .route("/ui/callbacks", get(pages::callbacks::page))
        .route("/ui/callbacks/redeliver", post(pages::callbacks::redeliver_failed))
        .route("/ui/callbacks/{callback}", get(pages::callbacks::one))
        .route("/ui/callbacks/{callback}/redeliver", post(pages::callbacks::redeliver))
        .route("/ui/dead-letters", get(pages::letters::page))
        .route("/ui/dead-letters/{service}", post(pages::letters::act))
        .route("/ui/clients", get(pages::clients::page))
        .route("/ui/clients/{client}/secret", post(pages::clients::rotate))
        .route("/ui/events", get(pages::events::page).post(pages::events::publish))
        .route("/ui/audit", get(pages::audit::page))
        .route("/ui/live", get(live::stream))
        .route("/ui/complete", get(pages::tasks::complete))
        .route("/ui/sign-in", get(gate::sign_in_page).post(gate::sign_in))
        .route("/ui/sign-out", post(gate::sign_out))
        .route("/ui/language/{language}", get(gate::choose_language))
        .route("/ui/theme/{theme}", get(gate::choose_theme))
        .route("/ui/assets/{file}", get(assets::file))
        .route("/ui/{*rest}", get(error::nothing_here))
        .layer(CatchPanicLayer::new())
        .layer(from_fn(secure));
    Ok(routes.with_state(ui))
}

/// Adds what every answer says, and counts it.
async fn secure(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let mut response = next.run(request).await;
    metrics::histogram!("relais_ui_request_seconds").record(begun.elapsed().as_secs_f64());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What operators see is not for caches; scripts and styles say otherwise themselves.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
