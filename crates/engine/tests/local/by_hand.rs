//! Tasks in a program's own tests: they are done when the test says so, and time passes when the test says so.

use std::{sync::Arc, time::Duration};

use relais_core::{Status, TaskId};
use relais_engine::{Context, HandlerError, Handlers, Tasks};
use relais_protocol::{
    HumanDuration,
    admin::{RateLimitDeclaration, ServiceDeclaration},
    consumer::{AfterRequest, AfterWhen, SubmitRequest},
    retry::RetryDeclaration,
    schedule::ScheduleDeclaration,
};
use relais_testkit::{FaultPlan, Faulty};
use serde_json::{Value, json, value::to_raw_value};
use tokio::sync::Notify;

use crate::{LONG, Stage};

on_both! {
    the_test_clock_moves_only_when_it_is_advanced
    a_chain_of_dependencies_runs_in_order
    a_rate_limit_refills_when_the_test_clock_advances
    tasks_of_a_dead_instance_run_after_its_heartbeat_expires
    a_store_error_leaves_no_task_leased
    the_test_clock_needs_manual_mode
}

/// A submission that waits for others.
fn after(tasks: &[TaskId], body: &Value) -> SubmitRequest {
    let tasks = tasks.iter().map(ToString::to_string).collect();
    let after = AfterRequest { tasks, refs: Vec::new(), when: AfterWhen::default() };
    SubmitRequest { after: Some(after), ..SubmitRequest::new(to_raw_value(body).unwrap()) }
}

async fn the_test_clock_moves_only_when_it_is_advanced(stage: Stage) {
    let handler = async |body: Value, context: Context| match (body["fail"].as_bool(), context.attempt()) {
        (Some(true), Some(1)) => Err(HandlerError::new("not yet")),
        _ => Ok(json!({"done": true})),
    };
    let service = ServiceDeclaration { retry: Some(RetryDeclaration::classic()), ..ServiceDeclaration::named("mail") };
    let nightly: ScheduleDeclaration = serde_json::from_value(json!({
        "scheduleName": "nightly", "serviceName": "mail", "clientId": "app", "cron": "0 0 1 1 *", "body": {"yearly": true}
    }))
    .unwrap();
    let tasks = Tasks::builder(stage.store)
        .handlers(Handlers::new().on("mail", handler))
        .service(service)
        .schedule(nightly)
        .by_hand()
        .start()
        .await
        .unwrap();
    tasks.submit("mail", &json!({"to": "ann", "fail": true})).await.unwrap();
    let body = to_raw_value(&json!({"to": "bob"})).unwrap();
    let later = SubmitRequest { delay: Some(HumanDuration(Duration::from_secs(3600))), ..SubmitRequest::new(body) };
    tasks.submit_request("mail", later).await.unwrap();
    assert_eq!(tasks.assert_enqueued("mail", json!({"to": "ann"})).await.attempts, 0);
    let ran = tasks.run_due().await.unwrap();
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert_eq!(ran[0].outcome, Err("not yet".to_owned()));
    assert!(tasks.run_due().await.unwrap().is_empty(), "nothing is due before time passes");
    tasks.advance(Duration::from_secs(2 * 60 + 30)).await.unwrap();
    let ran = tasks.run_due().await.unwrap();
    assert_eq!((ran.len(), ran[0].attempt, &ran[0].outcome), (1, 2, &Ok(json!({"done": true}))));
    tasks.advance(Duration::from_secs(3600)).await.unwrap();
    assert_eq!(tasks.run_due().await.unwrap().len(), 1, "the one that was to be done in an hour");
    tasks.advance(Duration::from_secs(366 * 86_400)).await.unwrap();
    assert_eq!(tasks.run_due().await.unwrap().len(), 1, "the one of the schedule");
    tasks.stop().await;
}

async fn a_chain_of_dependencies_runs_in_order(stage: Stage) {
    let handler = async |body: Value, _: Context| match body["fail"].as_bool() {
        Some(true) => Err(HandlerError::permanent("torn")),
        _ => Ok(body["n"].clone()),
    };
    let handlers = Handlers::new().on("step", handler);
    let tasks = Tasks::builder(stage.store).handlers(handlers).by_hand().start().await.unwrap();
    let mut last = tasks.submit("step", &json!({"n": 0})).await.unwrap();
    for n in 1..4 {
        last = tasks.submit_request("step", after(&[last], &json!({"n": n}))).await.unwrap();
    }
    let ran = tasks.run_due().await.unwrap();
    let outcomes: Vec<_> = ran.iter().map(|ran| ran.outcome.clone()).collect();
    assert_eq!(outcomes, [Ok(json!(0)), Ok(json!(1)), Ok(json!(2)), Ok(json!(3))]);

    // What waits for one that fails fails with it, and so does what comes when that has happened.
    let torn = tasks.submit("step", &json!({"fail": true})).await.unwrap();
    let behind = tasks.submit_request("step", after(&[torn], &json!({"n": 1}))).await.unwrap();
    assert_eq!(tasks.run_due().await.unwrap().len(), 1);
    let late = tasks.submit_request("step", after(&[behind], &json!({"n": 2}))).await.unwrap();
    assert!(tasks.run_due().await.unwrap().is_empty());
    for name in [behind, late] {
        let task = tasks.wait(name, Duration::ZERO).await.unwrap();
        assert_eq!((task.state.status, task.error_kind.as_deref()), (Status::Failure, Some("dependency")));
    }
    tasks.stop().await;
}

async fn a_rate_limit_refills_when_the_test_clock_advances(stage: Stage) {
    let rate = RateLimitDeclaration { count: 2, per: HumanDuration(Duration::from_secs(60)), burst: None };
    let service = ServiceDeclaration { rate_limit: Some(rate), ..ServiceDeclaration::named("call") };
    let handlers = Handlers::new().on("call", async |_: Value, _: Context| Ok::<_, HandlerError>(()));
    let tasks = Tasks::builder(stage.store).handlers(handlers).service(service).by_hand().start().await.unwrap();
    for _ in 0..5 {
        tasks.submit("call", &json!({})).await.unwrap();
    }
    assert_eq!(tasks.run_due().await.unwrap().len(), 2);
    assert!(tasks.run_due().await.unwrap().is_empty(), "so many start in a minute");
    tasks.advance(Duration::from_secs(30)).await.unwrap();
    assert_eq!(tasks.run_due().await.unwrap().len(), 1);
    tasks.advance(Duration::from_secs(3600)).await.unwrap();
    assert_eq!(tasks.run_due().await.unwrap().len(), 2, "a pause earns a burst, and no more");
    tasks.stop().await;
}

async fn tasks_of_a_dead_instance_run_after_its_heartbeat_expires(stage: Stage) {
    let begun = Arc::new(Notify::new());
    let bell = Arc::clone(&begun);
    let handler = move |_: Value, context: Context| {
        let bell = Arc::clone(&bell);
        async move {
            if context.attempt() == Some(1) {
                bell.notify_one();
                std::future::pending::<()>().await;
            }
            Ok::<_, HandlerError>(())
        }
    };
    let handlers = Handlers::new().on("print", handler);
    let tasks = Tasks::builder(stage.store).handlers(handlers.clone()).by_hand().start().await.unwrap();
    let instance = tasks.engine().work(handlers).await.unwrap();
    tasks.submit("print", &json!({})).await.unwrap();
    tokio::time::timeout(LONG, begun.notified()).await.unwrap();
    drop(instance);
    assert!(tasks.run_due().await.unwrap().is_empty(), "it may be alive");
    tasks.advance(Duration::from_secs(60)).await.unwrap();
    let ran = tasks.run_due().await.unwrap();
    assert_eq!((ran.len(), ran[0].attempt, &ran[0].outcome), (1, 2, &Ok(Value::Null)));
    tasks.stop().await;
}

async fn a_store_error_leaves_no_task_leased(stage: Stage) {
    // By this plan the first result is not taken, and the first one to leave does.
    let plan = FaultPlan { seed: 5, refused: 500, unanswered: 0, broken_off: 0, only: None };
    let faulty = Faulty::new(stage.store, plan);
    let fails = Arc::clone(&faulty);
    let handler = move |_: Value, _: Context| {
        let fails = Arc::clone(&fails);
        async move {
            fails.switch(true);
            Ok::<_, HandlerError>(())
        }
    };
    let handlers = Handlers::new().on("print", handler);
    let store: Arc<dyn relais_core::Store> = Arc::<Faulty>::clone(&faulty);
    let tasks = Tasks::builder(Arc::clone(&store)).handlers(handlers).by_hand().start().await.unwrap();
    let name = tasks.submit("print", &json!({})).await.unwrap();
    let error = tasks.run_due().await.unwrap_err();
    faulty.switch(false);
    let counts = faulty.counts();
    let refused = |verb: &str| counts.get(verb).map(|count| count.refused);
    assert_eq!(
        (refused("record_events"), refused("deregister_instance")),
        (Some(1), Some(0)),
        "{error}: the plan is another one"
    );
    assert!(store.list_instances().await.unwrap().is_empty(), "whoever ran it has left");
    assert_eq!(tasks.assert_enqueued("print", json!({})).await.task_id, name);
    tasks.stop().await;
}

async fn the_test_clock_needs_manual_mode(stage: Stage) {
    let tasks = Tasks::builder(stage.store).start().await.unwrap();
    let refused = tasks.advance(Duration::from_secs(1)).await.unwrap_err();
    assert!(refused.to_string().contains("by hand"), "{refused}");
    tasks.stop().await;
}

/// A column that is added later is not forgotten: all that PostgreSQL knows as a time is moved.
#[tokio::test]
async fn the_test_clock_covers_every_stored_time() {
    let stage = crate::postgres().await;
    stage.store.migrate().await.unwrap();
    let pool = sqlx::PgPool::connect(&stage.url).await.unwrap();
    let columns: Vec<(String, String)> = sqlx::query_as(
        "SELECT table_name::text, column_name::text
         FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
         WHERE table_schema = 'relais' AND data_type LIKE 'timestamp%' AND table_name <> 'migration'
               AND table_type = 'BASE TABLE'",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    assert!(columns.len() > 30, "{columns:?}");
    for (driver, schema, value) in [("postgres", "relais.", "$1"), ("sqlite", "", "?1")] {
        let path = format!("{}/../store/src/{driver}/mod.rs", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(path).unwrap();
        for (table, column) in &columns {
            let statement = format!("\"UPDATE {schema}{table} SET ");
            let moved = source.lines().filter_map(|line| line.trim().strip_prefix(&statement));
            let assignment = format!("{column} = {column} - {value}");
            let mut assignments = moved.flat_map(|line| line.split(['"', ','])).map(str::trim);
            assert!(
                assignments.any(|one| one == assignment || one.starts_with(&format!("{assignment} WHERE"))),
                "{table}.{column} stays as it is on {driver} when time passes: see MOVE_BACK"
            );
        }
    }
}
