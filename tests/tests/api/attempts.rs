//! Attempts: delays, priority, timeouts, and retries by policy or by an operator.

use std::time::{Duration, Instant, SystemTime};

use relais_core::Timestamp;
use relais_tests::{
    app::{Backend, TestApp},
    tail::Tail,
};
use serde_json::{Value, json};

on_each_store!(
    a_delayed_task_is_claimed_when_it_is_due,
    a_waiting_claim_gets_a_delayed_task_when_it_is_due,
    a_waiting_claim_gets_a_retry_when_it_is_due,
    a_failed_task_is_retried_and_its_attempts_are_shown,
    every_ended_attempt_is_an_event,
    a_worker_decides_whether_and_when_a_task_is_retried,
    an_operator_retries_ended_tasks,
    tasks_with_higher_priority_are_claimed_first,
    a_unique_key_allows_one_unfinished_task_at_a_time,
    a_task_that_is_not_started_in_time_expires,
);
on_one_store!(
    a_consumer_retries_its_own_task,
    invalid_terms_of_a_task_are_refused,
    a_worker_knows_its_deadline_and_its_heartbeat_says_when_it_has_passed,
    a_retry_policy_is_declared_and_shown,
);

const TASKS: &str = "/v1/services/resize/tasks";

/// Everything of [`world`](relais_tests::app::world), with `resize` like this.
async fn app(on: Backend, resize: Value) -> TestApp {
    let app = TestApp::start(on).await;
    let mut service = resize;
    service["serviceName"] = json!("resize");
    app.caller().put("/admin/services/resize", &service).await.data();
    app
}

async fn submit(app: &TestApp, request: Value) -> Value {
    let answer = app.client("alice").post(TASKS, &request).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.data()
}

fn name(task: &Value) -> String {
    task["taskId"].as_str().unwrap_or_default().to_owned()
}

async fn a_delayed_task_is_claimed_when_it_is_due(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let later = name(&submit(&app, json!({"body": {}, "scheduledDate": "2100-01-31T09:30:00+01:00"})).await);
    let at_once = name(&submit(&app, json!({"body": {}, "scheduledDate": "2000-01-01T00:00:00Z"})).await);
    let seen = alice.poll("resize", &later).await;
    assert_eq!((&seen["status"], &seen["scheduledDate"]), (&json!("PENDING"), &json!("2100-01-31T08:30:00.000Z")));
    assert!(seen["taskPosition"].is_null(), "{seen}");
    assert_eq!(alice.poll("resize", &at_once).await["taskPosition"], 1);
    assert_eq!(app.count("resize", "waiting").await, 1);
    let pending = alice.get(&format!("{TASKS}?status=PENDING")).await.data();
    assert_eq!(pending["tasks"].as_array().map(Vec::len), Some(2), "all are PENDING to their consumer");

    assert_eq!(name(&worker.claim_one("resize").await), at_once);
    // The worker waits, and is woken when the time has come.
    let soon = name(&submit(&app, json!({"body": {"n": 1}, "delay": "300ms"})).await);
    assert_eq!(name(&worker.claim_one("resize").await), soon);
    let seen = alice.poll("resize", &soon).await;
    let (due, started) = (seen["scheduledDate"].as_str(), seen["startDate"].as_str());
    assert!(started >= due && due.is_some(), "{seen}");
    assert_eq!(alice.delete(&format!("{TASKS}/{later}")).await.data()["status"], "CANCELLED");
    assert_eq!(app.count("resize", "waiting").await, 0);
}

fn date(text: &Value) -> Timestamp {
    Timestamp::parse(text.as_str().unwrap_or_default()).unwrap_or_else(|| panic!("{text} is no date"))
}

/// Whoever only looked once a second would be later than this most of the time; a machine may be busy for a moment.
fn in_time(what: &str, mut late: Vec<Duration>) {
    late.sort_unstable();
    assert!(late[late.len() / 2] < Duration::from_millis(300), "{what}: {late:?}");
}

/// Does something while a claim waits, and returns what the claim got.
async fn claimed_after(app: &TestApp, act: impl Future<Output = ()>) -> Value {
    let worker = app.client("worker");
    let waiting = async {
        app.under_way("/v1/services/resize/claims", 1).await;
        act.await;
    };
    tokio::join!(worker.claim_one("resize"), waiting).0
}

async fn a_waiting_claim_gets_a_delayed_task_when_it_is_due(on: Backend) {
    let app = TestApp::start(on).await;
    for field in ["delay", "scheduledDate"] {
        let mut late = Vec::new();
        // Not at the same moments of each second: somebody may look once a second.
        for wait in (150..).step_by(70).take(5) {
            let when = match field {
                "delay" => format!("{wait}ms"),
                _ => {
                    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
                    Timestamp::from_millis(i64::try_from(now).unwrap_or_default() + wait).to_string()
                }
            };
            let request = json!({"body": {}, field: when});
            let claimed = claimed_after(&app, async { drop(submit(&app, request).await) }).await;
            let seen = app.client("alice").poll("resize", &name(&claimed)).await;
            let (due, started) = (date(&seen["scheduledDate"]), date(&seen["startDate"]));
            assert!(started >= due, "{seen}");
            late.push(started.since(due));
        }
        in_time(field, late);
    }
}

async fn a_waiting_claim_gets_a_retry_when_it_is_due(on: Backend) {
    let app = app(on, json!({"retry": {"limit": 5, "base": "230ms", "factor": 1.0, "jitter": 0.0}})).await;
    let id = name(&submit(&app, json!({"body": {}})).await);
    let worker = app.client("worker");
    worker.claim_one("resize").await;
    for _ in 0..5 {
        let failure = json!({"messageType": "failure", "errorMessage": "no"});
        let fail = async { assert_eq!(worker.report("resize", &id, failure).await, "accepted") };
        assert_eq!(name(&claimed_after(&app, fail).await), id);
    }
    let shown = app.caller().get(&format!("/admin/tasks/{id}")).await.data();
    let attempts = shown["attempts"].as_array().cloned().unwrap_or_default();
    assert_eq!(attempts.len(), 6, "{shown}");
    let late = attempts.windows(2).map(|pair| {
        let due = date(&pair[0]["endDate"]).after(Duration::from_millis(230));
        let started = date(&pair[1]["startDate"]);
        assert!(started >= due, "{pair:?}");
        started.since(due)
    });
    in_time("retry", late.collect());
}

async fn a_failed_task_is_retried_and_its_attempts_are_shown(on: Backend) {
    let app = app(on, json!({"retry": {"limit": 2, "base": "20ms", "factor": 1.0}})).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let id = name(&submit(&app, json!({"body": {}})).await);
    for number in 1..=3 {
        let claimed = worker.claim_one("resize").await;
        assert_eq!((name(&claimed), &claimed["attempt"]), (id.clone(), &json!(number)));
        let failure = json!({"messageType": "failure", "errorMessage": format!("no {number}"), "errorKind": "ink",
                             "errorTrace": "tray.rs:7"});
        let message = json!({"taskId": id, "attempt": number, "data": failure});
        assert_eq!(worker.message("resize", message.clone()).await, "accepted");
        let said_twice = worker.message("resize", message).await;
        assert!(["lost", "ended"].contains(&said_twice.as_str()), "{said_twice}");
    }
    let ended = alice.poll("resize", &id).await;
    assert_eq!(
        (&ended["status"], &ended["errorMessage"], &ended["errorKind"]),
        (&json!("FAILURE"), &json!("no 3"), &json!("ink"))
    );
    let shown = app.caller().get(&format!("/admin/tasks/{id}")).await.data();
    assert_eq!(shown["failures"], 3);
    let attempts = shown["attempts"].as_array().cloned().unwrap_or_default();
    let told: Vec<_> =
        attempts.iter().map(|attempt| (attempt["number"].as_u64(), attempt["errorMessage"].as_str())).collect();
    assert_eq!(told, [(Some(1), Some("no 1")), (Some(2), Some("no 2")), (Some(3), Some("no 3"))]);
    for attempt in &attempts {
        assert_eq!((&attempt["outcome"], &attempt["errorTrace"]), (&json!("failure"), &json!("tray.rs:7")));
        assert!(attempt["startDate"].is_string() && attempt["endDate"].is_string(), "{attempt}");
    }
}

/// Follows what becomes of tasks of `resize`, once the bus runs: it is started beside the engine.
async fn follow(app: &TestApp) -> Tail {
    let begun = Instant::now();
    while app.caller().get("/admin/eventbus/stats").await.data()["state"] != "running" {
        assert!(begun.elapsed().as_secs() < 30, "the bus never runs");
        tokio::task::yield_now().await;
    }
    let tail = Tail::open(&format!("http://{}", app.address()), &["task.resize.*"]).await;
    tail.unwrap_or_else(|error| panic!("{error:?}"))
}

async fn every_ended_attempt_is_an_event(on: Backend) {
    let app = app(on, json!({"retry": {"limit": 1, "base": "20ms"}})).await;
    let worker = app.client("worker");
    let mut tail = follow(&app).await;
    let mut told = async |what: &str| {
        let told = tail.until(|told| told.channel() == format!("task.resize.{what}")).await;
        told.unwrap_or_else(|error| panic!("{what}: {error:?}")).payload().clone()
    };
    let id = name(&submit(&app, json!({"body": {}})).await);
    let claim = async |host: &str| worker.claim("resize", json!({"wait": "20s", "hostName": host})).await;
    let fail = async |number: u32, trace: &str| {
        let failure = json!({"messageType": "failure", "errorMessage": format!("no {number}"), "errorKind": "ink",
                             "errorTrace": trace});
        let said = worker.message("resize", json!({"taskId": id, "attempt": number, "data": failure})).await;
        assert_eq!(said, "accepted");
    };

    assert_eq!(claim("pod-1").await.len(), 1);
    let started = told("started").await;
    assert_eq!(started.get("errorMessage"), None, "{started}");
    assert_eq!(worker.give_back("resize", &id, 1).await, "accepted");
    let returned = told("returned").await;
    assert_eq!((&returned["attempt"], &returned["workerHost"]), (&json!(1), &json!("pod-1")), "{returned}");
    assert_eq!((&returned["startDate"], returned.get("errorMessage")), (&started["startDate"], None), "{returned}");

    assert_eq!(claim("pod-2").await.len(), 1);
    let started = told("started").await;
    fail(2, "tray.rs:7\n  tray.rs:9").await;
    let retrying = told("retrying").await;
    let (why, whose) = (
        |event: &Value| ["errorMessage", "errorKind", "errorTrace"].map(|field| event[field].clone()),
        |event: &Value| ["attempt", "workerHost", "startDate"].map(|field| event[field].clone()),
    );
    assert_eq!(why(&retrying), ["no 2", "ink", "tray.rs:7\n  tray.rs:9"], "{retrying}");
    assert_eq!(whose(&retrying), [json!(2), json!("pod-2"), started["startDate"].clone()], "{retrying}");
    assert_eq!((&retrying["status"], retrying.get("endDate")), (&json!("PENDING"), None), "{retrying}");

    assert_eq!(claim("pod-3").await.len(), 1);
    let started = told("started").await;
    fail(3, &"tray.rs:7\n".repeat(6_000)).await;
    let failure = told("failure").await;
    assert_eq!(whose(&failure), [json!(3), json!("pod-3"), started["startDate"].clone()], "{failure}");
    assert_eq!((&failure["errorMessage"], &failure["errorKind"]), (&json!("no 3"), &json!("ink")), "{failure}");
    let trace = failure["errorTrace"].as_str().unwrap_or_default();
    assert!(trace.starts_with("tray.rs:7\ntray") && trace.ends_with('…') && trace.len() < 3_000, "{trace}");

    // What fails before anybody has it has no attempt, and a reason all the same.
    submit(&app, json!({"body": {}, "expiresAfter": "50ms"})).await;
    let expired = told("failure").await;
    assert_eq!((&expired["errorKind"], expired.get("workerHost")), (&json!("expired"), None), "{expired}");
}

async fn a_worker_decides_whether_and_when_a_task_is_retried(on: Backend) {
    let app = app(on, json!({"retry": {"limit": 3, "base": "1h", "exceptKinds": ["paper"]}})).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    let fails = async |more: Value| {
        let id = name(&submit(&app, json!({"body": {}})).await);
        worker.claim_one("resize").await;
        let mut data = json!({"messageType": "failure", "errorMessage": "no"});
        for (field, value) in more.as_object().into_iter().flatten() {
            data[field] = value.clone();
        }
        assert_eq!(worker.report("resize", &id, data).await, "accepted");
        id
    };
    for end in [json!({"retryable": false}), json!({"errorKind": "paper"})] {
        let id = fails(end).await;
        assert_eq!(alice.poll("resize", &id).await["status"], "FAILURE");
    }
    let waits = fails(json!({})).await;
    let seen = alice.poll("resize", &waits).await;
    assert_eq!(seen["status"], "PENDING");
    assert!(seen["retryDate"].as_str() > seen["submitionDate"].as_str(), "{seen}");
    let soon = fails(json!({"retryAfter": "10ms"})).await;
    assert_eq!(name(&worker.claim_one("resize").await), soon, "it need not wait an hour");
}

async fn an_operator_retries_ended_tasks(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, worker, operator) = (app.client("alice"), app.client("worker"), app.caller());
    let mut ids = Vec::new();
    for number in 0..5 {
        let id = alice.submit("resize", json!({})).await;
        let kind = if number == 4 { "success" } else { "failure" };
        worker.claim_one("resize").await;
        worker.report("resize", &id, json!({"messageType": kind, "errorMessage": "no", "response": 1})).await;
        ids.push(id);
    }
    let retry = async |request: Value| operator.post("/admin/tasks/retry", &request).await;
    let seen = operator.post_nothing(&format!("/admin/tasks/{}/retry", ids[0])).await.data();
    assert_eq!((&seen["task"]["status"], &seen["task"]["taskPosition"]), (&json!("PENDING"), &json!(1)));
    assert_eq!(operator.post_nothing(&format!("/admin/tasks/{}/retry", ids[0])).await.number(), 409_003);
    let counted = retry(json!({"service": "resize", "dryRun": true})).await.data();
    assert_eq!(counted, json!({"retried": 3, "passedOver": 0}));
    let named = retry(json!({"tasks": [ids[1], ids[1], ids[4], ids[0], "nobody"]})).await.data();
    assert_eq!(named, json!({"retried": 2, "passedOver": 3}));
    assert_eq!(retry(json!({"service": "resize", "clientId": "bob"})).await.data()["retried"], 0);
    assert_eq!(retry(json!({"service": "resize", "before": "2020-01-01T00:00:00Z"})).await.data()["retried"], 0);
    assert_eq!(retry(json!({"clientId": "alice", "statuses": ["FAILURE", "CANCELLED"]})).await.data()["retried"], 2);
    assert_eq!(app.pending("resize").await, 5);
    for wrong in
        [json!({}), json!({"service": "resize", "statuses": ["PENDING"]}), json!({"service": "resize", "from": "x"})]
    {
        assert_eq!(retry(wrong).await.number(), 400_003);
    }
    assert_eq!(retry(json!({"service": "nowhere"})).await.number(), 404_001);
    for id in &ids {
        let claimed = worker.claim_one("resize").await;
        assert_eq!((&name(&claimed), &claimed["attempt"]), (id, &json!(2)), "in their old places, as second attempts");
        worker.report("resize", id, json!({"messageType": "success", "response": 2})).await;
        assert_eq!(alice.poll("resize", id).await["response"], 2);
    }
    let shown = operator.get(&format!("/admin/tasks/{}", ids[4])).await.data();
    let outcomes: Vec<_> =
        shown["attempts"].as_array().into_iter().flatten().map(|attempt| attempt["outcome"].clone()).collect();
    assert_eq!(outcomes, ["success", "success"]);
    assert_eq!(app.count("resize", "success").await, 6, "ever: one of them twice");
}

async fn a_consumer_retries_its_own_task(on: Backend) {
    let app = TestApp::start(on).await;
    let (alice, bob, worker) = (app.client("alice"), app.client("bob"), app.client("worker"));
    let id = alice.submit("resize", json!({})).await;
    let path = format!("{TASKS}/{id}/retry");
    assert_eq!(alice.post_nothing(&path).await.number(), 409_003);
    worker.claim_one("resize").await;
    worker.report("resize", &id, json!({"messageType": "failure", "errorMessage": "no"})).await;
    assert_eq!(bob.post_nothing(&path).await.number(), 404_002, "somebody else's task does not exist");
    let again = alice.post_nothing(&path).await.data();
    assert_eq!((&again["status"], &again["errorMessage"]), (&json!("PENDING"), &Value::Null));
    // One that waits for its time is done at once.
    let later = name(&submit(&app, json!({"body": {}, "delay": "1h"})).await);
    assert_eq!(alice.post_nothing(&format!("{TASKS}/{later}/retry")).await.data()["taskPosition"], 2);
}

async fn tasks_with_higher_priority_are_claimed_first(on: Backend) {
    let app = TestApp::start(on).await;
    let worker = app.client("worker");
    let mut ids = Vec::new();
    for priority in [json!(null), json!(0), json!(9), json!(4), json!(5)] {
        ids.push(name(&submit(&app, json!({"body": {}, "priority": priority})).await));
    }
    let claimed = worker.claim("resize", json!({"max": 5})).await;
    let order: Vec<usize> = claimed.iter().filter_map(|task| ids.iter().position(|id| *id == name(task))).collect();
    assert_eq!(order, [2, 4, 0, 3, 1]);
    assert_eq!(app.client("alice").poll("resize", &ids[2]).await["priority"], 9);
}

async fn a_unique_key_allows_one_unfinished_task_at_a_time(on: Backend) {
    let app = TestApp::start(on).await;
    let request = json!({"body": {}, "uniqueKey": "report 7"});
    let first = submit(&app, request.clone()).await;
    assert_eq!(first["duplicate"], Value::Null);
    let second = submit(&app, request.clone()).await;
    assert_eq!((name(&second), &second["duplicate"]), (name(&first), &json!(true)));
    assert_eq!(app.pending("resize").await, 1);
    app.client("alice").delete(&format!("{TASKS}/{}", name(&first))).await.data();
    let third = submit(&app, request).await;
    assert_ne!(name(&third), name(&first));
}

async fn a_task_that_is_not_started_in_time_expires(on: Backend) {
    let app = TestApp::start(on).await;
    let id = name(&submit(&app, json!({"body": {}, "expiresAfter": "50ms"})).await);
    let ended = app.client("alice").get(&format!("{TASKS}/{id}?wait=20s")).await.data();
    assert_eq!((&ended["status"], &ended["errorKind"]), (&json!("FAILURE"), &json!("expired")));
    assert!(app.client("worker").claim("resize", json!({})).await.is_empty());
}

async fn a_worker_knows_its_deadline_and_its_heartbeat_says_when_it_has_passed(on: Backend) {
    let app = app(on, json!({"timeout": "1s"})).await;
    let worker = app.client("worker");
    let id = name(&submit(&app, json!({"body": {}, "timeout": "50ms"})).await);
    let claimed = worker.claim_one("resize").await;
    assert!(claimed["deadline"].is_string(), "{claimed}");
    let heartbeat = json!({"tasks": [{"taskId": id, "attempt": 1}]});
    let begun = Instant::now();
    loop {
        let answer = worker.post("/v1/services/resize/heartbeats", &heartbeat).await.data();
        match answer["outcomes"][0]["outcome"].as_str() {
            Some("accepted") => assert!(begun.elapsed().as_secs() < 20, "it is never told"),
            told => break assert_eq!(told, Some("cancelled"), "{answer}"),
        }
    }
    let shown = app.caller().get(&format!("/admin/tasks/{id}")).await.data();
    assert_eq!(shown["task"]["status"], "IN_PROGRESS", "it has a while to stop by itself");
}

async fn a_retry_policy_is_declared_and_shown(on: Backend) {
    let app = app(on, json!({"retry": "classic", "timeout": "10m", "priorityStep": "5m"})).await;
    let shown = app.caller().get("/admin/services/resize").await.data();
    assert_eq!(
        (&shown["retry"], &shown["timeout"], &shown["priorityStep"]),
        (&json!("classic"), &json!("10m"), &json!("5m"))
    );
    let rule = json!({"limit": 5, "base": "10s", "factor": 3.0, "cap": "1h", "jitter": 0.25, "within": "1d", "exceptKinds": ["a"]});
    app.caller().put("/admin/services/resize", &json!({"serviceName": "resize", "retry": rule})).await.data();
    let shown = app.caller().get("/admin/services/resize").await.data();
    assert_eq!((&shown["retry"], &shown["timeout"]), (&rule, &Value::Null));
    app.caller().put("/admin/services/resize", &json!({"serviceName": "resize"})).await.data();
    assert_eq!(app.caller().get("/admin/services/resize").await.data()["retry"], "none");
    for wrong in [
        json!({"retry": "sometimes"}),
        json!({"retry": {"limit": 2000}}),
        json!({"retry": {"limit": 1, "factor": 0.5}}),
        json!({"retry": {"limit": 1, "jitter": 2}}),
        json!({"retry": {"limit": 1, "base": "100d"}}),
        json!({"timeout": "1ms"}),
        json!({"priorityStep": "8d"}),
    ] {
        let mut service = wrong.clone();
        service["serviceName"] = json!("resize");
        let number = app.caller().put("/admin/services/resize", &service).await.number();
        assert!([400_003, 400_010].contains(&number), "{wrong}: {number}");
    }
}

async fn invalid_terms_of_a_task_are_refused(on: Backend) {
    let app = TestApp::start(on).await;
    for (wrong, path) in [
        (json!({"priority": 10}), "/priority"),
        (json!({"scheduledDate": "tomorrow"}), "/scheduledDate"),
        (json!({"scheduledDate": "2100-01-01T00:00:00Z", "delay": "1s"}), "/delay"),
        (json!({"delay": "9999d"}), "/delay"),
        (json!({"expiresAfter": "0s"}), "/expiresAfter"),
        (json!({"timeout": "31d"}), "/timeout"),
        (json!({"uniqueKey": ""}), "/uniqueKey"),
        (json!({"uniqueKey": "a\u{7}b"}), "/uniqueKey"),
        (json!({"uniqueFor": "1h"}), "/uniqueFor"),
        (json!({"retry": {"limit": 1, "jitter": 7}}), "/retry/jitter"),
    ] {
        let mut request = wrong.clone();
        request["body"] = json!({});
        let answer = app.client("alice").post(TASKS, &request).await;
        assert_eq!(answer.number(), 400_003, "{wrong}");
        assert_eq!(answer.json()["error"]["details"][0]["path"], path, "{}", answer.text);
    }
    assert_eq!(app.pending("resize").await, 0);
}
