//! Dead letters: messages of workers that can not be understood. They lie in a queue beside the one they came from, each
//! with a name and the reason, until an operator puts them back or forgets them.

use std::{
    collections::HashSet,
    time::{SystemTime, UNIX_EPOCH},
};

use relais_core::{DeadLetter, Mailbox, Rejected, TaskBrokerError, TaskId, Timestamp};
use relais_messaging::rabbitmq::{Broker, Delivery, Publish, Queue, QueueKind};

use crate::error::{consumed, published};

/// Why it was set aside.
const REASON: &str = "relais-reason";

/// When.
const DATE: &str = "relais-date";

/// A reason is for people.
const MAX_REASON: usize = 1000;

/// Sets messages aside.
pub(crate) async fn set_aside(
    broker: &Broker,
    mailbox: &Mailbox,
    rejected: Vec<Rejected>,
) -> Result<(), TaskBrokerError> {
    let queue = Queue { name: mailbox.rejected(), kind: QueueKind::Classic };
    // Whatever kind the service's queues are of, this one is classic unless it is there: to look at a letter is to be handed it,
    // and a quorum queue of RabbitMQ 4 drops what it has handed out twenty times.
    if broker.find(&queue.name).await.map_err(consumed)?.is_none() {
        broker.declare(&queue).await.map_err(consumed)?;
    }
    let date = now();
    let letters = rejected.into_iter().map(|Rejected { body, reason }| {
        let reason: String = reason.chars().take(MAX_REASON).collect();
        Publish::new("", &queue.name, body)
            .message_id(TaskId::generate().to_string())
            .header(REASON, reason)
            .header(DATE, date.as_str())
    });
    let answers = broker.publish_all(letters.collect()).await;
    answers.into_iter().collect::<Result<Vec<()>, _>>().map(drop).map_err(published)
}

/// Looks at them, the oldest first. They stay where they are.
pub(crate) async fn list(broker: &Broker, mailbox: &Mailbox, limit: usize) -> Result<Vec<DeadLetter>, TaskBrokerError> {
    let mut letters = Vec::new();
    if broker.find(&mailbox.rejected()).await.map_err(consumed)?.is_none() {
        return Ok(letters);
    }
    let mut browser = broker.browse(&mailbox.rejected()).await.map_err(consumed)?;
    while letters.len() < limit
        && let Some(delivery) = browser.next().await.map_err(consumed)?
    {
        letters.push(letter(&delivery));
    }
    browser.close().await.map_err(consumed)?;
    Ok(letters)
}

/// What becomes of letters that are taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Back to where they came from.
    Replayed,
    /// Forgotten.
    Discarded,
}

/// Takes out those with these names, or all that are there now; tells how many.
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
    // Not more than there were: what is put back may be set aside again at once.
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
            // Confirmed first: a letter may be replayed twice, and is never lost.
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

fn letter(delivery: &Delivery) -> DeadLetter {
    let header = |name: &str| delivery.header(name).and_then(|value| value.as_text()).unwrap_or_default().to_owned();
    DeadLetter { id: name(delivery), reason: header(REASON), at: header(DATE), body: delivery.body.clone() }
}

/// What a letter is called. One that somebody else put there has no name, and is called by its place.
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
