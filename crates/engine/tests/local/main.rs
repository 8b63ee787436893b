//! Tasks that are done in this process: the library, on both stores.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use relais_core::{CrashPolicy, Status, Store};
use relais_engine::{Context, HandlerError, Handlers, InstanceOptions, Tasks, Verdict};
use relais_protocol::{
    HumanDuration,
    admin::{AuthorizationDeclaration, Declaration, RoleName, ServiceDeclaration},
    consumer::SubmitRequest,
};
use relais_testkit::{FaultPlan, Faulty, TestDatabase};
use serde_json::{Value, json};
use tokio::sync::Notify;

const LONG: Duration = Duration::from_secs(30);

/// A store on an empty database, and what keeps that alive.
struct Stage {
    store: Arc<dyn Store>,
    url: String,
    _keep: Box<dyn std::any::Any>,
}

async fn sqlite() -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("tasks.db").display());
    let store = relais_store::open(&url, &relais_store::Options::default()).await.unwrap();
    Stage { store, url, _keep: Box::new(folder) }
}

async fn postgres() -> Stage {
    let database = TestDatabase::create().await.unwrap();
    let url = database.url().to_owned();
    let store = relais_store::open(&url, &relais_store::Options::default()).await.unwrap();
    Stage { store, url, _keep: Box::new(database) }
}

/// Makes a test of a promise on each store.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod on_sqlite {
            $(#[tokio::test] async fn $name() { super::$name($crate::sqlite().await).await })*
        }
        mod on_postgres {
            $(#[tokio::test] async fn $name() { super::$name($crate::postgres().await).await })*
        }
    };
}

mod by_hand;

on_both! {
    a_thousand_tasks_run_exactly_once
    an_idle_instance_leases_what_it_submits
    the_verdict_of_a_handler_is_stored
    a_long_task_reports_progress_and_can_be_cancelled
    stopping_an_instance_finishes_running_tasks_and_returns_the_rest
    hooks_are_called_around_every_task
    a_transactional_submission_exists_only_if_it_commits
    a_handler_can_ask_for_a_retry_at_another_time
    an_instance_with_crash_policy_refuse_starts_only_after_it_is_resolved
    a_task_past_its_timeout_is_stopped_and_fails
    declarations_of_an_embedded_program_survive_its_restart
}

async fn a_thousand_tasks_run_exactly_once(stage: Stage) {
    let counts: Arc<Mutex<Vec<usize>>> = Arc::new(Mutex::new(vec![0; 1000]));
    let counted = Arc::clone(&counts);
    let handler = move |body: Value, _: Context| {
        let counted = Arc::clone(&counted);
        async move {
            let n = usize::try_from(body["n"].as_u64().unwrap()).unwrap();
            counted.lock().unwrap()[n] += 1;
            Ok::<_, HandlerError>(n * 2)
        }
    };
    let tasks = Tasks::builder(stage.store).handlers(Handlers::new().on("double", handler)).start().await.unwrap();
    let mut names = Vec::new();
    for n in 0..1000 {
        names.push(tasks.submit("double", &json!({"n": n})).await.unwrap());
    }
    for (n, name) in names.iter().enumerate() {
        let task = tasks.wait(*name, LONG).await.unwrap();
        assert_eq!((task.state.status, task.state.attempt), (Status::Success, 1));
        assert_eq!(task.response.unwrap().get(), (n * 2).to_string());
    }
    let report = tasks.stop().await;
    assert_eq!((report.done, report.failed, report.lost), (1000, 0, 0));
    assert!(counts.lock().unwrap().iter().all(|&times| times == 1), "each was done once");
}

async fn an_idle_instance_leases_what_it_submits(stage: Stage) {
    /// Whether it waits for tasks when one comes is a matter of moments.
    const MOST: u64 = 1000;
    let store = Faulty::new(stage.store, FaultPlan { seed: 1, refused: 0, unanswered: 0, broken_off: 0, only: None });
    let handlers = Handlers::new().on("double", async |body: Value, _: Context| Ok::<_, HandlerError>(body));
    let tasks = Tasks::builder(Arc::clone(&store) as _).handlers(handlers).start().await.unwrap();
    store.switch(true);
    let so_far = || store.counts().get("submit_and_claim_by_instance").map_or(0, |count| count.calls);
    let mut submitted = 0;
    while so_far() < 10 && submitted < MOST {
        let name = tasks.submit("double", &json!({"n": submitted})).await.unwrap();
        let task = tasks.wait(name, LONG).await.unwrap();
        assert_eq!((task.state.status, task.state.attempt), (Status::Success, 1));
        submitted += 1;
    }
    assert!(submitted < MOST, "it never waited when something was submitted");
    assert_eq!(tasks.stop().await.done, submitted);
}

async fn the_verdict_of_a_handler_is_stored(stage: Stage) {
    let handler = async |body: Value, context: Context| match body["do"].as_str().unwrap() {
        "fail" => Err(HandlerError::permanent("no paper").kind("paper").trace("tray 2")),
        "panic" => panic!("out of ink"),
        _ => Ok(json!({"attempt": context.attempt(), "correlation": context.correlation_id()})),
    };
    let tasks = Tasks::builder(stage.store).handlers(Handlers::new().on("print", handler)).start().await.unwrap();
    let failed = tasks.submit("print", &json!({"do": "fail"})).await.unwrap();
    let panicked = tasks.submit("print", &json!({"do": "panic"})).await.unwrap();
    let body = serde_json::value::to_raw_value(&json!({"do": "it"})).unwrap();
    let request = SubmitRequest { correlation_id: Some("chain-1".to_owned()), ..SubmitRequest::new(body) };
    let done = tasks.submit_request("print", request).await.unwrap();
    let failed = tasks.wait(failed, LONG).await.unwrap();
    assert_eq!((failed.state.status, failed.error_kind.as_deref()), (Status::Failure, Some("paper")));
    assert_eq!(failed.error_trace.as_deref(), Some("tray 2"));
    let panicked = tasks.wait(panicked, LONG).await.unwrap();
    assert_eq!(panicked.error_message.as_deref(), Some("the handler panicked: out of ink"));
    let done = tasks.wait(done, LONG).await.unwrap();
    assert_eq!(done.response.unwrap().get(), r#"{"attempt":1,"correlation":"chain-1"}"#);
    assert!(
        tasks.submit("nothing", &json!({})).await.is_err(),
        "a service without handler and declaration is not there"
    );
    tasks.stop().await;
}

async fn a_long_task_reports_progress_and_can_be_cancelled(stage: Stage) {
    let stopped = Arc::new(Notify::new());
    let told = Arc::clone(&stopped);
    let handler = move |_: Value, context: Context| {
        let told = Arc::clone(&told);
        async move {
            context.progress(40.0);
            context.cancelled().await;
            told.notify_one();
            Ok::<_, HandlerError>(())
        }
    };
    let tasks = Tasks::builder(stage.store).handlers(Handlers::new().on("sleep", handler)).start().await.unwrap();
    let name = tasks.submit("sleep", &json!({})).await.unwrap();
    let engine = tasks.engine();
    let access = engine.insider("app", "sleep", relais_core::Role::Consume).unwrap();
    let mut following = engine.follow(&access, name).await.unwrap();
    while following.task.state.progress != 40.0 {
        tokio::time::timeout(LONG, following.changed()).await.unwrap().unwrap();
    }
    assert_eq!(following.task.state.status, Status::InProgress);
    let known = engine.instances().await.unwrap().instances;
    assert_eq!((known.len(), known[0].in_hand, known[0].status.as_str()), (1, 1, "alive"));
    engine.cancel(&access, name).await.unwrap();
    tokio::time::timeout(LONG, stopped.notified()).await.unwrap();
    assert_eq!(tasks.wait(name, LONG).await.unwrap().state.status, Status::Cancelled);
    assert_eq!(tasks.stop().await.done, 0, "what it returned does not count");
}

async fn stopping_an_instance_finishes_running_tasks_and_returns_the_rest(stage: Stage) {
    let (begun, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (count, gate) = (Arc::clone(&begun), Arc::clone(&go_on));
    let handler = move |body: Value, _: Context| {
        let (count, gate) = (Arc::clone(&count), Arc::clone(&gate));
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            if body["wait"].as_bool() == Some(true) {
                gate.notified().await;
            } else {
                std::future::pending::<()>().await;
            }
            Ok::<_, HandlerError>(())
        }
    };
    let options = InstanceOptions { grace: Duration::from_millis(300), ..InstanceOptions::default() };
    let handlers = Handlers::new().options(options).on_up_to(2, "mixed", handler);
    let tasks = Tasks::builder(Arc::clone(&stage.store)).handlers(handlers).start().await.unwrap();
    let finishes = tasks.submit("mixed", &json!({"wait": true})).await.unwrap();
    let never = tasks.submit("mixed", &json!({})).await.unwrap();
    let behind = tasks.submit("mixed", &json!({})).await.unwrap();
    let all_begun = async {
        while begun.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, all_begun).await.unwrap();
    go_on.notify_one();
    let report = tasks.stop().await;
    assert_eq!((report.done, report.returned, report.lost), (1, 1, 0));
    let store = relais_store::open(&stage.url, &relais_store::Options::default()).await.unwrap();
    let status = |task: relais_core::Task| (task.state.status, task.state.losses, task.state.failures);
    assert_eq!(status(store.find_task(finishes).await.unwrap().unwrap()).0, Status::Success);
    for name in [never, behind] {
        let task = store.find_task(name).await.unwrap().unwrap();
        assert_eq!(status(task), (Status::Pending, 0, 0), "given back, and it burnt no attempt");
    }
    assert!(store.list_instances().await.unwrap().is_empty());
    store.close().await;
}

async fn hooks_are_called_around_every_task(stage: Stage) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (first, last) = (Arc::clone(&seen), Arc::clone(&seen));
    let handlers = Handlers::new()
        .on("greet", async |body: Value, _: Context| match body["name"].as_str() {
            Some(name) => Ok(format!("hello {name}")),
            None => Err(HandlerError::new("nobody")),
        })
        .before(move |context| {
            let first = Arc::clone(&first);
            async move { first.lock().unwrap().push(format!("before attempt {:?}", context.attempt())) }
        })
        .after(move |_, verdict| {
            let last = Arc::clone(&last);
            let said = match verdict {
                Verdict::Success(response) => response.get().to_owned(),
                Verdict::Failure(failure) => failure.message.clone(),
            };
            Box::pin(async move { last.lock().unwrap().push(said) })
        });
    let tasks = Tasks::builder(stage.store).handlers(handlers).by_hand().start().await.unwrap();
    tasks.submit("greet", &json!({"name": "ann"})).await.unwrap();
    tasks.submit("greet", &json!({})).await.unwrap();
    let ran = tasks.run_due().await.unwrap();
    assert_eq!(ran.len(), 2);
    assert_eq!(*seen.lock().unwrap(), ["before attempt Some(1)", "\"hello ann\"", "before attempt Some(1)", "nobody"]);
    tasks.stop().await;
}

async fn a_transactional_submission_exists_only_if_it_commits(stage: Stage) {
    let handler = async |body: Value, _: Context| Ok::<_, HandlerError>(body["n"].clone());
    let tasks = Tasks::builder(stage.store).handlers(Handlers::new().on("echo", handler)).start().await.unwrap();
    assert!(tasks.prepare("echo", &json!(7)).is_err(), "what would be refused is refused at once");
    let never = tasks.prepare("echo", &json!({"n": 1})).unwrap();
    let kept = tasks.prepare("echo", &json!({"n": 2})).unwrap();
    if stage.url.starts_with("sqlite:") {
        let pool = sqlx::SqlitePool::connect(&stage.url).await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        relais_store::enqueue(&mut *transaction, &never).await.unwrap();
        transaction.rollback().await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        relais_store::enqueue(&mut *transaction, &kept).await.unwrap();
        transaction.commit().await.unwrap();
        tasks.collect_submissions();
    } else {
        let pool = sqlx::PgPool::connect(&stage.url).await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        relais_store::enqueue(&mut *transaction, &never).await.unwrap();
        transaction.rollback().await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        relais_store::enqueue(&mut *transaction, &kept).await.unwrap();
        transaction.commit().await.unwrap();
        // Anybody who can write SQL can do it too; what is no task stays there, with the reason.
        let plain =
            "INSERT INTO relais.submission (service, client, request) VALUES ($1, 'app', '{\"body\": {\"n\": 3}}')";
        sqlx::query(plain).bind("echo").execute(&pool).await.unwrap();
        sqlx::query(plain).bind("nothing").execute(&pool).await.unwrap();
        let refused = async {
            loop {
                let why: Option<String> =
                    sqlx::query_scalar("SELECT refused FROM relais.submission WHERE service = 'nothing'")
                        .fetch_one(&pool)
                        .await
                        .unwrap();
                if let Some(why) = why {
                    return why;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert_eq!(tokio::time::timeout(LONG, refused).await.unwrap(), "service not found");
    }
    let done = tasks.wait(kept.task_id, LONG).await.unwrap();
    assert_eq!((done.state.status, done.response.unwrap().get()), (Status::Success, "2"));
    assert!(tasks.wait(never.task_id, Duration::ZERO).await.is_err(), "rolled back, it never was");
    tasks.stop().await;
}

async fn a_handler_can_ask_for_a_retry_at_another_time(stage: Stage) {
    let handler = async |_: Value, context: Context| match context.attempt() {
        Some(1) => Err(HandlerError::again("no paper yet")),
        attempt => Ok(attempt),
    };
    let tasks = Tasks::builder(stage.store).handlers(Handlers::new().on("print", handler)).start().await.unwrap();
    let name = tasks.submit("print", &json!({})).await.unwrap();
    let task = tasks.wait(name, LONG).await.unwrap();
    assert_eq!((task.state.status, task.state.attempt, task.state.failures), (Status::Success, 2, 0));
    assert_eq!(tasks.stop().await.returned, 1);
}

async fn an_instance_with_crash_policy_refuse_starts_only_after_it_is_resolved(stage: Stage) {
    let options = || InstanceOptions {
        name: Some("strict".to_owned()),
        crash_policy: CrashPolicy::Refuse,
        ..InstanceOptions::default()
    };
    let begun = Arc::new(Notify::new());
    let bell = Arc::clone(&begun);
    let handler = move |_: Value, _: Context| {
        let bell = Arc::clone(&bell);
        async move {
            bell.notify_one();
            std::future::pending::<Result<(), HandlerError>>().await
        }
    };
    let handlers = || Handlers::new().options(options()).on("once", handler.clone());
    let tasks = Tasks::builder(Arc::clone(&stage.store)).handlers(handlers()).start().await.unwrap();
    let name = tasks.submit("once", &json!({})).await.unwrap();
    tokio::time::timeout(LONG, begun.notified()).await.unwrap();
    // As good as dead: nobody stops it.
    let engine = tasks.engine();
    let Err(refused) = engine.work(handlers()).await else { panic!("it may not begin") };
    assert!(refused.to_string().contains("relais instance resolve strict"), "{refused}");
    let resolved = engine.resolve_instance("strict", relais_protocol::instance::DecisionName::Fail).await.unwrap();
    assert_eq!(resolved.tasks, 1);
    let task = tasks.wait(name, LONG).await.unwrap();
    assert_eq!((task.state.status, task.error_kind.as_deref()), (Status::Failure, Some("crashed")));
    let instance = engine.work(handlers()).await.unwrap();
    assert_eq!(instance.name(), "strict");
}

async fn a_task_past_its_timeout_is_stopped_and_fails(stage: Stage) {
    let told = Arc::new(Notify::new());
    let bell = Arc::clone(&told);
    let handler = move |body: Value, context: Context| {
        let bell = Arc::clone(&bell);
        async move {
            if body["obedient"].as_bool() == Some(true) {
                context.cancelled().await;
                bell.notify_one();
            } else {
                std::future::pending::<()>().await;
            }
            Ok::<_, HandlerError>("too late")
        }
    };
    let service = ServiceDeclaration {
        timeout: Some(HumanDuration(Duration::from_secs(1))),
        ..ServiceDeclaration::named("slow")
    };
    let options = InstanceOptions { stop_limit: Duration::from_millis(50), ..InstanceOptions::default() };
    let handlers = Handlers::new().options(options).on("slow", handler);
    let tasks = Tasks::builder(stage.store).handlers(handlers).service(service).start().await.unwrap();
    for obedient in [true, false] {
        let name = tasks.submit("slow", &json!({"obedient": obedient})).await.unwrap();
        if obedient {
            tokio::time::timeout(LONG, told.notified()).await.expect("it is told to stop");
        }
        let task = tasks.wait(name, LONG).await.unwrap();
        assert_eq!((task.state.status, task.error_kind.as_deref()), (Status::Failure, Some("timeout")));
        assert_eq!(task.response.map(|response| response.get().to_owned()), None, "what it returned does not count");
    }
    assert_eq!(tasks.stop().await.failed, 2);
}

async fn declarations_of_an_embedded_program_survive_its_restart(stage: Stage) {
    let handler = async |_: Value, _: Context| Ok::<_, HandlerError>(());
    let start = async || {
        let store = relais_store::open(&stage.url, &relais_store::Options::default()).await.unwrap();
        Tasks::builder(store).handlers(Handlers::new().on("print", handler).on("fold", handler)).start().await.unwrap()
    };
    stage.store.close().await;
    let tasks = start().await;
    let said = |service: &str, roles: &[RoleName]| AuthorizationDeclaration {
        client_id: "app".to_owned(),
        service_name: service.to_owned(),
        roles: roles.to_vec(),
        capacity: Some(7),
        max_running: Some(3),
        share: Some(2),
    };
    let by_operator = Declaration {
        authorizations: vec![said("print", &[RoleName::Consume, RoleName::Work]), said("fold", &[RoleName::Work])],
        ..Declaration::default()
    };
    tasks.engine().apply(by_operator, false, false).await.unwrap();
    tasks.stop().await;
    let tasks = start().await;
    let declared = tasks.engine().declaration().await.unwrap();
    for service in ["print", "fold"] {
        let found = declared.authorizations.iter().find(|one| one.service_name == service).unwrap();
        // What the program needs is there too.
        let wanted = said(service, &[RoleName::Consume, RoleName::Work]);
        assert_eq!(serde_json::to_value(found).unwrap(), serde_json::to_value(wanted).unwrap());
    }
    tasks.stop().await;
}
