//! A Redis that is away, comes back, or has lost everything.

use relais_tests::app::{Backend, DEADLINE};
use serde_json::json;

use crate::{
    link::Link,
    stage::{NOTIFICATIONS, Stage, required, to, until},
};

/// Asks the service itself until it has noticed.
async fn in_trouble(stage: &Stage, expected: bool) {
    let mut trouble = stage.app.notifications().follow_trouble();
    let noticed = trouble.wait_for(|trouble| trouble.is_some() == expected);
    let noticed = tokio::time::timeout(DEADLINE, noticed).await;
    assert!(noticed.is_ok(), "it was never {}", if expected { "in trouble" } else { "well" });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_links_stay_open_and_then_go_on_without_a_gap() {
    let here = Stage::set(Backend::Redis).await;
    let there = here.beside(|_| {}).await;
    let ann = here.user("ann").await;
    let (mut link, mut other) = (here.link("ann").await, there.link("ann").await);
    let first = here.emit(&required("USER", &["ann"], json!(1))).await;
    link.expect_payload(&json!(1)).await;
    other.expect_payload(&json!(1)).await;

    here.app.redis().await.kill9().unwrap();
    let draft = to("USER", &["ann"], json!("refused"));
    let emission = here.shop.post(NOTIFICATIONS, &draft).await;
    assert_eq!((emission.status, emission.number()), (503, 503_001), "{}", emission.text);
    let ack = ann.post(&format!("{NOTIFICATIONS}/{first}/ack"), &json!({})).await;
    assert_eq!((ack.status, ack.number()), (503, 503_001), "{}", ack.text);
    let list = ann.get(NOTIFICATIONS).await;
    assert_eq!((list.status, list.number()), (503, 503_001), "{}", list.text);
    in_trouble(&here, true).await;

    here.app.redis().await.restart().await.unwrap();
    in_trouble(&here, false).await;
    let answer = here.shop.post(NOTIFICATIONS, &to("USER", &["ann"], json!(2))).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    // The next event of both links, which never ended.
    link.expect_payload(&json!(2)).await;
    other.expect_payload(&json!(2)).await;
    let mut resumed = Link::open(&ann, Some(&link.cursor)).await;
    there.emit(&to("USER", &["ann"], json!(3))).await;
    resumed.expect_payload(&json!(3)).await;
    let counts = ann.post(&format!("{NOTIFICATIONS}/ack"), &json!({"all": true})).await;
    assert_eq!(counts.status, 200, "{}", counts.text);
    let listed = ann.get(NOTIFICATIONS).await.data();
    assert_eq!(listed["counts"], json!({"unread": 0, "unacknowledged": 0, "all": 3}), "nothing was forgotten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_told_of_a_gap_when_redis_has_lost_everything() {
    let stage = Stage::set(Backend::Redis).await;
    let ticket = stage.ticket("ann").await;
    let ann = stage.bearing(&ticket);
    let mut link = stage.link("ann").await;
    for n in 1..=3 {
        stage.emit(&to("USER", &["ann"], json!(n))).await;
        link.expect_payload(&json!(n)).await;
    }
    let cursor = link.cursor.clone();
    assert_eq!(stage.app.redis().await.tell("FLUSHALL").await.unwrap(), "+OK");
    // More than was lost, so that positions alone would tell nothing.
    for n in 4..=9 {
        stage.emit(&to("USER", &["ann"], json!(n))).await;
    }
    link.expect_bye("stopping").await;
    // Who had a ticket still has one.
    let mut resumed = Link::open(&ann, Some(&cursor)).await;
    assert_eq!(resumed.expect("gap").await.data["reason"], "epoch");
    until("the list has what was emitted since", async || ann.get(NOTIFICATIONS).await.data()["counts"]["all"] == 6)
        .await;
    let last = stage.emit(&to("USER", &["ann"], json!("on"))).await;
    while resumed.expect("notification").await.message() != last {}
}
