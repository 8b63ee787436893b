//! Callbacks: content, retries, order, lanes and signatures.
#![expect(clippy::unwrap_used, reason = "what can not be unwrapped here fails the test, which is what it is for")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use relais_callback::{HttpSender, HttpSenderOptions, signature};
use relais_core::{CallbackSender, CallbackType};
use relais_engine::{CallbackOptions, CallbackSenders};
use relais_tests::{
    app::{Answer, Backend, Caller, DEADLINE, TestApp},
    receiver::{Receiver, Reply},
};
use serde_json::{Value, json};

on_each_store!(
    a_callback_has_the_content_of_a_poll,
    a_callback_is_retried_under_the_same_id,
    a_callback_fails_after_its_last_retry_and_can_be_sent_again,
    an_endpoint_that_answers_410_gets_no_more_callbacks,
    retry_after_of_an_endpoint_is_obeyed,
    started_progress_and_end_callbacks_come_in_order,
    an_endpoint_that_hangs_delays_no_other_callback,
    an_endpoint_that_recovers_gets_all_waiting_callbacks,
    a_replaced_signing_secret_signs_callbacks_for_a_while,
    all_failed_callbacks_are_sent_again_at_once,
    a_callback_due_a_little_later_than_the_first_is_sent,
);

on_one_store!(
    an_invalid_callback_target_is_refused_at_submission,
    a_callback_body_is_compressed_if_requested,
    a_callback_with_a_large_response_arrives_whole,
    callbacks_of_another_client_are_not_found,
    stopping_the_server_finishes_callbacks_in_flight,
);

const RESIZE: &str = "/v1/services/resize/tasks";

/// A Relais that may call this machine, and does not wait long before it tries again.
async fn app(on: Backend) -> TestApp {
    app_with(on, |_| {}).await
}

async fn app_with(on: Backend, change: impl FnOnce(&mut CallbackOptions)) -> TestApp {
    let callback_sender: Arc<dyn CallbackSender> = Arc::new(
        HttpSender::new(HttpSenderOptions {
            timeout: DEADLINE,
            allow_http: true,
            allow_networks: vec!["127.0.0.0/8".to_owned()],
            ports: (1..=u16::MAX).collect(),
            ..HttpSenderOptions::default()
        })
        .unwrap(),
    );
    let callback_senders = CallbackSenders::default()
        .with(CallbackType::Https, Arc::clone(&callback_sender))
        .with(CallbackType::Http, callback_sender);
    let mut callbacks = CallbackOptions {
        retries: vec![Duration::from_millis(20), Duration::from_millis(40), Duration::from_millis(80)],
        timeout: DEADLINE,
        park_first: Duration::from_millis(50),
        park_most: Duration::from_millis(200),
        ..CallbackOptions::default()
    };
    change(&mut callbacks);
    TestApp::builder(on)
        .engine(|options| {
            options.callback_senders = callback_senders;
            options.callbacks = callbacks;
        })
        .start()
        .await
}

async fn submit(caller: &Caller, callback: Value) -> String {
    let answer = caller.post(RESIZE, &json!({"body": {}, "callback": callback})).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.data()["taskId"].as_str().unwrap().to_owned()
}

fn to(receiver: &Receiver) -> Value {
    json!({"type": "http", "url": receiver.url("/done?x=1")})
}

/// A worker's words for a task.
async fn say(app: &TestApp, task: &str, data: Value) {
    let message = json!({"messages": [{"taskId": task, "data": data}]});
    let answer = app.client("worker").post("/v1/services/resize/messages", &message).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

async fn succeed(app: &TestApp, task: &str) {
    say(app, task, json!({"messageType": "success", "response": {"n": 1}})).await;
}

/// The callback of a task, once `enough` says so; told by the store, asked again and again within a deadline.
async fn callback_when(app: &TestApp, task: &str, enough: impl Fn(&Value) -> bool) -> Value {
    let look = async {
        loop {
            let found = app.client("alice").get(&format!("{RESIZE}/{task}/callbacks")).await.data();
            if let Some(first) = found["callbacks"].get(0)
                && enough(first)
            {
                return first.clone();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, look).await.expect("the callback gets there")
}

async fn until(app: &TestApp, task: &str, status: &str) -> Value {
    callback_when(app, task, |callback| callback["notificationStatus"] == status).await
}

async fn a_callback_has_the_content_of_a_poll(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    let alice = app.client("alice");
    for end in ["success", "failure", "cancel"] {
        let task = submit(&alice, to(&receiver)).await;
        match end {
            "success" => succeed(&app, &task).await,
            "failure" => say(&app, &task, json!({"messageType": "failure", "errorMessage": "no such file"})).await,
            _ => assert_eq!(alice.delete(&format!("{RESIZE}/{task}")).await.status, 200),
        }
        until(&app, &task, "SUCCESS").await;
        let polled = alice.get(&format!("{RESIZE}/{task}")).await.data();
        let received = receiver.received().pop().unwrap();
        assert_eq!(received.json(), polled);
        assert_eq!((received.path.as_str(), received.header("content-type")), ("/done?x=1", "application/json"));
        assert!(received.id().starts_with(&task), "{}", received.id());
        let admin = app.caller().get(&format!("/admin/tasks/{task}")).await.data();
        assert_eq!(admin["notificationStatus"], "SUCCESS");
    }
    assert_eq!(receiver.received().len(), 3, "each once");
}

async fn a_callback_is_retried_under_the_same_id(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    receiver.will([Reply::status(500).saying("not\u{0} now"), Reply::status(404), Reply::status(302)]);
    let task = submit(&app.client("alice"), to(&receiver)).await;
    succeed(&app, &task).await;
    let callback = until(&app, &task, "SUCCESS").await;
    let received = receiver.received();
    assert_eq!(received.len(), 4);
    assert!(received.iter().all(|one| one.id() == received[0].id() && one.body == received[0].body));
    let tries = callback["tries"].as_array().unwrap();
    let statuses: Vec<u64> = tries.iter().map(|one| one["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [500, 404, 302, 204]);
    assert!(tries[0]["answer"].as_str().unwrap().starts_with("not"), "{tries:?}");
    assert!(tries[0]["error"].is_string() && tries[3].get("error").is_none(), "{tries:?}");
    assert!(tries[3]["date"].as_str() > tries[0]["date"].as_str());
}

async fn a_callback_fails_after_its_last_retry_and_can_be_sent_again(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    receiver.always(Reply::status(403));
    let task = submit(&app.client("alice"), to(&receiver)).await;
    succeed(&app, &task).await;
    let callback = until(&app, &task, "FAILURE").await;
    assert_eq!(receiver.received().len(), 4, "the first try and three retries");
    let id = callback["callbackId"].as_str().unwrap();
    let operator = app.caller();
    let failed = operator.get("/admin/callbacks?status=FAILURE&service=resize&clientId=alice").await.data();
    assert_eq!(failed["callbacks"][0]["callbackId"], id);
    assert_eq!(operator.get(&format!("/admin/callbacks/{id}")).await.data()["tries"].as_array().unwrap().len(), 4);

    receiver.always(Reply::status(200));
    let again = operator.post(&format!("/admin/callbacks/{id}/redeliver"), &json!({})).await;
    assert_eq!(again.status, 200, "{}", again.text);
    let callback = until(&app, &task, "SUCCESS").await;
    assert_eq!(callback["tries"].as_array().unwrap().len(), 5);
    assert_eq!(receiver.received()[4].id(), id, "under the same name");
}

async fn an_endpoint_that_answers_410_gets_no_more_callbacks(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    receiver.always(Reply::status(410));
    let task = submit(&app.client("alice"), to(&receiver)).await;
    succeed(&app, &task).await;
    until(&app, &task, "FAILURE").await;
    assert_eq!(receiver.received().len(), 1);
}

async fn retry_after_of_an_endpoint_is_obeyed(on: Backend) {
    let app = app_with(on, |options| options.park_most = Duration::from_secs(60)).await;
    let receiver = Receiver::start().await.unwrap();
    receiver.will([Reply::status(429).with("retry-after", "1")]);
    let alice = app.client("alice");
    let (task, other) = (submit(&alice, to(&receiver)).await, submit(&alice, to(&receiver)).await);
    succeed(&app, &task).await;
    receiver.wait_for(1).await;
    let waiting =
        callback_when(&app, &task, |callback| callback["tries"].as_array().is_some_and(|t| !t.is_empty())).await;
    succeed(&app, &other).await;
    until(&app, &task, "SUCCESS").await;
    until(&app, &other, "SUCCESS").await;
    let callback = until(&app, &task, "SUCCESS").await;
    let date = |n: usize| callback["tries"][n]["date"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(date(1).duration_since(date(0)).as_secs_f64() >= 0.9, "{waiting} {callback}");
}

async fn started_progress_and_end_callbacks_come_in_order(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    receiver.will([Reply::status(500)]);
    let alice = app.client("alice");
    let events =
        json!({"type": "http", "url": receiver.url("/"), "events": ["started", "progress", "success", "failure"]});
    let task = submit(&alice, events).await;
    say(&app, &task, json!({"messageType": "started", "hostName": "pod-1"})).await;
    for n in 1..=30 {
        say(&app, &task, json!({"messageType": "progress", "progress": n})).await;
    }
    // Told a second later, with what is known by then.
    let received = receiver.wait_for(3).await;
    let begun = std::time::Instant::now();
    succeed(&app, &task).await;
    until(&app, &task, "SUCCESS").await;
    let seconds = begun.elapsed().as_secs() as usize;
    let told: Vec<(String, f64)> = receiver
        .received()
        .iter()
        .map(|one| (one.json()["status"].as_str().unwrap().to_owned(), one.json()["progress"].as_f64().unwrap()))
        .collect();
    assert_eq!(told[..2], [("IN_PROGRESS".to_owned(), 0.0), ("IN_PROGRESS".to_owned(), 0.0)], "started, twice: a 500");
    let (end, progress) = told[2..].split_last().unwrap();
    assert_eq!(*end, ("SUCCESS".to_owned(), 100.0));
    assert!(progress.iter().all(|(status, _)| status == "IN_PROGRESS"));
    assert!(progress.is_sorted_by(|a, b| a.1 < b.1), "{progress:?}");
    assert!(progress.len() <= seconds + 12, "thirty reports are not thirty callbacks: {progress:?}");
    assert!(received[0].id() == received[1].id() && received[1].id() != received[2].id());
}

async fn an_endpoint_that_hangs_delays_no_other_callback(on: Backend) {
    let (app, dead, live) = (app(on).await, Receiver::start().await.unwrap(), Receiver::start().await.unwrap());
    dead.always(Reply::status(200).held());
    let alice = app.client("alice");
    let batch: Vec<Value> = (0..500).map(|_| json!({"body": {}, "callback": to(&dead)})).collect();
    let taken = alice.post(&format!("{RESIZE}/batch"), &json!({"tasks": batch})).await.data();
    let messages: Vec<Value> = taken["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| json!({"taskId": one["data"]["taskId"], "data": {"messageType": "success", "response": {}}}))
        .collect();
    let task = submit(&alice, to(&live)).await;
    app.client("worker").post("/v1/services/resize/messages", &json!({"messages": messages})).await;
    dead.wait_for(16).await;
    succeed(&app, &task).await;
    live.wait_for(1).await;
    let tried = dead.received().len();
    assert!(tried <= 16, "so many at once, and no more, not {tried}");
}

async fn an_endpoint_that_recovers_gets_all_waiting_callbacks(on: Backend) {
    let app = app(on).await;
    let address = SocketAddr::from(([127, 0, 0, 1], relais_testkit::free_port().unwrap()));
    let alice = app.client("alice");
    let mut tasks = Vec::new();
    for n in 0..40 {
        tasks.push(submit(&alice, json!({"type": "http", "url": format!("http://{address}/{n}")})).await);
    }
    for task in &tasks {
        succeed(&app, task).await;
    }
    // Left alone after a few failures; none of the others has used up a try.
    callback_when(&app, &tasks[0], |callback| callback["attempts"].as_u64() >= Some(1)).await;
    let receiver = Receiver::start_on(address).await.unwrap();
    let mut failed = 0;
    for task in &tasks {
        let callback = callback_when(&app, task, |callback| callback["notificationStatus"] != "PENDING").await;
        failed += usize::from(callback["notificationStatus"] == "FAILURE");
    }
    let paths: std::collections::BTreeSet<String> = receiver.received().iter().map(|one| one.path.clone()).collect();
    assert_eq!(paths.len() + failed, 40);
    assert!(failed <= 16, "only what was on its way before it was left alone may have run out of tries: {failed}");
}

async fn a_replaced_signing_secret_signs_callbacks_for_a_while(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    let (alice, operator) = (app.client("alice"), app.caller());
    let secrets = |answer: Answer| -> Vec<String> {
        let all = answer.data()["secrets"].as_array().unwrap().clone();
        all.iter().map(|one| one["secret"].as_str().unwrap().to_owned()).collect()
    };
    let first = secrets(alice.get("/v1/signing-secrets").await);
    assert_eq!(first.len(), 1, "every client has one");
    let both = secrets(operator.post("/admin/clients/alice/signing-secrets", &json!({"overlap": "1h"})).await);
    assert_eq!((both.len(), &both[1]), (2, &first[0]));
    let task = submit(&alice, to(&receiver)).await;
    succeed(&app, &task).await;
    let received = receiver.wait_for(1).await.remove(0);
    let timestamp = received.header("webhook-timestamp").to_owned();
    let now = relais_core::Timestamp::from_millis(timestamp.parse::<i64>().unwrap() * 1000);
    let verify = |secret: &str, body: &str| {
        let header = received.header("webhook-signature");
        signature::verify(secret, received.id(), &timestamp, body.as_bytes(), header, Duration::from_secs(300), now)
    };
    for secret in &both {
        verify(secret, &received.body).unwrap();
        assert!(verify(secret, &received.body.replace('1', "2")).is_err());
    }
    let newest = secrets(operator.post("/admin/clients/alice/signing-secrets", &json!({})).await);
    assert!(newest.len() == 2 && newest[1] == both[0], "one that was on its way out goes");
}

async fn all_failed_callbacks_are_sent_again_at_once(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    receiver.always(Reply::status(410));
    let alice = app.client("alice");
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let task = submit(&alice, to(&receiver)).await;
        succeed(&app, &task).await;
        tasks.push(task);
    }
    for task in &tasks {
        until(&app, task, "FAILURE").await;
    }
    receiver.always(Reply::status(200));
    let again = async |since: &str, client: &str| {
        let asked = json!({"failedSince": since, "clientId": client});
        app.caller().post("/admin/callbacks/redeliver", &asked).await.data()["redelivered"].clone()
    };
    assert_eq!(again("2020-01-01T00:00:00Z", "bob").await, 0);
    assert_eq!(again("2999-01-01T00:00:00Z", "alice").await, 0);
    assert_eq!(again("2020-01-01T00:00:00Z", "alice").await, 30);
    for task in &tasks {
        until(&app, task, "SUCCESS").await;
    }
    let unknown = app.caller().post("/admin/callbacks/redeliver", &json!({"failedSince": "now"})).await;
    assert_eq!(unknown.number(), 400_003);
}

async fn an_invalid_callback_target_is_refused_at_submission(on: Backend) {
    let app = TestApp::builder(on)
        .engine(|options| {
            let callback_sender: Arc<dyn CallbackSender> =
                Arc::new(HttpSender::new(HttpSenderOptions::default()).unwrap());
            options.callback_senders = CallbackSenders::default().with(CallbackType::Https, callback_sender);
        })
        .start()
        .await;
    let alice = app.client("alice");
    for (callback, number) in [
        (json!({"type": "https", "url": "https://127.0.0.1/"}), 400_005),
        (json!({"type": "https", "url": "https://[::ffff:10.0.0.1]/"}), 400_005),
        (json!({"type": "https", "url": "https://2130706433/"}), 400_005),
        (json!({"type": "https", "url": "https://localhost/"}), 400_005),
        (json!({"type": "https", "url": "https://example.org:22/"}), 400_005),
        (json!({"type": "https", "url": "https://user:pass@example.org/"}), 400_005),
        (json!({"type": "https", "url": "http://example.org/"}), 400_005),
        (json!({"type": "https", "url": format!("https://example.org/{}", "x".repeat(3000))}), 400_005),
        (json!({"type": "http", "url": "http://example.org/"}), 400_004),
        (json!({"type": "amqp", "destination": "x"}), 400_004),
        (json!({"type": "https"}), 400_003),
        (json!({"type": "https", "url": "https://example.org/", "destination": "x"}), 400_003),
        (json!({"type": "https", "url": "https://example.org/", "events": []}), 400_003),
        (json!({"type": "https", "url": "https://example.org/", "events": ["done"]}), 400_003),
        (json!({"type": "https", "url": "https://example.org/", "events": ["success", "success"]}), 400_003),
        (json!({"type": "https", "url": "https://example.org/", "compression": "zip"}), 400_003),
    ] {
        let refused = alice.post(RESIZE, &json!({"body": {}, "callback": callback})).await;
        assert_eq!((refused.status, refused.number()), (400, number), "{callback}: {}", refused.text);
    }
    assert_eq!(app.pending("resize").await, 0);
    assert_eq!(submit(&alice, json!({"type": "https", "url": "https://example.org/done"})).await.len(), 36);
}

async fn a_callback_body_is_compressed_if_requested(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    let asked = json!({"type": "http", "url": receiver.url("/"), "compression": "gzip"});
    let task = submit(&app.client("alice"), asked).await;
    succeed(&app, &task).await;
    let received = receiver.wait_for(1).await.remove(0);
    assert_eq!(received.header("content-encoding"), "gzip");
    assert!(!received.body.contains("taskId"));
}

async fn a_callback_with_a_large_response_arrives_whole(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    let task = submit(&app.client("alice"), to(&receiver)).await;
    let large = "x".repeat(900_000);
    say(&app, &task, json!({"messageType": "success", "response": {"large": large}})).await;
    let received = receiver.wait_for(1).await.remove(0);
    assert_eq!(received.json()["response"]["large"].as_str().map(str::len), Some(900_000));
}

async fn callbacks_of_another_client_are_not_found(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    let task = submit(&app.client("alice"), to(&receiver)).await;
    let own = app.client("alice").get(&format!("{RESIZE}/{task}/callbacks")).await;
    assert_eq!((own.status, own.data()["callbacks"].as_array().map(Vec::len)), (200, Some(0)), "nothing to tell yet");
    succeed(&app, &task).await;
    until(&app, &task, "SUCCESS").await;
    let path = format!("{RESIZE}/{task}/callbacks");
    assert_eq!(app.client("bob").get(&path).await.number(), 404_002);
    assert_eq!(app.client("stranger").get(&path).await.number(), 403_001);
    assert_eq!(app.caller().get("/v1/signing-secrets").await.number(), 403_001);
    for id in ["nonsense", "01890a5d-ac96-774b-bcce-b302099a8057-3"] {
        assert_eq!(app.caller().get(&format!("/admin/callbacks/{id}")).await.number(), 404_006);
        assert_eq!(app.caller().post(&format!("/admin/callbacks/{id}/redeliver"), &json!({})).await.number(), 404_006);
    }
}

async fn stopping_the_server_finishes_callbacks_in_flight(on: Backend) {
    let (app, receiver) = (app(on).await, Receiver::start().await.unwrap());
    receiver.always(Reply::status(200).held());
    let task = submit(&app.client("alice"), to(&receiver)).await;
    succeed(&app, &task).await;
    receiver.wait_for(1).await;
    app.engine.begin_stop();
    receiver.release();
    until(&app, &task, "SUCCESS").await;
}

async fn a_callback_due_a_little_later_than_the_first_is_sent(on: Backend) {
    let app = app_with(on, |options| options.retries = vec![Duration::from_secs(1)]).await;
    let receiver = Receiver::start().await.unwrap();
    // Fewer than it takes to leave the endpoint alone, and a 4xx does not count for that anyway.
    receiver.will((0..4).map(|_| Reply::status(404)));
    let alice = app.client("alice");
    for _ in 0..4 {
        let task = submit(&alice, to(&receiver)).await;
        succeed(&app, &task).await;
    }
    receiver.wait_for(4).await;
    // Each is due a second later, a fifth more or less.
    receiver.wait_for(8).await;
}
