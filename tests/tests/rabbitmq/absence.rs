//! A broker that is away or accepts nothing: tasks are accepted all the same, and none is lost.

use relais_testkit::{RabbitMqServer, TcpProxy, TestVhost};
use relais_tests::{amqp::AmqpWorker, app::Backend};
use serde_json::{Value, json};

use crate::stage::{Stage, builder, until};

on_each_store!(tasks_accepted_while_the_broker_is_away_are_published_in_order_later);
on_one_store!(
    a_broker_that_starts_after_the_server_is_used,
    repeated_broker_disconnects_lose_no_task,
    a_broker_alarm_is_reported_and_loses_no_task,
    a_broker_crash_loses_no_task,
);

/// A stage whose Relais reaches the broker through a proxy; its workers do not need one.
async fn behind_a_proxy(on: Backend) -> (Stage, TcpProxy) {
    let vhost = TestVhost::create().await.unwrap();
    let proxy = TcpProxy::start(vhost.server_addr().unwrap()).await.unwrap();
    let app = builder(on, &vhost.url_via(proxy.addr()).unwrap(), None).start().await;
    let stage = Stage::with(app, vhost);
    stage.ready("resize").await;
    (stage, proxy)
}

async fn broker(stage: &Stage) -> Value {
    stage.app.caller().get("/admin/broker").await.data()
}

async fn broker_is(stage: &Stage, state: &str) -> Value {
    until(&format!("the broker is {state}"), async || broker(stage).await["state"] == state).await;
    broker(stage).await
}

async fn tasks_accepted_while_the_broker_is_away_are_published_in_order_later(on: Backend) {
    let (stage, proxy) = behind_a_proxy(on).await;
    broker_is(&stage, "up").await;
    proxy.cut().await.unwrap();
    let away = broker_is(&stage, "away").await;
    assert!(away["reason"].is_string(), "{away}");
    assert_eq!(away["services"], json!(["ocr", "resize", "strict"]));
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(stage.submit(json!({"n": n})).await);
    }
    ids.extend(stage.submit_many(20..500).await);
    assert_eq!(stage.poll(&ids[19]).await["taskPosition"], 20);
    let dead_letters = stage.app.caller().get("/admin/deadletters?service=resize").await;
    assert_eq!(dead_letters.number(), 503_004);
    let mut listening = stage.worker.listen(50).await;
    proxy.restore().await.unwrap();
    let jobs = listening.take_all(ids.len()).await;
    let order: Vec<&str> = jobs.iter().map(|job| job.task_id.as_str()).collect();
    assert_eq!(order, ids);
    broker_is(&stage, "up").await;
    for id in [&ids[0], &ids[499]] {
        stage.worker.success(id, json!(null)).await;
        stage.success(id).await;
    }
}

async fn a_broker_that_starts_after_the_server_is_used(on: Backend) {
    let vhost = TestVhost::create().await.unwrap();
    let proxy = TcpProxy::start(vhost.server_addr().unwrap()).await.unwrap();
    proxy.cut().await.unwrap();
    let app = builder(on, &vhost.url_via(proxy.addr()).unwrap(), None).start().await;
    let stage = Stage::with(app, vhost);
    assert_eq!(broker(&stage).await["state"], "away");
    let id = stage.submit(json!({"early": true})).await;
    proxy.restore().await.unwrap();
    stage.ready("resize").await;
    let mut listening = stage.worker.listen(1).await;
    let job = listening.take().await;
    assert_eq!((job.task_id.as_str(), job.body()), (id.as_str(), &json!({"early": true})));
    stage.worker.success(&id, json!(null)).await;
    stage.success(&id).await;
    listening.ack(&job);
}

async fn repeated_broker_disconnects_lose_no_task(on: Backend) {
    const ROUNDS: usize = 5;
    let (stage, proxy) = behind_a_proxy(on).await;
    let worker = stage.worker.clone();
    let mut listening = worker.listen(100).await;
    // Whatever comes, as often as it comes, is answered once more.
    let work = tokio::spawn(async move {
        loop {
            let job = listening.take().await;
            worker.success(&job.task_id, job.body().clone()).await;
            listening.ack(&job);
        }
    });
    let mut ids = Vec::new();
    for round in 0..ROUNDS {
        ids.extend(stage.submit_many(round * 40..round * 40 + 20).await);
        proxy.cut().await.unwrap();
        ids.extend(stage.submit_many(round * 40 + 20..(round + 1) * 40).await);
        proxy.restore().await.unwrap();
        broker_is(&stage, "up").await;
    }
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(stage.success(id).await, json!({"n": n}));
    }
    work.abort();
}

/// A node of one's own: an alarm is the whole node's.
async fn a_broker_alarm_is_reported_and_loses_no_task(on: Backend) {
    let node = RabbitMqServer::start().await.unwrap();
    let vhost = node.vhost().await.unwrap();
    let stage = Stage::with(builder(on, vhost.url(), None).start().await, vhost);
    stage.ready("resize").await;
    let before = stage.submit_many(0..10).await;
    // The worker's connection only takes: the node blocks those who publish.
    let mut listening = stage.worker.listen(200).await;
    let mut jobs = listening.take_all(before.len()).await;
    node.memory_alarm(true).await.unwrap();
    let mut during = stage.submit_many(10..30).await;
    let blocked = broker_is(&stage, "blocked").await;
    assert!(blocked["reason"].as_str().is_some_and(|why| !why.is_empty()), "{blocked}");
    during.extend(stage.submit_many(30..100).await);
    assert_eq!(stage.app.pending("resize").await, 100);
    node.memory_alarm(false).await.unwrap();
    broker_is(&stage, "up").await;
    let mut missing: std::collections::BTreeSet<String> = during.iter().cloned().collect();
    while !missing.is_empty() {
        let job = listening.take().await;
        listening.ack(&job);
        missing.remove(&job.task_id);
        jobs.push(job);
    }
    for job in jobs {
        stage.worker.success(&job.task_id, job.body().clone()).await;
    }
    for (n, id) in before.iter().chain(&during).enumerate() {
        assert_eq!(stage.success(id).await, json!({"n": n}));
    }
}

async fn a_broker_crash_loses_no_task(on: Backend) {
    let mut node = RabbitMqServer::start().await.unwrap();
    let vhost = node.vhost().await.unwrap();
    let stage = Stage::with(builder(on, vhost.url(), None).start().await, vhost);
    stage.ready("resize").await;
    let mut ids = stage.submit_many(0..50).await;
    let worker = AmqpWorker::new(stage.vhost.url(), "resize");
    let mut listening = worker.listen(5).await;
    let job = listening.take().await;
    worker.started(&job.task_id, "pod-1").await;
    stage.running_on(&job.task_id, "pod-1").await;
    node.write_down().await.unwrap();
    node.kill9().unwrap();
    ids.extend(stage.submit_many(50..80).await);
    node.restart().await.unwrap();
    drop(listening);
    let mut listening = worker.listen(5).await;
    let mut missing: std::collections::BTreeSet<String> = ids.iter().cloned().collect();
    while !missing.is_empty() {
        let job = listening.take().await;
        worker.success(&job.task_id, job.body().clone()).await;
        listening.ack(&job);
        missing.remove(&job.task_id);
    }
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(stage.success(id).await, json!({"n": n}));
    }
}
