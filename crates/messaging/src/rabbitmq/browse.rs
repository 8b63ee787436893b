//! Looking at what is in a queue without taking it.

use std::{sync::Arc, time::Duration};

use lapin::{options::BasicGetOptions, types::ShortString};
use tokio::time::timeout;

use super::{
    Acker, Broker, ConsumeError, Delivery,
    link::Link,
    queue::{check, short},
};

/// Looks at one message after the other, from the front of a queue. Nobody else is handed them meanwhile.
///
/// What was not [acked](Self::ack) goes back with [`close`](Self::close), or when this is dropped: in a classic queue
/// to its old place, in a quorum queue to the front, in no certain order. A quorum queue also counts each look as a
/// delivery: with a limit on deliveries, looking often enough makes dead letters.
pub struct Browser {
    acker: Acker,
    queue: ShortString,
    limit: Duration,
    /// Keeps the connection.
    _broker: Broker,
}

impl Broker {
    /// Looks at what is in a queue.
    pub async fn browse(&self, queue: &str) -> Result<Browser, ConsumeError> {
        let name = short(queue)?;
        self.request(async |link: Arc<Link>| {
            let channel = link.open().await.map_err(|error| ConsumeError::end(&error))?;
            check(&channel, &name).await?;
            let limit = self.options().publish_timeout;
            Ok(Browser { acker: Acker::new(channel, link), queue: name, limit, _broker: self.clone() })
        })
        .await
    }
}

impl Browser {
    /// The next message, if there is one.
    pub async fn next(&mut self) -> Result<Option<Delivery>, ConsumeError> {
        let getting = self.acker.channel().basic_get(self.queue.clone(), BasicGetOptions { no_ack: false });
        let got = timeout(self.limit, self.acker.link().unless_gone(getting)).await;
        match got.map_err(|_| ConsumeError::Late(self.limit))?.ok_or_else(ConsumeError::lost)? {
            Ok(message) => Ok(message.map(|message| Delivery::new(message.delivery))),
            Err(error) => Err(ConsumeError::answer(self.queue.as_str(), &error)),
        }
    }

    /// Takes a message out of the queue for good.
    pub fn ack(&self, tag: u64) -> Result<(), ConsumeError> {
        self.acker.ack(tag)
    }

    /// Gives back what was not acked, and waits until the broker has it.
    pub async fn close(self) -> Result<(), ConsumeError> {
        let closing = self.acker.channel().close(200, "looked".into());
        let closed = timeout(self.limit, self.acker.link().unless_gone(closing)).await;
        let closed = closed.map_err(|_| ConsumeError::Late(self.limit))?.ok_or_else(ConsumeError::lost)?;
        closed.map_err(|error| ConsumeError::end(&error))
    }
}
