//! Knowing whether a queue is still the one that it was.
//!
//! A queue that was deleted and made again, by whomever, looks the same and is empty. A witness is an exchange that is
//! bound to the queue, and that the broker deletes with its last binding: where it is gone, so is the queue that was
//! there.

use std::sync::Arc;

use lapin::{
    ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions},
    types::{FieldTable, ShortString},
};

use super::{
    Broker, ConsumeError,
    link::Link,
    queue::{check, short},
};

impl Broker {
    /// Places a witness beside a queue, which must be there. One that is there already stays.
    pub async fn place_witness(&self, witness: &str, queue: &str) -> Result<(), ConsumeError> {
        let (witness, name) = (short(witness)?, short(queue)?);
        self.request(async |link: Arc<Link>| {
            let lent = link.lend().await.map_err(|error| ConsumeError::end(&error))?;
            // First: without a queue it would stand there for nothing, and go with nothing.
            check(lent.channel(), &name).await?;
            // Nobody publishes there.
            let options =
                ExchangeDeclareOptions { durable: true, auto_delete: true, internal: true, ..Default::default() };
            declare(lent.channel(), &witness, options).await.map_err(|error| ConsumeError::answer(queue, &error))?;
            let bound = lent
                .channel()
                .queue_bind(name, witness, "".into(), QueueBindOptions::default(), FieldTable::default())
                .await;
            bound.map_err(|error| ConsumeError::answer(queue, &error))?;
            lent.give_back();
            Ok(())
        })
        .await
    }

    /// Whether a witness is there, and so the queue that it was placed beside.
    pub async fn has_witness(&self, witness: &str) -> Result<bool, ConsumeError> {
        let name = short(witness)?;
        self.request(async |link: Arc<Link>| {
            let lent = link.lend().await.map_err(|error| ConsumeError::end(&error))?;
            let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
            match declare(lent.channel(), &name, options).await {
                Ok(()) => {
                    lent.give_back();
                    Ok(true)
                }
                Err(error) => match ConsumeError::answer(witness, &error) {
                    ConsumeError::NoQueue { .. } => Ok(false),
                    error => Err(error),
                },
            }
        })
        .await
    }
}

async fn declare(channel: &lapin::Channel, name: &ShortString, options: ExchangeDeclareOptions) -> lapin::Result<()> {
    channel.exchange_declare(name.clone(), ExchangeKind::Fanout, options, FieldTable::default()).await
}
