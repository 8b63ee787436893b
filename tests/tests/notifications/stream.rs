//! Streams: in order, each entry once per link and cursor, across audiences and instances, and no gap in silence.

use std::time::Duration;

use relais_tests::app::Backend;
use serde_json::json;

use crate::{
    link::Link,
    stage::{Stage, required, text, to, until},
};

on_each_store!(
    a_link_resumes_after_its_cursor_from_memory,
    a_link_resumes_after_its_cursor_from_the_store,
    a_gap_is_told_and_the_link_goes_on,
    what_is_purged_while_a_link_comes_back_is_a_gap,
    entries_of_purged_messages_hide_nothing,
    a_message_for_many_of_a_users_audiences_comes_once,
    a_link_follows_its_users_audiences,
    who_joins_while_a_link_opens_gets_the_next_message,
    a_message_is_sent_again_to_those_who_have_not_acknowledged,
);

async fn a_link_resumes_after_its_cursor_from_memory(on: Backend) {
    resumes(&Stage::set(on).await).await;
}

async fn a_link_resumes_after_its_cursor_from_the_store(on: Backend) {
    resumes(&Stage::with(on, |options| options.hub.tail_entries = 2).await).await;
}

/// More than a page of what is missed.
const MANY: usize = 250;

async fn resumes(stage: &Stage) {
    let ann = stage.user("ann").await;
    let mut link = Link::open(&ann, None).await;
    let begun = link.cursor.clone();
    for from in (0..MANY).step_by(50) {
        let drafts: Vec<_> = (from..from + 50)
            .flat_map(|n| [to("USER", &["ann"], json!(n)), to("USER", &["bob"], json!("not ann's"))])
            .collect();
        stage.emit_all(&drafts).await;
    }
    // What a link says after each cursor.
    let (mut cursors, mut payloads) = (vec![begun.clone()], Vec::new());
    for n in 0..MANY {
        let event = link.expect_payload(&json!(n)).await;
        payloads.push(json!(n));
        cursors.extend(event.id);
    }
    drop(link);
    for seen in [0, 49, MANY] {
        let mut by_header = Link::open(&ann, Some(&cursors[seen])).await;
        assert_eq!(by_header.cursor, cursors[seen], "hello says where the link begins");
        let path = format!("/v1/notifications/stream?lastEventId={}", cursors[seen]);
        let mut by_query = Link::begin(ann.open(&path).await).await;
        payloads.push(json!({"after": seen}));
        stage.emit(&to("USER", &["ann"], json!({"after": seen}))).await;
        for (n, payload) in payloads.iter().enumerate().skip(seen) {
            let event = by_header.expect_payload(payload).await;
            assert_eq!(by_query.expect_payload(payload).await, event);
            if let Some(known) = cursors.get(n + 1) {
                assert_eq!(event.id.as_ref(), Some(known), "the same cursor each time");
            }
        }
        cursors.push(by_header.cursor.clone());
    }
    // The header counts where both are given, as a browser sends it when it reconnects.
    let path = format!("/v1/notifications/stream?lastEventId={begun}");
    let link = Link::begin(ann.clone().with("last-event-id", &cursors[7]).open(&path).await).await;
    assert_eq!(link.cursor, cursors[7]);
}

async fn a_gap_is_told_and_the_link_goes_on(on: Backend) {
    let stage = Stage::set(on).await;
    let ann = stage.user("ann").await;
    let mut live = Link::open(&ann, None).await;
    let begun = live.cursor.clone();
    stage.emit(&to("USER", &["ann"], json!(1))).await;
    live.expect_payload(&json!(1)).await;
    let epoch = begun.split('-').next().unwrap_or_default().to_owned();
    // Everything, and then an entry that tells this process of it.
    stage
        .app
        .notification_store
        .purge_notifications(Duration::ZERO, Duration::from_secs(999), 100)
        .await
        .expect("it is there");
    stage.emit(&to("USER", &["ann"], json!(2))).await;
    live.expect_payload(&json!(2)).await;
    let beyond = format!("{epoch}-ffffff");
    for (cursor, reason) in [
        ("f00d-1", "epoch"),
        ("nonsense", "invalid"),
        ("-", "invalid"),
        ("1", "invalid"),
        (beyond.as_str(), "invalid"),
        (begun.as_str(), "purged"),
    ] {
        let mut link = Link::open(&ann, Some(cursor)).await;
        let gap = link.expect("gap").await;
        assert_eq!((&gap.data["reason"], gap.id.as_deref()), (&json!(reason), Some(link.cursor.as_str())), "{cursor}");
        let marker = json!({"after": cursor});
        stage.emit(&to("USER", &["ann"], marker.clone())).await;
        link.expect_payload(&marker).await;
    }
}

/// The process does not know of the purge when the link is opened.
async fn what_is_purged_while_a_link_comes_back_is_a_gap(on: Backend) {
    let never = Duration::from_secs(3600);
    let stage = Stage::with(on, |options| (options.hub.tail_entries, options.sweep) = (1, never)).await;
    let ann = stage.user("ann").await;
    let mut live = Link::open(&ann, None).await;
    let begun = live.cursor.clone();
    for n in 0..5 {
        stage.emit(&to("USER", &["ann"], json!(n))).await;
        live.expect_payload(&json!(n)).await;
    }
    stage.app.notification_store.purge_notifications(Duration::ZERO, never, 3).await.expect("it is there");
    let mut link = Link::open(&ann, Some(&begun)).await;
    assert_eq!(link.expect("gap").await.data["reason"], "purged");
    stage.emit(&to("USER", &["ann"], json!("marker"))).await;
    while link.expect("notification").await.data["payload"] != "marker" {}
}

/// A page of the log with entries of messages that are gone is not the last one.
async fn entries_of_purged_messages_hide_nothing(on: Backend) {
    let stage = Stage::with(on, |options| {
        options.hub.tail_entries = 1;
        options.timers = false;
    });
    let stage = stage.await;
    let ann = stage.user("ann").await;
    let mut live = Link::open(&ann, None).await;
    let begun = live.cursor.clone();
    let gone = to_expire(&stage, "ann").await;
    // Only this, if it was withdrawn before the instance had read it.
    if live.expect_any(&["notification", "withdrawn"]).await.name == "notification" {
        live.expect("withdrawn").await;
    }
    let store = &stage.app.notification_store;
    for from in (0..MANY).step_by(50) {
        let drafts: Vec<_> = (from..from + 50).map(|n| to("USER", &["ann"], json!(n))).collect();
        stage.emit_all(&drafts).await;
    }
    // The message expires and is purged; the entry that tells of its withdrawal is younger, and stays.
    let kept = Duration::from_secs(3600);
    until("it is purged", || async {
        let _ = store.purge_notifications(kept, Duration::ZERO, 100).await;
        store.find_notification(gone.parse().expect("it is there"), 0).await.is_ok_and(|found| found.is_none())
    })
    .await;
    let mut link = Link::open(&ann, Some(&begun)).await;
    for n in 0..MANY {
        link.expect_payload(&json!(n)).await;
    }
}

/// A message with an entry of its withdrawal that expires at once.
async fn to_expire(stage: &Stage, user: &str) -> String {
    let mut draft = to("USER", &[user], json!("short"));
    let soon = jiff::Timestamp::now() + Duration::from_millis(500);
    draft["metadata"] = json!({"expiration": soon.to_string()});
    let id = stage.emit(&draft).await;
    stage.shop.delete(&format!("/v1/notifications/{id}")).await.data();
    id
}

async fn a_message_for_many_of_a_users_audiences_comes_once(on: Backend) {
    let stage = Stage::with(on, |options| options.hub.tail_entries = 2).await;
    for group in ["a", "b", "c"] {
        stage.join(group, &["ann"]).await;
    }
    let school = json!({"members": [{"type": "GROUP", "target": "a"}, {"type": "GROUP", "target": "b"}]});
    stage.shop.put("/v1/audiences/STRUCTURE/school/members", &school).await.data();
    let ticket = stage.ticket_with(json!({"user": "ann", "audiences": {"ROLE": ["admin"]}})).await;
    let ann = stage.bearing(&ticket);
    let mut link = Link::open(&ann, None).await;
    let begun = link.cursor.clone();
    for n in 0..4 {
        stage.emit(&to("GROUP", &["a", "b", "c"], json!(n))).await;
        stage.emit(&to("STRUCTURE", &["school"], json!(n + 10))).await;
    }
    let mut again = Link::open(&ann, Some(&begun)).await;
    for link in [&mut link, &mut again] {
        for n in 0..4 {
            link.expect_payload(&json!(n)).await;
            link.expect_payload(&json!(n + 10)).await;
        }
    }
    assert_eq!(ann.get("/v1/notifications/counts").await.data()["all"], 8);
}

async fn a_link_follows_its_users_audiences(on: Backend) {
    let stage = Stage::set(on).await;
    let mut link = stage.link("ann").await;
    let to_group = async |n: usize| stage.emit(&to("GROUP", &["club"], json!(n))).await;
    to_group(1).await;
    stage.join("club", &["ann", "bob"]).await;
    link.expect("audiences").await;
    to_group(2).await;
    link.expect_payload(&json!(2)).await;
    stage.leave("club", "ann").await;
    link.expect("audiences").await;
    to_group(3).await;
    // By way of another target.
    stage.join("club", &["cem"]).await;
    let of_school = json!({"members": [{"type": "GROUP", "target": "class"}]});
    stage.join("class", &["ann"]).await;
    link.expect("audiences").await;
    stage.shop.put("/v1/audiences/STRUCTURE/school/members", &of_school).await.data();
    link.expect("audiences").await;
    stage.emit(&to("STRUCTURE", &["school"], json!(4))).await;
    link.expect_payload(&json!(4)).await;
    stage.shop.put("/v1/audiences/STRUCTURE/school/members", &json!({"members": []})).await.data();
    link.expect("audiences").await;
    stage.emit(&to("STRUCTURE", &["school"], json!(5))).await;
    stage.emit(&to("USER", &["ann"], json!("marker"))).await;
    link.expect_payload(&json!("marker")).await;
    // What is known of members is what clients have said.
    let members = stage.shop.get("/v1/audiences/GROUP/club/members?limit=1").await.data();
    assert_eq!(members["members"], json!([{"type": "USER", "target": "bob"}]));
    let next = text(&members["next"]).replace('"', "%22").replace('[', "%5B").replace(']', "%5D");
    let members = stage.shop.get(&format!("/v1/audiences/GROUP/club/members?after={next}")).await.data();
    assert_eq!(members["members"], json!([{"type": "USER", "target": "cem"}]));
    let cycle = json!({"members": [{"type": "GROUP", "target": "class"}]});
    assert_eq!(stage.shop.put("/v1/audiences/GROUP/class/members", &cycle).await.number(), 400_017);
}

/// Whatever comes first: a link that is open when the answer to a change is there knows of the change.
async fn who_joins_while_a_link_opens_gets_the_next_message(on: Backend) {
    const ROUNDS: usize = 60;
    let stage = Stage::with(on, |options| options.hub.tail_entries = 5).await;
    let ann = stage.user("ann").await;
    let mut cursor = stage.link("ann").await.cursor.clone();
    for round in 0..ROUNDS {
        let group = format!("g{round}");
        // From now on, and after a cursor that is older than what is in memory.
        let after = (round % 2 == 1).then_some(cursor.as_str());
        let open = async {
            match after {
                Some(cursor) => Link::open(&ann, Some(cursor)).await,
                None => Link::open_now(&ann).await,
            }
        };
        let (mut link, ()) = tokio::join!(open, stage.join(&group, &["ann"]));
        stage.emit(&to("GROUP", &[&group], json!(round))).await;
        stage.emit(&to("USER", &["ann"], json!({"after": round}))).await;
        let mut seen = Vec::new();
        loop {
            let event = link.next().await.expect("the link ended");
            if event.name == "notification" {
                seen.push(event.payload().clone());
                if seen.last() == Some(&json!({"after": round})) {
                    break;
                }
            }
        }
        assert!(seen.contains(&json!(round)), "round {round}: {seen:?}");
        if round % 10 == 9 {
            cursor = link.cursor.clone();
        }
    }
}

async fn a_message_is_sent_again_to_those_who_have_not_acknowledged(on: Backend) {
    let stage = Stage::with(on, |options| {
        options.ack_timeout = Duration::from_millis(300);
        options.hub.tail_entries = 1;
    });
    let stage = stage.await;
    stage.join("both", &["ann", "bob"]).await;
    let ann = stage.user("ann").await;
    let (mut of_ann, mut of_bob) = (Link::open(&ann, None).await, stage.link("bob").await);
    let begun = of_ann.cursor.clone();
    let id = stage.emit(&required("GROUP", &["both"], json!(1))).await;
    of_ann.expect("notification").await;
    of_bob.expect("notification").await;
    ann.post_nothing(&format!("/v1/notifications/{id}/ack")).await.data();
    assert_eq!(of_ann.expect("acknowledged").await.data["ids"], json!([id]));
    // Who joins later sees it, and is not awaited.
    stage.join("both", &["cem"]).await;
    let mut of_cem = stage.link("cem").await;
    for attempts in 1..=2 {
        let event = of_bob.expect("notification").await;
        assert_eq!((event.message(), &event.data["routing"]["retry"]["attempts"]), (id.clone(), &json!(attempts)));
    }
    // Who comes back is not sent it again either.
    let mut later = Link::open(&ann, Some(&begun)).await;
    assert_eq!(later.expect("notification").await.data["routing"]["retry"]["attempts"], 0);
    later.expect("acknowledged").await;
    stage.user("bob").await.post_nothing(&format!("/v1/notifications/{id}/ack")).await.data();
    stage.emit(&to("USER", &["ann", "cem"], json!("marker"))).await;
    for link in [&mut of_ann, &mut later, &mut of_cem] {
        link.expect_payload(&json!("marker")).await;
    }
    while of_bob.expect_any(&["notification", "acknowledged"]).await.name != "acknowledged" {}
}
