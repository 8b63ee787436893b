//! `/demo`: a web page with two users, ann and bob, who get each other's notifications as they happen.
//!
//! What serves it stands for your backend: it knows its users, asks Relais for their tickets, and emits messages, all over
//! HTTP as the client `demo`. The page has the library for browsers (`sdk/browser`) as it is, without a build.
//! Only `relais demo` serves it: it signs in whoever comes.

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

/// Who uses the page; both are members of the group.
const USERS: [&str; 2] = ["ann", "bob"];
const GROUP: &str = "team";

/// How many messages the page shows who has seen them.
const SHOWN: usize = 10;

/// Its own scripts and styles, and connections to the server that it came from.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the library for browsers.
macro_rules! library {
    ($name:literal) => {
        (concat!("relais/", $name), SCRIPT, include_str!(concat!("../../../../sdk/browser/src/", $name)))
    };
}

const FILES: [(&str, &str, &str); 14] = [
    ("", HTML, include_str!("page/page.html")),
    ("page.css", CSS, include_str!("page/page.css")),
    ("page.js", SCRIPT, include_str!("page/page.js")),
    library!("index.js"),
    library!("element.js"),
    library!("http.js"),
    library!("ledger.js"),
    library!("limits.js"),
    library!("link.js"),
    library!("platform.js"),
    library!("style.js"),
    library!("tabs.js"),
    library!("transports.js"),
    library!("words.js"),
];

/// The backend of the page.
#[derive(Clone)]
pub(super) struct Page {
    http: reqwest::Client,
    /// Where Relais is.
    url: String,
    client_id: &'static str,
    secret: String,
}

/// What a user sends.
#[derive(Deserialize)]
struct Sent {
    from: String,
    to: String,
    text: String,
    /// Whether it must be acknowledged.
    acknowledge: bool,
}

impl Page {
    pub(super) fn new(url: &str, client_id: &'static str, secret: &str) -> anyhow::Result<Self> {
        // What Relais asks for is on this machine, and no proxy is between.
        let http =
            reqwest::Client::builder().no_proxy().build().context("there can be no client for the demo's page")?;
        Ok(Self { http, url: url.to_owned(), client_id, secret: secret.to_owned() })
    }

    /// The routes.
    pub(super) fn routes(&self) -> Router {
        Router::new()
            .route("/demo", get(|| file(Path(String::new()))))
            .route("/demo/{*file}", get(file))
            .route("/demo/tickets/{user}", post(ticket))
            .route("/demo/messages", post(send))
            .route("/demo/sent", get(sent))
            .with_state(self.clone())
    }

    /// Says who is in the group.
    pub(super) async fn declare_group(&self) -> anyhow::Result<()> {
        let members = USERS.map(|user| json!({"type": "USER", "target": user}));
        let path = format!("/v1/audiences/GROUP/{GROUP}/members");
        self.ask(Method::PUT, &path, Some(json!({"members": members}))).await.map(drop)
    }

    /// Calls Relais; the data of its answer.
    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if !path.starts_with("/admin") {
            request = request.basic_auth(self.client_id, Some(&self.secret));
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let mut answer: Value = request.send().await?.json().await?;
        if answer["status"] != "success" {
            anyhow::bail!("{path}: {}", answer["error"]);
        }
        Ok(answer["data"].take())
    }

    /// The newest messages, with who has seen them.
    async fn sent(&self) -> anyhow::Result<Vec<Value>> {
        let path = format!("/admin/notifications?clientId={}&limit={SHOWN}", self.client_id);
        let page = self.ask(Method::GET, &path, None).await?;
        let mut views = Vec::with_capacity(SHOWN);
        for view in page["notifications"].as_array().into_iter().flatten() {
            let id = view["message"]["metadata"]["id"].as_str().unwrap_or_default();
            views.push(self.ask(Method::GET, &format!("/admin/notifications/{id}"), None).await?);
        }
        Ok(views)
    }
}

async fn file(Path(name): Path<String>) -> Response {
    let Some((_, kind, text)) = FILES.iter().find(|(file, ..)| *file == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Another version of the program may have another one.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, *text).into_response()
}

/// A ticket for a user. Yours asks first who that is.
async fn ticket(State(page): State<Page>, Path(user): Path<String>) -> Response {
    if !USERS.contains(&user.as_str()) {
        return StatusCode::NOT_FOUND.into_response();
    }
    answer(page.ask(Method::POST, "/v1/notifications/tickets", Some(json!({"user": user}))).await)
}

async fn send(State(page): State<Page>, Json(Sent { from, to, text, acknowledge }): Json<Sent>) -> Response {
    let audience = match to.as_str() {
        GROUP => json!({"type": "GROUP", "targets": [GROUP]}),
        user => json!({"type": "USER", "targets": [user]}),
    };
    let draft = json!({
        "metadata": {"type": "NOTIFICATION", "emitter": from},
        "payload": {"title": format!("Message from {from}"), "body": text},
        "routing": {"audience": audience, "retry": {"ack_required": acknowledge}},
    });
    answer(page.ask(Method::POST, "/v1/notifications", Some(draft)).await)
}

async fn sent(State(page): State<Page>) -> Response {
    answer(page.sent().await.map(Value::from))
}

fn answer(asked: anyhow::Result<Value>) -> Response {
    match asked {
        Ok(data) => ([(header::CACHE_CONTROL, "no-store")], Json(data)).into_response(),
        Err(error) => {
            tracing::warn!(%error, "the demo's page could not be served");
            StatusCode::BAD_GATEWAY.into_response()
        }
    }
}
