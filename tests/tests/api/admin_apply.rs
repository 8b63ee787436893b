//! Declaring over the admin API: create, update, leave alone, prune; secrets that are shown once.

use relais_tests::app::{Answer, Backend, TestApp, secret};
use serde_json::{Value, json};

on_each_store!(
    applying_a_declaration_reports_changes_and_is_idempotent,
    a_dry_run_reports_the_same_and_changes_nothing,
    pruning_removes_what_is_not_named,
    a_generated_secret_is_shown_once_and_works,
    a_rotated_secret_takes_effect_at_once,
    a_service_with_unfinished_tasks_is_not_removed,
    a_removed_client_is_refused_at_once,
    rights_for_notifications_stay_until_a_declaration_speaks_of_them,
);
on_one_store!(
    no_answer_shows_a_secret_or_its_hash,
    an_exported_declaration_can_be_applied_again,
    a_pause_survives_a_declaration_that_does_not_speak_of_it,
    a_client_refused_before_its_declaration_is_accepted_after_it,
);

/// `kind name action`, in the order of the report.
fn report(answer: &Answer) -> Vec<String> {
    let data = answer.data();
    let line = |entry: &Value| {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {}", text("kind"), text("name"), text("action"))
    };
    data["applied"].as_array().into_iter().flatten().map(line).collect()
}

fn some() -> Value {
    json!({
        "services": [{"serviceName": "ocr", "capacity": 5}, {"serviceName": "new"}, {"serviceName": "resize"}],
        "clients": [{"clientId": "carol", "clientSecret": "c"}, {"clientId": "alice"}],
        "authorizations": [
            {"clientId": "carol", "serviceName": "new"},
            {"clientId": "alice", "serviceName": "ocr", "roles": ["consume", "work"]},
            {"clientId": "alice", "serviceName": "resize"},
        ],
    })
}

const DONE: [&str; 8] = [
    "service ocr: updated",
    "service new: created",
    "service resize: unchanged",
    "client carol: created",
    "client alice: unchanged",
    "authorization carol on new: created",
    "authorization alice on ocr: updated",
    "authorization alice on resize: unchanged",
];

async fn applying_a_declaration_reports_changes_and_is_idempotent(on: Backend) {
    let app = TestApp::start(on).await;
    assert_eq!(report(&app.apply(some()).await), DONE);
    let again = report(&app.apply(some()).await);
    assert!(again.iter().all(|line| line.ends_with(": unchanged")), "{again:?}");
    let carol = app.caller().basic("carol", "c");
    assert_eq!(carol.post("/v1/services/new/tasks", &json!({"body": {}})).await.status, 201);
}

async fn a_dry_run_reports_the_same_and_changes_nothing(on: Backend) {
    let app = TestApp::start(on).await;
    let before = app.caller().get("/admin/declaration").await.text;
    assert_eq!(report(&app.caller().post("/admin/apply?dryRun=true", &some()).await), DONE);
    let secretive = app.caller().post("/admin/apply?dryRun=true", &json!({"clients": [{"clientId": "dave"}]})).await;
    assert_eq!(secretive.data()["applied"][0].get("clientSecret"), None, "there is no secret to show");
    let pruning = app.caller().post("/admin/apply?dryRun=true&prune=true", &json!({})).await;
    assert_eq!(report(&pruning).iter().filter(|line| line.ends_with(": deleted")).count(), 3 + 4 + 6);
    assert_eq!(app.caller().get("/admin/declaration").await.text, before);
    assert_eq!(app.caller().basic("carol", "c").get("/v1/services").await.number(), 403_001);
}

async fn pruning_removes_what_is_not_named(on: Backend) {
    let app = TestApp::start(on).await;
    let keep = json!({
        "services": [{"serviceName": "resize"}],
        "clients": [{"clientId": "alice"}],
        "authorizations": [{"clientId": "alice", "serviceName": "resize"}],
    });
    let pruned = app.caller().post("/admin/apply?prune=true", &keep).await;
    assert_eq!(report(&pruned).len(), 3 + 5 + 3 + 2, "{:?}", report(&pruned));
    let left = app.caller().get("/admin/declaration").await.data();
    let names = |list: &str, field: &str| -> Vec<String> {
        left[list].as_array().into_iter().flatten().map(|entry| entry[field].to_string()).collect()
    };
    assert_eq!(names("services", "serviceName"), ["\"resize\""]);
    assert_eq!(names("clients", "clientId"), ["\"alice\""]);
    assert_eq!(left["authorizations"].as_array().map(Vec::len), Some(1));
    assert_eq!(app.client("bob").get("/v1/services").await.number(), 403_001);
    app.client("alice").submit("resize", json!({})).await;
    let again = app.caller().post("/admin/apply?prune=true", &json!({})).await;
    assert_eq!(again.number(), 409_003, "what has unfinished tasks is not pruned");
    assert_eq!(app.client("alice").get("/v1/services").await.status, 200, "all or nothing");
}

async fn a_generated_secret_is_shown_once_and_works(on: Backend) {
    let app = TestApp::start(on).await;
    let operator = app.caller();
    let created = operator.put("/admin/clients/carol", &json!({"clientId": "carol"})).await.data();
    let given = created["applied"][0]["clientSecret"].as_str().unwrap_or_default().to_owned();
    assert!(given.len() >= 32, "{given:?}");
    assert_eq!(app.caller().basic("carol", &given).get("/v1/services").await.status, 200);
    let again = operator.put("/admin/clients/carol", &json!({"clientId": "carol"})).await;
    assert!(!again.text.contains("clientSecret"), "{}", again.text);
    for path in ["/admin/clients", "/admin/declaration", "/admin/authorizations", "/admin/services"] {
        assert!(!operator.get(path).await.text.contains(&given), "{path}");
    }
}

async fn a_rotated_secret_takes_effect_at_once(on: Backend) {
    let app = TestApp::start(on).await;
    assert_eq!(app.client("alice").get("/v1/services").await.status, 200, "and is remembered");
    let rotated = app.caller().post_nothing("/admin/clients/alice/secret").await.data();
    let fresh = rotated["clientSecret"].as_str().unwrap_or_default().to_owned();
    assert_eq!(app.client("alice").get("/v1/services").await.number(), 403_001);
    assert_eq!(app.caller().basic("alice", &fresh).get("/v1/services").await.status, 200);
    let named = json!({"clientId": "alice", "clientSecret": secret("alice")});
    assert_eq!(report(&app.caller().put("/admin/clients/alice", &named).await), ["client alice: updated"]);
    assert_eq!(app.caller().basic("alice", &fresh).get("/v1/services").await.number(), 403_001);
    assert_eq!(app.client("alice").get("/v1/services").await.status, 200, "though it was wrong a moment ago");
    assert_eq!(app.caller().post_nothing("/admin/clients/nobody/secret").await.number(), 404_004);
}

async fn a_service_with_unfinished_tasks_is_not_removed(on: Backend) {
    let app = TestApp::start(on).await;
    let (operator, alice, worker) = (app.caller(), app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(operator.delete("/admin/services/resize").await.number(), 409_003, "pending");
    worker.claim_one("resize").await;
    assert_eq!(operator.delete("/admin/services/resize").await.number(), 409_003, "in progress");
    worker.report("resize", &id, json!({"messageType": "success"})).await;
    assert_eq!(operator.delete("/admin/services/resize").await.status, 200);
    assert_eq!(alice.post("/v1/services/resize/tasks", &json!({"body": {}})).await.number(), 404_001);
    assert_eq!(
        operator.get(&format!("/admin/tasks/{id}")).await.data()["task"]["status"],
        "SUCCESS",
        "kept until purged"
    );
    assert_eq!(operator.delete("/admin/services/resize").await.number(), 404_001);
    app.apply(json!({"services": [{"serviceName": "resize"}]})).await;
    assert_eq!(alice.get("/v1/services/resize").await.number(), 403_001, "its authorizations went with it");
}

async fn a_removed_client_is_refused_at_once(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(app.caller().delete("/admin/clients/alice").await.status, 200);
    assert_eq!(alice.poll_status("resize", &id).await, 403);
    assert_eq!(app.client("worker").claim_one("resize").await["taskId"], id.as_str(), "its tasks stay");
    assert_eq!(app.caller().delete("/admin/clients/alice").await.number(), 404_004);
}

async fn no_answer_shows_a_secret_or_its_hash(on: Backend) {
    let app = TestApp::start(on).await;
    let id = app.client("alice").submit("resize", json!({})).await;
    for path in [
        "/admin/services".to_owned(),
        "/admin/services/resize".to_owned(),
        "/admin/clients".to_owned(),
        "/admin/authorizations".to_owned(),
        "/admin/declaration".to_owned(),
        "/admin/tasks".to_owned(),
        format!("/admin/tasks/{id}"),
        "/metrics".to_owned(),
    ] {
        let text = app.caller().get(&path).await.text;
        assert!(
            !text.contains("the secret of") && !text.contains("$2") && !text.contains("ecret\":"),
            "{path}: {text}"
        );
    }
    let bad = json!({"clientId": "alice", "clientSecret": "s3cr3t\u{0}"});
    let refused = app.caller().put("/admin/clients/alice", &bad).await;
    assert!(!refused.text.contains("s3cr3t"), "nor does a refusal repeat it");
}

async fn an_exported_declaration_can_be_applied_again(on: Backend) {
    let app = TestApp::start(on).await;
    app.apply(json!({"services": [{"serviceName": "ocr", "capacity": 5, "lease": "90s", "paused": true,
        "retention": {"any": "30d"}, "jsonSchema": {"properties": {"n": {"maximum": 9_223_372_036_854_775_808u64}}}}]}))
        .await;
    let exported = app.caller().get("/admin/declaration").await.data();
    let again = report(&app.caller().post("/admin/apply?prune=true", &exported).await);
    assert!(!again.is_empty() && again.iter().all(|line| line.ends_with(": unchanged")), "{again:?}");
}

async fn a_pause_survives_a_declaration_that_does_not_speak_of_it(on: Backend) {
    let app = TestApp::start(on).await;
    app.caller().post_nothing("/admin/services/resize/pause").await.data();
    let answer = app.caller().put("/admin/services/resize", &json!({"serviceName": "resize", "capacity": 3})).await;
    assert_eq!(report(&answer), ["service resize: updated"]);
    assert_eq!(app.caller().get("/admin/services/resize").await.data()["paused"], true);
    app.caller().put("/admin/services/resize", &json!({"serviceName": "resize", "paused": false})).await.data();
    assert_eq!(app.caller().get("/admin/services/resize").await.data()["paused"], false);
    assert_eq!(app.caller().post_nothing("/admin/services/nowhere/pause").await.number(), 404_001);
}

async fn rights_for_notifications_stay_until_a_declaration_speaks_of_them(on: Backend) {
    let app = TestApp::start(on).await;
    let operator = app.caller();
    let put = async |rights: Value| {
        let alice = json!({"clients": [{"clientId": "alice", "notifications": rights}]});
        report(&operator.post("/admin/apply", &alice).await).remove(0)
    };
    let shown = async || {
        let of_alice = |list: &Value| {
            let mut clients = list["clients"].as_array().into_iter().flatten();
            clients.find(|client| client["clientId"] == "alice").map(|alice| alice["notifications"].clone())
        };
        let exported = of_alice(&operator.get("/admin/declaration").await.data());
        assert_eq!(of_alice(&operator.get("/admin/clients").await.data()), exported, "the same is listed and exported");
        exported.unwrap_or_default()
    };
    assert_eq!(shown().await, Value::Null);
    assert_eq!(put(json!({})).await, "client alice: unchanged");

    let wide = json!({"emit": ["GROUP", "USER"], "audience": ["*"], "ticket": true});
    let dry = json!({"clients": [{"clientId": "alice", "notifications": wide}]});
    assert_eq!(report(&operator.post("/admin/apply?dryRun=true", &dry).await), ["client alice: updated"]);
    assert_eq!(shown().await, Value::Null, "only tried");
    let unordered = json!({"emit": ["USER", "GROUP"], "audience": ["*"], "ticket": true});
    assert_eq!(put(unordered).await, "client alice: updated");
    assert_eq!(put(wide.clone()).await, "client alice: unchanged");
    assert_eq!(shown().await, wide);
    let again = operator.put("/admin/clients/alice", &json!({"clientId": "alice"})).await;
    assert_eq!(report(&again), ["client alice: unchanged"]);
    operator.post_nothing("/admin/clients/alice/secret").await.data();
    assert_eq!(shown().await, wide, "a declaration that does not speak of them leaves them, and so does a new secret");

    let exported = operator.get("/admin/declaration").await.data();
    let again = report(&operator.post("/admin/apply?prune=true", &exported).await);
    assert!(!again.is_empty() && again.iter().all(|line| line.ends_with(": unchanged")), "{again:?}");

    assert_eq!(put(json!({"ticket": ["GROUP"]})).await, "client alice: updated");
    assert_eq!(shown().await, json!({"ticket": ["GROUP"]}), "they are replaced as a whole");
    assert_eq!(put(json!({"emit": [], "ticket": false})).await, "client alice: updated");
    assert_eq!(shown().await, Value::Null);

    let carol = json!({"clientId": "carol", "notifications": {"emit": ["*"]}});
    assert_eq!(report(&operator.put("/admin/clients/carol", &carol).await), ["client carol: created"]);
    operator.delete("/admin/clients/carol").await.data();
    operator.put("/admin/clients/carol", &json!({"clientId": "carol"})).await.data();
    let clients = operator.get("/admin/clients").await.text;
    assert!(clients.contains("carol") && !clients.contains("notifications"), "{clients}");
}

async fn a_client_refused_before_its_declaration_is_accepted_after_it(on: Backend) {
    let app = TestApp::start(on).await;
    let carol = app.caller().basic("carol", "c");
    assert_eq!(carol.get("/v1/services").await.number(), 403_001);
    app.apply(some()).await;
    assert_eq!(carol.get("/v1/services").await.status, 200, "at once");
}
