//! Problems that an operator resolves in the dashboard: dead letters, and instances that died with leased tasks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use relais_broker::{RabbitMq, RabbitMqOptions};
use relais_core::{ClaimRequest, CrashPolicy, InstanceStatus, NewInstance, Registration};
use relais_messaging::rabbitmq::BrokerOptions;
use relais_testkit::TestVhost;
use relais_tests::{
    amqp::AmqpWorker,
    app::{Backend, DEADLINE, TestApp},
    browser::{Browser, Look},
};
use serde_json::json;

use super::world::{World, accessible, pictures};

const DESKTOP: Look = Look { language: "en", theme: "light", width: 1380 };
const PHONE: Look = Look { language: "fr", theme: "dark", width: 390 };

async fn until(what: &str, mut so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !so().await? {
        ensure!(begun.elapsed() < DEADLINE, "after {DEADLINE:?} it is not so that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// How many messages of `resize` are set aside.
async fn set_aside(app: &TestApp) -> usize {
    let letters = app.caller().get("/admin/deadletters?service=resize").await.data();
    letters["deadLetters"].as_array().map_or(0, Vec::len)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_grouped_replayed_and_discarded() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let options = RabbitMqOptions { broker: BrokerOptions::default(), management_url: None };
    let task_broker = RabbitMq::new(vhost.url(), options)?;
    let app = TestApp::builder(Backend::Sqlite)
        .engine(|engine| engine.dispatch.task_broker = Some(Arc::new(task_broker)))
        .start()
        .await;
    until("the queue is there", async || Ok(vhost.queue("resize-out").await.is_ok())).await?;
    let worker = AmqpWorker::new(vhost.url(), "resize");
    let unknown = |n: u32| format!("019a0000-0000-7000-8000-{n:012}");
    for n in 0..3 {
        worker.say(&unknown(n), json!({"messageType": "success"})).await;
    }
    worker.send("<b>hello</b>").await;
    until("all are set aside", async || Ok(set_aside(&app).await == 4)).await?;

    let url = |path: &str| format!("http://{}{path}", app.address());
    let browser = Browser::start().await?;
    for look in [PHONE, DESKTOP] {
        browser.look(look).await?;
        browser.open(&url("/ui/dead-letters")).await?;
        let what = format!("dead-letters-full-{}-{}-{}", look.language, look.theme, look.width);
        browser.picture(&pictures()?.join(format!("{what}.png"))).await?;
        browser.no_complaints(&what)?;
        accessible(&browser, &what).await?;
        browser.complaints();
    }
    // The overview says so first.
    browser.open(&url("/ui")).await?;
    browser.until("document.body.innerText.includes('messages of workers could not be understood')").await?;
    browser.open(&url("/ui/dead-letters")).await?;
    ensure!(browser.ask("document.querySelectorAll('section.letters').length").await? == 2, "two kinds of trouble");
    let first = "document.querySelector('section.letters')";
    let text = browser.ask(&format!("{first}.innerText")).await?;
    let text = text.as_str().context("no text")?;
    ensure!(text.contains("there is no task") && text.starts_with('3'), "what is most comes first: {text}");
    ensure!(text.contains(&unknown(0)) && text.contains("success"), "the messages are shown: {text}");
    // Nobody knows these tasks still, so they come back.
    browser.go(&format!("{first}.querySelector('.headtools form button').click()")).await?;
    ensure!(browser.text().await?.contains("3 messages are looked at once more."));
    until("they are set aside again", async || Ok(set_aside(&app).await == 4)).await?;
    browser.open(&url("/ui/dead-letters")).await?;
    browser.ask(&format!("{first}.querySelector('details.careful > summary').click()")).await?;
    browser.go(&format!("{first}.querySelector('details.careful button.danger').click()")).await?;
    ensure!(browser.text().await?.contains("3 messages are gone."));
    ensure!(set_aside(&app).await == 1, "the other one is left");
    browser.no_complaints("dead letters")?;
    let log = app.engine.list_audit(None, 10).await?.entries;
    let did: Vec<&str> = log.iter().map(|entry| entry.action.as_str()).collect();
    ensure!(did[..2] == ["deadletter.discard", "deadletter.replay"], "{did:?}");
    Ok(())
}

/// An instance leases tasks and falls silent; nobody gets its tasks before an operator has decided.
async fn dies(world: &World, name: &str, tasks: usize) -> Result<()> {
    let store = &world.app.store;
    let service = store.declared().await?.services.get("ocr").context("no service")?.key;
    let instance = NewInstance {
        name: name.to_owned(),
        host: Some("pod-1".to_owned()),
        version: "1".to_owned(),
        policy: CrashPolicy::Refuse,
        // Long enough to take its tasks before somebody finds it dead without any.
        silence: Duration::from_millis(500),
        services: vec![service],
    };
    let Registration::In { key, .. } = store.register_instance(instance).await? else { bail!("{name} may not begin") };
    let request = ClaimRequest { service, max: tasks, lease: None, worker_host: None, instance: Some(key) };
    ensure!(store.claim_tasks(vec![request]).await?.tasks[0].len() == tasks);
    until("it is dead", async || {
        store.reap_instances().await?;
        let known = store.list_instances().await?;
        Ok(known.iter().any(|one| one.name == name && one.status == InstanceStatus::Undecided))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tasks_of_a_crashed_instance_are_resolved_by_an_operator() -> Result<()> {
    let world = World::start(|_| {}).await;
    dies(&world, "printer-7", 2).await?;
    let browser = Browser::start().await?;
    browser.look(DESKTOP).await?;
    browser.open(&world.url("/ui")).await?;
    let text = browser.text().await?;
    ensure!(text.contains("Process printer-7 died with 2 leased tasks: decide what becomes of them"), "{text}");
    browser.open(&world.url("/ui/workers")).await?;
    browser.picture(&pictures()?.join("undecided.png")).await?;
    accessible(&browser, "undecided").await?;
    browser.complaints();
    // By its place, not by its look: the first question is whether to do them again, the second whether to let them
    // fail.
    let decide = async |which: usize| -> Result<()> {
        let question = format!("document.querySelectorAll('td.buttons details.careful')[{which}]");
        browser.ask(&format!("{question}.querySelector('summary').click()")).await?;
        browser.go(&format!("{question}.querySelector('button.danger').click()")).await
    };
    decide(0).await?;
    ensure!(browser.text().await?.contains("Decided, for 2 tasks."));
    ensure!(world.app.pending("ocr").await == 5, "they wait again");
    dies(&world, "printer-8", 3).await?;
    browser.open(&world.url("/ui/workers")).await?;
    decide(1).await?;
    ensure!(browser.text().await?.contains("Decided, for 3 tasks."));
    ensure!(world.app.count("ocr", "failure").await == 3, "they have failed");
    ensure!(!browser.text().await?.contains("undecided"), "nothing is left to decide");
    let audit = world.audit().await;
    ensure!(
        audit[0] == "local instance.resolve printer-8" && audit[1] == "local instance.resolve printer-7",
        "{audit:?}"
    );
    browser.no_complaints("deciding")
}
