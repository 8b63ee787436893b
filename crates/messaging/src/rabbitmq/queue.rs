//! Declaring queues.

use std::sync::Arc;

use lapin::{
    Channel,
    options::QueueDeclareOptions,
    protocol::AMQPSoftError,
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{Broker, ConsumeError, error::soft, link::Link};

/// A queue that there should be: durable, and plain. Dead letters, limits and the like are an operator's policies
/// ([`Management::put_policy`](super::Management::put_policy)), which can be changed while the queue is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// What it is made of, if there is none yet.
    pub kind: QueueKind,
}

/// What a queue is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueKind {
    /// On one node.
    #[default]
    Classic,
    /// On most nodes of a cluster; counts how often a message is handed out.
    Quorum,
}

/// What was found, or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeclaredQueue {
    /// Whether it was there before. Then it is used as it is, whatever it is made of.
    pub existed: bool,
    /// How many messages wait in it.
    pub messages: u32,
    /// How many consume it.
    pub consumers: u32,
}

impl Broker {
    /// Looks at a queue, if there is one.
    pub async fn find(&self, queue: &str) -> Result<Option<DeclaredQueue>, ConsumeError> {
        let name = short(queue)?;
        self.request(async |link: Arc<Link>| find(&link, &name).await).await
    }

    /// Makes sure that there is a queue. One that exists is left as it is.
    pub async fn declare(&self, queue: &Queue) -> Result<DeclaredQueue, ConsumeError> {
        let name = short(&queue.name)?;
        self.request(async |link: Arc<Link>| {
            if let Some(found) = find(&link, &name).await? {
                return Ok(found);
            }
            let mut arguments = FieldTable::default();
            if queue.kind == QueueKind::Quorum {
                arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
            }
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            match ask(&link, &name, options, arguments).await? {
                Ok(made) => Ok(DeclaredQueue { existed: false, ..made }),
                // Somebody else was faster, and made another one.
                Err(error) if soft(&error) == Some(&AMQPSoftError::PRECONDITIONFAILED) => {
                    find(&link, &name).await?.ok_or_else(|| ConsumeError::answer(&queue.name, &error))
                }
                Err(error) => Err(ConsumeError::answer(&queue.name, &error)),
            }
        })
        .await
    }
}

/// A queue, if it exists.
pub(super) async fn find(link: &Arc<Link>, name: &ShortString) -> Result<Option<DeclaredQueue>, ConsumeError> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    match ask(link, name, options, FieldTable::default()).await? {
        Ok(found) => Ok(Some(found)),
        Err(error) => match ConsumeError::answer(name.as_str(), &error) {
            ConsumeError::NoQueue { .. } => Ok(None),
            error => Err(error),
        },
    }
}

/// Asks in a channel that may be closed for it.
async fn ask(
    link: &Arc<Link>,
    name: &ShortString,
    options: QueueDeclareOptions,
    arguments: FieldTable,
) -> Result<lapin::Result<DeclaredQueue>, ConsumeError> {
    let lent = link.lend().await.map_err(|error| ConsumeError::end(&error))?;
    let answer = lent.channel().queue_declare(name.clone(), options, arguments).await;
    if answer.is_ok() {
        lent.give_back();
    }
    Ok(answer.map(|queue| DeclaredQueue {
        existed: true,
        messages: queue.message_count(),
        consumers: queue.consumer_count(),
    }))
}

/// Whether the queue is there, asked in a channel that will be used for it.
pub(super) async fn check(channel: &Channel, name: &ShortString) -> Result<(), ConsumeError> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(name.clone(), options, FieldTable::default()).await;
    found.map(drop).map_err(|error| ConsumeError::answer(name.as_str(), &error))
}

/// A name, if it can be one.
pub(super) fn short(name: &str) -> Result<ShortString, ConsumeError> {
    let name = ShortString::try_new(name);
    name.map_err(|_| ConsumeError::Refused { why: "a name is longer than 255 bytes".to_owned() })
}
