//! Schedules: declared, shown, changed, run; their tasks, and refused runs.

use std::time::{Duration, Instant};

use relais_core::Timestamp;
use relais_tests::app::{Answer, Backend, DEADLINE, TestApp, redacted};
use serde_json::{Value, json};

on_each_store!(
    a_schedule_is_declared_shown_changed_and_removed,
    a_schedule_submits_its_task_when_it_is_due,
    a_refused_run_is_shown_and_the_schedule_continues,
    a_manual_run_is_validated_like_any_submission,
    tasks_of_a_schedule_have_its_terms,
    a_schedule_may_be_declared_with_all_that_it_needs_and_pruned,
);
on_one_store!(
    an_invalid_schedule_is_refused_with_the_location,
    the_next_runs_are_shown_in_local_time,
    a_pause_survives_a_declaration_that_does_not_speak_of_it,
);

fn nightly() -> Value {
    json!({
        "scheduleName": "nightly", "serviceName": "resize", "clientId": "alice", "cron": "30 2 1 JAN *",
        "timeZone": "Europe/Paris", "body": {"width": 100}, "correlationId": "images", "missed": "all", "overlap": "skip",
        "callback": {"type": "https", "url": "https://example.org/done"},
    })
}

fn tick(service: &str) -> Value {
    json!({"scheduleName": "tick", "serviceName": service, "clientId": "alice", "cron": "* * * * * *"})
}

/// The same, but for this.
fn with(mut schedule: Value, change: Value) -> Value {
    for (field, value) in change.as_object().into_iter().flatten() {
        schedule[field] = value.clone();
    }
    schedule
}

async fn put(app: &TestApp, schedule: &Value) -> Answer {
    let name = schedule["scheduleName"].as_str().unwrap_or_default();
    app.caller().put(&format!("/admin/schedules/{name}"), schedule).await
}

/// Asks for a schedule until it is so.
async fn until(app: &TestApp, name: &str, so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let state = app.caller().get(&format!("/admin/schedules/{name}")).await.data();
        if so(&state) {
            return state;
        }
        assert!(begun.elapsed() < DEADLINE, "{state}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn counts(state: &Value, counter: &str) -> u64 {
    state[counter].as_u64().unwrap_or_else(|| panic!("no {counter} in {state}"))
}

async fn a_schedule_is_declared_shown_changed_and_removed(on: Backend) {
    let app = TestApp::start(on).await;
    let operator = app.caller();
    insta::assert_snapshot!("schedule_created", redacted(&put(&app, &nightly()).await));
    insta::assert_snapshot!("schedule_unchanged", redacted(&put(&app, &nightly()).await));
    insta::assert_snapshot!("schedule", redacted(&operator.get("/admin/schedules/nightly").await));
    let paused = operator.post_nothing("/admin/schedules/nightly/pause").await;
    insta::assert_snapshot!("schedule_paused", redacted(&paused));
    insta::assert_snapshot!("schedules", redacted(&operator.get("/admin/schedules").await));
    let declaration = operator.get("/admin/declaration").await.data();
    assert_eq!(declaration["schedules"], json!([with(nightly(), json!({"paused": true}))]));
    let resumed = operator.post_nothing("/admin/schedules/nightly/resume").await.data();
    assert!(resumed["nextRunDate"].is_string() && resumed["paused"] == false, "{resumed}");
    let least = json!({"scheduleName": "nightly", "serviceName": "ocr", "clientId": "alice", "cron": "@daily"});
    insta::assert_snapshot!("schedule_updated", redacted(&put(&app, &least).await));
    let state = operator.get("/admin/schedules/nightly").await.data();
    let shown = ["timeZone", "missed", "overlap", "description"].map(|field| state[field].clone());
    assert_eq!(shown, ["UTC", "once", "allow", "at 00:00 every day, UTC"]);
    assert_eq!((&state["body"], state.get("callback"), state.get("correlationId")), (&json!({}), None, None));
    insta::assert_snapshot!("schedule_deleted", redacted(&operator.delete("/admin/schedules/nightly").await));
    for path in ["", "/next", "/a"] {
        assert_eq!(operator.get(&format!("/admin/schedules/nightly{path}")).await.status, 404);
    }
    for verb in ["pause", "resume", "run"] {
        let answer = operator.post_nothing(&format!("/admin/schedules/nightly/{verb}")).await;
        assert_eq!(answer.number(), 404_008, "{verb}");
    }
    assert_eq!(operator.delete("/admin/schedules/a%20b").await.number(), 404_008);
    assert_eq!(operator.get("/admin/schedules").await.data(), json!({"schedules": []}));
}

async fn a_schedule_submits_its_task_when_it_is_due(on: Backend) {
    let app = TestApp::start(on).await;
    let worker = app.client("worker");
    assert_eq!(put(&app, &with(tick("resize"), json!({"body": {"n": 7}, "missed": "all"}))).await.status, 200);
    let mut last = None;
    for _ in 0..5 {
        let task = worker.claim_one("resize").await;
        assert_eq!(task["data"]["body"], json!({"n": 7}), "{task}");
        let view = app.client("alice").poll("resize", task["taskId"].as_str().unwrap_or_default()).await;
        let date =
            |text: &Value| Timestamp::parse(text.as_str().unwrap_or_default()).unwrap_or_else(|| panic!("{text}"));
        let id = view["correlationId"].as_str().unwrap_or_default();
        let due = date(&json!(id.strip_prefix("tick@").unwrap_or_else(|| panic!("{view}"))));
        assert!(date(&view["submitionDate"]) >= due, "{view}");
        assert!(last.is_none_or(|last: Timestamp| due.since(last).as_millis() == 1000), "{view}");
        last = Some(due);
    }
    let state = app.caller().get("/admin/schedules/tick").await.data();
    assert!(counts(&state, "runs") >= 5 && state["lastTaskId"].is_string() && state["lastRunDate"].is_string());
    assert_eq!((counts(&state, "missedRuns"), counts(&state, "refusedRuns")), (0, 0));

    // Whatever it is made while it runs, it is from then on.
    let operator = app.caller();
    operator.post_nothing("/admin/schedules/tick/pause").await;
    let paused = operator.get("/admin/schedules/tick").await.data();
    assert_eq!(paused.get("nextRunDate"), None);
    put(&app, &with(tick("ocr"), json!({"cron": "@yearly", "paused": false}))).await;
    let changed = operator.get("/admin/schedules/tick").await.data();
    assert_eq!(counts(&changed, "runs"), counts(&paused, "runs"), "it goes on counting");
    assert_eq!(changed["description"], "at 00:00 on 1 January, UTC");
}

async fn a_refused_run_is_shown_and_the_schedule_continues(on: Backend) {
    let app = TestApp::start(on).await;
    app.apply(json!({"services": [{"serviceName": "resize", "capacity": 0}]})).await;
    put(&app, &tick("resize")).await;
    let full = until(&app, "tick", |state| counts(state, "refusedRuns") >= 2).await;
    assert_eq!(full["lastError"], "the service's capacity is reached", "{full}");
    assert!(full["lastErrorDate"].is_string() && counts(&full, "runs") == 0, "{full}");
    assert_eq!(app.pending("resize").await, 0);

    let strict = json!({"serviceName": "resize", "jsonSchema": {"required": ["width"]}});
    app.apply(json!({"services": [strict]})).await;
    let schema = until(&app, "tick", |state| state["lastError"] != full["lastError"]).await;
    let why = schema["lastError"].as_str().unwrap_or_default();
    assert!(why.starts_with("the body does not conform to the service's schema") && why.contains("width"), "{why}");

    app.caller().delete("/admin/authorizations/alice/resize").await;
    let role = until(&app, "tick", |state| state["lastError"] != schema["lastError"]).await;
    assert_eq!(role["lastError"], "client alice has no role consume on service resize");
    assert_eq!(app.caller().delete("/admin/services/resize").await.status, 200);
    let gone = until(&app, "tick", |state| state["lastError"] != role["lastError"]).await;
    assert_eq!(gone["lastError"], "service not found");

    app.apply(json!({
        "services": [{"serviceName": "resize"}],
        "authorizations": [{"clientId": "alice", "serviceName": "resize"}],
    }))
    .await;
    let again = until(&app, "tick", |state| counts(state, "runs") >= 1).await;
    assert_eq!(again["lastError"], "service not found", "it is kept, with its date: {again}");
}

async fn a_manual_run_is_validated_like_any_submission(on: Backend) {
    let app = TestApp::start(on).await;
    let operator = app.caller();
    put(&app, &nightly()).await;
    let first = operator.post_nothing("/admin/schedules/nightly/run").await;
    insta::assert_snapshot!("schedule_run", redacted(&first));
    let task_id = first.data()["taskId"].as_str().unwrap_or_default().to_owned();
    let view = app.client("alice").poll("resize", &task_id).await;
    assert_eq!((&view["status"], &view["correlationId"]), (&json!("PENDING"), &json!("images")));
    let state = operator.get("/admin/schedules/nightly").await.data();
    assert_eq!((&state["lastTaskId"], counts(&state, "runs")), (&json!(task_id), 1));

    let busy = operator.post_nothing("/admin/schedules/nightly/run").await;
    assert_eq!(busy.number(), 409_003, "{}", busy.text);
    assert!(busy.text.contains(&task_id), "{}", busy.text);
    operator.delete(&format!("/admin/tasks/{task_id}")).await;
    operator.post_nothing("/admin/schedules/nightly/pause").await;
    assert_eq!(operator.post_nothing("/admin/schedules/nightly/run").await.status, 201, "paused or not");

    put(&app, &with(nightly(), json!({"overlap": "allow"}))).await;
    let declare = async |service: Value| app.apply(json!({"services": [service]})).await;
    declare(json!({"serviceName": "resize", "capacity": 0})).await;
    assert_eq!(operator.post_nothing("/admin/schedules/nightly/run").await.number(), 429_001);
    declare(json!({"serviceName": "resize", "jsonSchema": {"maxProperties": 0}})).await;
    assert_eq!(operator.post_nothing("/admin/schedules/nightly/run").await.number(), 400_001);
    operator.delete("/admin/authorizations/alice/resize").await;
    assert_eq!(operator.post_nothing("/admin/schedules/nightly/run").await.number(), 409_003);
    operator.delete("/admin/clients/alice").await;
    assert_eq!(operator.post_nothing("/admin/schedules/nightly/run").await.number(), 404_004);
    let state = operator.get("/admin/schedules/nightly").await.data();
    assert_eq!((counts(&state, "runs"), counts(&state, "refusedRuns")), (2, 0), "whoever asked was told");
}

async fn tasks_of_a_schedule_have_its_terms(on: Backend) {
    let app = TestApp::start(on).await;
    let (operator, worker) = (app.caller(), app.client("worker"));
    let terms = json!({
        "priority": 9, "expiresAfter": "1h", "timeout": "10m", "overlap": "allow",
        "retry": {"limit": 1, "base": "1h", "factor": 2.0, "jitter": 0.5, "exceptKinds": ["ink"]},
    });
    let full = with(nightly(), terms.clone());
    assert_eq!(put(&app, &full).await.data()["applied"][0]["action"], "created");
    assert_eq!(
        put(&app, &full).await.data()["applied"][0]["action"],
        "unchanged",
        "they are read back as they were said"
    );
    let state = operator.get("/admin/schedules/nightly").await.data();
    for (term, said) in terms.as_object().expect("an object") {
        assert_eq!(&state[term], said, "{term}");
    }
    let declaration = operator.get("/admin/declaration").await.data();
    assert_eq!(declaration["schedules"], json!([with(full.clone(), json!({"paused": false}))]));

    // It overtakes what was there before, has a deadline, and is tried again although its service has no retries.
    app.client("alice").submit("resize", json!({})).await;
    let run = operator.post_nothing("/admin/schedules/nightly/run").await.data();
    let claimed = worker.claim_one("resize").await;
    assert_eq!(claimed["taskId"], run["taskId"]);
    assert!(claimed["deadline"].is_string(), "{claimed}");
    let task = run["taskId"].as_str().unwrap_or_default();
    let failure = json!({"messageType": "failure", "errorMessage": "no paper"});
    assert_eq!(worker.message("resize", json!({"taskId": task, "data": failure})).await, "accepted");
    let view = app.client("alice").poll("resize", task).await;
    assert_eq!((&view["status"], &view["priority"]), (&json!("PENDING"), &json!(9)), "{view}");
    assert!(view["retryDate"].is_string(), "{view}");

    // Without them, as any task of the service.
    assert_eq!(
        put(&app, &with(nightly(), json!({"overlap": "allow"}))).await.data()["applied"][0]["action"],
        "updated"
    );
    let state = operator.get("/admin/schedules/nightly").await.data();
    assert!(["priority", "expiresAfter", "timeout", "retry"].iter().all(|term| state.get(term).is_none()), "{state}");
    let run = operator.post_nothing("/admin/schedules/nightly/run").await.data();
    worker.claim_one("resize").await;
    let claimed = worker.claim_one("resize").await;
    assert_eq!((&claimed["taskId"], claimed.get("deadline")), (&run["taskId"], None));

    // What nobody starts in time fails.
    put(&app, &with(nightly(), json!({"overlap": "allow", "expiresAfter": "1ms"}))).await;
    let run = operator.post_nothing("/admin/schedules/nightly/run").await.data();
    let path = format!("/v1/services/resize/tasks/{}?wait=20s", run["taskId"].as_str().unwrap_or_default());
    let view = app.client("alice").get(&path).await.data();
    assert_eq!((&view["status"], &view["errorKind"]), (&json!("FAILURE"), &json!("expired")), "{view}");
}

async fn a_schedule_may_be_declared_with_all_that_it_needs_and_pruned(on: Backend) {
    let app = TestApp::start(on).await;
    let all = json!({
        "services": [{"serviceName": "new", "jsonSchema": {"required": ["n"]}}],
        "clients": [{"clientId": "carol", "clientSecret": "c"}],
        "authorizations": [{"clientId": "carol", "serviceName": "new"}],
        "schedules": [{
            "scheduleName": "tick", "serviceName": "new", "clientId": "carol", "cron": "* * * * * *", "body": {"n": 1},
        }],
    });
    let dry = app.caller().post("/admin/apply?dryRun=true", &all).await.data();
    assert_eq!(dry["applied"][3], json!({"kind": "schedule", "name": "tick", "action": "created"}));
    assert_eq!(app.caller().get("/admin/schedules/tick").await.number(), 404_008);
    app.apply(all.clone()).await;
    let state = until(&app, "tick", |state| counts(state, "runs") >= 1).await;
    assert_eq!(state.get("lastError"), None, "whoever fires it knows all that was declared with it: {state}");

    // What it needs must stay, or go with it.
    let without = |key: &str| {
        let mut some = all.clone();
        some[key] = json!([]);
        some
    };
    for key in ["services", "clients", "authorizations"] {
        let answer = app.caller().post("/admin/apply?prune=true", &without(key)).await;
        assert_eq!(answer.number(), 400_010, "{key}: {}", answer.text);
    }
    let pruned = app.caller().post("/admin/apply?prune=true", &without("schedules")).await;
    let gone = pruned.data()["applied"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|entry| entry["kind"] == "schedule" && entry["name"] == "tick" && entry["action"] == "deleted");
    assert!(gone, "{}", pruned.text);
    assert_eq!(app.caller().get("/admin/schedules").await.data(), json!({"schedules": []}));
}

async fn an_invalid_schedule_is_refused_with_the_location(on: Backend) {
    let app = TestApp::start(on).await;
    for (change, path) in [
        (json!({"cron": "61 * * * *"}), "/schedules/0/cron"),
        (json!({"cron": "0 0 30 2 *"}), "/schedules/0/cron"),
        (json!({"cron": ""}), "/schedules/0/cron"),
        (json!({"timeZone": "Mars/Olympus"}), "/schedules/0/timeZone"),
        (json!({"timeZone": ""}), "/schedules/0/timeZone"),
        (json!({"serviceName": "nowhere"}), "/schedules/0/serviceName"),
        (json!({"clientId": "nobody"}), "/schedules/0/clientId"),
        (json!({"clientId": "worker"}), "/schedules/0/clientId"),
        (json!({"clientId": "stranger"}), "/schedules/0/clientId"),
        (json!({"body": [1]}), "/schedules/0/body"),
        (json!({"body": "text"}), "/schedules/0/body"),
        (json!({"serviceName": "strict"}), "/schedules/0/body"),
        (json!({"serviceName": "strict", "body": {"sleep": 11}}), "/schedules/0/body/sleep"),
        (json!({"correlationId": "x".repeat(201)}), "/schedules/0/correlationId"),
        (json!({"callback": {"type": "pigeon", "url": "https://example.org"}}), "/schedules/0/callback/type"),
        (json!({"callback": {"type": "https", "url": "https://127.0.0.1/"}}), "/schedules/0/callback"),
        (json!({"callback": {"type": "https"}}), "/schedules/0/callback/url"),
        (json!({"priority": 10}), "/schedules/0/priority"),
        (json!({"timeout": "31d"}), "/schedules/0/timeout"),
        (json!({"timeout": "0s"}), "/schedules/0/timeout"),
        (json!({"expiresAfter": "0s"}), "/schedules/0/expiresAfter"),
        (json!({"retry": {"limit": 1001}}), "/schedules/0/retry/limit"),
        (json!({"retry": {"limit": 1, "jitter": 2}}), "/schedules/0/retry/jitter"),
    ] {
        let answer = put(&app, &with(nightly(), change.clone())).await;
        assert_eq!(answer.number(), 400_010, "{change}: {}", answer.text);
        let told: Value = answer.json();
        assert_eq!(told["error"]["details"][0]["path"], path, "{change}: {}", answer.text);
    }
    for (field, value) in
        [("missed", "never"), ("overlap", "maybe"), ("corn", "@daily"), ("retry", "often"), ("timeout", "soon")]
    {
        assert_eq!(put(&app, &with(nightly(), json!({field: value}))).await.number(), 400_003, "{field}");
    }
    for bad in ["", "a b", "a/b", ".hidden", &"x".repeat(101)] {
        let declaration = json!({"schedules": [with(nightly(), json!({"scheduleName": bad}))]});
        let answer = app.caller().post("/admin/apply", &declaration).await;
        assert_eq!(answer.number(), 400_010, "{bad:?}: {}", answer.text);
    }
    let twice = app.caller().post("/admin/apply", &json!({"schedules": [nightly(), nightly()]})).await;
    assert!(twice.number() == 400_010 && twice.text.contains("declared twice"), "{}", twice.text);
    let other = app.caller().put("/admin/schedules/other", &nightly()).await;
    assert_eq!(other.number(), 400_010, "the address says otherwise");
    assert_eq!(app.caller().get("/admin/schedules").await.data(), json!({"schedules": []}));
}

async fn the_next_runs_are_shown_in_local_time(on: Backend) {
    let app = TestApp::start(on).await;
    put(&app, &with(nightly(), json!({"cron": "30 2 * * *"}))).await;
    let next = |query: &str| {
        let (operator, path) = (app.caller(), format!("/admin/schedules/nightly/next{query}"));
        async move { operator.get(&path).await }
    };
    let ten = next("").await.data();
    assert_eq!(ten["description"], "at 02:30 every day, Europe/Paris");
    assert_eq!(ten["runs"].as_array().map(Vec::len), Some(10));
    let year = next("?count=400").await.data();
    let runs: Vec<&Value> = year["runs"].as_array().into_iter().flatten().collect();
    assert_eq!((runs.len(), runs[0]), (400, &ten["runs"][0]));
    let local = |run: &&&Value| run["localDate"].as_str().unwrap_or_default().to_owned();
    let odd: Vec<String> = runs.iter().map(|run| local(&run)).filter(|date| !date.contains("T02:30:00+0")).collect();
    assert!((1..=2).contains(&odd.len()), "once a year 02:30 does not exist: {odd:?}");
    assert!(odd.iter().all(|date| date.contains("-03-") && date.ends_with("T03:00:00+02:00")), "{odd:?}");
    for bad in ["?count=0", "?count=1001", "?count=x", "?cuont=1"] {
        assert_eq!(next(bad).await.number(), 400_006, "{bad}");
    }
}

async fn a_pause_survives_a_declaration_that_does_not_speak_of_it(on: Backend) {
    let app = TestApp::start(on).await;
    put(&app, &nightly()).await;
    app.caller().post_nothing("/admin/schedules/nightly/pause").await;
    put(&app, &with(nightly(), json!({"cron": "@daily"}))).await;
    assert_eq!(app.caller().get("/admin/schedules/nightly").await.data()["paused"], true);
    put(&app, &with(nightly(), json!({"cron": "@daily", "paused": false}))).await;
    let state = app.caller().get("/admin/schedules/nightly").await.data();
    assert!(state["paused"] == false && state["nextRunDate"].is_string(), "{state}");
}
