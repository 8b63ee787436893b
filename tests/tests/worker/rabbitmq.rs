//! Workers and a broker alone: the wire format, and what workers do when the broker is in trouble.

use std::time::Duration;

use anyhow::{Context as _, Result};
use relais_messaging::rabbitmq::{Broker, ConsumeOptions, Consumer, Publish};
use relais_testkit::{RabbitMqServer, TcpProxy, TestVhost};
use relais_tests::{amqp, app::DEADLINE};
use relais_worker::Worker;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::stage::Stage;

/// The other end: submits, and hears what workers say.
pub struct Other(Broker);

impl Other {
    fn at(url: &str) -> Result<Self> {
        Ok(Self(amqp::broker(url)))
    }

    pub async fn publish(&self, body: impl Into<Vec<u8>>) -> Result<()> {
        Ok(self.0.publish(Publish::new("", "q-in", body.into()).message_id("m")).await?)
    }

    async fn submit(&self, task_id: &str, body: Value) -> Result<()> {
        let message = json!({"taskId": task_id, "data": {"messageType": "submission", "body": body}});
        self.publish(message.to_string()).await
    }

    /// Hears messages until there were results of so many tasks, and gives all of them.
    pub async fn results(&self, count: usize) -> Result<Vec<Value>> {
        let mut messages: Vec<Value> = Vec::new();
        let hearing = async {
            loop {
                // A node that was killed is consumed again.
                let Ok(mut consumer) = self.0.consume("q-out", ConsumeOptions::default()).await else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                while let Ok(delivery) = consumer.next().await {
                    match serde_json::from_slice(&delivery.body)? {
                        Value::Array(many) => messages.extend(many),
                        one => messages.push(one),
                    }
                    let _ = consumer.ack(delivery.tag);
                    if ended(&messages).len() >= count {
                        return anyhow::Ok(());
                    }
                }
            }
        };
        timeout(DEADLINE, hearing).await.context("the results never came")??;
        Ok(messages)
    }
}

/// The tasks that have a result.
fn ended(messages: &[Value]) -> std::collections::BTreeSet<String> {
    let result = |message: &&Value| matches!(message["data"]["messageType"].as_str(), Some("success" | "failure"));
    messages.iter().filter(result).map(|message| message["taskId"].to_string()).collect()
}

pub async fn queues(vhost: &TestVhost) -> Result<Other> {
    vhost.declare_queue("q-in").await?;
    vhost.declare_queue("q-out").await?;
    Other::at(vhost.url())
}

#[tokio::test]
async fn worker_messages_have_the_documented_wire_format() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(vhost.url(), "q").host_name("pod-1"));
    other.submit("a", json!({"do": "wait"})).await?;
    stage.starts(1).await;
    let started = other.0.clone();
    let mut consumer = started.consume("q-out", ConsumeOptions::default()).await?;
    let first = timeout(DEADLINE, consumer.next()).await??;
    assert_eq!(
        String::from_utf8_lossy(&first.body),
        r#"{"taskId":"a","data":{"messageType":"started","hostName":"pod-1"}}"#
    );
    assert_eq!(first.content_type.as_deref(), Some("application/json"));
    assert!(first.message_id.is_some());
    stage.let_go(1);
    let last = timeout(DEADLINE, consumer.next()).await??;
    let last: Value = serde_json::from_slice(&last.body)?;
    assert_eq!((&last["taskId"], &last["data"]["messageType"]), (&json!("a"), &json!("success")));
    assert_eq!(last["data"]["response"], json!({"redelivered": false}));
    drop(consumer);
    worker.stop().await;
    // Not settled by this test, so they are back. Persistent: they would survive a restart.
    let taken = vhost.take("q-out", 9).await?;
    assert_eq!(taken.len(), 2);
    assert!(taken.iter().all(|message| message.properties["delivery_mode"] == 2), "{taken:?}");
    assert!(vhost.take("q-in", 1).await?.is_empty(), "it was acknowledged");
    Ok(())
}

/// The kinds of the messages about a task, in their order.
fn kinds<'a>(messages: &'a [Value], task_id: &str) -> Vec<&'a str> {
    let of_task = messages.iter().filter(|message| message["taskId"] == task_id);
    of_task.filter_map(|message| message["data"]["messageType"].as_str()).collect()
}

#[tokio::test]
async fn a_redelivered_task_reports_its_start_before_it_begins() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    other.submit("a", json!({"do": "double", "n": 1})).await?;
    let mut consumer = other.0.consume("q-in", ConsumeOptions::default()).await?;
    timeout(DEADLINE, consumer.next()).await??;
    drop(consumer);
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(vhost.url(), "q").host_name("pod-1"));
    let messages = other.results(1).await?;
    assert_eq!(kinds(&messages, "a"), ["started", "success"], "{messages:?}");
    // Nobody had this one: it is short, and says all with its result.
    other.submit("b", json!({"do": "double", "n": 1})).await?;
    let messages = other.results(1).await?;
    assert_eq!(messages.last().context("nothing")?["data"]["response"], 2);
    worker.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_failure_carries_the_last_progress() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    let worker = Stage::new().run(Worker::rabbitmq(vhost.url(), "q"));
    // Of the first, progress may be told at once; of one that follows within a tenth of a second it waits.
    for task in ["a", "b", "c"] {
        other.submit(task, json!({"do": "stumble", "percent": 40})).await?;
    }
    let messages = other.results(3).await?;
    for task in ["a", "b", "c"] {
        let told = kinds(&messages, task);
        let end = told.iter().position(|kind| *kind == "failure").context("no failure")?;
        assert!(told[..end].contains(&"progress"), "{messages:?}");
    }
    worker.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_failure_says_its_kind_and_a_return_says_itself() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(vhost.url(), "q").host_name("pod-1").grace(Duration::ZERO));
    other.submit("a", json!({"do": "fail", "message": "no"})).await?;
    let messages = other.results(1).await?;
    let failure = &messages.last().context("nothing")?["data"];
    assert_eq!(
        (&failure["errorMessage"], &failure["retryable"], &failure["errorKind"]),
        (&json!("no"), &json!(false), &json!("told"))
    );
    other.submit("b", json!({"do": "wait"})).await?;
    stage.starts(2).await;
    let mut consumer = other.0.consume("q-out", ConsumeOptions::default()).await?;
    // That the first one was started may be told after its end.
    let of_b = async |consumer: &mut Consumer| loop {
        let delivery = timeout(DEADLINE, consumer.next()).await??;
        consumer.ack(delivery.tag)?;
        let text = String::from_utf8(delivery.body)?;
        if text.contains(r#""taskId":"b""#) {
            return anyhow::Ok(text);
        }
    };
    assert!(of_b(&mut consumer).await?.contains("started"));
    assert_eq!(worker.stop().await.returned, 1);
    let returned = of_b(&mut consumer).await?;
    assert_eq!(returned, r#"{"taskId":"b","data":{"messageType":"returned","hostName":"pod-1"}}"#);
    let back = vhost.take("q-in", 9).await?;
    assert!(back.len() == 1 && back[0].redelivered, "{back:?}");
    Ok(())
}

#[tokio::test]
async fn a_start_is_sent_before_its_result_or_with_it() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    let worker = Stage::new().run(Worker::rabbitmq(vhost.url(), "q").concurrency(50).host_name("pod-1"));
    for n in 0..300 {
        other.submit(&n.to_string(), json!({"do": "double", "n": n})).await?;
    }
    let messages = other.results(300).await?;
    for n in 0..300 {
        let name = n.to_string();
        let of: Vec<_> = messages.iter().filter(|message| message["taskId"] == *name).collect();
        let kinds: Vec<_> = of.iter().filter_map(|message| message["data"]["messageType"].as_str()).collect();
        let host = |at: usize| &of[at]["data"]["hostName"];
        match kinds.as_slice() {
            ["success"] => assert_eq!(host(0), "pod-1"),
            // Two calls at the same time may arrive in any order.
            ["started", "success"] => assert_eq!(host(0), "pod-1"),
            ["success", "started"] => assert_eq!(host(0), "pod-1", "it can not rely on what comes after it"),
            other => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!(worker.stop().await.done, 300);
    Ok(())
}

#[tokio::test]
async fn queues_that_are_missing_are_declared_as_old_workers_would() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(vhost.url(), "q"));
    let other = Other::at(vhost.url())?;
    let declared = async {
        while other.submit("a", json!({"do": "double", "n": 1})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, declared).await.context("the queue was never declared")?;
    other.results(1).await?;
    // Whoever asserts other properties than a queue has is refused.
    queues(&vhost).await?;
    worker.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_malformed_submission_is_rejected_and_blocks_nothing() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    for poison in ["not JSON", "{}", "[]", "\u{0}", r#"{"taskId":"x","data":{"messageType":"dance","body":{}}}"#] {
        other.publish(poison).await?;
    }
    other.submit("a", json!({"do": "double", "n": 1})).await?;
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(vhost.url(), "q"));
    other.results(1).await?;
    worker.stop().await;
    assert_eq!(stage.started(), 1);
    assert!(vhost.take("q-in", 9).await?.is_empty(), "nothing comes back for ever");
    Ok(())
}

#[tokio::test]
async fn a_queue_that_somebody_deletes_is_made_again() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(vhost.url(), "q"));
    other.submit("a", json!({"do": "wait"})).await?;
    stage.starts(1).await;
    vhost.delete_queue("q-out").await?;
    stage.let_go(1);
    other.results(1).await?;
    // The other one too: what was in it is gone, but the worker goes on.
    vhost.delete_queue("q-in").await?;
    let again = async {
        while other.submit("b", json!({"do": "double", "n": 1})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, again).await.context("the queue was never declared again")?;
    other.results(1).await?;
    worker.stop().await;
    Ok(())
}

#[tokio::test]
async fn tasks_of_a_lost_connection_are_stopped_and_run_again() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(vhost.url_via(proxy.addr())?, "q"));
    other.submit("a", json!({"do": "wait"})).await?;
    stage.starts(1).await;
    proxy.cut().await?;
    stage.stops(1).await;
    proxy.restore().await?;
    stage.starts(2).await;
    stage.let_go(1);
    let messages = other.results(1).await?;
    assert_eq!(messages.last().context("nothing")?["data"]["response"], json!({"redelivered": true}));
    let report = worker.stop().await;
    assert_eq!((report.done, report.lost), (1, 1));
    assert!(vhost.take("q-in", 1).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_result_that_is_ready_when_the_connection_is_lost_is_still_sent() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let other = queues(&vhost).await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(vhost.url_via(proxy.addr())?, "q"));
    other.submit("a", json!({"do": "wait"})).await?;
    stage.starts(1).await;
    // Silence: neither side notices for now.
    proxy.stall().await?;
    stage.let_go(1);
    proxy.cut().await?;
    proxy.restore().await?;
    let messages = other.results(1).await?;
    assert_eq!(ended(&messages).len(), 1);
    worker.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_crash_and_restart_loses_no_task() -> Result<()> {
    let mut node = RabbitMqServer::start().await?;
    let url = node.url("/");
    let other = Other::at(&url)?;
    let stage = Stage::new();
    let worker = stage.run(Worker::rabbitmq(&url, "q").concurrency(4));
    let declared = async {
        while other.submit("0", json!({"do": "double", "n": 0})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, declared).await.context("the queue was never declared")?;
    for n in 1..40 {
        other.submit(&n.to_string(), json!({"do": "wait"})).await?;
    }
    stage.starts(5).await;
    node.write_down().await?;
    node.kill9()?;
    stage.let_go(1000);
    node.restart().await?;
    let messages = other.results(40).await?;
    assert_eq!(ended(&messages).len(), 40);
    let report = worker.stop().await;
    assert_eq!(report.unsent, 0);
    Ok(())
}
