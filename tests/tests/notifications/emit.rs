//! What emitters are answered, and what becomes of their messages.

use std::time::Duration;

use relais_tests::app::{Backend, TestApp};
use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::{NOTIFICATIONS, Stage, declaration, required, text, to, until};

on_each_store!(
    one_message_or_a_list_is_emitted_in_its_order,
    a_repeated_emission_is_stored_once,
    a_list_with_a_bad_message_stores_none_of_it,
    what_is_withdrawn_or_replaced_is_told_and_not_sent_any_more,
    what_nobody_acknowledges_goes_to_the_error_log_of_its_client,
);
on_one_store!(what_is_refused_has_a_number_and_a_place);

async fn one_message_or_a_list_is_emitted_in_its_order(on: Backend) {
    let stage = Stage::set(on).await;
    let mut link = stage.link("ann").await;
    let one = stage.emit(&to("USER", &["ann"], json!({"n": 1}))).await;
    let drafts: Vec<Value> = (2..40).map(|n| to("USER", &["ann", "bob"], json!({"n": n}))).collect();
    let many = stage.emit_all(&drafts).await;
    for (n, id) in std::iter::once(&one).chain(&many).enumerate() {
        let event = link.expect_payload(&json!({"n": n + 1})).await;
        assert_eq!(event.message(), *id);
        let metadata = &event.data["metadata"];
        assert_eq!((&metadata["emitter"], &metadata["type"]), (&json!("shop"), &json!("NOTIFICATION")));
        for date in ["timestamp", "expiration"] {
            // 2026-01-31T08:30:00.125Z; whole seconds have no fraction.
            let date = text(&metadata[date]);
            assert!(date.ends_with('Z') && date.len() <= 24, "not in milliseconds: {date}");
        }
    }
}

async fn a_repeated_emission_is_stored_once(on: Backend) {
    let stage = Stage::set(on).await;
    let mut link = stage.link("ann").await;
    let with_id = |payload: Value, topic: &str| {
        let mut draft = to("USER", &["ann"], payload);
        draft["metadata"] = json!({"id": "0195c5a5-0000-7000-8000-000000000001", "topic": topic});
        draft
    };
    let first = stage.emit(&with_id(json!({"n": 1}), "a")).await;
    assert_eq!(stage.emit(&with_id(json!({"n": 1}), "a")).await, first);
    for other in [with_id(json!({"n": 2}), "a"), with_id(json!({"n": 1}), "b")] {
        assert_eq!(stage.shop.post(NOTIFICATIONS, &other).await.number(), 409_005);
    }
    let mut of_a_group = with_id(json!({"n": 1}), "a");
    of_a_group["routing"]["audience"] = json!({"type": "GROUP", "targets": ["ann"]});
    assert_eq!(stage.app.client("news").post(NOTIFICATIONS, &of_a_group).await.number(), 409_005, "another client's");

    let keyed = stage.shop.clone().with("idempotency-key", "order-7");
    let list = json!([to("USER", &["ann"], json!({"n": 3})), to("USER", &["ann"], json!({"n": 4}))]);
    let ids = keyed.post(NOTIFICATIONS, &list).await.data();
    assert_eq!(keyed.post(NOTIFICATIONS, &list).await.data(), ids);
    let other = json!([to("USER", &["ann"], json!({"n": 3})), to("USER", &["ann"], json!({"n": 5}))]);
    let refused = keyed.post(NOTIFICATIONS, &other).await;
    assert_eq!(refused.number(), 409_005);
    assert_eq!(refused.json()["error"]["details"][0]["path"], "/1/metadata/id", "{}", refused.text);
    // All at once, too.
    let again = stage.shop.clone().with("idempotency-key", "order-8");
    let draft = to("USER", &["ann"], json!({"n": 6}));
    let answers = futures::future::join_all((0..10).map(|_| again.post(NOTIFICATIONS, &draft))).await;
    let ids: Vec<Value> = answers.iter().map(|answer| answer.data()["id"].clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    // A key belongs to one client.
    stage.join("all", &["ann"]).await;
    let news = stage.app.client("news").with("idempotency-key", "order-8");
    let of_news = news.post(NOTIFICATIONS, &to("GROUP", &["all"], json!({"n": 7}))).await.data();
    assert_ne!(of_news["id"], ids[0]);
    for n in [1, 3, 4, 6] {
        link.expect_payload(&json!({"n": n})).await;
    }
    link.expect("audiences").await;
    link.expect_payload(&json!({"n": 7})).await;
}

async fn a_list_with_a_bad_message_stores_none_of_it(on: Backend) {
    let stage = Stage::set(on).await;
    let mut link = stage.link("ann").await;
    let good = to("USER", &["ann"], json!("good"));
    let known = stage.emit(&to("USER", &["bob"], json!("known"))).await;
    let mut taken = good.clone();
    taken["metadata"] = json!({"id": known});
    let mut twice = [good.clone(), to("USER", &["ann"], json!("other"))];
    twice.iter_mut().for_each(|draft| draft["metadata"] = json!({"id": "0195c5a5-0000-7000-8000-000000000002"}));
    for (list, number, place) in [
        (vec![good.clone(), required("GROUP", &["empty"], json!(1))], 400_016, "/1/routing/audience"),
        (vec![good.clone(), to("USER", &[], json!(1))], 400_015, "/1"),
        (vec![good.clone(), to("ROLE", &["admin"], json!(1))], 403_001, "/1"),
        (vec![good.clone(), good.clone(), taken], 409_005, "/2/metadata/id"),
        (twice.to_vec(), 409_005, "/1/metadata/id"),
        (vec![good.clone(), json!({"payload": 1})], 400_003, "/1"),
    ] {
        let refused = stage.shop.post(NOTIFICATIONS, &json!(list)).await;
        assert_eq!(refused.number(), number, "{}", refused.text);
        assert_eq!(refused.json()["error"]["details"][0]["path"], place, "{}", refused.text);
    }
    stage.emit(&to("USER", &["ann"], json!("marker"))).await;
    link.expect_payload(&json!("marker")).await;
}

fn users(count: usize) -> Value {
    (0..count).map(|number| format!("u{number}")).collect()
}

async fn what_is_refused_has_a_number_and_a_place(on: Backend) {
    let small = TestApp::builder(on).api(|api| api.max_body_bytes = 100_000).notifications(|_| {});
    let stage = Stage::start(small).await;
    let fine = to("USER", &["ann"], json!(1));
    let with = |path: &[&str], value: Value| {
        let mut draft = fine.clone();
        let mut at = &mut draft;
        for name in path {
            at = &mut at[*name];
        }
        *at = value;
        draft
    };
    for (draft, number, said) in [
        (with(&["routing", "audience", "targets"], json!([])), 400_015, "targets is empty"),
        (with(&["routing", "audience", "targets"], json!(["a\u{1}"])), 400_015, "control characters"),
        (with(&["routing", "audience", "targets"], users(1001)), 400_015, "1001 targets"),
        (with(&["routing", "audience", "targets"], users(9000)), 400_015, "9000 targets"),
        (with(&["routing", "retry"], json!({"attempts": 1})), 400_015, "attempts must be 0"),
        (with(&["metadata"], json!({"expiration": "2020-01-01T00:00:00Z"})), 400_015, "in the past"),
        (with(&["metadata"], json!({"timestamp": "2999-01-01T00:00:00Z"})), 400_015, "in the future"),
        (with(&["payload"], json!("x".repeat(65 * 1024))), 400_015, "the payload has"),
        (required("GROUP", &["nobody"], json!(1)), 400_016, "no members"),
        (to("ROLE", &["admin"], json!(1)), 403_001, "`emit` for audiences of type ROLE"),
        (to("user", &["ann"], json!(1)), 403_001, "`emit` for audiences of type user"),
        (with(&["metadata"], json!({"prio": 1})), 400_003, "unknown field `prio`"),
        (json!([]), 400_003, "1 to 1000"),
        (json!(vec![to("USER", &["a"], json!(1)); 1001]), 400_003, "1 to 1000"),
        (with(&["payload"], json!("x".repeat(100_000))), 413_001, "at most 100000 bytes"),
    ] {
        let refused = stage.shop.post(NOTIFICATIONS, &draft).await;
        assert_eq!(refused.number(), number, "{said}: {}", refused.text);
        assert!(refused.json()["error"]["details"].to_string().contains(said), "{said}: {}", refused.text);
    }
    for (client, draft) in [("mute", &fine), ("news", &fine)] {
        assert_eq!(stage.app.client(client).post(NOTIFICATIONS, draft).await.number(), 403_001, "{client}");
    }
    assert_eq!(stage.app.caller().post(NOTIFICATIONS, &fine).await.number(), 403_001);
    assert_eq!(stage.user("ann").await.post(NOTIFICATIONS, &fine).await.number(), 403_001, "a user emits nothing");
    assert_eq!(
        stage.shop.clone().with("idempotency-key", "two words").post(NOTIFICATIONS, &fine).await.number(),
        400_007
    );
    assert_eq!(stage.shop.post_text(NOTIFICATIONS, "[{").await.number(), 400_002);
    let plain = stage.shop.call_text(Method::POST, NOTIFICATIONS, "text/plain", &fine.to_string()).await;
    assert_eq!(plain.number(), 415_001);
    assert_eq!(stage.user("ann").await.get("/v1/notifications/counts").await.data()["all"], 0);

    let without = TestApp::builder(on).declaring(declaration()).without_notifications().start().await;
    assert_eq!(without.client("shop").post(NOTIFICATIONS, &fine).await.number(), 404_003, "a process without the role");
}

async fn what_is_withdrawn_or_replaced_is_told_and_not_sent_any_more(on: Backend) {
    let stage = Stage::with(on, |options| options.hub.tail_entries = 1).await;
    let ann = stage.user("ann").await;
    let mut link = stage.link("ann").await;
    let begun = link.cursor.clone();
    let one = stage.emit(&to("USER", &["ann"], json!("one"))).await;
    let two = stage.emit(&to("USER", &["ann"], json!("two"))).await;
    link.expect_payload(&json!("one")).await;
    link.expect_payload(&json!("two")).await;

    let path = |id: &str| format!("{NOTIFICATIONS}/{id}");
    assert_eq!(stage.app.client("news").delete(&path(&one)).await.number(), 404_013, "another client's");
    assert_eq!(stage.app.client("mute").delete(&path(&one)).await.number(), 404_013);
    assert_eq!(stage.app.caller().delete(&path(&one)).await.number(), 403_001);
    assert_eq!(stage.shop.delete(&path(&one)).await.data()["id"], one.as_str());
    let withdrawn = link.expect("withdrawn").await;
    assert_eq!((withdrawn.message(), &withdrawn.data["replacedBy"]), (one.clone(), &Value::Null));
    assert_eq!(stage.shop.delete(&path(&one)).await.status, 200, "it is safe to repeat");

    let replaced = stage.shop.put(&path(&two), &to("USER", &["ann"], json!("three"))).await.data();
    let withdrawn = link.expect("withdrawn").await;
    assert_eq!((withdrawn.message(), &withdrawn.data["replacedBy"]), (two.clone(), &replaced["id"]));
    let three = link.expect_payload(&json!("three")).await;
    assert_eq!(three.message(), replaced["id"]);
    let taken = stage.shop.put(&path(&two), &to("USER", &["ann"], json!("four"))).await;
    assert_eq!(taken.number(), 409_006, "its place is taken");
    let refused = stage.shop.put(&path(&three.message()), &required("GROUP", &["nobody"], json!(1))).await;
    assert_eq!(refused.number(), 400_016);
    assert_eq!(stage.shop.put(&path(&three.message()), &to("ROLE", &["x"], json!(1))).await.number(), 403_001);
    assert_eq!(stage.shop.delete(&path("0195c5a5-0000-7000-8000-00000000000f")).await.number(), 404_013);

    let listed = ann.get(NOTIFICATIONS).await.data();
    assert_eq!(listed["notifications"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed["notifications"][0]["message"]["payload"], "three");
    // Who comes back is told, and is not sent what was withdrawn.
    let mut later = crate::link::Link::open(&ann, Some(&begun)).await;
    assert_eq!(later.expect("withdrawn").await.message(), one);
    assert_eq!(later.expect("withdrawn").await.message(), two);
    later.expect_payload(&json!("three")).await;
    stage.emit(&to("USER", &["ann"], json!("marker"))).await;
    later.expect_payload(&json!("marker")).await;
}

async fn what_nobody_acknowledges_goes_to_the_error_log_of_its_client(on: Backend) {
    let stage = Stage::with(on, |options| options.ack_timeout = Duration::from_millis(20)).await;
    stage.join("both", &["ann", "bob"]).await;
    let (mut ann, mut bob) = (stage.link("ann").await, stage.link("bob").await);
    let mut draft = required("GROUP", &["both"], json!(1));
    draft["routing"]["retry"]["limit"] = json!(2);
    let id = stage.emit(&draft).await;
    let ack = |user: &'static str| {
        let (path, stage) = (format!("{NOTIFICATIONS}/{id}/ack"), &stage);
        async move { stage.user(user).await.post_nothing(&path).await.data() }
    };
    assert_eq!(ann.expect("notification").await.data["routing"]["retry"]["attempts"], 0);
    for attempts in 0..3 {
        let event = bob.expect("notification").await;
        assert_eq!((event.message(), &event.data["routing"]["retry"]["attempts"]), (id.clone(), &json!(attempts)));
    }
    let errors = async || stage.shop.get("/v1/notifications/errors").await.data()["notifications"].clone();
    until("it has failed", || async { errors().await[0]["status"] == "FAILED" }).await;
    let failed = errors().await;
    assert_eq!(failed[0]["message"]["metadata"]["id"], id.as_str());
    let awaited = |line: &Value| line["awaited"] == true && line["acknowledged"].is_null();
    let lines = failed[0]["ledger"].as_array().cloned().unwrap_or_default();
    assert_eq!(lines.iter().filter(|line| awaited(line)).count(), 2, "{failed}");
    let of_news = stage.app.client("news").get("/v1/notifications/errors").await.data();
    assert_eq!(of_news["notifications"], json!([]), "errors of others");

    ack("ann").await;
    let resent = stage.app.caller().post_nothing(&format!("/admin/notifications/{id}/resend")).await;
    assert_eq!(resent.status, 200, "{}", resent.text);
    assert_eq!(bob.expect("notification").await.data["routing"]["retry"]["attempts"], 3);
    assert_eq!(ack("bob").await["acknowledged"], 1);
    until("nothing is left", || async { errors().await == json!([]) }).await;
    let again = stage.app.caller().post_nothing(&format!("/admin/notifications/{id}/resend")).await;
    assert_eq!(again.number(), 409_006);
}
