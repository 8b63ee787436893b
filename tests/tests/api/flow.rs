//! Flow limits: they hold, are shown, change while tasks run, and are refused where they are invalid.

use relais_tests::app::{Backend, Caller, DEADLINE, TestApp};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

on_each_store!(
    waiting_claims_are_woken_when_max_running_has_room,
    a_rate_limit_lets_a_waiting_claim_start_when_it_refills,
    a_raised_limit_wakes_waiting_claims,
    fair_share_does_not_make_one_client_wait_for_another,
    the_flow_room_of_a_lost_worker_is_freed,
);

on_one_store!(
    limits_are_shown_and_exported_as_they_were_put,
    invalid_flow_limits_are_refused,
    limits_of_a_service_with_a_broker_need_a_window,
);

const CLAIMS: &str = "/v1/services/resize/claims";

async fn put(app: &TestApp, settings: Value) {
    let mut service = json!({"serviceName": "resize"});
    for (name, value) in settings.as_object().into_iter().flatten() {
        service[name] = value.clone();
    }
    app.apply(json!({"services": [service]})).await;
}

async fn succeed(worker: &Caller, task: &Value) {
    let message = json!({
        "taskId": task["taskId"], "attempt": task["attempt"], "data": {"messageType": "success", "response": {}},
    });
    assert_eq!(worker.message("resize", message).await, "accepted");
}

async fn waiting_claims_are_woken_when_max_running_has_room(on: Backend) {
    let app = TestApp::start(on).await;
    put(&app, json!({"maxRunning": 2})).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for n in 0..6 {
        alice.submit("resize", json!({"n": n})).await;
    }
    let mut held = worker.claim("resize", json!({"max": 5})).await;
    assert_eq!(held.len(), 2);
    for round in 0..4 {
        let waiting = tokio::spawn({
            let worker = worker.clone();
            async move { worker.claim_one("resize").await }
        });
        app.under_way(CLAIMS, 1).await;
        assert_eq!(app.count("resize", "inProgress").await, 2, "round {round}");
        succeed(&worker, &held.remove(0)).await;
        held.push(timeout(DEADLINE, waiting).await.expect("woken").expect("claimed"));
    }
    assert_eq!(app.count("resize", "inProgress").await, 2);
}

async fn a_rate_limit_lets_a_waiting_claim_start_when_it_refills(on: Backend) {
    let app = TestApp::start(on).await;
    put(&app, json!({"rateLimit": {"count": 1, "per": "400ms"}})).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for n in 0..4 {
        alice.submit("resize", json!({"n": n})).await;
    }
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let worker = worker.clone();
        workers.spawn(async move { worker.claim_one("resize").await });
    }
    let tasks = workers.join_all().await;
    let mut starts = Vec::new();
    for task in &tasks {
        let view = alice.poll("resize", task["taskId"].as_str().unwrap_or_default()).await;
        let start: jiff::Timestamp = view["startDate"].as_str().unwrap_or_default().parse().expect("a date");
        starts.push(start.as_millisecond());
    }
    starts.sort_unstable();
    for pair in starts.windows(2) {
        assert!(pair[1] - pair[0] >= 399, "{starts:?}");
    }
}

async fn a_raised_limit_wakes_waiting_claims(on: Backend) {
    let app = TestApp::start(on).await;
    put(&app, json!({"maxRunning": 1, "rateLimit": {"count": 1, "per": "1d", "burst": 2}})).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for n in 0..4 {
        alice.submit("resize", json!({"n": n})).await;
    }
    worker.claim_one("resize").await;
    for settings in
        [json!({"maxRunning": 2, "rateLimit": {"count": 1, "per": "1d", "burst": 2}}), json!({"maxRunning": 3})]
    {
        let waiting = tokio::spawn({
            let worker = worker.clone();
            async move { worker.claim_one("resize").await }
        });
        app.under_way(CLAIMS, 1).await;
        put(&app, settings).await;
        timeout(DEADLINE, waiting).await.expect("woken").expect("claimed");
    }
    assert!(worker.claim("resize", json!({"max": 5})).await.is_empty());
    put(&app, json!({})).await;
    assert_eq!(worker.claim("resize", json!({"max": 5})).await.len(), 1);
}

async fn fair_share_does_not_make_one_client_wait_for_another(on: Backend) {
    let app = TestApp::start(on).await;
    put(&app, json!({"fairShare": true})).await;
    let (alice, bob, worker) = (app.client("alice"), app.client("bob"), app.client("worker"));
    let many: Vec<Value> = (0..200).map(|n| json!({"body": {"n": n}})).collect();
    let answer = alice.post("/v1/services/resize/tasks/batch", &json!({"tasks": many})).await;
    assert!((200..300).contains(&answer.status), "{}", answer.text);
    worker.claim("resize", json!({"max": 20})).await;
    let of_bob = bob.submit("resize", json!({})).await;
    let next = worker.claim("resize", json!({"max": 2})).await;
    assert!(next.iter().any(|task| task["taskId"] == of_bob.as_str()), "{next:?}");
}

async fn the_flow_room_of_a_lost_worker_is_freed(on: Backend) {
    let app = TestApp::start(on).await;
    put(&app, json!({"maxRunningPerClient": 1, "lease": "1s"})).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    for n in 0..2 {
        alice.submit("resize", json!({"n": n})).await;
    }
    let lost = worker.claim_one("resize").await;
    // Nothing is heard of it again; who waits gets the same task when its lease is over.
    put(&app, json!({"maxRunningPerClient": 1, "lease": "60s"})).await;
    let again = worker.claim_one("resize").await;
    assert_eq!((&again["taskId"], &again["attempt"]), (&lost["taskId"], &json!(2)));
    assert_eq!(app.count("resize", "inProgress").await, 1);
    succeed(&worker, &again).await;
    worker.claim_one("resize").await;
}

async fn limits_are_shown_and_exported_as_they_were_put(on: Backend) {
    let app = TestApp::start(on).await;
    let operator = app.caller();
    let declaration = json!({
        "services": [{
            "serviceName": "resize", "maxRunning": 3, "maxRunningPerClient": 2,
            "rateLimit": {"count": 100, "per": "1s"}, "fairShare": true,
        }],
        "authorizations": [{"clientId": "alice", "serviceName": "resize", "maxRunning": 1, "share": 4}],
    });
    app.apply(declaration.clone()).await;
    let (alice, worker) = (app.client("alice"), app.client("worker"));
    alice.submit("resize", json!({})).await;
    worker.claim_one("resize").await;
    let state = operator.get("/admin/services/resize").await.data();
    assert_eq!((&state["inProgress"], &state["maxRunning"]), (&json!(1), &json!(3)), "{state}");
    assert_eq!(state["maxRunningPerClient"], 2);
    let load = json!([{"clientId": "alice", "pending": 0, "inProgress": 1, "maxRunning": 1}]);
    assert_eq!(state["clients"], load);
    assert_eq!(state["rateLimit"], json!({"count": 100, "per": "1s", "burst": 100}));
    assert_eq!(state["fairShare"], true);
    let other = operator.get("/admin/services/ocr").await.data();
    for absent in ["maxRunning", "maxRunningPerClient", "rateLimit", "fairShare"] {
        assert!(other.get(absent).is_none(), "{other}");
    }
    let authorizations = operator.get("/admin/authorizations?clientId=alice&service=resize").await.data();
    let authorization = &authorizations["authorizations"][0];
    assert_eq!((&authorization["maxRunning"], &authorization["share"]), (&json!(1), &json!(4)), "{authorization}");

    // What is exported is what is there, and the same again changes nothing.
    for same in [operator.get("/admin/declaration").await.data(), declaration] {
        let report = app.apply(same).await.data();
        let changed: Vec<&Value> = report["applied"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|entry| entry["kind"] != "client" && entry["action"] != "unchanged")
            .collect();
        assert!(changed.is_empty(), "{changed:?}");
    }
    put(&app, json!({})).await;
    let state = operator.get("/admin/services/resize").await.data();
    assert!(state.get("maxRunning").is_none() && state.get("fairShare").is_none(), "{state}");
}

async fn invalid_flow_limits_are_refused(on: Backend) {
    let app = TestApp::start(on).await;
    let before = app.caller().get("/admin/declaration").await.text;
    let service = |field: &str, value: Value| json!({"services": [{"serviceName": "resize", field: value}]});
    let may = |field: &str, value: Value| json!({"authorizations": [{"clientId": "alice", "serviceName": "resize", field: value}]});
    let rate = |count: Value, per: &str, burst: Value| {
        service("rateLimit", json!({"count": count, "per": per, "burst": burst}))
    };
    for (declaration, at) in [
        (service("maxRunning", json!(0)), "/services/0/maxRunning"),
        (service("maxRunning", json!(2_147_483_648u32)), "/services/0/maxRunning"),
        (service("maxRunningPerClient", json!(0)), "/services/0/maxRunningPerClient"),
        (rate(json!(0), "1s", json!(1)), "/services/0/rateLimit/count"),
        (rate(json!(1), "0s", json!(1)), "/services/0/rateLimit/per"),
        (rate(json!(1), "31d", json!(1)), "/services/0/rateLimit/per"),
        (rate(json!(1), "1s", json!(0)), "/services/0/rateLimit/burst"),
        (rate(json!(1_000_001), "1s", json!(1)), "/services/0/rateLimit/count"),
        (rate(json!(1), "30d", json!(1_000_000)), "/services/0/rateLimit/burst"),
        (service("dispatchWindow", json!(5)), "/services/0/dispatchWindow"),
        (may("maxRunning", json!(0)), "/authorizations/0/maxRunning"),
        (may("share", json!(0)), "/authorizations/0/share"),
        (may("share", json!(1001)), "/authorizations/0/share"),
    ] {
        let answer = app.caller().post("/admin/apply", &declaration).await;
        assert_eq!(answer.number(), 400_010, "{declaration}: {}", answer.text);
        assert_eq!(answer.json()["error"]["details"][0]["path"], at, "{}", answer.text);
    }
    for malformed in [
        service("maxRunning", json!(-1)),
        service("maxRunning", json!("3")),
        service("rateLimit", json!("100/1s")),
        service("rateLimit", json!({"count": 1})),
        service("rateLimit", json!({"count": 1, "per": "1s", "brust": 3})),
        service("fairShare", json!(1)),
        may("share", json!(1.5)),
    ] {
        let answer = app.caller().post("/admin/apply", &malformed).await;
        assert_eq!(answer.number(), 400_003, "{malformed}: {}", answer.text);
    }
    assert_eq!(app.caller().get("/admin/declaration").await.text, before);
}

/// What a broker was given it hands out by itself; what waits for a place in a window is Relais's.
async fn limits_of_a_service_with_a_broker_need_a_window(on: Backend) {
    let app = TestApp::start(on).await;
    let admin = app.caller();
    let refused = async |declaration: Value| {
        let answer = admin.post("/admin/apply", &declaration).await;
        assert_eq!(answer.number(), 400_010, "{declaration}: {}", answer.text);
        assert!(answer.text.contains("set a dispatchWindow"), "{}", answer.text);
    };
    for (field, value) in [
        ("maxRunning", json!(1)),
        ("maxRunningPerClient", json!(1)),
        ("rateLimit", json!({"count": 1, "per": "1s"})),
        ("fairShare", json!(true)),
    ] {
        let mut service = json!({"serviceName": "ocr", "transport": "rabbitmq", field: value});
        refused(json!({"services": [service]})).await;
        service["dispatchWindow"] = json!(5);
        app.apply(json!({"services": [service]})).await;
        let shown = admin.get("/admin/services/ocr").await.data();
        assert!(shown["dispatchWindow"] == 5 && !shown[field].is_null(), "{shown}");
        // The window stays as long as there is something that needs it.
        let answer = admin.post("/admin/services/ocr/limits", &json!({"dispatchWindow": 0})).await;
        assert_eq!(answer.number(), 400_010, "{}", answer.text);
    }
    let windowed = json!({"serviceName": "ocr", "transport": "rabbitmq", "dispatchWindow": 5});
    let free = json!({"serviceName": "ocr", "transport": "rabbitmq"});
    let may =
        |most: Value| json!({"clientId": "alice", "serviceName": "ocr", "roles": ["consume"], "maxRunning": most});
    refused(json!({"services": [free], "authorizations": [may(json!(1))]})).await;
    app.apply(json!({"services": [windowed], "authorizations": [may(json!(1))]})).await;
    refused(json!({"services": [free]})).await;
    refused(json!({"services": [free], "authorizations": [may(json!(2))]})).await;
    app.apply(json!({"services": [free], "authorizations": [may(Value::Null)]})).await;
    refused(json!({"authorizations": [may(json!(1))]})).await;
    // Without a broker there is no need of one.
    app.apply(json!({
        "services": [{"serviceName": "ocr", "transport": "builtin"}],
        "authorizations": [may(json!(1))],
    }))
    .await;
    refused(json!({"services": [free]})).await;
}
