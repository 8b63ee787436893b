//! Every answer to operators, as a committed snapshot.

use relais_tests::app::{Backend, TestApp, redacted};
use serde_json::json;

on_each_store!(
    services_and_their_counters,
    clients_and_authorizations,
    tasks_of_everybody,
    a_purge_counts_before_it_removes
);

async fn services_and_their_counters(on: Backend) {
    let app = TestApp::start(on).await;
    let (operator, alice, worker) = (app.caller(), app.client("alice"), app.client("worker"));
    let declared = json!({
        "serviceName": "resize", "queueName": "pictures", "capacity": 50, "lease": "5m", "deliveryLimit": 3,
        "retention": {"finished": "7d", "any": "90d"},
        "jsonSchema": {"type": "object", "properties": {"width": {"maximum": 4000}}},
    });
    insta::assert_snapshot!("service_updated", redacted(&operator.put("/admin/services/resize", &declared).await));
    insta::assert_snapshot!("service_unchanged", redacted(&operator.put("/admin/services/resize", &declared).await));
    for n in 0..4 {
        alice.submit("resize", json!({"n": n})).await;
    }
    let tasks = worker.claim("resize", json!({"max": 3})).await;
    let id = |n: usize| tasks[n]["taskId"].as_str().unwrap_or_default();
    worker.report("resize", id(0), json!({"messageType": "success"})).await;
    worker.report("resize", id(1), json!({"messageType": "failure"})).await;
    insta::assert_snapshot!("service_paused", redacted(&operator.post_nothing("/admin/services/resize/pause").await));
    insta::assert_snapshot!("services", redacted(&operator.get("/admin/services").await));
    insta::assert_snapshot!("service_resumed", redacted(&operator.post_nothing("/admin/services/resize/resume").await));
    insta::assert_snapshot!("service_deleted", redacted(&operator.delete("/admin/services/strict").await));
    assert_eq!(operator.get("/admin/services/strict").await.number(), 404_001);
}

async fn clients_and_authorizations(on: Backend) {
    let app = TestApp::start(on).await;
    let operator = app.caller();
    let carol = json!({"clientId": "carol"});
    insta::assert_snapshot!("client_created", redacted(&operator.put("/admin/clients/carol", &carol).await));
    insta::assert_snapshot!("client_unchanged", redacted(&operator.put("/admin/clients/carol", &carol).await));
    insta::assert_snapshot!("client_secret", redacted(&operator.post_nothing("/admin/clients/carol/secret").await));
    let both = json!({"clientId": "carol", "serviceName": "ocr", "roles": ["work", "consume"], "capacity": 7});
    let granted = operator.put("/admin/authorizations/carol/ocr", &both).await;
    insta::assert_snapshot!("authorization_created", redacted(&granted));
    insta::assert_snapshot!("clients", redacted(&operator.get("/admin/clients").await));
    insta::assert_snapshot!("authorizations", redacted(&operator.get("/admin/authorizations").await));
    let of_carol = operator.get("/admin/authorizations?clientId=carol&service=ocr").await;
    insta::assert_snapshot!("authorizations_of_one", redacted(&of_carol));
    insta::assert_snapshot!("declaration", redacted(&operator.get("/admin/declaration").await));
    let taken = operator.delete("/admin/authorizations/carol/ocr").await;
    insta::assert_snapshot!("authorization_deleted", redacted(&taken));
    insta::assert_snapshot!("client_deleted", redacted(&operator.delete("/admin/clients/carol").await));
}

async fn tasks_of_everybody(on: Backend) {
    let app = TestApp::start(on).await;
    let (operator, worker) = (app.caller(), app.client("worker"));
    let id = app.client("alice").submit("resize", json!({"n": 1})).await;
    app.client("bob").submit("resize", json!({"n": 2})).await;
    worker.claim("resize", json!({"hostName": "pod-1"})).await;
    insta::assert_snapshot!("tasks", redacted(&operator.get("/admin/tasks").await));
    insta::assert_snapshot!("task", redacted(&operator.get(&format!("/admin/tasks/{id}")).await));
    insta::assert_snapshot!("task_cancelled", redacted(&operator.delete(&format!("/admin/tasks/{id}")).await));
    assert_eq!(operator.delete(&format!("/admin/tasks/{id}")).await.status, 200, "again");
    let only = |query: &str| format!("/admin/tasks?{query}");
    for (query, expected) in [
        ("service=resize", 2),
        ("service=ocr", 0),
        ("clientId=bob", 1),
        ("status=CANCELLED", 1),
        ("status=PENDING,CANCELLED&clientId=alice", 1),
        ("limit=1", 1),
    ] {
        let page = operator.get(&only(query)).await.data();
        assert_eq!(page["tasks"].as_array().map(Vec::len), Some(expected), "{query}");
    }
    assert_eq!(operator.get(&only("service=nowhere")).await.number(), 404_001);
    assert_eq!(operator.get(&only("clientId=nobody")).await.number(), 404_004);
    assert_eq!(operator.get(&only("client=bob")).await.number(), 400_006);
}

async fn a_purge_counts_before_it_removes(on: Backend) {
    // The purge that every process begins with could come first.
    let app = TestApp::builder(on).engine(|engine| engine.purging = false).start().await;
    let keep_nothing = json!({"services": [{"serviceName": "resize", "retention": {"finished": "0s"}}]});
    app.apply(keep_nothing).await;
    let (operator, alice, worker) = (app.caller(), app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    worker.report("resize", &id, json!({"messageType": "success"})).await;
    let waiting = alice.submit("resize", json!({})).await;
    insta::assert_snapshot!("purge_dry_run", redacted(&operator.post("/admin/purge", &json!({"dryRun": true})).await));
    assert_eq!(alice.poll("resize", &id).await["status"], "SUCCESS", "only counted");
    insta::assert_snapshot!("purge", redacted(&operator.post("/admin/purge", &json!({})).await));
    assert_eq!(alice.get(&format!("/v1/services/resize/tasks/{id}")).await.number(), 404_002);
    assert_eq!(alice.poll("resize", &waiting).await["status"], "PENDING", "not finished");
}
