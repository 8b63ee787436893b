//! What the tests of notifications share: clients with rights, users with tickets, messages.

use std::time::Instant;

use relais_notify::NotificationOptions;
use relais_tests::app::{Backend, Builder, Caller, DEADLINE, TestApp, secret};
use serde_json::{Value, json};

use crate::link::Link;

/// Where messages are emitted and listed.
pub const NOTIFICATIONS: &str = "/v1/notifications";

/// An instance with notifications. The client `shop` may do what is asked of it here, `news` emits to groups only, and
/// `mute` may do nothing.
pub struct Stage {
    pub app: TestApp,
    pub shop: Caller,
}

/// Who may do what.
pub fn declaration() -> Value {
    let client = |id: &str, rights: Value| json!({"clientId": id, "clientSecret": secret(id), "notifications": rights});
    json!({"clients": [
        client("shop", json!({"emit": ["USER", "GROUP", "STRUCTURE"], "audience": ["GROUP", "STRUCTURE"], "ticket": ["ROLE"]})),
        client("news", json!({"emit": ["GROUP"]})),
        {"clientId": "mute", "clientSecret": secret("mute")},
    ]})
}

impl Stage {
    pub async fn set(on: Backend) -> Self {
        Self::with(on, |_| {}).await
    }

    pub async fn with(on: Backend, change: impl FnOnce(&mut NotificationOptions)) -> Self {
        Self::start(TestApp::builder(on).notifications(change)).await
    }

    pub async fn start(builder: Builder) -> Self {
        let app = builder.declaring(declaration()).start().await;
        let shop = app.client("shop");
        Self { app, shop }
    }

    /// Another instance on the same database.
    pub async fn beside(&self, change: impl FnOnce(&mut NotificationOptions)) -> Self {
        Self::start(self.app.beside().notifications(change)).await
    }

    /// A ticket of a user. The key that signs it may not be known yet just after the start.
    pub async fn ticket_with(&self, request: Value) -> String {
        let begun = Instant::now();
        loop {
            let answer = self.shop.post("/v1/notifications/tickets", &request).await;
            if answer.status == 201 {
                return text(&answer.data()["ticket"]);
            }
            assert!(answer.status == 503 && begun.elapsed() < DEADLINE, "{}", answer.text);
        }
    }

    pub async fn ticket(&self, user: &str) -> String {
        self.ticket_with(json!({"user": user})).await
    }

    /// A user with a ticket.
    pub async fn user(&self, user: &str) -> Caller {
        self.bearing(&self.ticket(user).await)
    }

    /// Whoever has this token.
    pub fn bearing(&self, token: &str) -> Caller {
        self.app.caller().with("authorization", &format!("Bearer {token}"))
    }

    /// A link of a user, which has begun.
    pub async fn link(&self, user: &str) -> Link {
        Link::open(&self.user(user).await, None).await
    }

    /// Emits a message, which must be accepted, and returns its id.
    pub async fn emit(&self, draft: &Value) -> String {
        let answer = self.shop.post(NOTIFICATIONS, draft).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        text(&answer.data()["id"])
    }

    /// Emits a list, which must be accepted.
    pub async fn emit_all(&self, drafts: &[Value]) -> Vec<String> {
        let answer = self.shop.post(NOTIFICATIONS, &json!(drafts)).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.data()["ids"].as_array().into_iter().flatten().map(text).collect()
    }

    /// Makes users members of a group.
    pub async fn join(&self, group: &str, users: &[&str]) {
        let members: Vec<Value> = users.iter().map(|user| json!({"target": user})).collect();
        self.shop.post(&members_of(group), &json!({"members": members})).await.data();
    }

    /// Ends a user's membership.
    pub async fn leave(&self, group: &str, user: &str) {
        self.shop.delete(&format!("{}/USER/{user}", members_of(group))).await.data();
    }
}

pub fn members_of(group: &str) -> String {
    format!("/v1/audiences/GROUP/{group}/members")
}

/// A message to targets of one type.
pub fn to(kind: &str, targets: &[&str], payload: Value) -> Value {
    json!({"payload": payload, "routing": {"audience": {"type": kind, "targets": targets}}})
}

/// The same, to be acknowledged.
pub fn required(kind: &str, targets: &[&str], payload: Value) -> Value {
    let mut draft = to(kind, targets, payload);
    draft["routing"]["retry"] = json!({"ack_required": true, "backoff": "FIXED"});
    draft
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).to_owned()
}

/// Asks until it is so. What is asked for has no event of its own.
pub async fn until<F: Future<Output = bool>>(what: &str, asked: impl Fn() -> F) {
    let begun = Instant::now();
    while !asked().await {
        assert!(begun.elapsed() < DEADLINE, "it never was so: {what}");
        tokio::task::yield_now().await;
    }
}
