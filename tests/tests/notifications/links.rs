//! How links end and live on: tokens that expire and are renewed, readers that do not read, limits, the end of the server.

use std::time::Duration;

use relais_tests::app::{Backend, DEADLINE, TestApp};
use serde_json::{Value, json};

use crate::{
    link::{Link, parse},
    stage::{Stage, text, to, until},
};

on_one_store!(
    a_link_ends_with_its_token_and_lives_on_with_a_new_one,
    a_new_token_says_what_its_user_belongs_to,
    a_reader_that_stops_is_closed_and_misses_nothing,
    a_server_that_stops_says_bye,
    a_user_and_an_address_have_so_many_links,
);

async fn short(stage: &Stage, user: &str) -> String {
    stage.ticket_with(json!({"user": user, "ttl": "2s"})).await
}

async fn a_link_ends_with_its_token_and_lives_on_with_a_new_one(on: Backend) {
    let stage = Stage::set(on).await;
    let (ticket, of_bob) = (short(&stage, "ann").await, stage.user("bob").await);
    let old = stage.bearing(&ticket);
    let (mut renewed, mut left) = (Link::open(&old, None).await, Link::open(&old, None).await);
    let path = |id: &str| format!("/v1/notifications/links/{id}/token");
    let longer = stage.user("ann").await;
    assert_eq!(longer.post_nothing(&path(&renewed.id)).await.status, 204);
    for unknown in ["0195c5a5-0000-7000-8000-000000000001", "x"] {
        assert_eq!(longer.post_nothing(&path(unknown)).await.number(), 404_014);
    }
    assert_eq!(of_bob.post_nothing(&path(&left.id)).await.number(), 404_014, "a link of another user");
    assert_eq!(stage.app.caller().post_nothing(&path(&left.id)).await.number(), 401_001);
    left.expect_bye("expired").await;
    assert_eq!(longer.post_nothing(&path(&left.id)).await.number(), 404_014, "it has ended");
    assert_eq!(Link::refused(&old).await.number(), 401_001);
    assert_eq!(stage.app.caller().get(&format!("/v1/notifications/stream?ticket={ticket}")).await.number(), 401_001);
    stage.emit(&to("USER", &["ann"], json!("marker"))).await;
    renewed.expect_payload(&json!("marker")).await;
    let mut resumed = Link::open(&longer, Some(&left.cursor)).await;
    resumed.expect_payload(&json!("marker")).await;
}

async fn a_new_token_says_what_its_user_belongs_to(on: Backend) {
    let stage = Stage::set(on).await;
    let news = stage.app.caller();
    let audience = |role: &str| json!({"user": "ann", "audiences": {"ROLE": [role]}});
    let (editor, reader) = (stage.ticket_with(audience("editor")).await, stage.ticket_with(audience("reader")).await);
    let declared =
        json!({"clients": [{"clientId": "roles", "clientSecret": "of roles", "notifications": {"emit": ["ROLE"]}}]});
    stage.app.apply(declared).await;
    let roles = news.basic("roles", "of roles");
    let emit =
        async |role: &str, n: usize| roles.post("/v1/notifications", &to("ROLE", &[role], json!(n))).await.data();
    let mut link = Link::open(&stage.bearing(&editor), None).await;
    emit("editor", 1).await;
    link.expect_payload(&json!(1)).await;
    let path = format!("/v1/notifications/links/{}/token", link.id);
    assert_eq!(stage.bearing(&reader).post_nothing(&path).await.status, 204);
    link.expect("audiences").await;
    emit("editor", 2).await;
    emit("reader", 3).await;
    link.expect_payload(&json!(3)).await;
    // A change of what is declared leaves it so.
    stage.join("club", &["ann"]).await;
    link.expect("audiences").await;
    emit("editor", 4).await;
    emit("reader", 5).await;
    link.expect_payload(&json!(5)).await;
}

#[expect(clippy::print_stdout, reason = "the figures of a test")]
async fn a_reader_that_stops_is_closed_and_misses_nothing(on: Backend) {
    const LISTS: usize = 15;
    let stage = Stage::with(on, |options| options.hub.queue_frames = 30).await;
    let ticket = stage.ticket("ann").await;
    let mut wire = stage.app.wire().await;
    wire.send(format!("GET /v1/notifications/stream?ticket={ticket} HTTP/1.1\r\nhost: relais\r\n\r\n")).await;
    until("the link is open", || async { stage.app.notifications().links().len() == 1 }).await;
    let mut other = stage.link("ann").await;
    // More than the buffers of the connection hold.
    let filling = "x".repeat(60_000);
    let mut expected = Vec::new();
    let mut slowest = Duration::ZERO;
    for list in 0..LISTS {
        let payload = |n: usize| json!({"n": list * 15 + n, "filling": filling});
        let drafts: Vec<Value> = (0..15).map(|n| to("USER", &["ann"], payload(n))).collect();
        let begun = std::time::Instant::now();
        stage.emit_all(&drafts).await;
        for n in 0..15 {
            other.expect_payload(&payload(n)).await;
            expected.push(list * 15 + n);
        }
        slowest = slowest.max(begun.elapsed());
    }
    let received = wire.until("event: bye\ndata: {\"reason\":\"slow\"}\n\n").await;
    // Parts of the answer come in chunks, whose sizes stand between them.
    let body = received.split_once("\r\n\r\n").map(|(_, body)| unchunked(body)).unwrap_or_default();
    let mut seen = Vec::new();
    let mut cursor = String::new();
    for event in body.split_inclusive("\n\n").filter_map(parse) {
        cursor = event.id.clone().unwrap_or(cursor);
        if event.name == "notification" {
            seen.push(event.data["payload"]["n"].as_u64().unwrap_or_default() as usize);
        }
    }
    let before = seen.len();
    assert!(before < expected.len(), "the reader was not slow");
    let mut resumed = Link::open(&stage.bearing(&ticket), Some(&cursor)).await;
    while seen.len() < expected.len() {
        seen.push(resumed.expect("notification").await.data["payload"]["n"].as_u64().unwrap_or_default() as usize);
    }
    assert_eq!(seen, expected);
    println!(
        "slow reader: {before} of {} before bye, 15 messages at another link took {slowest:?} at most",
        expected.len()
    );
}

/// The parts of an answer in chunks, without their sizes.
fn unchunked(body: &str) -> String {
    let (mut text, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0).min(after.len());
        text.push_str(&after[..size]);
        rest = after.get(size + 2..).unwrap_or_default();
    }
    text
}

async fn a_server_that_stops_says_bye(on: Backend) {
    let stage = Stage::set(on).await;
    let ann = stage.user("ann").await;
    let mut link = Link::open(&ann, None).await;
    let polling = {
        let (ann, path) = (ann.clone(), format!("/v1/notifications/poll?after={}&wait=30s", link.cursor));
        tokio::spawn(async move { ann.get(&path).await.data() })
    };
    stage.app.under_way("/v1/notifications/poll", 1).await;
    until("both wait", || async { stage.app.notifications().links().len() == 2 }).await;
    stage.app.notifications().begin_stop();
    link.expect_bye("stopping").await;
    let polled = tokio::time::timeout(DEADLINE, polling).await.expect("it is there").expect("it is there");
    assert_eq!(polled["events"][0]["data"]["reason"], "stopping", "{polled}");
    assert_eq!(text(&polled["cursor"]), link.cursor);
    assert_eq!(Link::refused(&ann).await.number() / 1000, 503);
    assert_eq!(stage.shop.post("/v1/notifications", &to("USER", &["ann"], json!(1))).await.number() / 1000, 503);
}

async fn a_user_and_an_address_have_so_many_links(on: Backend) {
    let app = TestApp::builder(on).notifications(|options| {
        options.hub.links_per_user = 2;
        options.hub.links_per_address = 3;
    });
    let stage = Stage::start(app).await;
    let (ann, bob) = (stage.user("ann").await, stage.user("bob").await);
    let (one, _two) = (Link::open(&ann, None).await, Link::open(&ann, None).await);
    let refused = Link::refused(&ann).await;
    assert_eq!(refused.number(), 429_005);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(ann.get("/v1/notifications/poll?after=x").await.number(), 429_005, "a poll is a link as well");
    assert_eq!(ann.get("/v1/notifications").await.status, 200, "lists are not");
    let _three = Link::open(&bob, None).await;
    assert_eq!(Link::refused(&bob).await.number(), 429_005, "the address has three");
    drop(one);
    until("one is closed", || async { stage.app.notifications().links().len() == 2 }).await;
    Link::open(&ann, None).await;
}
