//! Paths: a trailing slash, an unknown path, an unknown method, an internal error.

use std::collections::BTreeSet;

use relais_tests::app::{Backend, TestApp};
use reqwest::Method;
use serde_json::{Value, json};

on_one_store!(
    a_trailing_slash_makes_no_difference,
    an_unknown_path_is_404_and_an_unknown_method_is_405,
    an_internal_error_hides_its_detail_and_the_next_request_is_served,
);

async fn a_trailing_slash_makes_no_difference(on: Backend) {
    let app = TestApp::start(on).await;
    let (operator, alice, worker) = (app.caller(), app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    let reads = [
        (&alice, "/v1/services".to_owned()),
        (&alice, "/v1/services/resize".to_owned()),
        (&alice, "/v1/services/resize/tasks".to_owned()),
        (&alice, format!("/v1/services/resize/tasks/{id}")),
        (&operator, "/admin/services".to_owned()),
        (&operator, "/admin/services/resize".to_owned()),
        (&operator, "/admin/clients".to_owned()),
        (&operator, "/admin/authorizations".to_owned()),
        (&operator, "/admin/schedules".to_owned()),
        (&operator, "/admin/instances".to_owned()),
        (&operator, "/admin/declaration".to_owned()),
        (&operator, "/admin/tasks".to_owned()),
        (&operator, format!("/admin/tasks/{id}")),
        (&operator, "/healthz".to_owned()),
        (&operator, "/readyz".to_owned()),
        (&operator, "/metrics".to_owned()),
        (&operator, "/openapi.json".to_owned()),
        (&operator, "/docs".to_owned()),
    ];
    for (caller, path) in reads {
        let (without, with) = (caller.get(&path).await, caller.get(&format!("{path}/")).await);
        assert_eq!(without.status, 200, "{path}");
        assert_eq!((with.status, with.text), (without.status, without.text), "{path}/");
    }
    let filtered = alice.get("/v1/services/resize/tasks/?limit=1&status=PENDING").await;
    assert_eq!(filtered.data()["tasks"].as_array().map(Vec::len), Some(1), "with parameters");

    assert_eq!(alice.post("/v1/services/resize/tasks/", &json!({"body": {}})).await.status, 201);
    assert_eq!(alice.post("/v1/services/resize/tasks/batch/", &json!({"tasks": [{"body": {}}]})).await.status, 200);
    assert_eq!(worker.post("/v1/services/resize/claims/", &json!({})).await.status, 200);
    let message = json!({"taskId": id, "data": {"messageType": "started"}});
    assert_eq!(worker.post("/v1/services/resize/messages/", &message).await.status, 200);
    let mut followed = app.wire().await;
    followed.send(format!("GET /v1/services/resize/tasks/{id}/events/ HTTP/1.1\r\nhost: relais\r\n\r\n")).await;
    assert!(followed.head().await.starts_with("HTTP/1.1 403 "), "found, and not for strangers");
    let held = json!({"tasks": [{"taskId": id}]});
    assert_eq!(worker.post("/v1/services/resize/heartbeats/", &held).await.status, 200);
    assert_eq!(worker.post("/v1/services/resize/returns/", &held).await.status, 200);
    assert_eq!(alice.delete(&format!("/v1/services/resize/tasks/{id}/")).await.status, 200);

    assert_eq!(operator.put("/admin/services/new/", &json!({"serviceName": "new"})).await.status, 200);
    assert_eq!(operator.post_nothing("/admin/services/new/pause/").await.status, 200);
    assert_eq!(operator.post_nothing("/admin/services/new/resume/").await.status, 200);
    assert_eq!(operator.put("/admin/clients/carol/", &json!({"clientId": "carol"})).await.status, 200);
    assert_eq!(operator.post_nothing("/admin/clients/carol/secret/").await.status, 200);
    let may = json!({"clientId": "carol", "serviceName": "new"});
    assert_eq!(operator.put("/admin/authorizations/carol/new/", &may).await.status, 200);
    assert_eq!(operator.delete("/admin/authorizations/carol/new/").await.status, 200);
    assert_eq!(operator.delete("/admin/clients/carol/").await.status, 200);
    assert_eq!(operator.delete("/admin/services/new/").await.status, 200);
    let nightly = json!({"scheduleName": "nightly", "serviceName": "resize", "clientId": "alice", "cron": "@yearly"});
    assert_eq!(operator.put("/admin/schedules/nightly/", &nightly).await.status, 200);
    assert_eq!(operator.get("/admin/schedules/nightly/next/?count=1").await.status, 200);
    assert_eq!(operator.post_nothing("/admin/schedules/nightly/run/").await.status, 201);
    assert_eq!(operator.delete("/admin/schedules/nightly/").await.status, 200);
    assert_eq!(operator.post("/admin/apply/?dryRun=true", &json!({})).await.status, 200);
    assert_eq!(operator.post("/admin/purge/", &json!({"dryRun": true})).await.status, 200);
    assert_eq!(operator.delete(&format!("/admin/tasks/{id}/")).await.status, 200);
}

async fn an_unknown_path_is_404_and_an_unknown_method_is_405(on: Backend) {
    let app = TestApp::start(on).await;
    for path in
        ["/", "/v1", "/v1/service", "/v2/services", "/admin", "/admin/nothing", "/favicon.ico", "/v1/services/resize/x"]
    {
        for method in [Method::GET, Method::POST, Method::from_bytes(b"BREW").unwrap_or_default()] {
            assert_eq!(app.client("alice").call(method, path).await.number(), 404_003, "{path}");
        }
    }
    let document: Value = app.caller().get("/openapi.json").await.json();
    let described = document["paths"].as_object().cloned().unwrap_or_default();
    assert!(described.len() > 20, "all routes are described");
    for (path, methods) in described {
        let address = path.replace("{service}", "resize").replace("{clientId}", "alice").replace("{taskId}", "x");
        let answer = app.caller().call(Method::PATCH, &address).await;
        assert_eq!(answer.number(), 405_001, "{path}");
        let mut taken: BTreeSet<String> =
            methods.as_object().into_iter().flatten().map(|(method, _)| method.to_uppercase()).collect();
        if taken.contains("GET") {
            taken.insert("HEAD".to_owned());
        }
        let allowed = answer.header("allow").unwrap_or_default().split(',').map(|method| method.trim().to_owned());
        assert_eq!(allowed.collect::<BTreeSet<_>>(), taken, "{path}");
    }
}

async fn an_internal_error_hides_its_detail_and_the_next_request_is_served(on: Backend) {
    let app = TestApp::builder(on).metrics(|| panic!("the password is 1234")).start().await;
    for _ in 0..3 {
        let answer = app.caller().get("/metrics").await;
        assert_eq!(answer.number(), 500_001);
        assert!(!answer.text.contains("1234"), "{}", answer.text);
    }
    assert_eq!(app.caller().get("/readyz").await.status, 200);
}
