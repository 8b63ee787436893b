//! Invalid input is refused with its error number, changes nothing, and never becomes an internal error.

use relais_tests::app::{Answer, Backend, Caller, TestApp, basic, secret};
use reqwest::Method;
use serde_json::json;

on_each_store!(a_bad_submission_changes_nothing, a_callback_must_be_an_https_url_that_says_nothing_else);
on_one_store!(
    a_body_that_is_too_large_is_refused_before_it_has_arrived,
    a_refusal_that_did_not_wait_for_the_body_leaves_the_connection_usable_or_closes_it,
    only_json_is_taken_for_json,
    headers_can_not_be_smuggled,
    parameters_that_are_unknown_repeated_or_absurd_are_refused,
    a_batch_is_refused_as_a_whole_only_where_it_is_no_batch,
);

const TASKS: &str = "/v1/services/resize/tasks";

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

async fn a_bad_submission_changes_nothing(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let with = |field: &str| format!(r#"{{"body":{{}},{field}}}"#);
    let bad = [
        (
            400_002,
            vec![
                String::new(),
                " ".to_owned(),
                "{".to_owned(),
                "{\"body\":{}}}".to_owned(),
                "{\"body\":{},}".to_owned(),
                "{'body':{}}".to_owned(),
                "{\"body\":{\"a\":01}}".to_owned(),
                "{\"body\":{\"a\":NaN}}".to_owned(),
                "{\"body\":{\"a\":\"\u{0}\"}}".to_owned(),
                "{\"body\":{\"a\":\"\u{1f}\"}}".to_owned(),
                "{\"body\":{\"a\":\"\\x\"}}".to_owned(),
                "{\"body\":{\"a\":\"\\u12\"}}".to_owned(),
                "\u{feff}{\"body\":{}}".to_owned(),
                format!("{{\"body\":{}", nested(100_000)),
                "{\"body\":".repeat(100_000),
                with(r#""correlationId":"\ud800""#),
            ],
        ),
        (
            400_003,
            vec![
                "null".to_owned(),
                "7".to_owned(),
                "\"body\"".to_owned(),
                "[]".to_owned(),
                "[{}]".to_owned(),
                "[{},null,null]".to_owned(),
                "{}".to_owned(),
                r#"{"body":null}"#.to_owned(),
                r#"{"body":[]}"#.to_owned(),
                r#"{"body":"{}"}"#.to_owned(),
                r#"{"body":7}"#.to_owned(),
                r#"{"Body":{}}"#.to_owned(),
                r#"{"body":{},"body":{}}"#.to_owned(),
                with(r#""unknown":1"#),
                with(r#""taskId":"019a0000-0000-7000-8000-000000000000""#),
                with(r#""callback":"https://example.org""#),
                with(r#""callback":{"type":"https"}"#),
                with(r#""callback":{"url":"https://example.org"}"#),
                with(r#""callback":{"type":"https","url":"https://example.org","method":"PUT"}"#),
                with(r#""callback":{"type":7,"url":"https://example.org"}"#),
                with(r#""correlationId":7"#),
                with(r#""correlationId":"a\u0000b""#),
                with(r#""correlationId":"a\r\nb""#),
                with(&format!(r#""correlationId":"{}""#, "x".repeat(201))),
                with(&format!(r#""unknown":{}"#, nested(100_000))),
            ],
        ),
        (
            400_008,
            vec![
                format!(r#"{{"body":{{"a":{}}}}}"#, nested(100)),
                format!(r#"{{"body":{}}}"#, nested(101)),
                format!(r#"{{"body":{}}}"#, nested(100_000)),
                format!(r#"{{"body":{}0{}}}"#, r#"{"a":"#.repeat(50_000), "}".repeat(50_000)),
            ],
        ),
    ];
    for (number, bodies) in bad {
        for body in bodies {
            let answer = alice.post_text(TASKS, body.clone()).await;
            assert_eq!(answer.number(), number, "{}: {}", body.chars().take(80).collect::<String>(), answer.text);
            assert!(answer.text.len() < 2000, "a refusal does not repeat what was sent");
        }
    }
    let not_utf8 = alice.post_text(TASKS, b"{\"body\":{\"a\":\"\xff\"}}".to_vec()).await;
    assert_eq!(not_utf8.number(), 400_002);
    assert_eq!(app.pending("resize").await, 0);
    assert_eq!(alice.get(TASKS).await.data()["tasks"], json!([]));

    let at_the_limit = format!(r#"{{"body":{{"a":{}}}}}"#, nested(99));
    assert_eq!(alice.post_text(TASKS, at_the_limit).await.status, 201);
    assert_eq!(alice.post_text(TASKS, with(&format!(r#""correlationId":"{}""#, "é".repeat(200)))).await.status, 201);
    assert_eq!(alice.post_text(TASKS, with(r#""callback":null,"correlationId":null"#)).await.status, 201);
}

async fn a_callback_must_be_an_https_url_that_says_nothing_else(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let submit = |kind: &str, url: &str| {
        let request = json!({"body": {}, "callback": {"type": kind, "url": url}});
        let alice = alice.clone();
        async move { alice.post(TASKS, &request).await }
    };
    for kind in ["", "HTTPS", "http", "amqp", "https ", "\u{0}", &"x".repeat(10_000)] {
        let answer = submit(kind, "https://example.org").await;
        assert_eq!(answer.number(), 400_004, "{kind:?}");
        assert!(answer.text.len() < 1000);
    }
    for url in [
        "",
        "http://example.org",
        "ftp://example.org",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/plain,x",
        "//example.org",
        "example.org",
        "https://",
        "https://?x",
        "https://user@example.org",
        "https://user:password@example.org",
        "https://:password@example.org",
        "https://example.org/\r\nX-Injected: 1",
        "https://example.org/\u{0}",
        "https://example.org/a b",
        "https://exam\tple.org/",
        " https://example.org",
        "https://example.org:99999",
        "https://[::1",
        "https://exa%00mple.org",
        &format!("https://example.org/{}", "x".repeat(2000)),
    ] {
        let answer = submit("https", url).await;
        assert_eq!(answer.number(), 400_005, "{url:?}");
    }
    assert_eq!(app.pending("resize").await, 0);
    for url in [
        "https://example.org",
        "https://example.org:443/a?b=c",
        "https://[2606:4700::1111]/",
        "https://bücher.example/",
    ] {
        assert_eq!(submit("https", url).await.status, 201, "{url}");
    }
}

/// Says that it will send a hundred megabytes, sends none of them, and has its answer.
async fn a_body_that_is_too_large_is_refused_before_it_has_arrived(on: Backend) {
    let app = TestApp::builder(on).api(|api| api.max_body_bytes = 10_000).start().await;
    let alice = app.client("alice");
    let body = |bytes: usize| format!(r#"{{"body":{{"x":"{}"}}}}"#, "x".repeat(bytes - 17));
    assert_eq!(body(10_000).len(), 10_000);
    assert_eq!(alice.post_text(TASKS, body(10_000)).await.status, 201, "the largest that is taken");
    assert_eq!(alice.post_text(TASKS, body(10_001)).await.number(), 413_001);
    assert_eq!(app.pending("resize").await, 1);

    let begin = |authorization: &str| {
        format!(
            "POST {TASKS} HTTP/1.1\r\nhost: relais\r\n{authorization}content-type: application/json\r\n\
             content-length: 104857600\r\n\r\n"
        )
    };
    let known = format!("authorization: {}\r\n", basic("alice", &secret("alice")));
    let mut wire = app.wire().await;
    let chunk = format!("2711\r\n{}\r\n", " ".repeat(10_001));
    wire.send(format!(
        "POST {TASKS} HTTP/1.1\r\nhost: relais\r\n{known}content-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{chunk}"
    ))
    .await;
    let head = wire.head().await;
    assert!(head.starts_with("HTTP/1.1 413 "), "without a length: {head}");
    for (authorization, status) in [(known.as_str(), "413"), ("", "403")] {
        let mut wire = app.wire().await;
        wire.send(begin(authorization)).await;
        let head = wire.head().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    assert_eq!(app.pending("resize").await, 1);
}

async fn a_refusal_that_did_not_wait_for_the_body_leaves_the_connection_usable_or_closes_it(on: Backend) {
    let app = TestApp::start(on).await;
    let head = |path: &str, length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: relais\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let mut wire = app.wire().await;
    for round in 0..20 {
        let body = "x".repeat(round * 2000);
        wire.send(head(TASKS, body.len())).await;
        wire.send(body).await;
        let answer = wire.head().await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && !answer.contains("connection: close"), "{answer}");
        let length = answer.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        wire.skip(length.unwrap_or_else(|| panic!("no length: {answer}"))).await;
    }
    // What is announced is too much to be read for nothing.
    wire.send(head(TASKS, 900_000)).await;
    let answer = wire.head().await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("connection: close"), "{answer}");
}

async fn only_json_is_taken_for_json(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let request = r#"{"body":{}}"#;
    for wrong in [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "json",
        "text/json",
        "multipart/form-data",
    ] {
        assert_eq!(alice.call_text(Method::POST, TASKS, wrong, request).await.number(), 415_001, "{wrong:?}");
    }
    assert_eq!(alice.post_nothing(TASKS).await.number(), 415_001);
    assert_eq!(app.pending("resize").await, 0);
    for right in ["application/json", "application/json;charset=UTF-8", "APPLICATION/JSON", "application/json ; x=y"] {
        assert_eq!(alice.call_text(Method::POST, TASKS, right, request).await.status, 201, "{right:?}");
    }
}

/// What is sent comes back in no header, and a request with two meanings has none.
async fn headers_can_not_be_smuggled(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let answer = alice.get("/v1/services/%0d%0aX-Injected:%201").await;
    assert_eq!(answer.number(), 404_001);
    assert!(answer.header("x-injected").is_none());
    for head in [
        "POST /v1/services HTTP/1.1\r\nhost: relais\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        "POST /v1/services HTTP/1.1\r\nhost: relais\r\ncontent-length: -1\r\n\r\n",
        "GET /v1/ser vices HTTP/1.1\r\nhost: relais\r\n\r\n",
        "GET /v1/services HTTP/1.1\r\nhost: relais\r\nx\0y: z\r\n\r\n",
        "POST /v1/services HTTP/1.1\r\nhost: relais\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ] {
        let mut wire = app.wire().await;
        wire.send(head).await;
        let answer = wire.head().await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{head:?}: {answer}");
    }
    assert_eq!(app.caller().get("/readyz").await.status, 200);
}

async fn parameters_that_are_unknown_repeated_or_absurd_are_refused(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, operator) = (app.client("alice"), app.caller());
    async fn refused(caller: &Caller, path: &str) {
        let answer: Answer = caller.get(path).await;
        assert_eq!(answer.number(), 400_006, "{path}: {}", answer.text);
    }
    for query in [
        "stauts=PENDING",
        "status=",
        "status=DONE",
        "status=pending",
        "status=PENDING,,SUCCESS",
        "limit=0",
        "limit=201",
        "limit=-1",
        "limit=x",
        "limit=99999999999999999999",
        "cursor=",
        "cursor=!",
        "cursor=0",
        "cursor=-1",
        "cursor=zzzzzzzzzzzzzzzzzzzz",
        "from=",
        "from=yesterday",
        "from=2026-01-31",
        "before=2026-13-01T00:00:00Z",
        "limit=1&limit=1",
        "%ff=1",
        "status=%ff",
        "limit=%zz",
        "limit=%",
        "limit=%+1",
    ] {
        refused(&alice, &format!("{TASKS}?{query}")).await;
        refused(&operator, &format!("/admin/tasks?{query}")).await;
    }
    refused(&operator, "/admin/authorizations?client=alice").await;
    for query in ["dryRun=yes", "prune=1", "dry_run=true", "dryRun=true&dryRun=true"] {
        let answer = operator.post(&format!("/admin/apply?{query}"), &json!({})).await;
        assert_eq!(answer.number(), 400_006, "{query}");
    }
    let far = "from=0001-01-01T00:00:00Z&before=9999-12-01T00:00:00Z&cursor=1y2p0ij32e8e7";
    assert_eq!(alice.get(&format!("{TASKS}?{far}")).await.status, 200, "far away is not absurd");
}

async fn a_batch_is_refused_as_a_whole_only_where_it_is_no_batch(on: Backend) {
    let app = TestApp::start(on).await;
    let alice = app.client("alice");
    let batch = |tasks: usize| format!(r#"{{"tasks":[{}]}}"#, vec![r#"{"body":{}}"#; tasks].join(","));
    for (number, body) in [
        (400_009, batch(0)),
        (400_009, batch(1001)),
        (400_003, "[]".to_owned()),
        (400_003, r#"[[{"body":{}}]]"#.to_owned()),
        (400_003, r#"{"tasks":{}}"#.to_owned()),
        (400_003, r#"{"tasks":[{"body":{}}],"atomic":true}"#.to_owned()),
        (400_002, r#"{"tasks":[{"body":{}}"#.to_owned()),
    ] {
        assert_eq!(alice.post_text(&format!("{TASKS}/batch"), body).await.number(), number);
    }
    assert_eq!(app.pending("resize").await, 0);
    let entries = r#"[{}],null,{"body":[]},{"body":{},"x":1},{"body":{"s":"\ud800"}},{"body":{}}"#;
    let answer = alice.post_text(&format!("{TASKS}/batch"), format!(r#"{{"tasks":[{entries}]}}"#)).await.data();
    let told: Vec<_> = answer["tasks"].as_array().into_iter().flatten().map(|entry| entry["status"].clone()).collect();
    assert_eq!(told, ["error", "error", "error", "error", "success", "success"]);
    assert_eq!(alice.post_text(&format!("{TASKS}/batch"), batch(1000)).await.status, 200);
    assert_eq!(app.pending("resize").await, 1002);
}
