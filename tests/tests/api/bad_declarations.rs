//! A declaration that is not valid is refused as a whole, with all that is wrong with it.

use std::time::{Duration, Instant};

use relais_tests::app::{Backend, TestApp};
use serde_json::{Value, json};

on_one_store!(
    names_that_would_need_escaping_are_refused,
    a_schema_fetches_nothing_and_can_not_be_made_to_hang,
    limits_and_secrets_have_bounds,
    rights_for_notifications_that_are_wrong_are_refused_where_they_stand,
    a_declaration_with_one_error_changes_nothing,
    the_name_in_the_address_and_the_one_in_the_body_are_the_same,
);

async fn names_that_would_need_escaping_are_refused(on: Backend) {
    let app = TestApp::start(on).await;
    let before = app.caller().get("/admin/declaration").await.text;
    for bad in ["", " ", "a b", "a/b", ".hidden", "-x", "_x", "é", "a\u{0}", "a\n", "..", &"x".repeat(101)] {
        for declaration in [
            json!({"services": [{"serviceName": bad}]}),
            json!({"services": [{"serviceName": "fine", "queueName": bad}]}),
            json!({"clients": [{"clientId": bad, "clientSecret": "x"}]}),
            json!({"authorizations": [{"clientId": bad, "serviceName": "resize"}]}),
            json!({"authorizations": [{"clientId": "alice", "serviceName": bad}]}),
        ] {
            let answer = app.caller().post("/admin/apply", &declaration).await;
            assert_eq!(answer.number(), 400_010, "{declaration}");
        }
    }
    assert_eq!(app.caller().get("/admin/declaration").await.text, before);
    let longest = "x".repeat(100);
    app.apply(json!({"services": [{"serviceName": longest}, {"serviceName": "Image.resize-v2_0"}]})).await;
}

async fn a_schema_fetches_nothing_and_can_not_be_made_to_hang(on: Backend) {
    let app = TestApp::start(on).await;
    let declare = |schema: Value| {
        let operator = app.caller();
        async move { operator.put("/admin/services/strict", &json!({"serviceName": "strict", "jsonSchema": schema})).await }
    };
    let begun = Instant::now();
    for schema in [
        json!(7),
        json!([]),
        json!("string"),
        json!({"type": "strnig"}),
        json!({"type": 7}),
        json!({"required": "sleep"}),
        json!({"$ref": "https://example.org/schema.json"}),
        json!({"$ref": "http://127.0.0.1:1/"}),
        json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}),
        json!({"$ref": "other.json"}),
        json!({"$ref": "#/$defs/nowhere"}),
        json!({"$dynamicRef": "https://example.org/"}),
        json!({"$id": "https://example.org/a", "$ref": "b.json"}),
        json!({"$schema": "https://example.org/dialect"}),
        json!({"pattern": "("}),
        json!({"pattern": "(?=a)b"}),
        json!({"pattern": "(a)\\1"}),
        json!({"pattern": "((a{1,1000}){1,1000}){1,1000}"}),
        json!({"patternProperties": {"(?<!a)b": {}}}),
    ] {
        let answer = declare(schema.clone()).await;
        assert_eq!(answer.number(), 400_010, "{schema}");
    }
    let deep =
        format!(r#"{{"serviceName":"strict","jsonSchema":{}{{}}{}}}"#, r#"{"not":"#.repeat(120), "}".repeat(120));
    let answer =
        app.caller().call_text(reqwest::Method::PUT, "/admin/services/strict", "application/json", &deep).await;
    assert!([400_008, 400_010].contains(&answer.number()), "{}", answer.text);
    assert!(begun.elapsed() < Duration::from_secs(20), "nothing was fetched, nothing hung");

    // A pattern that would take a backtracking matcher for ever takes a moment.
    assert_eq!(declare(json!({"properties": {"s": {"pattern": "^(a+)+$"}}})).await.status, 200);
    let body = json!({"body": {"s": format!("{}!", "a".repeat(50_000))}});
    let (alice, tasks) = (app.client("alice"), "/v1/services/strict/tasks");
    let refused = tokio::time::timeout(Duration::from_secs(20), alice.post(tasks, &body)).await;
    let refused = refused.unwrap_or_else(|_| panic!("an exponential matcher"));
    assert_eq!(refused.number(), 400_001);
    assert!(refused.text.len() < 2000, "a refusal does not repeat what was sent");
    // And one that refers to itself ends.
    assert_eq!(declare(json!({"properties": {"next": {"$ref": "#"}}, "required": ["n"]})).await.status, 200);
    let answer = alice.post(tasks, &json!({"body": {"n": 1, "next": {"n": 2, "next": {}}}})).await;
    assert_eq!(answer.number(), 400_001);
    assert_eq!(answer.json()["error"]["details"][0]["path"], "/next/next");
}

async fn limits_and_secrets_have_bounds(on: Backend) {
    let app = TestApp::start(on).await;
    let path = std::env::var("PATH").unwrap_or_else(|_| "unset".to_owned());
    let service = |field: &str, value: Value| json!({"services": [{"serviceName": "resize", field: value}]});
    let client = |secret: Value| json!({"clients": [{"clientId": "alice", "clientSecret": secret}]});
    let may = |field: &str, value: Value| json!({"authorizations": [{"clientId": "alice", "serviceName": "resize", field: value}]});
    for (number, declaration) in [
        (400_010, service("lease", json!("999ms"))),
        (400_010, service("lease", json!("25h"))),
        (400_010, service("deliveryLimit", json!(0))),
        (400_010, service("capacity", json!(4_294_967_295u32))),
        (400_010, may("capacity", json!(2_147_483_648u32))),
        (400_010, may("roles", json!([]))),
        (400_010, client(json!(""))),
        (400_010, client(json!("x".repeat(73)))),
        (400_010, client(json!("a\u{0}b"))),
        (400_010, client(json!({"env": "PATH"}))),
        (400_003, service("lease", json!("soon"))),
        (400_003, service("lease", json!(60))),
        (400_003, service("capacity", json!(-1))),
        (400_003, service("capacity", json!(1.5))),
        (400_003, service("capacity", json!(4_294_967_296u64))),
        (400_003, service("paused", json!("yes"))),
        (400_003, service("capcity", json!(5))),
        (400_003, service("retention", json!({"finished": "never"}))),
        (400_003, may("roles", json!(["admin"]))),
        (400_003, client(json!(7))),
        (400_003, json!({"service": []})),
        (400_003, json!([])),
        (400_003, json!(null)),
    ] {
        let answer = app.caller().post("/admin/apply", &declaration).await;
        assert_eq!(answer.number(), number, "{declaration}: {}", answer.text);
        assert!(!answer.text.contains(&path), "the server's environment is not shown");
    }
}

async fn rights_for_notifications_that_are_wrong_are_refused_where_they_stand(on: Backend) {
    let app = TestApp::start(on).await;
    let before = app.caller().get("/admin/declaration").await.text;
    let many: Vec<String> = (0..101).map(|n| format!("TYPE{n}")).collect();
    let at = "/clients/1/notifications";
    let declare = async |rights: &Value| {
        let clients = json!([{"clientId": "carol"}, {"clientId": "alice", "notifications": rights}]);
        app.caller().post("/admin/apply", &json!({"clients": clients})).await
    };
    for (path, rights) in [
        ("/emit/0", json!({"emit": [""]})),
        ("/emit/1", json!({"emit": ["USER", "x".repeat(201)]})),
        ("/emit/0", json!({"emit": ["a\nb"]})),
        ("/emit/2", json!({"emit": ["USER", "GROUP", "USER"]})),
        ("/emit", json!({"emit": many})),
        ("/audience/1", json!({"audience": ["GROUP", "*"]})),
        ("/ticket", json!({"ticket": []})),
        ("/ticket/0", json!({"ticket": ["\u{7f}"]})),
    ] {
        let answer = declare(&rights).await;
        assert_eq!(answer.number(), 400_010, "{rights}: {}", answer.text);
        assert_eq!(answer.json()["error"]["details"][0]["path"], format!("{at}{path}"), "{}", answer.text);
    }
    for rights in [
        json!({"ticket": "GROUP"}),
        json!({"ticket": null, "emit": true}),
        json!({"emit": [7]}),
        json!({"read": ["USER"]}),
        json!(["USER", "GROUP", true, true]),
        json!("USER"),
    ] {
        assert_eq!(declare(&rights).await.number(), 400_003, "{rights}");
    }
    assert_eq!(app.caller().get("/admin/declaration").await.text, before);
}

async fn a_declaration_with_one_error_changes_nothing(on: Backend) {
    let app = TestApp::start(on).await;
    let before = app.caller().get("/admin/declaration").await.text;
    let declaration = json!({
        "services": [{"serviceName": "fine"}, {"serviceName": "a b"}, {"serviceName": "fine"}],
        "clients": [{"clientId": "carol"}, {"clientId": "carol"}],
        "authorizations": [
            {"clientId": "carol", "serviceName": "fine"},
            {"clientId": "nobody", "serviceName": "nowhere"},
            {"clientId": "carol", "serviceName": "fine"},
        ],
    });
    let answer = app.caller().post("/admin/apply", &declaration).await;
    assert_eq!(answer.number(), 400_010);
    let details = answer.json()["error"]["details"].clone();
    let paths: Vec<&str> = details.as_array().into_iter().flatten().filter_map(|d| d["path"].as_str()).collect();
    let expected = [
        "/services/1/serviceName",
        "/services/2",
        "/clients/1",
        "/authorizations/1/clientId",
        "/authorizations/1/serviceName",
        "/authorizations/2",
    ];
    let mut found = paths.clone();
    found.retain(|path| expected.contains(path));
    assert_eq!(found, expected, "all that is wrong is told: {details}");
    assert_eq!(app.caller().get("/admin/declaration").await.text, before);
}

async fn the_name_in_the_address_and_the_one_in_the_body_are_the_same(on: Backend) {
    let app = TestApp::start(on).await;
    let operator = app.caller();
    for (path, body) in [
        ("/admin/services/ocr", json!({"serviceName": "resize"})),
        ("/admin/clients/bob", json!({"clientId": "alice"})),
        ("/admin/authorizations/bob/ocr", json!({"clientId": "alice", "serviceName": "ocr"})),
        ("/admin/authorizations/bob/ocr", json!({"clientId": "bob", "serviceName": "resize"})),
    ] {
        assert_eq!(operator.put(path, &body).await.number(), 400_010, "{path}");
    }
}
