//! The callback sender over AMQP: publishes to the exchange or the queue that the operator declared for the client.
//!
//! A client names a destination and never an exchange, so it reaches nothing that was not declared for it. A callback
//! is delivered when the broker has it on disk. It is written and signed like a webhook, with the same names of
//! headers, so that a receiver checks both kinds the same way. The message id is the id of the callback, so that
//! receivers can drop duplicates.
//!
//! Nothing is declared here: a missing queue is reported to the operator.

use async_trait::async_trait;
use relais_core::{
    CallbackDelivery, CallbackSender, CallbackType, Client, Destination, NotAllowed, Reply, ReplyOutcome,
};
use relais_messaging::rabbitmq::{Broker, Publish, PublishError};

use crate::{gzip::gzip, signature};

/// Sends callbacks of the type `amqp`.
#[derive(Debug, Clone)]
pub struct AmqpSender {
    broker: Broker,
}

impl AmqpSender {
    /// A callback sender that publishes to this broker. How long a try may take is the broker's setting.
    pub fn new(broker: Broker) -> Self {
        Self { broker }
    }
}

#[async_trait]
impl CallbackSender for AmqpSender {
    fn judge(&self, kind: CallbackType, target: &str, client: &Client) -> Result<String, NotAllowed> {
        let destination = destination(kind, target, client)?;
        Ok(format!("amqp:{}", destination.name))
    }

    async fn send(&self, delivery: &CallbackDelivery) -> Reply {
        let message = match message(delivery).await {
            Ok(message) => message,
            Err(NotAllowed(why)) => return reply(ReplyOutcome::Forbidden, Some(why)),
        };
        match self.broker.publish(message).await {
            Ok(()) => reply(ReplyOutcome::Delivered, None),
            Err(error) => reply(outcome(&error), Some(error.to_string())),
        }
    }
}

fn destination<'a>(kind: CallbackType, target: &str, client: &'a Client) -> Result<&'a Destination, NotAllowed> {
    if kind != CallbackType::Amqp {
        return Err(NotAllowed(format!("a callback of type {} is not a message", kind.as_str())));
    }
    let declared = client.destinations.iter().find(|destination| destination.name == target);
    declared.ok_or_else(|| NotAllowed(format!("no destination {target:?} is declared for this client")))
}

/// The message to publish; or why there is none.
async fn message(delivery: &CallbackDelivery) -> Result<Publish, NotAllowed> {
    let Destination { exchange, routing_key, .. } = destination(delivery.kind, &delivery.target, &delivery.client)?;
    let signed =
        signature::sign_all(&delivery.client.signing_secrets, &delivery.id, delivery.now, delivery.body.as_bytes());
    let signature = signed.map_err(|error| NotAllowed(format!("the callback can not be signed: {error}")))?;
    let mut message = Publish::new(exchange, routing_key, Vec::new())
        .message_id(&delivery.id)
        .content_type("application/json")
        .header("webhook-id", &delivery.id)
        .header("webhook-timestamp", signature::seconds(delivery.now).to_string());
    if let Some(signature) = signature {
        message = message.header("webhook-signature", signature);
    }
    if let Some(trace) = &delivery.trace {
        message = message.header("traceparent", trace.traceparent());
        if let Some(state) = trace.tracestate() {
            message = message.header("tracestate", state);
        }
    }
    if delivery.gzip {
        // Writing to memory does not fail.
        let compressed = gzip(delivery.body.as_bytes()).await;
        message.body = compressed.map_err(|_| NotAllowed("the body could not be compressed".to_owned()))?;
        message = message.content_encoding("gzip");
    } else {
        message.body = delivery.body.clone().into_bytes();
    }
    Ok(message)
}

/// Whether the broker is at fault, and everything for it should wait; or only this destination.
fn outcome(error: &PublishError) -> ReplyOutcome {
    if error.is_away() {
        ReplyOutcome::Unwell { retry_after: None }
    } else {
        ReplyOutcome::Refused { retry_after: None }
    }
}

fn reply(outcome: ReplyOutcome, error: Option<String>) -> Reply {
    Reply { outcome, status: None, error, answer: None }
}
