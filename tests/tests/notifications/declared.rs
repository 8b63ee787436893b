//! Declared audiences: types that are known, and targets that belong to their declaration.

use relais_tests::app::{Answer, Backend};
use serde_json::{Value, json};

use crate::{
    link::Link,
    stage::{NOTIFICATIONS, Stage, members_of, text, to},
};

on_each_store! {
    a_declared_target_has_the_members_of_its_declaration,
    what_is_declared_no_more_loses_what_was_declared_and_nothing_else,
    a_type_that_nobody_declared_is_refused_everywhere,
}

on_one_store! {
    a_circle_is_refused_and_named,
    two_targets_can_change_places_in_one_declaration,
    what_is_wrong_with_a_declared_audience_is_said_with_its_place,
}

fn group(target: &str, members: &[&str]) -> Value {
    let member = |name: &&str| match name.split_once(':') {
        Some((kind, target)) => json!({"type": kind, "target": target}),
        None => json!({"target": name}),
    };
    json!({"type": "GROUP", "target": target, "members": members.iter().map(member).collect::<Vec<_>>()})
}

async fn apply(stage: &Stage, query: &str, audiences: &[Value]) -> Answer {
    stage.app.caller().post(&format!("/admin/apply{query}"), &json!({"audiences": audiences})).await
}

/// What was done, such as `GROUP:teachers created`.
fn done(answer: &Answer) -> Vec<String> {
    let line = |entry: &Value| format!("{} {} {}", text(&entry["kind"]), text(&entry["name"]), text(&entry["action"]));
    answer.data()["applied"].as_array().into_iter().flatten().map(line).collect()
}

async fn members(stage: &Stage, target: &str) -> Vec<String> {
    let listed = stage.shop.get(&members_of(target)).await.data();
    let name = |member: &Value| format!("{}:{}", text(&member["type"]), text(&member["target"]));
    listed["members"].as_array().into_iter().flatten().map(name).collect()
}

/// Places and messages of a refusal.
fn problems(answer: &Answer) -> Vec<(String, String)> {
    let details = answer.json()["error"]["details"].as_array().cloned().unwrap_or_default();
    details.iter().map(|detail| (text(&detail["path"]), text(&detail["message"]))).collect()
}

async fn a_declared_target_has_the_members_of_its_declaration(on: Backend) {
    let stage = Stage::set(on).await;
    let mut ann = stage.link("ann").await;
    stage.join("teachers", &["old"]).await;
    let file = [group("teachers", &["ann", "GROUP:1b"]), json!({"type": "COURSE"})];
    let dry = apply(&stage, "?dryRun=true", &file).await;
    assert_eq!(done(&dry), ["audience GROUP:teachers created", "audience COURSE created"]);
    assert_eq!(members(&stage, "teachers").await, ["USER:old"], "only told");
    assert_eq!(done(&apply(&stage, "", &file).await), done(&dry));
    assert_eq!(members(&stage, "teachers").await, ["GROUP:1b", "USER:ann"], "what was there before is replaced");
    ann.expect("audiences").await;
    stage.emit(&to("GROUP", &["teachers"], json!("to all"))).await;
    ann.expect_payload(&json!("to all")).await;
    // A nested target that is not declared still belongs to clients.
    stage.join("1b", &["bob"]).await;
    let mut bob = stage.link("bob").await;
    stage.emit(&to("GROUP", &["teachers"], json!("to the class too"))).await;
    bob.expect_payload(&json!("to the class too")).await;
    // Nobody else changes it: neither clients nor operators.
    let body = json!({"members": [{"target": "eve"}]});
    for answer in [
        stage.shop.put(&members_of("teachers"), &body).await,
        stage.shop.post(&members_of("teachers"), &body).await,
        stage.shop.delete(&format!("{}/USER/ann", members_of("teachers"))).await,
        stage.app.caller().put("/admin/audiences/GROUP/teachers/members", &body).await,
    ] {
        assert_eq!(answer.number(), 409003, "{}", answer.text);
        assert!(answer.text.contains("GROUP:teachers is declared"), "{}", answer.text);
    }
    // Declared again, only what differs is changed.
    assert_eq!(done(&apply(&stage, "", &file).await)[0], "audience GROUP:teachers unchanged");
    let file = [group("teachers", &["bob", "GROUP:1b"])];
    assert_eq!(done(&apply(&stage, "", &file).await), ["audience GROUP:teachers updated"]);
    assert_eq!(members(&stage, "teachers").await, ["GROUP:1b", "USER:bob"]);
    let exported = stage.app.caller().get("/admin/declaration").await.data();
    assert_eq!(
        exported["audiences"],
        json!([
            {"type": "COURSE"},
            {"type": "GROUP", "target": "teachers", "members": [{"type": "GROUP", "target": "1b"}, {"target": "bob"}]},
        ])
    );
    let listed = stage.app.caller().get("/admin/audiences").await.data();
    assert_eq!(
        listed["audiences"],
        json!([
            {"type": "COURSE", "declaredMembers": 0},
            {"type": "GROUP", "target": "teachers", "declaredMembers": 2},
        ])
    );
}

async fn what_is_declared_no_more_loses_what_was_declared_and_nothing_else(on: Backend) {
    let stage = Stage::set(on).await;
    stage.join("others", &["old"]).await;
    apply(&stage, "", &[group("a", &["ann"]), group("b", &["bob"])]).await.data();
    // A file without them leaves them as they are, unless it prunes.
    let clients = crate::stage::declaration()["clients"].clone();
    let without = json!({"clients": clients, "audiences": [group("b", &["bob"])]});
    stage.app.apply(without.clone()).await;
    assert_eq!(members(&stage, "a").await, ["USER:ann"]);
    let pruned = stage.app.caller().post("/admin/apply?prune=true", &without).await;
    assert!(done(&pruned).contains(&"audience GROUP:a deleted".to_owned()), "{}", pruned.text);
    assert_eq!(members(&stage, "a").await, Vec::<String>::new());
    assert_eq!(
        (members(&stage, "b").await, members(&stage, "others").await),
        (vec!["USER:bob".to_owned()], vec!["USER:old".to_owned()])
    );
    // From now on clients may change it again.
    stage.join("a", &["eve"]).await;
    assert_eq!(members(&stage, "a").await, ["USER:eve"]);
    assert_eq!(stage.app.caller().delete("/admin/audiences/GROUP/a").await.number(), 404017);
    let deleted = stage.app.caller().delete("/admin/audiences/GROUP/b").await;
    assert_eq!(done(&deleted), ["audience GROUP:b deleted"]);
    assert_eq!(members(&stage, "b").await, Vec::<String>::new());
    assert_eq!(stage.app.caller().get("/admin/audiences").await.data()["audiences"], json!([]));
}

async fn a_type_that_nobody_declared_is_refused_everywhere(on: Backend) {
    let stage = Stage::set(on).await;
    let admin = stage.app.caller();
    admin
        .put(
            "/admin/clients/shop",
            &json!({"clientId": "shop", "notifications": {"emit": ["*"], "audience": ["*"], "ticket": ["*"]}}),
        )
        .await
        .data();
    let message = to("COURSE", &["maths"], json!("x"));
    let ticket = json!({"user": "ann", "audiences": {"COURSE": ["maths"]}});
    let (members, member) = ("/v1/audiences/COURSE/maths/members", json!({"members": [{"target": "ann"}]}));
    let nested = json!({"members": [{"type": "COURSE", "target": "maths"}]});
    let refused = async |stage: &Stage| {
        let emitted = stage.shop.post(NOTIFICATIONS, &message).await;
        assert_eq!(emitted.number(), 400015);
        let said = "there is no type of audience \"COURSE\"; there are USER, GROUP, ROLE, STRUCTURE, FORMATION";
        assert!(problems(&emitted)[0].1.contains(said), "{}", emitted.text);
        assert_eq!(stage.shop.put(members, &member).await.number(), 400017);
        assert_eq!(stage.shop.put(&members_of("1b"), &nested).await.number(), 400017);
        let asked = stage.shop.post("/v1/notifications/tickets", &ticket).await;
        assert!(asked.number() == 400003 && asked.text.contains("there is no type of audience"), "{}", asked.text);
    };
    // The key of tickets is there.
    stage.ticket("ann").await;
    refused(&stage).await;
    apply(&stage, "", &[json!({"type": "COURSE"})]).await.data();
    let ann = stage.bearing(&stage.ticket_with(ticket.clone()).await);
    let mut link = Link::open(&ann, None).await;
    stage.emit(&message).await;
    link.expect_payload(&json!("x")).await;
    stage.shop.put(members, &member).await.data();
    stage.shop.put(&members_of("1b"), &nested).await.data();
    assert_eq!(done(&admin.delete("/admin/audiences/COURSE").await), ["audience COURSE deleted"]);
    refused(&stage).await;
    // A token that names it is refused too, and says why.
    let answer = ann.get(NOTIFICATIONS).await;
    assert!(answer.number() == 401001 && answer.text.contains("no type of audience \\\"COURSE\\\""), "{}", answer.text);
}

async fn a_circle_is_refused_and_named(on: Backend) {
    let stage = Stage::set(on).await;
    let answer =
        apply(&stage, "", &[group("a", &["GROUP:b"]), group("b", &["ann", "GROUP:c"]), group("c", &["GROUP:a"])]).await;
    assert_eq!(answer.number(), 400010);
    let found = problems(&answer);
    let first = (
        "/audiences/0/members/0".to_owned(),
        "GROUP:a would contain itself: GROUP:a > GROUP:b > GROUP:c > GROUP:a".to_owned(),
    );
    assert!(found.contains(&first), "{found:?}");
    // Also through targets that clients have changed.
    let nested = json!({"members": [{"type": "GROUP", "target": "x"}]});
    stage.shop.put(&members_of("y"), &nested).await.data();
    let answer = apply(&stage, "", &[group("x", &["GROUP:y"])]).await;
    assert!(problems(&answer)[0].1.ends_with("GROUP:x > GROUP:y > GROUP:x"), "{}", answer.text);
    assert_eq!(
        problems(&apply(&stage, "", &[group("z", &["GROUP:z"])]).await)[0].1,
        "GROUP:z would contain itself: GROUP:z > GROUP:z"
    );
    assert_eq!(stage.app.caller().get("/admin/audiences").await.data()["audiences"], json!([]), "nothing was applied");
}

async fn two_targets_can_change_places_in_one_declaration(on: Backend) {
    let stage = Stage::set(on).await;
    for (outer, inner) in [("a", "b"), ("b", "a"), ("a", "b")] {
        let file = [group(outer, &[&format!("GROUP:{inner}"), "ann"]), group(inner, &["bob"])];
        apply(&stage, "", &file).await.data();
        assert_eq!(members(&stage, outer).await, [format!("GROUP:{inner}"), "USER:ann".to_owned()]);
        assert_eq!(members(&stage, inner).await, ["USER:bob"]);
    }
}

async fn what_is_wrong_with_a_declared_audience_is_said_with_its_place(on: Backend) {
    let stage = Stage::set(on).await;
    let many: Vec<Value> = (0..10_001).map(|number| json!({"target": format!("u{number}")})).collect();
    for (audience, place, said) in [
        (json!({"type": "USER", "target": "ann"}), "/audiences/0/type", "USER is always there"),
        (json!({"type": ""}), "/audiences/0/type", "must have 1 to 200 bytes"),
        (json!({"type": "GROUP", "target": "a\nb"}), "/audiences/0/target", "must have 1 to 200 bytes"),
        (json!({"type": "GROUP", "members": [{"target": "ann"}]}), "/audiences/0/members", "needs a `target`"),
        (
            json!({"type": "GROUP", "target": "a", "members": [{"type": "CLASS", "target": "1b"}]}),
            "/audiences/0/members/0/type",
            "there is no type of audience \"CLASS\"; declare it too",
        ),
        (group("a", &["ann", "ann"]), "/audiences/0/members/1", "USER:ann is there twice"),
        (json!({"type": "GROUP", "target": "a", "members": many}), "/audiences/0/members", "must be at most 10000"),
    ] {
        let answer = apply(&stage, "", std::slice::from_ref(&audience)).await;
        assert_eq!(answer.number(), 400010, "{audience}");
        let found = problems(&answer);
        assert!(found.iter().any(|(at, why)| at == place && why.contains(said)), "{audience}: {found:?}");
    }
    let twice = apply(&stage, "", &[group("a", &[]), group("a", &["ann"])]).await;
    assert_eq!(problems(&twice), [("/audiences/1".to_owned(), "audience GROUP:a is declared twice".to_owned())]);
    let unknown = json!({"type": "GROUP", "target": "a", "member": []});
    assert_eq!(apply(&stage, "", &[unknown]).await.number(), 400003);
}
