//! WebSockets: the same events, and pages that acknowledge and renew over them. Origins.

use futures::{SinkExt as _, StreamExt as _};
use relais_tests::app::{Backend, DEADLINE, ORIGIN};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, client::IntoClientRequest as _, http::HeaderValue},
};

use crate::{
    link::{Event, Link},
    stage::{Stage, to},
};

on_one_store!(
    a_page_acknowledges_and_renews_over_its_websocket,
    what_is_not_understood_ends_a_websocket,
    pages_of_other_origins_are_refused,
);

/// A page with a WebSocket.
pub struct Page(WebSocketStream<TcpStream>);

impl Page {
    pub async fn open(stage: &Stage, user: &str, after: Option<&str>) -> Self {
        let ticket = stage.ticket(user).await;
        let after = after.map(|cursor| format!("&lastEventId={cursor}")).unwrap_or_default();
        let mut page = Self::connect(stage, &format!("ticket={ticket}{after}"), None).await.expect("it is there");
        assert_eq!(page.next().await.map(|event| event.name).as_deref(), Some("hello"));
        page
    }

    pub async fn connect(stage: &Stage, query: &str, origin: Option<&str>) -> Result<Self, u16> {
        let address = stage.app.address();
        let url = format!("ws://{address}/v1/notifications/socket?{query}");
        let mut request = url.into_client_request().expect("it is there");
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", HeaderValue::from_str(origin).expect("it is there"));
        }
        let stream = TcpStream::connect(address).await.expect("it is there");
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// The next event; none when the server has ended the link.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let message = tokio::time::timeout(DEADLINE, self.0.next()).await;
            match message.unwrap_or_else(|_| panic!("no event came within {DEADLINE:?}")) {
                Some(Ok(Message::Text(text))) => {
                    let event: Value = serde_json::from_str(&text).expect("it is there");
                    return Some(Event {
                        name: event["event"].as_str().unwrap_or_default().to_owned(),
                        id: event["id"].as_str().map(str::to_owned),
                        data: event["data"].clone(),
                    });
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(_) | Err(_)) | None => return None,
            }
        }
    }

    pub async fn say(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.expect("it is there");
    }
}

async fn a_page_acknowledges_and_renews_over_its_websocket(on: Backend) {
    let stage = Stage::set(on).await;
    let ann = stage.user("ann").await;
    let mut stream = Link::open(&ann, None).await;
    let short = stage.ticket_with(json!({"user": "ann", "ttl": "2s"})).await;
    let mut page = Page::connect(&stage, &format!("ticket={short}"), Some(ORIGIN)).await.expect("it is there");
    let mut left = Page::connect(&stage, &format!("ticket={short}"), None).await.expect("it is there");
    assert_eq!(page.next().await.expect("the link ended").data["user"], "ann");
    left.next().await;
    let ids = stage.emit_all(&[to("USER", &["ann"], json!(1)), to("USER", &["ann"], json!(2))]).await;
    let others = stage.emit(&to("USER", &["bob"], json!("bob's"))).await;
    for n in 1..=2 {
        assert_eq!(page.next().await.expect("the link ended").payload(), &json!(n));
    }
    page.say(&json!({"ack": [ids[0], others]}).to_string()).await;
    assert_eq!(page.next().await.expect("the link ended").data["ids"], json!([ids[0]]));
    for _ in 0..2 {
        stream.expect("notification").await;
    }
    assert_eq!(stream.expect("acknowledged").await.data["ids"], json!([ids[0]]));
    assert_eq!(ann.get("/v1/notifications/counts").await.data()["unread"], 1);

    page.say(&json!({"token": "nonsense"}).to_string()).await;
    assert_eq!(page.next().await.expect("the link ended").data["reason"], "token");
    page.say(&json!({"token": stage.ticket("bob").await}).to_string()).await;
    assert_eq!(page.next().await.expect("the link ended").data["reason"], "token", "of another user");
    page.say(&json!({"token": stage.ticket("ann").await}).to_string()).await;
    let mut last = left.next().await.expect("the link ended");
    while last.name != "bye" {
        last = left.next().await.expect("the link ended");
    }
    assert_eq!(last.data["reason"], "expired");
    assert_eq!(left.next().await, None);
    stage.emit(&to("USER", &["ann"], json!("marker"))).await;
    assert_eq!(page.next().await.expect("the link ended").payload(), &json!("marker"));
}

async fn what_is_not_understood_ends_a_websocket(on: Backend) {
    let stage = Stage::set(on).await;
    let ann = stage.user("ann").await;
    for said in ["", "{", "[]", "7", r#"{"ack": "all"}"#, r#"{"subscribe": "GROUP:x"}"#, r#"{"ack": ["x"]}"#] {
        let mut page = Page::open(&stage, "ann", None).await;
        page.say(said).await;
        assert_eq!(page.next().await, None, "{said}");
    }
    let mut page = Page::open(&stage, "ann", None).await;
    page.say(&"x".repeat(100_000)).await;
    assert_eq!(page.next().await, None);
    crate::stage::until("all are closed", || async { stage.app.notifications().links().is_empty() }).await;
    let plain = ann.get("/v1/notifications/socket").await;
    assert_eq!(plain.number(), 400_007, "no WebSocket was asked for");
}

async fn pages_of_other_origins_are_refused(on: Backend) {
    let stage = Stage::set(on).await;
    let ticket = stage.ticket("ann").await;
    let query = format!("ticket={ticket}");
    let own = format!("http://{}", stage.app.address());
    for (origin, status) in [
        (Some(ORIGIN), 0),
        (Some(own.as_str()), 0),
        (None, 0),
        (Some("https://evil.example"), 403),
        (Some("null"), 403),
        (Some("https://shop.example.evil.example"), 403),
        (Some("http://shop.example"), 403),
    ] {
        let connected = Page::connect(&stage, &query, origin).await;
        assert_eq!(connected.err().unwrap_or_default(), status, "{origin:?}");
    }
    assert_eq!(Page::connect(&stage, "", Some(ORIGIN)).await.err(), Some(401));

    let preflight = async |origin: &str, path: &str| {
        let caller = stage.app.caller().with("origin", origin).with("access-control-request-method", "POST");
        caller.with("access-control-request-headers", "authorization,last-event-id").call(Method::OPTIONS, path).await
    };
    for path in ["/v1/notifications", "/v1/notifications/stream", "/v1/notifications/ack", "/v1/notifications/poll"] {
        let allowed = preflight(ORIGIN, path).await;
        assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, Some(ORIGIN)), "{path}");
        let headers = allowed.header("access-control-allow-headers").unwrap_or_default();
        assert!(headers.contains("authorization") && headers.contains("last-event-id"), "{headers}");
        let refused = preflight("https://evil.example", path).await;
        assert_eq!(refused.header("access-control-allow-origin"), None, "{path}");
    }
    let other = preflight(ORIGIN, "/v1/notifications/tickets").await;
    assert_eq!(other.header("access-control-allow-origin"), None, "routes of clients are not for pages");
    let bearing = stage.bearing(&ticket);
    let seen = bearing.clone().with("origin", ORIGIN).get("/v1/notifications").await;
    assert_eq!(seen.header("access-control-allow-origin"), Some(ORIGIN));
    let unseen = bearing.with("origin", "https://evil.example").get("/v1/notifications").await;
    assert_eq!(unseen.header("access-control-allow-origin"), None);
}
