//! The order of checks on a request: credentials, service, authorization, body, capacity.

use relais_tests::app::{Backend, Caller, TestApp, secret, world};
use reqwest::Method;
use serde_json::json;

on_one_store!(
    credentials_come_before_the_service_and_the_service_before_the_authorization,
    an_authorization_comes_before_the_body_and_the_body_before_the_room,
    malformed_credentials_are_refused_like_wrong_ones,
    an_invalid_name_in_a_path_is_not_found,
);
on_each_store!(a_task_of_another_client_is_not_found, a_role_on_one_service_or_of_one_kind_is_no_other_role);

const ID: &str = "019a0000-0000-7000-8000-000000000000";

/// The routes below a service, each with the role that it asks for.
fn routes(service: &str) -> Vec<(Method, String, &'static str)> {
    let at = |rest: &str| format!("/v1/services/{service}{rest}");
    vec![
        (Method::GET, at(""), "any"),
        (Method::POST, at("/tasks"), "consume"),
        (Method::GET, at("/tasks"), "consume"),
        (Method::POST, at("/tasks/batch"), "consume"),
        (Method::GET, at(&format!("/tasks/{ID}")), "consume"),
        (Method::DELETE, at(&format!("/tasks/{ID}")), "consume"),
        (Method::GET, at(&format!("/tasks/{ID}/events")), "consume"),
        (Method::POST, at("/claims"), "work"),
        (Method::POST, at("/messages"), "work"),
        (Method::POST, at("/heartbeats"), "work"),
        (Method::POST, at("/returns"), "work"),
    ]
}

/// Whatever the request is, its body is not even JSON.
async fn number(caller: &Caller, method: &Method, path: &str) -> u64 {
    caller.call_text(method.clone(), path, "text/plain", "{").await.number()
}

async fn credentials_come_before_the_service_and_the_service_before_the_authorization(on: Backend) {
    let app = TestApp::start(on).await;
    let (stranger, worker, alice) = (app.client("stranger"), app.client("worker"), app.client("alice"));
    let wrong = [app.caller(), app.caller().basic("alice", "wrong"), app.caller().basic("nobody", &secret("alice"))];
    for (method, path, _) in routes("nowhere") {
        for caller in &wrong {
            assert_eq!(number(caller, &method, &path).await, 403_001, "{method} {path}");
        }
        assert_eq!(number(&stranger, &method, &path).await, 404_001, "{method} {path}");
    }
    for (method, path, role) in routes("resize") {
        assert_eq!(number(&stranger, &method, &path).await, 403_001, "{method} {path}");
        if role == "consume" {
            assert_eq!(number(&worker, &method, &path).await, 403_001, "a worker: {method} {path}");
        }
        if role == "work" {
            assert_eq!(number(&alice, &method, &path).await, 403_001, "a consumer: {method} {path}");
            assert_eq!(number(&worker, &method, &path).await, 415_001, "let in: {method} {path}");
        }
    }
}

async fn an_authorization_comes_before_the_body_and_the_body_before_the_room(on: Backend) {
    let mut full = world();
    for service in 0..3 {
        full["services"][service]["capacity"] = json!(0);
    }
    let app = TestApp::builder(on).declaring(full).api(|api| api.max_body_bytes = 5000).start().await;
    let (stranger, alice) = (app.client("stranger"), app.client("alice"));
    let tasks = "/v1/services/strict/tasks";
    let large = format!(r#"{{"body":{{"sleep":1,"x":"{}"}}}}"#, "x".repeat(5000));
    let deep = format!(r#"{{"body":{{"sleep":{}{}}}}}"#, "[".repeat(100), "]".repeat(100));
    for (expected, content_type, body) in [
        (415_001, "text/plain", r#"{"body":{"sleep":1}}"#),
        (413_001, "application/json", large.as_str()),
        (400_002, "application/json", "{"),
        (400_003, "application/json", r#"{"body":[]}"#),
        (400_008, "application/json", deep.as_str()),
        (400_004, "application/json", r#"{"body":{"sleep":1},"callback":{"type":"x","url":"https://a.b"}}"#),
        (400_005, "application/json", r#"{"body":{"sleep":1},"callback":{"type":"https","url":"ftp://a.b"}}"#),
        (400_001, "application/json", r#"{"body":{"sleep":"long"}}"#),
        (429_001, "application/json", r#"{"body":{"sleep":1}}"#),
        (429_001, "Application/JSON; charset=utf-8", r#"{"body":{"sleep":1}}"#),
    ] {
        assert_eq!(stranger.call_text(Method::POST, tasks, content_type, body).await.number(), 403_001);
        let answer = alice.call_text(Method::POST, tasks, content_type, body).await;
        assert_eq!(answer.number(), expected, "{}", answer.text);
        let seconds = answer.header("retry-after").map(|seconds| seconds.parse::<u64>());
        assert_eq!(matches!(seconds, Some(Ok(1..=60))), expected == 429_001, "Retry-After: {seconds:?}");
    }
    let keyed = alice.clone().with("idempotency-key", "é");
    assert_eq!(
        keyed.call_text(Method::POST, tasks, "text/plain", "{").await.number(),
        400_007,
        "a header, then the body"
    );
}

async fn malformed_credentials_are_refused_like_wrong_ones(on: Backend) {
    let app = TestApp::start(on).await;
    // base64 of "alice", of ":", and of what is not UTF-8.
    for given in ["Basic", "Basic ", "Basic !!!", "Basic YWxpY2U=", "Basic Og==", "Basic /////w==", "Bearer x", "", "x"]
    {
        let answer = app.caller().with("authorization", given).get("/v1/services").await;
        assert_eq!(answer.number(), 403_001, "{given:?}");
    }
    for (client_id, given) in
        [("alice", String::new()), ("", String::new()), ("alice", "x".repeat(5000)), ("a\0", secret("alice"))]
    {
        assert_eq!(app.caller().basic(client_id, &given).get("/v1/services").await.number(), 403_001);
    }
    let in_other_case = app.client("alice").get("/v1/services").await;
    assert_eq!(in_other_case.status, 200);
    assert_eq!(app.caller().basic("Alice", &secret("alice")).get("/v1/services").await.number(), 403_001);
}

async fn an_invalid_name_in_a_path_is_not_found(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    for name in ["%00", "a%2Fb", "..%2f..", "%20", "resize%00"] {
        let path = format!("/v1/services/{name}/tasks");
        assert_eq!(app.caller().get(&path).await.number(), 403_001, "{path}");
        assert_eq!(alice.get(&path).await.number(), 404_001, "{path}");
        assert_eq!(alice.get(&format!("/v1/services/{name}")).await.number(), 404_001, "{name}");
        assert_eq!(alice.get(&format!("/v1/services/resize/tasks/{name}")).await.number(), 404_002, "{name}");
        assert_eq!(alice.get(&format!("/v1/services/resize/tasks/{name}/events")).await.number(), 404_002, "{name}");
        assert_eq!(app.caller().get(&format!("/admin/services/{name}")).await.number(), 404_001, "{name}");
        assert_eq!(app.caller().get(&format!("/admin/tasks/{name}")).await.number(), 404_002, "{name}");
        assert_eq!(app.caller().delete(&format!("/admin/clients/{name}")).await.number(), 404_004, "{name}");
    }
    for path in
        ["/v1/services/%ff", "/v1/services/%ff/tasks", "/v1/services/resize/tasks/%C3%28", "/admin/services/%ff"]
    {
        assert_eq!(alice.get(path).await.number(), 404_003, "{path}");
    }
    // The other forms of a UUID name no task.
    let id = alice.submit("resize", json!({})).await;
    for form in [id.replace('-', ""), format!("%7B{id}%7D"), format!("urn:uuid:{id}"), format!("{id}0"), "1".to_owned()]
    {
        assert_eq!(alice.get(&format!("/v1/services/resize/tasks/{form}")).await.number(), 404_002, "{form}");
    }
    assert_eq!(alice.get(&format!("/v1/services/resize/tasks/{}", id.to_uppercase())).await.status, 200);
}

async fn a_task_of_another_client_is_not_found(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, bob, worker) = (app.client("alice"), app.client("bob"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    for path in [format!("/v1/services/resize/tasks/{id}"), format!("/v1/services/resize/tasks/{id}/events")] {
        let (theirs, none) = (bob.get(&path).await, bob.get(&path.replace(&id, ID)).await);
        assert_eq!(theirs.number(), 404_002);
        assert_eq!(theirs.text, none.text, "nothing tells the two apart");
    }
    assert_eq!(bob.get(&format!("/v1/services/resize/tasks/{id}?wait=60s")).await.number(), 404_002, "and at once");
    assert_eq!(bob.delete(&format!("/v1/services/resize/tasks/{id}")).await.number(), 404_002);
    assert_eq!(bob.get("/v1/services/resize/tasks").await.data()["tasks"], json!([]));
    assert_eq!(alice.get(&format!("/v1/services/ocr/tasks/{id}")).await.number(), 404_002, "of another service");
    assert_eq!(alice.delete(&format!("/v1/services/ocr/tasks/{id}")).await.number(), 404_002);
    assert_eq!(worker.report("ocr", &id, json!({"messageType": "started"})).await, "notFound");
    assert_eq!(worker.heartbeat("ocr", &id, 0).await, "notFound");
    assert_eq!(worker.give_back("ocr", &id, 0).await, "notFound");
    assert_eq!(alice.poll("resize", &id).await["status"], "PENDING");
}

async fn a_role_on_one_service_or_of_one_kind_is_no_other_role(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, bob, worker) = (app.client("alice"), app.client("bob"), app.client("worker"));
    let request = json!({"body": {}});
    assert_eq!(bob.post("/v1/services/ocr/tasks", &request).await.number(), 403_001);
    assert_eq!(worker.post("/v1/services/resize/tasks", &request).await.number(), 403_001);
    assert_eq!(alice.post("/v1/services/resize/claims", &json!({})).await.number(), 403_001);
    assert_eq!(worker.post("/v1/services/strict/claims", &json!({})).await.number(), 403_001);
    app.apply(json!({"authorizations": [{"clientId": "bob", "serviceName": "ocr", "roles": ["work", "consume"]}]}))
        .await;
    assert_eq!(bob.post("/v1/services/ocr/tasks", &request).await.status, 201, "at once");
    assert_eq!(bob.claim("ocr", json!({})).await.len(), 1);
    app.caller().delete("/admin/authorizations/bob/ocr").await.data();
    assert_eq!(bob.post("/v1/services/ocr/tasks", &request).await.number(), 403_001, "at once");
}
