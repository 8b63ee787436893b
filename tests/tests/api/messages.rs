//! Messages of real workers: two spellings, out of order, duplicate, late, and malformed.

use relais_tests::app::{Backend, TestApp};
use serde_json::{Value, json};

on_each_store!(
    both_spellings_of_message_fields_do_the_same,
    an_error_message_may_be_any_json,
    a_message_after_the_end_changes_nothing,
    a_result_before_its_start_is_accepted,
    a_message_of_another_attempt_is_refused,
    one_bad_message_does_not_block_the_others,
    text_that_no_database_takes_is_made_harmless,
);
on_one_store!(a_second_start_resets_the_progress_of_the_first, malformed_message_lists_are_refused_as_a_whole);

const MESSAGES: &str = "/v1/services/resize/messages";

fn outcomes(data: &Value) -> Vec<&str> {
    let outcomes = data["outcomes"].as_array().into_iter().flatten();
    outcomes.map(|outcome| outcome["outcome"].as_str().unwrap_or_default()).collect()
}

async fn both_spellings_of_message_fields_do_the_same(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for (task, kind, host, error) in [
        ("taskId", "messageType", "hostName", "errorMessage"),
        ("task_id", "message_type", "hostname", "error_message"),
    ] {
        let id = alice.submit("resize", json!({})).await;
        assert_eq!(
            worker.message("resize", json!({task: id, "data": {kind: "started", host: "pod-7"}})).await,
            "accepted"
        );
        let shown = app.caller().get(&format!("/admin/tasks/{id}")).await.data();
        assert_eq!((&shown["workerHost"], &shown["task"]["status"]), (&json!("pod-7"), &json!("IN_PROGRESS")));
        assert_eq!(
            worker.message("resize", json!({task: id, "data": {kind: "progress", "progress": 10.0}})).await,
            "accepted"
        );
        assert_eq!(alice.poll("resize", &id).await["progress"].as_f64(), Some(10.0));
        assert_eq!(
            worker.message("resize", json!({task: id, "data": {kind: "failure", error: "no"}})).await,
            "accepted"
        );
        assert_eq!(alice.poll("resize", &id).await["errorMessage"], "no");
    }
    let id = alice.submit("resize", json!({})).await;
    let mixed = json!({"task_id": id, "data": {"messageType": "success", "response": {"a": 1}}});
    assert_eq!(worker.message("resize", mixed).await, "accepted");
    assert_eq!(alice.poll("resize", &id).await["response"], json!({"a": 1}));
}

async fn an_error_message_may_be_any_json(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for (sent, told) in [
        (r#""no\nfile""#, "no\nfile"),
        (r#"{"code":7,"why":"x"}"#, r#"{"code":7,"why":"x"}"#),
        (r#"["a",1e400]"#, r#"["a",1e400]"#),
        ("12", "12"),
        ("true", "true"),
        ("null", ""),
        (r#""\ud800""#, r#""\ud800""#),
    ] {
        let id = alice.submit("resize", json!({})).await;
        let message = format!(r#"{{"task_id":"{id}","data":{{"message_type":"failure","error_message":{sent}}}}}"#);
        assert_eq!(outcomes(&worker.post_text(MESSAGES, message).await.data()), ["accepted"]);
        assert_eq!(alice.poll("resize", &id).await["errorMessage"], told);
    }
}

async fn a_message_after_the_end_changes_nothing(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    let success = |n: u8| json!({"messageType": "success", "response": n});
    assert_eq!(worker.report("resize", &id, success(1)).await, "accepted");
    let ended = alice.poll("resize", &id).await;
    for late in [
        success(1),
        success(2),
        json!({"messageType": "failure", "errorMessage": "late"}),
        json!({"messageType": "progress", "progress": 1}),
        json!({"messageType": "started", "hostName": "late"}),
    ] {
        assert_eq!(worker.report("resize", &id, late.clone()).await, "ended", "{late}");
    }
    assert_eq!(alice.poll("resize", &id).await, ended);
    assert_eq!((app.count("resize", "success").await, app.count("resize", "failure").await), (1, 0));

    // Twice in one call: the first one counts.
    let id = alice.submit("resize", json!({})).await;
    let twice = json!({"messages": [{"taskId": id, "data": success(1)}, {"taskId": id, "data": success(2)}]});
    assert_eq!(outcomes(&worker.post(MESSAGES, &twice).await.data()), ["accepted", "ended"]);
    assert_eq!(alice.poll("resize", &id).await["response"], 1);
}

async fn a_result_before_its_start_is_accepted(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(worker.report("resize", &id, json!({"messageType": "progress", "progress": 30})).await, "accepted");
    let running = alice.poll("resize", &id).await;
    assert_eq!((running["status"].as_str(), running["progress"].as_f64()), (Some("IN_PROGRESS"), Some(30.0)));
    assert!(running["startDate"].is_string(), "it proves that the work has begun");
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(worker.report("resize", &id, json!({"messageType": "success", "response": 1})).await, "accepted");
    let ended = alice.poll("resize", &id).await;
    assert_eq!(ended["startDate"], ended["endDate"]);
    assert_eq!(worker.report("resize", &id, json!({"messageType": "started"})).await, "ended");
    assert!(worker.claim("resize", json!({"max": 9})).await.is_empty(), "neither is handed out any more");
}

async fn a_message_of_another_attempt_is_refused(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    let of = |attempt: u64, data: Value| json!({"taskId": id, "attempt": attempt, "data": data});
    worker.claim_one("resize").await;
    worker.give_back("resize", &id, 1).await;
    let success = json!({"messageType": "success", "response": 1});
    for data in [json!({"messageType": "started"}), json!({"messageType": "progress", "progress": 5})] {
        assert_eq!(worker.message("resize", of(1, data)).await, "lost", "nobody holds it");
    }
    worker.claim_one("resize").await;
    for attempt in [0, 1, 3, 4_294_967_295] {
        for data in
            [json!({"messageType": "started"}), json!({"messageType": "progress", "progress": 5}), success.clone()]
        {
            assert_eq!(worker.message("resize", of(attempt, data)).await, "lost");
        }
    }
    let running = alice.poll("resize", &id).await;
    assert_eq!((running["status"].as_str(), running["progress"].as_f64()), (Some("IN_PROGRESS"), Some(0.0)));
    assert_eq!(worker.message("resize", of(2, success)).await, "accepted");
}

async fn one_bad_message_does_not_block_the_others(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let (first, last) = (alice.submit("resize", json!({})).await, alice.submit("resize", json!({})).await);
    let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
    let success = |id: &str, response: &str| {
        format!(r#"{{"taskId":"{id}","data":{{"messageType":"success","response":{response}}}}}"#)
    };
    let bad = [
        "null".to_owned(),
        "[]".to_owned(),
        "\"text\"".to_owned(),
        format!(r#"["{last}",null,null,{{"messageType":"started"}}]"#),
        "{}".to_owned(),
        r#"{"taskId":7,"data":{"messageType":"started"}}"#.to_owned(),
        r#"{"taskId":"x\u0000","data":{"messageType":"started"}}"#.to_owned(),
        format!(r#"{{"taskId":"{last}","data":null}}"#),
        format!(r#"{{"taskId":"{last}","data":{{"messageType":"Started"}}}}"#),
        format!(r#"{{"taskId":"{last}","data":{{"messageType":"progress"}}}}"#),
        format!(r#"{{"taskId":"{last}","data":{{"messageType":"progress","progress":"1"}}}}"#),
        format!(r#"{{"taskId":"{last}","data":{{"messageType":"progress","progress":1e400}}}}"#),
        format!(r#"{{"taskId":"{last}","attempt":-1,"data":{{"messageType":"started"}}}}"#),
        format!(r#"{{"taskId":"{last}","data":{{"messageType":"started","hostName":"\ud800"}}}}"#),
        format!(r#"{{"taskId":"{last}","taskId":"{first}","data":{{"messageType":"started"}}}}"#),
        success(&last, &deep),
    ];
    let all: Vec<String> = [vec![success(&first, "1")], bad.to_vec(), vec![success(&last, "2")]].concat();
    let answer = worker.post_text(MESSAGES, format!(r#"{{"messages":[{}]}}"#, all.join(","))).await.data();
    let told = outcomes(&answer);
    assert_eq!((told[0], told[told.len() - 1], told.len()), ("accepted", "accepted", bad.len() + 2));
    for (bad, told) in bad.iter().zip(&told[1..]) {
        assert_eq!(*told, "rejected", "{bad}");
    }
    assert_eq!(alice.poll("resize", &first).await["response"], 1);
    assert_eq!(alice.poll("resize", &last).await["response"], 2);
}

async fn text_that_no_database_takes_is_made_harmless(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    assert_eq!(
        worker.report("resize", &id, json!({"messageType": "started", "hostName": "pod\u{0}1"})).await,
        "accepted"
    );
    let shown = app.caller().get(&format!("/admin/tasks/{id}")).await.data();
    assert_eq!(shown["workerHost"], "pod\u{fffd}1");
    let long = format!("\u{0}{}", "é".repeat(100_000));
    assert_eq!(worker.report("resize", &id, json!({"messageType": "failure", "errorMessage": long})).await, "accepted");
    let told = alice.poll("resize", &id).await["errorMessage"].as_str().unwrap_or_default().to_owned();
    assert!(told.starts_with("\u{fffd}éé") && told.len() <= 64 * 1024, "{} bytes", told.len());
}

/// As a broker does it: it redelivers, and the next worker says `started` without an attempt.
async fn a_second_start_resets_the_progress_of_the_first(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    worker.report("resize", &id, json!({"messageType": "started", "hostName": "pod-1"})).await;
    worker.report("resize", &id, json!({"messageType": "progress", "progress": 70})).await;
    assert_eq!(worker.report("resize", &id, json!({"messageType": "started", "hostName": "pod-2"})).await, "accepted");
    let shown = app.caller().get(&format!("/admin/tasks/{id}")).await.data();
    assert_eq!((&shown["workerHost"], shown["task"]["progress"].as_f64()), (&json!("pod-2"), Some(0.0)));
    for (sent, kept) in [(-5.0, 0.0), (250.0, 100.0), (99.5, 99.5)] {
        worker.report("resize", &id, json!({"messageType": "progress", "progress": sent})).await;
        assert_eq!(alice.poll("resize", &id).await["progress"].as_f64(), Some(kept));
    }
}

async fn malformed_message_lists_are_refused_as_a_whole(on: Backend) {
    let app = TestApp::start(on).await;
    let worker = app.client("worker");
    let too_many = format!(r#"{{"messages":[{}]}}"#, vec!["{}"; 1001].join(","));
    let deep = "[".repeat(100_000);
    for (body, number) in [
        ("", 400_002),
        ("{", 400_002),
        ("[]", 400_003),
        ("7", 400_003),
        (r#"{"messages":[]}"#, 400_009),
        (r#"{"messages":{}}"#, 400_003),
        (r#"{"messages":[{}],"more":1}"#, 400_003),
        (too_many.as_str(), 400_009),
        (deep.as_str(), 400_002),
    ] {
        let answer = worker.post_text(MESSAGES, body.to_owned()).await;
        assert_eq!(answer.number(), number, "{}: {}", body.chars().take(50).collect::<String>(), answer.text);
    }
    for path in ["/v1/services/resize/heartbeats", "/v1/services/resize/returns"] {
        for (body, number) in [
            (json!({"tasks": []}), 400_009),
            (json!({"tasks": vec![json!({"taskId": "x"}); 1001]}), 400_009),
            (json!({"tasks": [{"id": "x"}]}), 400_003),
            (json!({"tasks": [{"taskId": "x", "attempt": -1}]}), 400_003),
            (json!({"tasks": "x"}), 400_003),
            (json!([[{"taskId": "x"}]]), 400_003),
        ] {
            assert_eq!(worker.post(path, &body).await.number(), number, "{path} {body}");
        }
    }
}
