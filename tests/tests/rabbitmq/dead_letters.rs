//! Dead letters: a malformed message is stored where an operator sees it, and blocks nothing.

use relais_tests::app::{Answer, Backend};
use serde_json::{Value, json};

use crate::stage::{Stage, until};

on_each_store!(a_malformed_message_becomes_a_dead_letter_with_the_reason);
on_one_store!(
    an_operator_shows_replays_and_discards_dead_letters,
    a_binary_message_becomes_a_dead_letter_unchanged,
    many_dead_letters_are_listed_and_discarded,
    a_service_without_a_broker_has_no_dead_letters,
);

const DEAD_LETTERS: &str = "/admin/deadletters";

async fn a_malformed_message_becomes_a_dead_letter_with_the_reason(on: Backend) {
    let stage = Stage::start(on).await;
    let (ours, other) = (stage.submit(json!({})).await, stage.alice.submit("ocr", json!({})).await);
    let unknown = "019a0000-0000-7000-8000-000000000000";
    let message = |task: &str, data: Value| json!({"taskId": task, "data": data}).to_string();
    let success = json!({"messageType": "success", "response": {}});
    let many: Vec<Value> = vec![json!({"taskId": ours, "data": success}); 1001];
    let bad = [
        ("hello".to_owned(), "not a message"),
        (String::new(), "not a message"),
        ("[1, 2".to_owned(), "not JSON"),
        ("42".to_owned(), "not a message"),
        ("{}".to_owned(), "taskId is missing"),
        (message("7", success.clone()), "taskId is not a UUID"),
        (message(unknown, success.clone()), "there is no task"),
        (message(&other, success.clone()), "there is no task"),
        (message(&ours, json!({})), "messageType is missing"),
        (message(&ours, json!({"messageType": "exploded"})), "\"exploded\" is unknown"),
        (message(&ours, json!({"messageType": "progress"})), "progress is missing"),
        (json!({"taskId": ours, "data": {"messageType": "progress", "progress": "half"}}).to_string(), "not a message"),
        (Value::Array(many).to_string(), "a list of more than 1000 messages"),
    ];
    for (body, _) in &bad {
        stage.worker.send(body.as_bytes()).await;
    }
    // One behind them is not held up, and the task that was spoken of has not changed.
    stage.heard().await;
    assert_eq!(stage.poll(&ours).await["status"], "PENDING");
    assert_eq!(stage.alice.poll("ocr", &other).await["status"], "PENDING");

    let dead_letters = stage.dead_letters(bad.len()).await;
    for (body, why) in &bad {
        let shown: String = body.chars().take(200).collect();
        let dead_letter = dead_letters.iter().find(|dead_letter| dead_letter["message"] == *shown);
        let dead_letter = dead_letter.unwrap_or_else(|| panic!("{shown} is not there: {dead_letters:?}"));
        assert!(dead_letter["reason"].as_str().unwrap().contains(why), "{why} in {dead_letter}");
        assert_eq!((&dead_letter["service"], &dead_letter["bytes"]), (&json!("resize"), &json!(body.len())));
        assert!(dead_letter["date"].as_str().unwrap().ends_with('Z'), "{dead_letter}");
    }
    // In the queue itself, for whoever looks there.
    let taken = stage.vhost.take("resize-out.rejected", 1).await.unwrap();
    assert!(taken[0].properties["headers"]["relais-reason"].is_string(), "{:?}", taken[0]);
    assert!(taken[0].properties["headers"]["relais-date"].is_string());
}

fn count(answer: &Answer) -> u64 {
    answer.data()["count"].as_u64().unwrap()
}

fn id(dead_letter: &Value) -> &str {
    dead_letter["id"].as_str().unwrap()
}

async fn an_operator_shows_replays_and_discards_dead_letters(on: Backend) {
    let stage = Stage::start(on).await;
    let operator = stage.app.caller();
    assert!(stage.dead_letters(0).await.is_empty(), "where there never was one there is no queue either");
    let long = format!("{{\"taskId\":\"x\",\"data\":{{\"messageType\":\"{}\"}}}}", "é".repeat(300));
    for body in ["one", "two", "three", long.as_str()] {
        stage.worker.send(body).await;
        stage.heard().await;
    }
    let dead_letters = stage.dead_letters(4).await;
    let said: Vec<&Value> = dead_letters.iter().map(|dead_letter| &dead_letter["message"]).collect();
    assert_eq!(said[..3], [&json!("one"), &json!("two"), &json!("three")], "the oldest first");
    assert_eq!(
        operator.get(&format!("{DEAD_LETTERS}?limit=2")).await.data()["deadLetters"].as_array().map(Vec::len),
        Some(2)
    );
    let whole = operator.get(&format!("{DEAD_LETTERS}/resize/{}", id(&dead_letters[3]))).await.data();
    assert_eq!((&whole["message"], &whole["bytes"]), (&json!(long), &json!(long.len())), "a list shows the beginning");
    assert_eq!(operator.get(&format!("{DEAD_LETTERS}/resize/nothing")).await.number(), 404_007);
    assert_eq!(operator.get(&format!("{DEAD_LETTERS}?service=nowhere")).await.number(), 404_001);

    // Put back, it is no better understood, and comes here again under another name.
    let replay = format!("{DEAD_LETTERS}/resize/replay");
    assert_eq!(count(&operator.post(&replay, &json!({"ids": [id(&dead_letters[1])]})).await), 1);
    until("it is set aside again", async || {
        let again = stage.dead_letters(4).await;
        again[3]["message"] == "two" && again[3]["id"] != dead_letters[1]["id"]
    })
    .await;
    let discard = format!("{DEAD_LETTERS}/resize/discard");
    assert_eq!(count(&operator.post(&discard, &json!({"ids": [id(&dead_letters[0]), "nothing"]})).await), 1);
    let left: Vec<Value> =
        stage.dead_letters(3).await.iter().map(|dead_letter| dead_letter["message"].clone()).collect();
    assert_eq!(left[0], "three");
    assert_eq!(operator.post(&discard, &json!({"ids": []})).await.number(), 400_003);
    assert_eq!(count(&operator.post(&discard, &json!({})).await), 3);
    assert!(stage.dead_letters(0).await.is_empty());
    assert_eq!(count(&operator.post(&replay, &json!({})).await), 0);

    // A message that came before its task, so to say: replayed once that is there, it is understood.
    let other = stage.alice.submit("ocr", json!({})).await;
    stage.worker.success(&other, json!("late")).await;
    let dead_letter = stage.dead_letters(1).await.remove(0);
    assert_eq!(dead_letter["reason"], format!("there is no task {other} of this service"));
    let body = whole_message(&stage, &dead_letter).await;
    relais_tests::amqp::AmqpWorker::new(stage.vhost.url(), "ocr").send(body).await;
    stage.seen(&other, "done", |task| task["task"]["status"] == "SUCCESS").await;
}

async fn whole_message(stage: &Stage, dead_letter: &Value) -> String {
    let dead_letter = stage.app.caller().get(&format!("{DEAD_LETTERS}/resize/{}", id(dead_letter))).await.data();
    dead_letter["message"].as_str().unwrap().to_owned()
}

async fn a_binary_message_becomes_a_dead_letter_unchanged(on: Backend) {
    let stage = Stage::start(on).await;
    let bytes = [0xff, 0xfe, 0x00, b'{', 0x80];
    stage.worker.send(bytes).await;
    let dead_letter = stage.dead_letters(1).await.remove(0);
    assert_eq!(dead_letter["bytes"], 5);
    assert_eq!(count(&stage.app.caller().post(&format!("{DEAD_LETTERS}/resize/replay"), &json!({})).await), 1);
    until("it is set aside again", async || id(&stage.dead_letters(1).await[0]) != id(&dead_letter)).await;
    assert_eq!(stage.vhost.take("resize-out.rejected", 1).await.unwrap()[0].body, bytes, "byte for byte");
}

async fn many_dead_letters_are_listed_and_discarded(on: Backend) {
    let stage = Stage::start(on).await;
    stage.worker.send_many((0..1500).map(|n| format!("bad {n}"))).await;
    let id = stage.submit(json!({})).await;
    stage.worker.success(&id, json!(1)).await;
    assert_eq!(stage.success(&id).await, 1, "they hold up nobody");
    let operator = stage.app.caller();
    let mut discarded = 0;
    until("all were discarded", async || {
        discarded += count(&operator.post(&format!("{DEAD_LETTERS}/resize/discard"), &json!({})).await);
        discarded == 1500
    })
    .await;
    stage.dead_letters(0).await;
}

async fn a_service_without_a_broker_has_no_dead_letters(on: Backend) {
    let stage = Stage::start(on).await;
    stage.app.apply(json!({"services": [{"serviceName": "ocr", "transport": "builtin"}]})).await;
    let operator = stage.app.caller();
    assert_eq!(operator.get(&format!("{DEAD_LETTERS}?service=ocr")).await.data()["deadLetters"], json!([]));
    assert_eq!(operator.get(&format!("{DEAD_LETTERS}/ocr/x")).await.number(), 404_007);
    assert_eq!(count(&operator.post(&format!("{DEAD_LETTERS}/ocr/replay"), &json!({})).await), 0);
    assert_eq!(operator.post_nothing("/admin/services/ocr/redispatch").await.number(), 409_003);
}
