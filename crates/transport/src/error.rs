//! What the broker's errors mean to somebody who carries tasks.

use relais_core::CarrierError;
use relais_messaging::rabbitmq::{ConsumeError, PublishError};

/// A message that could not be published.
pub(crate) fn published(error: PublishError) -> CarrierError {
    match error {
        PublishError::Unroutable { routing_key, .. } => CarrierError::NoQueue(routing_key),
        PublishError::Away { why } => CarrierError::Away(why),
        PublishError::Blocked { .. } | PublishError::Late(_) => CarrierError::Away(error.to_string()),
        PublishError::Unacceptable { why } => CarrierError::Unacceptable(why),
        PublishError::NoExchange { .. } | PublishError::Refused { .. } => CarrierError::Refused(error.to_string()),
    }
}

/// A queue that could not be read.
pub(crate) fn consumed(error: ConsumeError) -> CarrierError {
    match error {
        ConsumeError::NoQueue { queue } | ConsumeError::QueueGone { queue } => CarrierError::NoQueue(queue),
        ConsumeError::Refused { .. } => CarrierError::Refused(error.to_string()),
        ConsumeError::Away { why } => CarrierError::Away(why),
        ConsumeError::Late(_) | ConsumeError::Closed { .. } | ConsumeError::Cancelled => {
            CarrierError::Away(error.to_string())
        }
    }
}
