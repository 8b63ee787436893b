//! Revocations: tells this worker which tasks to stop.
//!
//! They arrive on an exclusive queue at the exchange `<queueName>-control`. A worker without the permission still
//! works, and finishes tasks that nobody wants. A revocation that is missed is sent again when the worker next reports
//! on the task.

use relais_messaging::rabbitmq::{Broker, ConsumeError, Consumer};
use relais_protocol::worker::StopMessage;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::Backoff;

/// The name of the exchange.
#[derive(Debug, Clone)]
pub(super) struct Control {
    broker: Broker,
    exchange: String,
}

impl Control {
    pub fn new(broker: Broker, exchange: String) -> Self {
        Self { broker, exchange }
    }

    /// Listens from when this returns, until what comes back is dropped. None, and why, if that can not be.
    pub async fn hear(
        &self,
        heed: impl Fn(StopMessage) + Send + Sync + 'static,
    ) -> Result<AbortOnDropHandle<()>, ConsumeError> {
        let (control, mut consumer) = (self.clone(), self.listen().await?);
        Ok(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let end = follow(&mut consumer, &heed).await;
                tracing::debug!(exchange = control.exchange, error = %end, "not heard any more; trying again");
                match control.listen_again().await {
                    Some(again) => consumer = again,
                    None => return,
                }
            }
        })))
    }

    async fn listen(&self) -> Result<Consumer, ConsumeError> {
        // Another name each time: the queue of a connection that is about to be lost still has the last one.
        let name = format!("{}.{:016x}", self.exchange, getrandom::u64().unwrap_or_default());
        self.broker.listen(&self.exchange, &name).await
    }

    /// None if it is not allowed any more.
    async fn listen_again(&self) -> Option<Consumer> {
        let mut backoff = Backoff::default();
        loop {
            tokio::time::sleep(backoff.next()).await;
            match self.listen().await {
                Ok(consumer) => return Some(consumer),
                Err(ConsumeError::Refused { .. }) => return None,
                Err(_) => {}
            }
        }
    }
}

async fn follow(consumer: &mut Consumer, heed: &(impl Fn(StopMessage) + Sync)) -> ConsumeError {
    loop {
        match consumer.next().await {
            Ok(delivery) => heed(understand(&delivery.body)),
            Err(end) => return end,
        }
    }
}

/// What a message says. The rest of it is of a version that says more than is understood here.
fn understand(text: &[u8]) -> StopMessage {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(borrow)]
        outcomes: Vec<&'a RawValue>,
    }
    let outcomes = serde_json::from_slice::<Wire<'_>>(text).map(|wire| wire.outcomes).unwrap_or_default();
    StopMessage { outcomes: outcomes.iter().filter_map(|told| serde_json::from_str(told.get()).ok()).collect() }
}

#[cfg(test)]
mod tests {
    use relais_protocol::worker::OutcomeKind;

    use super::*;

    #[test]
    fn an_unknown_control_message_is_ignored() {
        let told = br#"{"more":1,"outcomes":[{"taskId":"a"},7,{"taskId":"b","outcome":"frozen","revision":1},
            {"taskId":"c","outcome":"lost","revision":2,"more":3}]}"#;
        let understood = understand(told).outcomes;
        assert_eq!(understood.len(), 1);
        assert_eq!((understood[0].task_id.as_str(), understood[0].outcome), ("c", OutcomeKind::Lost));
        for nonsense in ["", "7", "{}", r#"{"outcomes":7}"#] {
            assert!(understand(nonsense.as_bytes()).outcomes.is_empty());
        }
    }
}
