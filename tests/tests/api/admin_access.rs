//! Who may use the admin API.

use relais_engine::{Credentials, OperatorRole};
use relais_tests::app::{Backend, TestApp};
use reqwest::Method;
use serde_json::{Value, json};

on_one_store!(
    without_a_token_local_callers_have_admin_access,
    without_a_token_proxies_and_web_pages_have_no_admin_access,
    with_a_token_only_the_token_gives_admin_access,
    no_admin_route_is_left_open,
);

fn token(token: &str) -> Credentials {
    Credentials::default().with("admin", OperatorRole::Admin, token).expect("one operator")
}

async fn without_a_token_local_callers_have_admin_access(on: Backend) {
    let app = TestApp::start(on).await;
    assert_eq!(app.caller().get("/admin/services").await.status, 200);
    let named = app.caller().with("host", &format!("localhost:{}", app.address().port()));
    assert_eq!(named.get("/admin/services").await.status, 200);
    assert_eq!(app.client("alice").get("/admin/services").await.status, 200, "credentials of a client change nothing");
}

async fn without_a_token_proxies_and_web_pages_have_no_admin_access(on: Backend) {
    let app = TestApp::start(on).await;
    for (name, value) in [
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-for", ""),
        ("forwarded", "for=127.0.0.1"),
        ("x-forwarded-host", "localhost"),
        ("x-real-ip", "127.0.0.1"),
        ("via", "1.1 proxy"),
        ("origin", "http://localhost"),
        ("referer", "http://localhost/"),
        ("sec-fetch-site", "same-origin"),
        ("host", "relais.example.org"),
        ("host", "localhost.example.org"),
        ("host", "127.0.0.1.example.org"),
        ("host", "192.0.2.7"),
    ] {
        let answer = app.caller().with(name, value).get("/admin/services").await;
        assert_eq!(answer.number(), 403_002, "{name}: {value}");
    }
}

async fn with_a_token_only_the_token_gives_admin_access(on: Backend) {
    let app = TestApp::builder(on).api(|api| api.operators = token("open sesame")).start().await;
    let with = |value: &str| app.caller().with("authorization", value);
    for wrong in [
        "Bearer",
        "Bearer ",
        "Bearer open",
        "Bearer open sesam",
        "Bearer OPEN SESAME",
        "Basic open sesame",
        "open sesame",
        "",
    ] {
        assert_eq!(with(wrong).get("/admin/services").await.number(), 403_002, "{wrong:?}");
    }
    assert_eq!(app.caller().get("/admin/services").await.number(), 403_002, "being on this machine is not enough");
    assert_eq!(app.client("alice").get("/admin/services").await.number(), 403_002, "nor is being a client");
    for right in ["Bearer open sesame", "bearer open sesame"] {
        assert_eq!(with(right).get("/admin/services").await.status, 200, "{right:?}");
    }
    let from_afar = with("Bearer open sesame").with("x-forwarded-for", "192.0.2.7").with("host", "relais.example.org");
    assert_eq!(from_afar.get("/admin/services").await.status, 200, "from anywhere");
    assert_eq!(app.caller().get("/healthz").await.status, 200, "other routes ask for none");
}

/// The routes are taken from the document, so that a new one is looked at without anybody thinking of it.
async fn no_admin_route_is_left_open(on: Backend) {
    let app = TestApp::builder(on).api(|api| api.operators = token("open sesame")).start().await;
    let before = app.caller().with("authorization", "Bearer open sesame").get("/admin/declaration").await.text;
    let document: Value = app.caller().get("/openapi.json").await.json();
    let mut looked_at = 0;
    for (path, methods) in document["paths"].as_object().cloned().unwrap_or_default() {
        if !path.starts_with("/admin") {
            continue;
        }
        let address = path.replace("{service}", "resize").replace("{clientId}", "alice").replace("{taskId}", "x");
        for method in methods.as_object().into_iter().flatten().map(|(method, _)| method.to_uppercase()) {
            let method = Method::from_bytes(method.as_bytes()).unwrap_or_default();
            let body = json!({}).to_string();
            let answer = app.caller().call_text(method.clone(), &address, "application/json", &body).await;
            assert_eq!(answer.number(), 403_002, "{method} {path}");
            looked_at += 1;
        }
    }
    assert!(looked_at >= 19, "only {looked_at} admin routes were described");
    assert_eq!(app.caller().with("authorization", "Bearer open sesame").get("/admin/declaration").await.text, before);
}
