//! Converts errors of the messaging crate to those of the port.

use relais_core::TaskBrokerError;
use relais_messaging::rabbitmq::{ConsumeError, PublishError};

/// A message that could not be published.
pub(crate) fn published(error: PublishError) -> TaskBrokerError {
    match error {
        PublishError::Unroutable { routing_key, .. } => TaskBrokerError::NoQueue(routing_key),
        PublishError::Away { why } => TaskBrokerError::Away(why),
        PublishError::Blocked { .. } | PublishError::Late(_) => TaskBrokerError::Away(error.to_string()),
        PublishError::Unacceptable { why } => TaskBrokerError::Unacceptable(why),
        PublishError::NoExchange { .. } | PublishError::Refused { .. } => TaskBrokerError::Refused(error.to_string()),
    }
}

/// A queue that could not be read.
pub(crate) fn consumed(error: ConsumeError) -> TaskBrokerError {
    match error {
        ConsumeError::NoQueue { queue } | ConsumeError::QueueGone { queue } => TaskBrokerError::NoQueue(queue),
        ConsumeError::Refused { .. } => TaskBrokerError::Refused(error.to_string()),
        ConsumeError::Away { why } => TaskBrokerError::Away(why),
        ConsumeError::Late(_) | ConsumeError::Closed { .. } | ConsumeError::Cancelled => {
            TaskBrokerError::Away(error.to_string())
        }
    }
}
