//! Long-poll: the same messages on the same cursors, for networks that hold streams back.

use std::time::Duration;

use relais_tests::app::{Backend, Caller};
use serde_json::{Value, json};

use crate::{
    link::{Event, Link},
    socket::Page,
    stage::{Stage, required, text, to},
};

on_each_store!(all_three_ways_say_the_same, a_poll_without_a_wait_has_all_that_was_missed);
on_one_store!(a_poll_waits_for_something, what_a_poll_does_not_take);

async fn poll(user: &Caller, query: &str) -> Value {
    user.get(&format!("/v1/notifications/poll?{query}")).await.data()
}

/// Polls without waiting until there is nothing more.
async fn poll_all(user: &Caller, after: &str) -> Vec<Event> {
    let (mut events, mut cursor) = (Vec::new(), after.to_owned());
    loop {
        let answer = poll(user, &format!("after={cursor}")).await;
        let page = answer["events"].as_array().cloned().unwrap_or_default();
        if page.is_empty() {
            return events;
        }
        cursor = text(&answer["cursor"]);
        events.extend(page.iter().map(|event| Event {
            name: text(&event["event"]),
            id: event["id"].as_str().map(str::to_owned),
            data: event["data"].clone(),
        }));
        assert_eq!(events.last().and_then(|event| event.id.clone()), Some(cursor.clone()));
    }
}

async fn all_three_ways_say_the_same(on: Backend) {
    for tail_entries in [10_000, 3] {
        let stage = Stage::with(on, |options| {
            options.hub.tail_entries = tail_entries;
            options.ack_timeout = Duration::from_millis(20);
        });
        let stage = stage.await;
        let ann = stage.user("ann").await;
        let mut live = Link::open(&ann, None).await;
        let begun = live.cursor.clone();
        stage.join("club", &["ann"]).await;
        let mut replayed = required("GROUP", &["club"], json!("again"));
        replayed["routing"]["retry"]["limit"] = json!(1);
        stage.emit(&replayed).await;
        let gone = stage.emit(&to("USER", &["ann"], json!("gone"))).await;
        for n in 0..240 {
            if n % 60 == 0 {
                stage.emit_all(&(n..n + 60).map(|n| to("GROUP", &["club"], json!(n))).collect::<Vec<_>>()).await;
            }
        }
        stage.shop.delete(&format!("/v1/notifications/{gone}")).await.data();
        // Sent again once; and what is withdrawn is known to be by the one who answers.
        let (mut again, mut withdrawn) = (0, 0);
        while again < 2 || withdrawn < 1 {
            let event = live.next().await.expect("the link ended");
            again += usize::from(event.data["payload"] == "again");
            withdrawn += usize::from(event.name == "withdrawn");
        }
        let seen = stage.emit(&to("USER", &["ann"], json!("seen"))).await;
        ann.post_nothing(&format!("/v1/notifications/{seen}/ack")).await.data();

        let polled = poll_all(&ann, &begun).await;
        assert!(polled.len() > 240, "{}", polled.len());
        let mut stream = Link::open(&ann, Some(&begun)).await;
        let mut page = Page::open(&stage, "ann", Some(&begun)).await;
        let sendings = polled.iter().filter(|event| event.name == "notification");
        assert_eq!(sendings.filter(|event| event.data["payload"] == "again").count(), 2, "{:?}", &polled[..4]);
        for event in &polled {
            assert_eq!(stream.next().await.as_ref(), Some(event), "on the stream");
            assert_eq!(page.next().await.as_ref(), Some(event), "on the WebSocket");
        }
        for name in ["notification", "withdrawn", "acknowledged", "audiences"] {
            assert!(polled.iter().any(|event| event.name == name), "{name}");
        }
    }
}

async fn a_poll_without_a_wait_has_all_that_was_missed(on: Backend) {
    let stage = Stage::with(on, |options| options.hub.tail_entries = 1).await;
    let ann = stage.user("ann").await;
    let begun = text(&poll(&ann, "").await["cursor"]);
    stage.emit_all(&(0..5).map(|n| to("USER", &["ann"], json!(n))).collect::<Vec<_>>()).await;
    // After what is in memory there is nothing for ann.
    stage.emit_all(&(0..5).map(|n| to("USER", &["bob"], json!(n))).collect::<Vec<_>>()).await;
    let mut live = stage.link("bob").await;
    stage.emit(&to("USER", &["bob"], json!("marker"))).await;
    live.expect_payload(&json!("marker")).await;
    assert_eq!(poll_all(&ann, &begun).await.len(), 5);
}

async fn a_poll_waits_for_something(on: Backend) {
    let stage = Stage::set(on).await;
    let ann = stage.user("ann").await;
    let first = poll(&ann, "wait=30s").await;
    assert_eq!(first["events"], json!([]), "without a cursor it answers at once");
    let cursor = text(&first["cursor"]);
    assert_eq!(poll(&ann, &format!("after={cursor}&wait=10ms")).await, json!({"events": [], "cursor": cursor}));
    let waiting = {
        let (ann, query) = (ann.clone(), format!("after={cursor}&wait=30s"));
        tokio::spawn(async move { poll(&ann, &query).await })
    };
    stage.app.under_way("/v1/notifications/poll", 1).await;
    stage.emit(&to("USER", &["bob"], json!("not ann's"))).await;
    stage.emit(&to("USER", &["ann"], json!(1))).await;
    let answer = waiting.await.expect("it is there");
    assert_eq!(answer["events"][0]["data"]["payload"], 1, "{answer}");
    let answer = poll(&ann, "after=f00d-1&wait=30s").await;
    assert_eq!(
        (&answer["events"][0]["event"], &answer["events"][0]["data"]["reason"]),
        (&json!("gap"), &json!("epoch"))
    );
    assert_eq!(answer["cursor"], answer["events"][0]["id"]);
}

async fn what_a_poll_does_not_take(on: Backend) {
    let stage = Stage::set(on).await;
    let ann = stage.user("ann").await;
    for query in ["wait=61s", "wait=x", "wait=30", "unknown=1", "after=1-1&after=1-1"] {
        assert_eq!(ann.get(&format!("/v1/notifications/poll?{query}")).await.number(), 400_006, "{query}");
    }
    assert_eq!(ann.get("/v1/notifications/stream?after=1-1").await.number(), 400_006);
}
