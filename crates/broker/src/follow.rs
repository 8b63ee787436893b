//! The consumer of one queue.

use async_trait::async_trait;
use relais_core::{Incoming, TaskBrokerError, TaskConsumer};
use relais_messaging::rabbitmq::{Consumer, Delivery};

use crate::error::consumed;

/// Consumes a queue on a channel of its own. Dropping it closes the channel, and the broker redelivers what was not
/// acknowledged.
pub(crate) struct QueueConsumer(pub(crate) Consumer);

#[async_trait]
impl TaskConsumer for QueueConsumer {
    async fn next(&mut self, max: usize) -> Result<Vec<Incoming>, TaskBrokerError> {
        let deliveries = self.0.next_batch(max).await.map_err(consumed)?;
        Ok(deliveries.into_iter().map(incoming).collect())
    }

    async fn done(&mut self, through: u64) -> Result<(), TaskBrokerError> {
        self.0.ack_through(through).map_err(consumed)
    }
}

fn incoming(delivery: Delivery) -> Incoming {
    // The broker writes each queue that a message died in, the last one first.
    let death = delivery.header("x-death").and_then(|deaths| deaths.items().first());
    let reason = death.and_then(|death| death.get("reason")).and_then(|reason| reason.as_text()).map(str::to_owned);
    Incoming { tag: delivery.tag, redelivered: delivery.redelivered, reason, body: delivery.body }
}
