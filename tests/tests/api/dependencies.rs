//! Dependencies and batches, and what a task passes on to its dependents and parts.
#![expect(clippy::unwrap_used, reason = "what can not be unwrapped here fails the test, which is what it is for")]

use std::{sync::Arc, time::Duration};

use relais_callback::{HttpSender, HttpSenderOptions};
use relais_core::{CallbackSender, CallbackType};
use relais_engine::CallbackSenders;
use relais_tests::{
    app::{Answer, Backend, Caller, TestApp},
    receiver::Receiver,
};
use serde_json::{Value, json};

on_each_store!(
    a_chain_of_dependencies_over_two_services_runs_in_order,
    a_failure_fails_its_dependents_and_a_retry_ignores_it,
    a_batch_is_followed_as_one_and_its_callback_is_sent_once,
    a_batch_of_existing_tasks_ends_at_once_and_sends_its_callback,
    an_open_batch_accepts_tasks_until_closed_and_can_be_cancelled,
    correlation_id_and_trace_pass_from_task_to_dependent,
);
on_one_store!(
    an_invalid_dependency_is_refused,
    a_batch_is_all_or_nothing_and_visible_to_its_client_only,
    operators_see_and_cancel_batches,
);

const RESIZE: &str = "/v1/services/resize/tasks";
const OCR: &str = "/v1/services/ocr/tasks";
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A Relais that may call this machine.
async fn app(on: Backend) -> TestApp {
    let callback_sender: Arc<dyn CallbackSender> = Arc::new(
        HttpSender::new(HttpSenderOptions {
            timeout: Duration::from_secs(5),
            allow_http: true,
            allow_networks: vec!["127.0.0.0/8".to_owned()],
            ports: (1..=u16::MAX).collect(),
            ..HttpSenderOptions::default()
        })
        .unwrap(),
    );
    let callback_senders = CallbackSenders::default().with(CallbackType::Http, callback_sender);
    TestApp::builder(on).engine(|options| options.callback_senders = callback_senders).start().await
}

fn id(data: &Value) -> String {
    data["taskId"].as_str().unwrap_or_else(|| panic!("no taskId in {data}")).to_owned()
}

async fn submit(caller: &Caller, path: &str, request: Value) -> String {
    let answer = caller.post(path, &request).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    id(&answer.data())
}

async fn say(app: &TestApp, service: &str, task: &str, data: Value) {
    let outcome = app.client("worker").message(service, json!({"taskId": task, "data": data})).await;
    assert_eq!(outcome, "accepted");
}

async fn succeed(app: &TestApp, service: &str, task: &str) {
    say(app, service, task, json!({"messageType": "success", "response": {}})).await;
}

async fn fail(app: &TestApp, service: &str, task: &str) {
    say(app, service, task, json!({"messageType": "failure", "errorMessage": "no"})).await;
}

fn number(answer: &Answer) -> u64 {
    answer.number()
}

/// A task once it has ended.
async fn ended(caller: &Caller, path: &str, task: &str) -> Value {
    caller.get(&format!("{path}/{task}?wait=20s")).await.data()
}

async fn a_chain_of_dependencies_over_two_services_runs_in_order(on: Backend) {
    let app = app(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let first = submit(&alice, RESIZE, json!({"body": {}})).await;
    let second = submit(&alice, OCR, json!({"body": {}, "after": {"tasks": [first]}})).await;
    let last = json!({"body": {}, "after": {"tasks": [first, second], "when": "allEnded"}});
    let last = submit(&alice, RESIZE, last).await;
    let seen = alice.poll("ocr", &second).await;
    assert_eq!(seen["status"], "PENDING");
    assert!(seen["taskPosition"].is_null(), "it is in no queue: {seen}");
    assert_eq!(seen["after"], json!({"tasks": [{"taskId": first}], "when": "allSucceeded"}));
    assert_eq!(app.count("ocr", "waiting").await, 1);

    assert_eq!(id(&worker.claim_one("resize").await), first);
    succeed(&app, "resize", &first).await;
    // The worker waits, and is woken when what the task waited for has ended.
    assert_eq!(id(&worker.claim_one("ocr").await), second);
    assert_eq!(alice.poll("ocr", &second).await["after"]["tasks"][0]["status"], "SUCCESS");
    fail(&app, "ocr", &second).await;
    assert_eq!(id(&worker.claim_one("resize").await), last);
    succeed(&app, "resize", &last).await;
    assert_eq!(ended(&alice, RESIZE, &last).await["status"], "SUCCESS");

    // In one call, by words of one's own.
    let many = json!({"tasks": [
        {"body": {}, "ref": "one"},
        {"body": {}, "ref": "two", "after": {"refs": ["one"]}},
        {"body": {}, "after": {"refs": ["one", "two"], "tasks": [last]}},
        {"body": {}, "after": {"refs": ["three"]}},
        {"body": {}, "ref": "one"},
        {"body": 7, "ref": "wrong"},
        {"body": {}, "after": {"refs": ["wrong"]}},
    ]});
    let answer = alice.post(&format!("{RESIZE}/batch"), &many).await.data();
    let numbers: Vec<_> =
        answer["tasks"].as_array().unwrap().iter().map(|one| one["error"]["number"].as_u64()).collect();
    assert_eq!(numbers, [None, None, None, Some(400_011), Some(400_003), Some(400_003), Some(400_011)]);
    for place in 0..3 {
        let claimed = id(&worker.claim_one("resize").await);
        assert_eq!(claimed, id(&answer["tasks"][place]["data"]));
        succeed(&app, "resize", &claimed).await;
    }
}

async fn a_failure_fails_its_dependents_and_a_retry_ignores_it(on: Backend) {
    let app = app(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let first = submit(&alice, RESIZE, json!({"body": {}})).await;
    let mut chain = vec![first.clone()];
    for _ in 0..10 {
        let after = json!({"tasks": [chain.last().unwrap()]});
        chain.push(submit(&alice, OCR, json!({"body": {}, "after": after})).await);
    }
    fail(&app, "resize", &first).await;
    for pair in chain.windows(2) {
        let seen = ended(&alice, OCR, &pair[1]).await;
        assert_eq!((&seen["status"], &seen["errorKind"]), (&json!("FAILURE"), &json!("dependency")));
        assert!(seen["errorMessage"].as_str().unwrap().contains(&pair[0]), "{seen}");
    }
    // One that comes late fails as well, and is told why.
    let late = submit(&alice, OCR, json!({"body": {}, "after": {"tasks": [first]}})).await;
    assert_eq!(ended(&alice, OCR, &late).await["errorKind"], "dependency");
    let again = alice.post(&format!("{OCR}/{late}/retry"), &json!({})).await.data();
    assert_eq!(again["status"], "PENDING");
    assert_eq!(id(&worker.claim_one("ocr").await), late, "by hand means now");
}

async fn a_batch_is_followed_as_one_and_its_callback_is_sent_once(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    let alice = app.client("alice");
    let request = json!({
        "tasks": [
            {"service": "resize", "body": {}, "ref": "a"},
            {"service": "ocr", "body": {}, "after": {"refs": ["a"]}},
            {"service": "ocr", "body": {}, "correlationId": "its own"},
        ],
        "callback": {"type": "http", "url": receiver.url("/batch")},
        "correlationId": "order-7",
    });
    let answer = alice.post("/v1/batches", &request).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    let made = answer.data();
    let batch = made["batchId"].as_str().unwrap().to_owned();
    let tasks: Vec<String> = made["tasks"].as_array().unwrap().iter().map(id).collect();
    let path = format!("/v1/batches/{batch}");
    let seen = alice.get(&path).await.data();
    assert_eq!((&seen["status"], &seen["total"], &seen["pending"]), (&json!("IN_PROGRESS"), &json!(3), &json!(3)));
    assert_eq!(alice.poll("ocr", &tasks[1]).await["correlationId"], "order-7");
    assert_eq!(alice.poll("ocr", &tasks[2]).await["correlationId"], "its own");
    assert_eq!(alice.poll("ocr", &tasks[2]).await["batchId"], json!(batch));
    let listed = alice.get(&format!("{path}/tasks?status=PENDING")).await.data();
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 3);

    app.client("worker").claim_one("resize").await;
    assert_eq!(alice.get(&path).await.data()["inProgress"], 1);
    succeed(&app, "resize", &tasks[0]).await;
    let mut claimed = vec![id(&app.client("worker").claim_one("ocr").await)];
    claimed.push(id(&app.client("worker").claim_one("ocr").await));
    assert!(claimed.contains(&tasks[1]) && claimed.contains(&tasks[2]), "both may run now: {claimed:?}");
    fail(&app, "ocr", &tasks[1]).await;
    assert!(receiver.received().is_empty(), "one is left");
    assert_eq!(alice.delete(&format!("{OCR}/{}", tasks[2])).await.data()["status"], "CANCELLED");
    let told = receiver.wait_for(1).await;
    let seen = alice.get(&path).await.data();
    assert_eq!(told[0].json(), seen, "what a poll says");
    assert_eq!(told[0].id(), format!("{batch}-0"));
    assert!(!told[0].header("webhook-signature").is_empty(), "signed like any callback");
    assert_eq!(
        (&seen["status"], &seen["success"], &seen["failure"], &seen["cancelled"]),
        (&json!("ENDED"), &json!(1), &json!(1), &json!(1))
    );
    // Done once more: counted, and not told again.
    alice.post(&format!("{OCR}/{}/retry", tasks[1]), &json!({})).await.data();
    succeed(&app, "ocr", &tasks[1]).await;
    let seen = alice.get(&path).await.data();
    assert_eq!((&seen["status"], &seen["success"], &seen["failure"]), (&json!("ENDED"), &json!(2), &json!(0)));
    assert_eq!(receiver.received().len(), 1);
}

async fn a_batch_of_existing_tasks_ends_at_once_and_sends_its_callback(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    let alice = app.client("alice");
    submit(&alice, RESIZE, json!({"body": {}, "uniqueKey": "album 7"})).await;
    let request = json!({
        "tasks": [{"service": "resize", "body": {}, "uniqueKey": "album 7"}],
        "callback": {"type": "http", "url": receiver.url("/batch")},
    });
    let made = alice.post("/v1/batches", &request).await.data();
    let told = receiver.wait_for(1).await;
    assert_eq!((&told[0].json()["batchId"], &told[0].json()["status"]), (&made["batchId"], &json!("ENDED")));
}

async fn an_open_batch_accepts_tasks_until_closed_and_can_be_cancelled(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    let alice = app.client("alice");
    let callback = json!({"type": "http", "url": receiver.url("/batch")});
    let made = alice.post("/v1/batches", &json!({"open": true, "callback": callback})).await.data();
    let batch = made["batchId"].as_str().unwrap().to_owned();
    let path = format!("/v1/batches/{batch}");
    assert_eq!(alice.get(&path).await.data()["status"], "OPEN");
    let first = submit(&alice, RESIZE, json!({"body": {}, "batchId": batch})).await;
    succeed(&app, "resize", &first).await;
    assert_eq!(alice.get(&path).await.data()["status"], "OPEN");
    for _ in 0..3 {
        submit(&alice, OCR, json!({"body": {}, "batchId": batch})).await;
    }
    let closed = alice.post(&format!("{path}/close"), &json!({})).await.data();
    assert_eq!((&closed["status"], &closed["total"]), (&json!("IN_PROGRESS"), &json!(4)));
    let late = alice.post(OCR, &json!({"body": {}, "batchId": batch})).await;
    assert_eq!((late.status, number(&late)), (409, 409_004));
    let cancelled = alice.post(&format!("{path}/cancel"), &json!({})).await.data();
    assert_eq!((&cancelled["status"], &cancelled["cancelled"]), (&json!("ENDED"), &json!(3)));
    assert_eq!(receiver.wait_for(1).await[0].json(), cancelled);
    assert_eq!(alice.post(&format!("{path}/cancel"), &json!({})).await.data(), cancelled, "again is the same");
    assert_eq!(alice.get("/v1/batches").await.data()["batches"][0]["batchId"], json!(batch));
}

async fn correlation_id_and_trace_pass_from_task_to_dependent(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    app.apply(json!({"authorizations": [{"clientId": "worker", "serviceName": "ocr", "roles": ["work", "consume"]}]}))
        .await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let request =
        json!({"body": {}, "correlationId": "order-1", "callback": {"type": "http", "url": receiver.url("/x")}});
    let traced = alice.clone().with("traceparent", TRACEPARENT).with("tracestate", "a=1");
    let first = submit(&traced, RESIZE, request).await;
    let claimed = worker.claim_one("resize").await;
    assert_eq!(
        (&claimed["correlationId"], &claimed["traceparent"], &claimed["tracestate"]),
        (&json!("order-1"), &json!(TRACEPARENT), &json!("a=1"))
    );
    // The worker submits a part of what it is working on, which is not its own.
    let child = submit(&worker, OCR, json!({"body": {}, "parentId": first})).await;
    let seen = worker.poll("ocr", &child).await;
    assert_eq!((&seen["parentId"], &seen["correlationId"]), (&json!(first), &json!("order-1")));
    assert_eq!(worker.claim_one("ocr").await["traceparent"], TRACEPARENT);
    let own = submit(&alice, OCR, json!({"body": {}, "parentId": first, "correlationId": "mine"})).await;
    let after = submit(&alice, OCR, json!({"body": {}, "after": {"tasks": [first]}})).await;
    assert_eq!(alice.poll("ocr", &own).await["correlationId"], "mine");
    assert_eq!(alice.poll("ocr", &after).await["correlationId"], "order-1");
    let shown = app.caller().get(&format!("/admin/tasks/{after}")).await.data();
    assert_eq!(shown["traceparent"], TRACEPARENT, "{shown}");
    let links = app.caller().get(&format!("/admin/tasks/{first}")).await.data();
    let linked = |which: &str| links[which]["tasks"].as_array().unwrap().iter().map(id).collect::<Vec<_>>();
    assert_eq!(linked("children"), [own.clone(), child], "of whatever client, the newest first");
    assert_eq!((linked("waitedForBy"), &links["waitedForBy"]["more"]), (vec![after.clone()], &json!(false)));
    let waiting = app.caller().get(&format!("/admin/tasks?waitsFor={first}")).await.data();
    assert_eq!(waiting["tasks"][0]["task"]["taskId"], json!(after));
    for bad in [format!("waitsFor={first}&parentId={first}"), "waitsFor=x".to_owned(), "batchId=x".to_owned()] {
        assert_eq!(number(&app.caller().get(&format!("/admin/tasks?{bad}")).await), 400_006, "{bad}");
    }
    let malformed = alice.clone().with("traceparent", "00-nonsense");
    let untraced = submit(&malformed, RESIZE, json!({"body": {}})).await;
    assert!(app.caller().get(&format!("/admin/tasks/{untraced}")).await.data()["traceparent"].is_null());

    succeed(&app, "resize", &first).await;
    let told = receiver.wait_for(1).await;
    assert_eq!((told[0].header("traceparent"), told[0].header("tracestate")), (TRACEPARENT, "a=1"));
    // What has ended is nobody's to work on.
    let late = worker.post(OCR, &json!({"body": {}, "parentId": first})).await;
    assert_eq!((late.status, number(&late)), (400, 400_012));

    let names = |page: Value| page["tasks"].as_array().unwrap().iter().map(id).collect::<Vec<_>>();
    assert_eq!(names(alice.get(&format!("{OCR}?correlationId=order-1")).await.data()), [after]);
    assert_eq!(names(alice.get(&format!("{OCR}?parentId={first}")).await.data()), [own], "one's own");
    let all = app.caller().get("/admin/tasks?correlationId=order-1").await.data();
    assert_eq!(all["tasks"].as_array().unwrap().len(), 3);
    let both = alice.get(&format!("{OCR}?parentId={first}&correlationId=x")).await;
    assert_eq!((both.status, number(&both)), (400, 400_006));
}

async fn an_invalid_dependency_is_refused(on: Backend) {
    let app = app(on).await;
    let (alice, bob) = (app.client("alice"), app.client("bob"));
    let bobs = submit(&bob, RESIZE, json!({"body": {}})).await;
    let many: Vec<String> = (0..101).map(|_| bobs.clone()).collect();
    for (request, expected) in [
        (json!({"after": {"tasks": [bobs]}}), 400_011),
        (json!({"after": {"tasks": ["01890a5d-ac96-774b-bcce-b302099a8057"]}}), 400_011),
        (json!({"after": {"tasks": ["nonsense"]}}), 400_011),
        (json!({"after": {"tasks": []}}), 400_003),
        (json!({"after": {}}), 400_003),
        (json!({"after": {"tasks": many}}), 400_003),
        (json!({"after": {"refs": ["a"]}}), 400_003),
        (json!({"after": {"tasks": [bobs], "when": "never"}}), 400_003),
        (json!({"after": {"tasks": [bobs], "what": 1}}), 400_003),
        (json!({"ref": "a"}), 400_003),
        (json!({"service": "ocr"}), 400_003),
        (json!({"parentId": bobs}), 400_012),
        (json!({"parentId": "nonsense"}), 400_012),
        (json!({"batchId": "nonsense"}), 404_009),
        (json!({"batchId": "01890a5d-ac96-774b-bcce-b302099a8057"}), 404_009),
    ] {
        let mut request = request;
        request["body"] = json!({});
        let answer = alice.post(RESIZE, &request).await;
        assert_eq!(number(&answer), expected, "{request}: {}", answer.text);
    }
    let own = submit(&alice, RESIZE, json!({"body": {}})).await;
    let twice = submit(&alice, RESIZE, json!({"body": {}, "after": {"tasks": [own, own]}})).await;
    assert_eq!(alice.poll("resize", &twice).await["after"]["tasks"].as_array().unwrap().len(), 1, "once is enough");
    assert_eq!(app.count("resize", "waiting").await, 1, "nothing of what was refused is left");
}

async fn a_batch_is_all_or_nothing_and_visible_to_its_client_only(on: Backend) {
    let app = app(on).await;
    let (alice, bob) = (app.client("alice"), app.client("bob"));
    let fine = json!({"service": "resize", "body": {}});
    for (wrong, expected) in [
        (json!({"service": "strict", "body": {"sleep": 99}}), 400_001),
        (json!({"service": "nowhere", "body": {}}), 404_001),
        (json!({"body": {}}), 400_003),
        (json!({"service": "resize", "body": {}, "after": {"refs": ["later"]}}), 400_011),
        (json!({"service": "resize", "body": {}, "batchId": "01890a5d-ac96-774b-bcce-b302099a8057"}), 400_003),
        (json!({"service": "resize", "body": {}, "nonsense": 1}), 400_003),
    ] {
        let answer = alice.post("/v1/batches", &json!({"tasks": [fine, wrong]})).await;
        assert_eq!(number(&answer), expected, "{wrong}: {}", answer.text);
        let at = answer.json()["error"]["details"][0]["path"].as_str().unwrap_or_default().to_owned();
        assert!(at.starts_with("/tasks/1"), "{at} in {}", answer.text);
    }
    assert_eq!(number(&bob.post("/v1/batches", &json!({"tasks": [{"service": "ocr", "body": {}}]})).await), 403_001);
    assert_eq!(number(&alice.post("/v1/batches", &json!({"tasks": []})).await), 400_009);
    let events = json!({"type": "http", "url": "http://127.0.0.1/", "events": ["started"]});
    assert_eq!(number(&alice.post("/v1/batches", &json!({"tasks": [fine], "callback": events})).await), 400_003);
    assert_eq!(app.pending("resize").await, 0, "nothing was taken");
    assert_eq!(alice.get("/v1/batches").await.data()["batches"], json!([]));

    let made = alice.post("/v1/batches", &json!({"tasks": [fine], "open": true})).await.data();
    let batch = made["batchId"].as_str().unwrap();
    for answer in [
        bob.get(&format!("/v1/batches/{batch}")).await,
        bob.get(&format!("/v1/batches/{batch}/tasks")).await,
        bob.post(&format!("/v1/batches/{batch}/close"), &json!({})).await,
        bob.post(&format!("/v1/batches/{batch}/cancel"), &json!({})).await,
        bob.post(RESIZE, &json!({"body": {}, "batchId": batch})).await,
        alice.get("/v1/batches/nonsense").await,
    ] {
        assert_eq!((answer.status, number(&answer)), (404, 404_009), "{}", answer.text);
    }
    assert_eq!(alice.get(&format!("/v1/batches/{batch}")).await.data()["status"], "OPEN", "nobody has touched it");
}

async fn operators_see_and_cancel_batches(on: Backend) {
    let app = app(on).await;
    let (alice, operator) = (app.client("alice"), app.caller());
    let mut batches = Vec::new();
    for _ in 0..3 {
        let made = alice.post("/v1/batches", &json!({"tasks": [{"service": "resize", "body": {}}]})).await.data();
        batches.push(made["batchId"].as_str().unwrap().to_owned());
    }
    let page = operator.get("/admin/batches?clientId=alice&limit=2").await.data();
    assert_eq!(page["batches"][0]["batch"]["batchId"], json!(batches[2]));
    let cursor = page["nextCursor"].as_str().unwrap();
    let rest = operator.get(&format!("/admin/batches?cursor={cursor}")).await.data();
    assert_eq!(rest["batches"][0]["batch"]["batchId"], json!(batches[0]));
    let cancelled = operator.post(&format!("/admin/batches/{}/cancel", batches[1]), &json!({})).await.data();
    assert_eq!((&cancelled["clientId"], &cancelled["batch"]["status"]), (&json!("alice"), &json!("ENDED")));
    let shown = operator.get(&format!("/admin/batches/{}", batches[1])).await.data();
    assert_eq!(shown["batch"]["cancelled"], 1);
    assert_eq!(number(&operator.get("/admin/batches?clientId=nobody").await), 404_004);
}
