//! The conformance suite of the [`TaskBroker`] port: what every broker must guarantee.
//!
//! A driver's own test implements [`BrokerHarness`], which plays the workers on the other side, and names it to
//! [`broker_suite!`](crate::broker_suite). Nothing here knows AMQP.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use relais_core::{
    Incoming, Mailbox, OutgoingMessage, Priority, QueueSettings, QueueSight, Rejected, Side, TaskBroker,
    TaskBrokerError, TaskConsumer, TaskId,
};
use tokio::time::timeout;

/// For whatever should happen soon, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A broker with nothing in it, and the workers behind it.
#[async_trait]
pub trait BrokerHarness: Send + Sync {
    /// The broker under test.
    fn broker(&self) -> Arc<dyn TaskBroker>;

    /// Takes so many tasks from a queue as a worker would, and acknowledges them.
    async fn take(&self, queue: &str, count: usize) -> Result<Vec<Vec<u8>>>;

    /// Sends messages to a queue as a worker would, in this order.
    async fn report(&self, queue: &str, bodies: Vec<Vec<u8>>) -> Result<()>;

    /// Deletes a queue, as an operator might.
    async fn delete(&self, queue: &str) -> Result<()>;
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<impl BrokerHarness>`.
#[macro_export]
macro_rules! broker_suite {
    ($harness:ident) => {
        $crate::broker_suite! { @tests $harness;
            tasks_arrive_in_the_order_in_which_they_were_sent,
            a_message_to_a_missing_queue_is_refused_alone,
            a_queue_of_tasks_is_missing_until_it_is_prepared,
            preparing_again_keeps_what_is_in_the_queue,
            a_deleted_queue_of_tasks_is_found_missing,
            consuming_reports_creates_no_queue_of_tasks,
            reports_that_are_done_are_not_delivered_again_and_others_are,
            a_consumer_holds_no_more_messages_than_it_asked_for,
            rejected_messages_are_listed_replayed_and_discarded,
            the_broker_says_when_it_is_up,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::broker_suite::$promise(&$harness().await?).await
        })*
    };
}

fn mailbox() -> Mailbox {
    Mailbox { name: "images".to_owned(), settings: QueueSettings::default(), delivery_limit: 5 }
}

fn message(queue: &str, body: &str) -> OutgoingMessage {
    OutgoingMessage {
        task_id: TaskId::generate(),
        queue: queue.to_owned(),
        body: body.as_bytes().to_vec(),
        correlation_id: None,
        trace: None,
        priority: Priority::default(),
    }
}

fn bodies(count: usize) -> Vec<String> {
    (0..count).map(|n| format!(r#"{{"n":{n}}}"#)).collect()
}

async fn prepared(harness: &impl BrokerHarness) -> Result<(Arc<dyn TaskBroker>, Mailbox)> {
    let (broker, mailbox) = (harness.broker(), mailbox());
    timeout(DEADLINE, broker.until_up()).await.context("the broker comes up")?;
    broker.prepare(&mailbox, true).await?;
    Ok((broker, mailbox))
}

async fn consumer(broker: &dyn TaskBroker, mailbox: &Mailbox, ahead: u16) -> Result<Box<dyn TaskConsumer>> {
    broker.follow(mailbox, Side::Reports, ahead).await?.context("every broker has reports")
}

/// Receives so many messages, in as many portions as they come.
async fn receive(consumer: &mut Box<dyn TaskConsumer>, count: usize) -> Result<Vec<Incoming>> {
    let mut received = Vec::new();
    while received.len() < count {
        let left = count - received.len();
        received.extend(timeout(DEADLINE, consumer.next(left)).await.context("messages arrive")??);
    }
    Ok(received)
}

fn texts(messages: &[Incoming]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect()
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn tasks_arrive_in_the_order_in_which_they_were_sent(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = prepared(harness).await?;
    let bodies = bodies(200);
    for part in bodies.chunks(50) {
        let sent = broker.send(part.iter().map(|body| message(&mailbox.tasks(), body)).collect()).await;
        ensure!(sent.iter().all(Result::is_ok) && sent.len() == part.len(), "{sent:?}");
    }
    let taken = harness.take(&mailbox.tasks(), bodies.len()).await?;
    ensure!(taken == bodies.iter().map(|body| body.as_bytes().to_vec()).collect::<Vec<_>>());
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn a_message_to_a_missing_queue_is_refused_alone(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = prepared(harness).await?;
    let tasks = mailbox.tasks();
    let sent = broker.send(vec![message(&tasks, "1"), message("nowhere-in", "2"), message(&tasks, "3")]).await;
    ensure!(sent[0].is_ok() && sent[2].is_ok(), "{sent:?}");
    ensure!(matches!(sent[1], Err(TaskBrokerError::NoQueue(_))), "{sent:?}");
    ensure!(harness.take(&tasks, 2).await? == [b"1".to_vec(), b"3".to_vec()]);
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn a_queue_of_tasks_is_missing_until_it_is_prepared(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = (harness.broker(), mailbox());
    timeout(DEADLINE, broker.until_up()).await.context("the broker comes up")?;
    ensure!(broker.look(&mailbox).await? == QueueSight::Missing);
    broker.prepare(&mailbox, true).await?;
    ensure!(matches!(broker.look(&mailbox).await?, QueueSight::There { waiting: 0, workers: 0, .. }));
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn preparing_again_keeps_what_is_in_the_queue(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = prepared(harness).await?;
    let sent = broker.send(vec![message(&mailbox.tasks(), "kept")]).await;
    ensure!(sent[0].is_ok(), "{sent:?}");
    broker.prepare(&mailbox, false).await?;
    ensure!(harness.take(&mailbox.tasks(), 1).await? == [b"kept".to_vec()]);
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn a_deleted_queue_of_tasks_is_found_missing(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = prepared(harness).await?;
    harness.delete(&mailbox.tasks()).await?;
    ensure!(broker.look(&mailbox).await? == QueueSight::Missing);
    let sent = broker.send(vec![message(&mailbox.tasks(), "lost")]).await;
    ensure!(matches!(sent[0], Err(TaskBrokerError::NoQueue(_))), "{sent:?}");
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn consuming_reports_creates_no_queue_of_tasks(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = (harness.broker(), mailbox());
    timeout(DEADLINE, broker.until_up()).await.context("the broker comes up")?;
    let _consumer = consumer(&*broker, &mailbox, 10).await?;
    ensure!(broker.look(&mailbox).await? == QueueSight::Missing, "or nobody would know what was in it");
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn reports_that_are_done_are_not_delivered_again_and_others_are(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = prepared(harness).await?;
    let mut first = consumer(&*broker, &mailbox, 10).await?;
    let bodies = bodies(3);
    harness.report(&mailbox.reports(), bodies.iter().map(|body| body.as_bytes().to_vec()).collect()).await?;
    let received = receive(&mut first, 3).await?;
    ensure!(texts(&received) == bodies, "in their order: {received:?}");
    first.done(received[1].tag).await?;
    drop(first);
    let mut second = consumer(&*broker, &mailbox, 10).await?;
    let again = receive(&mut second, 1).await?;
    ensure!(texts(&again) == bodies[2..] && again[0].redelivered, "{again:?}");
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn a_consumer_holds_no_more_messages_than_it_asked_for(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = prepared(harness).await?;
    let (mut first, mut second) = (consumer(&*broker, &mailbox, 2).await?, consumer(&*broker, &mailbox, 2).await?);
    harness.report(&mailbox.reports(), bodies(4).into_iter().map(String::into_bytes).collect()).await?;
    // Neither acknowledges: each has its two, and no more.
    let (one, two) = (receive(&mut first, 2).await?, receive(&mut second, 2).await?);
    let mut all = [texts(&one), texts(&two)].concat();
    all.sort_unstable();
    ensure!(all == bodies(4));
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn rejected_messages_are_listed_replayed_and_discarded(harness: &impl BrokerHarness) -> Result<()> {
    let (broker, mailbox) = prepared(harness).await?;
    let mut reports = consumer(&*broker, &mailbox, 10).await?;
    let rejected = |body: &str| Rejected { body: body.as_bytes().to_vec(), reason: format!("{body} is no JSON") };
    broker.set_aside(&mailbox, vec![rejected("first"), rejected("second"), rejected("third")]).await?;
    let letters = broker.dead_letters(&mailbox, 10).await?;
    let listed: Vec<_> = letters.iter().map(|letter| (letter.body.as_slice(), letter.reason.as_str())).collect();
    ensure!(
        listed
            == [(&b"first"[..], "first is no JSON"), (b"second", "second is no JSON"), (b"third", "third is no JSON")],
        "the oldest first: {listed:?}"
    );
    ensure!(broker.replay(&mailbox, Some(vec![letters[1].id.clone()])).await? == 1);
    ensure!(texts(&receive(&mut reports, 1).await?) == ["second"], "where it came from");
    ensure!(broker.discard(&mailbox, Some(vec![letters[0].id.clone()])).await? == 1);
    let left = broker.dead_letters(&mailbox, 10).await?;
    ensure!(left.iter().map(|letter| &letter.id).eq([&letters[2].id]), "{left:?}");
    ensure!(broker.discard(&mailbox, None).await? == 1 && broker.dead_letters(&mailbox, 10).await?.is_empty());
    Ok(())
}

#[expect(missing_docs, reason = "the name is the promise")]
pub async fn the_broker_says_when_it_is_up(harness: &impl BrokerHarness) -> Result<()> {
    let broker = harness.broker();
    timeout(DEADLINE, broker.until_up()).await.context("the broker comes up")?;
    ensure!(broker.state() == relais_core::TaskBrokerState::Up);
    ensure!(timeout(Duration::ZERO, broker.until_down()).await.is_err());
    Ok(())
}
