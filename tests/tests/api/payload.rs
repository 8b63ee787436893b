//! Payloads belong to consumers and workers: Relais keeps them byte for byte.

use relais_tests::app::{Backend, Caller, TestApp};
use serde_json::{Value, json};

on_each_store!(a_body_and_a_response_pass_byte_for_byte, a_response_may_be_any_json);

/// Each would be changed by some decoder: numbers beyond 2^53 and beyond any float, the form of numbers, the order of
/// keys, repeated keys, escapes, NUL, lone surrogates, white space.
const PAYLOADS: [&str; 12] = [
    r#"{"n":9223372036854775808,"m":-9223372036854775809,"f":0.1000000000000000055511151231257827}"#,
    r#"{"huge":1e400,"tiny":-1E-400,"zero":-0.0,"one":1.0,"also":1e0,"long":123456789012345678901234567890}"#,
    r#"{"z":1,"a":2,"M":3,"":4,"a b":5}"#,
    r#"{"a":1,"a":2}"#,
    r#"{"é":"ünïcödé 日本 😀","\u00e9":"\ud83d\ude00\/\b\f\n\r\t\"\\"}"#,
    r#"{"nul":"\u0000","key\u0000":1}"#,
    r#"{"lone":"\ud800","backwards":"\udc00\ud800"}"#,
    "{ \"spaces\" : [ 1 ,\t2 ,\n3 ,\r\n4 ] }",
    r#"{"$serde_json::private::Number":"1","$serde_json::private::RawValue":"2"}"#,
    r#"{"nested":{"":{"":[[[[{}]]]]}},"null":null,"true":true}"#,
    r#"{"sql":"'; DROP TABLE task; --","html":"</script>","format":"%s{}"}"#,
    "{}",
];

async fn a_body_and_a_response_pass_byte_for_byte(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let long = format!(r#"{{"long":"{}"}}"#, "x".repeat(900_000));
    for payload in PAYLOADS.into_iter().chain([long.as_str()]) {
        let request = format!(r#"{{"body":{payload},"correlationId":"c"}}"#);
        let submitted = alice.post_text("/v1/services/resize/tasks", request).await;
        assert_eq!(submitted.status, 201, "{}", submitted.text);
        let id = submitted.data()["taskId"].as_str().unwrap_or_default().to_owned();

        let claimed = worker.post("/v1/services/resize/claims", &json!({})).await.text;
        assert!(claimed.contains(&format!(r#""body":{payload}}}"#)), "claimed: {}", short(&claimed));
        let shown = app.caller().get(&format!("/admin/tasks/{id}")).await.text;
        assert!(shown.contains(&format!(r#""request":{payload},"#)), "shown: {}", short(&shown));

        assert_eq!(succeed(&worker, &id, payload).await, "accepted");
        let polled = alice.get(&format!("/v1/services/resize/tasks/{id}")).await.text;
        assert!(polled.contains(&format!(r#""response":{payload},"#)), "polled: {}", short(&polled));
        let waited = alice.get(&format!("/v1/services/resize/tasks/{id}?wait=1s")).await.text;
        assert_eq!(waited, polled);
    }
}

async fn a_response_may_be_any_json(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for payload in ["null", "true", "12", "-0.0", "1e400", r#""text\u0000""#, "[]", r#"[1,"a",null]"#] {
        let id = alice.submit("resize", json!({})).await;
        worker.claim_one("resize").await;
        assert_eq!(succeed(&worker, &id, payload).await, "accepted");
        let polled = alice.get(&format!("/v1/services/resize/tasks/{id}")).await.text;
        assert!(polled.contains(&format!(r#""response":{payload}}}"#)), "polled: {polled}");
    }
}

/// Sends a result as the text it is.
async fn succeed(worker: &Caller, id: &str, payload: &str) -> String {
    let message = format!(r#"{{"taskId":"{id}","data":{{"messageType":"success","response":{payload}}}}}"#);
    let outcomes: Value = worker.post_text("/v1/services/resize/messages", message).await.data();
    outcomes["outcomes"][0]["outcome"].as_str().unwrap_or_default().to_owned()
}

fn short(text: &str) -> String {
    text.chars().take(1000).collect()
}
