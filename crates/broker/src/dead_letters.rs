//! Dead letters: messages of workers that cannot be understood. They are in a queue beside the one they came from, each
//! with an id and the reason, until an operator replays or discards them.

use std::{
    collections::HashSet,
    time::{SystemTime, UNIX_EPOCH},
};

use relais_core::{DeadLetter, Mailbox, Rejected, TaskBrokerError, TaskId, Timestamp};
use relais_messaging::rabbitmq::{Broker, Delivery, Publish, Queue, QueueKind};

use crate::error::{consumed, published};

/// The header with the reason.
const REASON: &str = "relais-reason";

/// The header with the date.
const DATE: &str = "relais-date";

/// The most characters of a reason.
const MAX_REASON: usize = 1000;

/// Stores dead letters.
pub(crate) async fn set_aside(
    broker: &Broker,
    mailbox: &Mailbox,
    rejected: Vec<Rejected>,
) -> Result<(), TaskBrokerError> {
    let queue = Queue { name: mailbox.rejected(), kind: QueueKind::Classic };
    // This queue is classic unless it exists, whatever the kind of the service's queues: to read a dead letter is a
    // delivery, and a quorum queue of RabbitMQ 4 drops a message after twenty deliveries.
    if broker.find(&queue.name).await.map_err(consumed)?.is_none() {
        broker.declare(&queue).await.map_err(consumed)?;
    }
    let date = now();
    let dead_letters = rejected.into_iter().map(|Rejected { body, reason }| {
        let reason: String = reason.chars().take(MAX_REASON).collect();
        Publish::new("", &queue.name, body)
            .message_id(TaskId::generate().to_string())
            .header(REASON, reason)
            .header(DATE, date.as_str())
    });
    let answers = broker.publish_all(dead_letters.collect()).await;
    answers.into_iter().collect::<Result<Vec<()>, _>>().map(drop).map_err(published)
}

/// Lists dead letters, the oldest first. They stay in the queue.
pub(crate) async fn list(broker: &Broker, mailbox: &Mailbox, limit: usize) -> Result<Vec<DeadLetter>, TaskBrokerError> {
    let mut dead_letters = Vec::new();
    if broker.find(&mailbox.rejected()).await.map_err(consumed)?.is_none() {
        return Ok(dead_letters);
    }
    let mut browser = broker.browse(&mailbox.rejected()).await.map_err(consumed)?;
    while dead_letters.len() < limit
        && let Some(delivery) = browser.next().await.map_err(consumed)?
    {
        dead_letters.push(dead_letter(&delivery));
    }
    browser.close().await.map_err(consumed)?;
    Ok(dead_letters)
}

/// What happens to dead letters that are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// They go back to the queue that they came from.
    Replayed,
    /// They are deleted.
    Discarded,
}

/// Removes those with these ids, or all that are there now, and returns how many.
pub(crate) async fn take_out(
    (broker, publisher): (&Broker, &Broker),
    mailbox: &Mailbox,
    ids: Option<Vec<String>>,
    disposition: Disposition,
) -> Result<u64, TaskBrokerError> {
    let Some(found) = broker.find(&mailbox.rejected()).await.map_err(consumed)? else { return Ok(0) };
    let mut wanted: Option<HashSet<String>> = ids.map(|ids| ids.into_iter().collect());
    let mut browser = broker.browse(&mailbox.rejected()).await.map_err(consumed)?;
    let mut taken = 0;
    // Not more than there were: a replayed message may become a dead letter again at once.
    for _ in 0..found.messages {
        if wanted.as_ref().is_some_and(HashSet::is_empty) {
            break;
        }
        let Some(delivery) = browser.next().await.map_err(consumed)? else { break };
        let id = name(&delivery);
        if wanted.as_mut().is_some_and(|wanted| !wanted.remove(&id)) {
            continue;
        }
        let tag = delivery.tag;
        if disposition == Disposition::Replayed {
            // Confirmed first: a dead letter may be replayed twice, and is never lost.
            let back =
                Publish::new("", mailbox.reports(), delivery.body).message_id(id).content_type("application/json");
            publisher.publish(back).await.map_err(published)?;
        }
        browser.ack(tag).map_err(consumed)?;
        taken += 1;
    }
    browser.close().await.map_err(consumed)?;
    Ok(taken)
}

fn dead_letter(delivery: &Delivery) -> DeadLetter {
    let header = |name: &str| delivery.header(name).and_then(|value| value.as_text()).unwrap_or_default().to_owned();
    DeadLetter { id: name(delivery), reason: header(REASON), at: header(DATE), body: delivery.body.clone() }
}

/// The id of a dead letter. A message that somebody else put there has none, and gets one from its delivery tag.
fn name(delivery: &Delivery) -> String {
    delivery.message_id.clone().unwrap_or_else(|| format!("nameless-{}", delivery.tag))
}

/// The same kind as the service's other queues.
pub(crate) fn kind(mailbox: &Mailbox) -> QueueKind {
    match mailbox.settings.kind {
        relais_core::QueueKind::Classic => QueueKind::Classic,
        relais_core::QueueKind::Quorum => QueueKind::Quorum,
    }
}

/// For people; nothing is decided by it.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)).to_string()
}
