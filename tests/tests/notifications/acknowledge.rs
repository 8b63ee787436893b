//! What users list, count and acknowledge.

use relais_tests::app::Backend;
use serde_json::{Value, json};

use crate::{
    link::Link,
    stage::{NOTIFICATIONS, Stage, required, text, to},
};

on_each_store!(
    lists_have_pages_and_exact_counts,
    an_acknowledgement_is_counted_once_and_told_to_the_users_other_links,
    many_and_all_are_acknowledged_at_once,
);

fn counts(unread: u64, unacknowledged: u64, all: u64) -> Value {
    json!({"unread": unread, "unacknowledged": unacknowledged, "all": all})
}

async fn lists_have_pages_and_exact_counts(on: Backend) {
    let stage = Stage::set(on).await;
    stage.join("club", &["ann"]).await;
    let ann = stage.user("ann").await;
    assert_eq!(ann.get("/v1/notifications/counts").await.data(), counts(0, 0, 0));
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(match n % 3 {
            0 => stage.emit(&to("USER", &["ann", "bob"], json!(n))).await,
            1 => stage.emit(&required("GROUP", &["club"], json!(n))).await,
            _ => stage.emit(&required("USER", &["ann"], json!(n))).await,
        });
    }
    stage.emit(&to("USER", &["bob"], json!("not ann's"))).await;
    assert_eq!(ann.get("/v1/notifications/counts").await.data(), counts(12, 8, 12));
    ann.post("/v1/notifications/ack", &json!({"ids": [ids[0], ids[1]]})).await.data();
    let read = async |filter: &str, limit: usize| {
        let (mut found, mut before, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = ann.get(&format!("{NOTIFICATIONS}?filter={filter}&limit={limit}{before}")).await.data();
            assert_eq!(page["counts"], counts(10, 7, 12));
            let listed = page["notifications"].as_array().cloned().unwrap_or_default();
            assert!(listed.len() <= limit);
            found.extend(listed.iter().map(|listed| text(&listed["message"]["metadata"]["id"])));
            pages += 1;
            match page["next"].as_str() {
                Some(next) => before = format!("&before={next}"),
                None => return (found, pages),
            }
        }
    };
    let newest_first = |keep: &dyn Fn(usize) -> bool| -> Vec<String> {
        (0..12).rev().filter(|n| keep(*n)).map(|n| ids[n].clone()).collect()
    };
    assert_eq!(read("all", 4).await, (newest_first(&|_| true), 3), "no empty page at the end");
    assert_eq!(read("all", 5).await, (newest_first(&|_| true), 3));
    assert_eq!(read("unread", 3).await.0, newest_first(&|n| n > 1));
    assert_eq!(read("unacknowledged", 200).await, (newest_first(&|n| n > 1 && n % 3 > 0), 1));
    let page = ann.get(NOTIFICATIONS).await.data();
    assert!(page["notifications"][11]["acknowledged"].is_string(), "{page}");
    assert!(page["notifications"][0].get("acknowledged").is_none());
    // Where a list ends, a link goes on.
    let mut link = Link::open(&ann, page["cursor"].as_str()).await;
    stage.emit(&to("USER", &["ann"], json!("marker"))).await;
    link.expect_payload(&json!("marker")).await;
    for query in ["filter=read", "filter=", "limit=0", "limit=201", "before=x", "before=-1", "x=1"] {
        assert_eq!(ann.get(&format!("{NOTIFICATIONS}?{query}")).await.number(), 400_006, "{query}");
    }
    assert_eq!(ann.get(&format!("{NOTIFICATIONS}?before=18446744073709551615")).await.status, 200);
}

async fn an_acknowledgement_is_counted_once_and_told_to_the_users_other_links(on: Backend) {
    let stage = Stage::set(on).await;
    let ann = stage.user("ann").await;
    let (mut here, mut there, mut of_bob) =
        (Link::open(&ann, None).await, Link::open(&ann, None).await, stage.link("bob").await);
    let id = stage.emit(&required("USER", &["ann", "bob"], json!(1))).await;
    let path = format!("{NOTIFICATIONS}/{id}/ack");
    assert_eq!(ann.post_nothing(&path).await.data(), json!({"acknowledged": 1, "counts": counts(0, 0, 1)}));
    assert_eq!(ann.post_nothing(&path).await.data(), json!({"acknowledged": 0, "counts": counts(0, 0, 1)}));
    let ledger = stage.app.caller().get(&format!("/admin/notifications/{id}")).await.data();
    assert_eq!(ledger["status"], "OPEN", "bob has not");
    let bob = stage.user("bob").await;
    let answers = futures::future::join_all((0..8).map(|_| bob.post_nothing(&path))).await;
    let new: u64 = answers.iter().map(|answer| answer.data()["acknowledged"].as_u64().unwrap_or_default()).sum();
    assert_eq!(new, 1, "once, however many do at once");
    let ledger = stage.app.caller().get(&format!("/admin/notifications/{id}")).await.data();
    assert_eq!(ledger["status"], "ACKNOWLEDGED");
    stage.emit(&to("USER", &["ann", "bob"], json!("marker"))).await;
    for link in [&mut here, &mut there, &mut of_bob] {
        link.expect_payload(&json!(1)).await;
        assert_eq!(link.expect("acknowledged").await.data, json!({"ids": [id]}));
        link.expect_payload(&json!("marker")).await;
    }
}

async fn many_and_all_are_acknowledged_at_once(on: Backend) {
    let stage = Stage::set(on).await;
    let ann = stage.user("ann").await;
    let drafts: Vec<Value> = (0..20).map(|n| required("USER", &["ann"], json!(n))).collect();
    let ids = stage.emit_all(&drafts).await;
    let others = stage.emit(&to("USER", &["bob"], json!("bob's"))).await;
    let mut link = Link::open(&ann, None).await;
    let ack = async |body: Value| ann.post("/v1/notifications/ack", &body).await;
    let unknown = "0195c5a5-0000-7000-8000-000000000001";
    let some = ack(json!({"ids": [ids[0], ids[1], ids[1], unknown, others]})).await.data();
    assert_eq!(some, json!({"acknowledged": 2, "counts": counts(18, 18, 20)}));
    assert_eq!(link.expect("acknowledged").await.data["ids"].as_array().map(Vec::len), Some(2));
    assert_eq!(ack(json!({"all": true})).await.data(), json!({"acknowledged": 18, "counts": counts(0, 0, 20)}));
    assert_eq!(link.expect("acknowledged").await.data["ids"].as_array().map(Vec::len), Some(18));
    assert_eq!(ack(json!({"all": true})).await.data()["acknowledged"], 0);
    let none = ack(json!({"ids": [unknown]})).await.data();
    assert_eq!(none["acknowledged"], 0);
    let too_many = vec![unknown; 1001];
    for body in [
        json!({}),
        json!({"ids": []}),
        json!({"ids": [ids[0]], "all": true}),
        json!({"ids": too_many}),
        json!({"ids": ["x"]}),
        json!({"all": "yes"}),
        json!([]),
    ] {
        assert_eq!(ack(body.clone()).await.number(), 400_003, "{}", body.to_string().len());
    }
    assert_eq!(stage.user("bob").await.get("/v1/notifications/counts").await.data(), counts(1, 0, 1));
}
