//! What was set aside: operators look at it, put it back, or forget it.

use std::sync::Arc;

use relais_core::{Carrier, CarrierError, DeadLetter, Mailbox, Transport};

use super::mailbox;
use crate::{Engine, EngineError};

/// At most so many are shown.
pub const MOST_LETTERS: usize = 1000;

impl Engine {
    /// The messages of a service's workers that were set aside, the oldest first.
    pub async fn dead_letters(&self, service: &str, limit: usize) -> Result<Vec<DeadLetter>, EngineError> {
        match self.letterbox(service).await? {
            Some((carrier, mailbox)) => {
                carrier.dead_letters(&mailbox, limit.min(MOST_LETTERS)).await.map_err(EngineError::Broker)
            }
            None => Ok(Vec::new()),
        }
    }

    /// One of them.
    pub async fn dead_letter(&self, service: &str, id: &str) -> Result<DeadLetter, EngineError> {
        let letters = self.dead_letters(service, MOST_LETTERS).await?;
        letters.into_iter().find(|letter| letter.id == id).ok_or(EngineError::DeadLetterNotFound)
    }

    /// Puts messages back to be understood once more: those with these names, or all. Tells how many.
    pub async fn replay_letters(&self, service: &str, ids: Option<Vec<String>>) -> Result<u64, EngineError> {
        match self.letterbox(service).await? {
            Some((carrier, mailbox)) => carrier.replay(&mailbox, ids).await.map_err(EngineError::Broker),
            None => Ok(0),
        }
    }

    /// Forgets messages: those with these names, or all. Tells how many.
    pub async fn discard_letters(&self, service: &str, ids: Option<Vec<String>>) -> Result<u64, EngineError> {
        match self.letterbox(service).await? {
            Some((carrier, mailbox)) => carrier.discard(&mailbox, ids).await.map_err(EngineError::Broker),
            None => Ok(0),
        }
    }

    /// Where a service's letters are; none if it has no broker, and so no letters.
    async fn letterbox(&self, service: &str) -> Result<Option<(Arc<dyn Carrier>, Mailbox)>, EngineError> {
        let service = self.declared_service(service).await?;
        if service.transport == Transport::Builtin {
            return Ok(None);
        }
        let none = || EngineError::Broker(CarrierError::Away("this server has none".to_owned()));
        let carrier = self.0.options.dispatch.carrier.clone().ok_or_else(none)?;
        Ok(Some((carrier, mailbox(&service))))
    }
}
