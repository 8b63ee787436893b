//! Routes of notifications: emitters and audiences (clients, Basic), users (a token or a ticket), operators.
//!
//! Each handler reads a request and calls one method of [`Notifications`]. Rights of clients are judged here, as on other routes.

pub(crate) mod admin;
pub(crate) mod audiences;
pub(crate) mod declared;
pub(crate) mod emit;
pub(crate) mod push;
pub(crate) mod socket;
pub(crate) mod sources;
pub(crate) mod stream;
pub(crate) mod user;

use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, Method, header, request::Parts},
};
use relais_notify::{Identity, Notifications, NotifyError, TokenRefused, WebPush};
use relais_protocol::ErrorNumber;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{App, error::ApiError, query::decode};

/// Notifications as the API serves them.
#[derive(Debug, Clone)]
pub struct NotificationRoutes {
    /// The service.
    pub notifications: Notifications,
    /// Web pages of these origins may use the routes of users, such as `https://shop.example`; `*` for all.
    pub origins: Vec<String>,
    /// Web Push, if it is enabled.
    pub push: Option<WebPush>,
}

/// The routes that web pages use. Only these have CORS.
pub(crate) fn user_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(emit::emit, user::list))
        .routes(routes!(user::counts))
        .routes(routes!(user::acknowledge))
        .routes(routes!(user::acknowledge_one))
        .routes(routes!(stream::stream))
        .routes(routes!(socket::socket))
        .routes(routes!(stream::poll))
        .routes(routes!(stream::renew))
        .routes(routes!(push::key))
        .routes(routes!(push::subscribe, push::list))
        .routes(routes!(push::unsubscribe))
        .routes(routes!(push::acknowledge))
}

/// The routes of clients.
pub(crate) fn client_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(emit::replace, emit::withdraw))
        .routes(routes!(emit::errors))
        .routes(routes!(emit::ticket))
        .routes(routes!(audiences::list, audiences::set, audiences::add))
        .routes(routes!(audiences::remove))
}

/// The routes of operators.
pub(crate) fn admin_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(admin::list, admin::emit))
        .routes(routes!(admin::show, admin::withdraw))
        .routes(routes!(admin::resend))
        .routes(routes!(admin::acknowledge))
        .routes(routes!(admin::links))
        .routes(routes!(admin::members, admin::set_members, admin::add_members))
        .routes(routes!(admin::remove_member))
        .routes(routes!(declared::list))
        .routes(routes!(declared::show_type, declared::put_type, declared::delete_type))
        .routes(routes!(declared::show, declared::put, declared::delete))
        .routes(routes!(sources::list))
        .routes(routes!(sources::show, sources::put, sources::delete))
        .routes(routes!(sources::pause))
        .routes(routes!(sources::resume))
}

/// What browsers are told about other origins.
pub(crate) fn cors(app: &App) -> CorsLayer {
    let origins = app.options.notifications.as_ref().map_or(&[][..], |routes| &routes.origins);
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            header::CACHE_CONTROL,
            header::HeaderName::from_static("last-event-id"),
        ])
        .max_age(std::time::Duration::from_secs(3600))
}

impl App {
    /// The service, if this process has it.
    pub(crate) fn notifications(&self) -> Result<&Notifications, ApiError> {
        let routes = self.options.notifications.as_ref();
        routes.map(|routes| &routes.notifications).ok_or_else(|| {
            ApiError::at(ErrorNumber::RouteNotFound, "", "this process has not the role `notifications`")
        })
    }
}

/// The user of a request: by `Authorization: Bearer`, or by `?ticket=`, since a native EventSource sends no headers.
pub(crate) struct User(pub(crate) Identity);

impl FromRequestParts<App> for User {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let notifications = app.notifications()?;
        let bearer = parts.headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
        });
        let ticket = || {
            let pairs = parts.uri.query()?.split('&');
            pairs.filter_map(|pair| pair.strip_prefix("ticket=")).next().and_then(decode)
        };
        let token = bearer.or_else(ticket).ok_or_else(|| ApiError::new(ErrorNumber::InvalidToken))?;
        Ok(Self(notifications.identify(&token).await?))
    }
}

impl From<NotifyError> for ApiError {
    fn from(error: NotifyError) -> Self {
        use ErrorNumber as N;
        match &error {
            // The token itself is good: whoever issued it is told what it must not say.
            NotifyError::Unauthorized(why @ TokenRefused::UnknownType(_)) => {
                Self::at(N::InvalidToken, "audiences", why.to_string())
            }
            NotifyError::Unauthorized(why) => {
                tracing::debug!(error = %why, "a token is refused");
                Self::new(N::InvalidToken)
            }
            NotifyError::Invalid(number, why) => {
                Self::at(N::InvalidNotification, format!("/{number}"), why.to_string())
            }
            NotifyError::NoMembers(number) => Self::at(
                N::NoMembers,
                format!("/{number}/routing/audience"),
                "it must be acknowledged, and no members of its audience are declared",
            ),
            NotifyError::IdTaken(number) => {
                Self::at(N::NotificationIdTaken, format!("/{number}/metadata/id"), "another message has this id")
            }
            NotifyError::NotFound => Self::new(N::NotificationNotFound),
            NotifyError::State(why) => Self::at(N::NotificationState, "", why.to_string()),
            NotifyError::Members(why) => Self::at(N::InvalidMembers, "/members", why.to_string()),
            NotifyError::Declared(_) => Self::at(N::Conflict, "", error.to_string()),
            NotifyError::Ticket(why) => Self::at(N::InvalidRequest, "", why.to_string()),
            NotifyError::TooManyLinks(why) => Self::at(N::TooManyLinks, "", why.to_string()).retry_after(10),
            NotifyError::Overloaded => Self::new(N::Overloaded).retry_after(1),
            NotifyError::Stopping => Self::new(N::Stopping).retry_after(1),
            NotifyError::Store(cause) if matches!(**cause, relais_core::StoreError::Unavailable(_)) => {
                tracing::debug!(error = %relais_engine::chain(&error), "the store is unavailable");
                Self::new(N::StoreUnavailable).retry_after(2)
            }
            NotifyError::Store(_) => {
                tracing::error!(error = %relais_engine::chain(&error), "the store refused what it was asked");
                Self::new(N::Internal)
            }
        }
    }
}
