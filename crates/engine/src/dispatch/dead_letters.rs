//! Dead letters: operators list, replay and discard them.

use std::sync::Arc;

use relais_core::{DeadLetter, Mailbox, Service, TaskBroker, TaskBrokerError, TaskBrokerState};
use relais_protocol::broker::{BrokerView, DeadLetterView};

use super::mailbox;
use crate::{Engine, EngineError, Problem};

/// The most dead letters of a service that are searched.
pub const MOST_DEAD_LETTERS: usize = 1000;

/// How much of a message a list shows.
const SHOWN: usize = 200;

impl Engine {
    /// The state of the broker, and the services that use it.
    pub fn broker(&self) -> Result<BrokerView, EngineError> {
        self.snapshot()?;
        let (state, reason) = match self.0.options.dispatch.task_broker.as_ref().map(|task_broker| task_broker.state())
        {
            None => ("none", None),
            Some(TaskBrokerState::Up) => ("up", None),
            Some(TaskBrokerState::Blocked(why)) => ("blocked", Some(why)),
            Some(TaskBrokerState::Away(why)) => ("away", Some(why)),
        };
        let (services, lost) = (self.brokered(), self.0.dispatcher.lost());
        let name = |service: &Arc<Service>| service.name.to_string();
        Ok(BrokerView {
            state: state.to_owned(),
            reason,
            lost: services.iter().filter(|service| lost.contains(&service.key)).map(name).collect(),
            services: services.iter().map(name).collect(),
        })
    }

    /// The dead letters of one service or of all, the oldest of each first.
    pub async fn dead_letters(&self, service: Option<&str>, limit: usize) -> Result<Vec<DeadLetterView>, EngineError> {
        let services = match service {
            Some(service) => vec![service.to_owned()],
            None => self.brokered().iter().map(|service| service.name.to_string()).collect(),
        };
        let mut shown = Vec::new();
        for service in services {
            let Some((task_broker, mailbox)) = self.rejected_queue(&service).await? else { continue };
            let left = limit.min(MOST_DEAD_LETTERS) - shown.len();
            let letters = task_broker.dead_letters(&mailbox, left).await.map_err(EngineError::Broker)?;
            shown.extend(letters.into_iter().map(|letter| view(&service, letter, SHOWN)));
            if shown.len() == limit {
                break;
            }
        }
        Ok(shown)
    }

    /// One dead letter, whole.
    pub async fn dead_letter(&self, service: &str, id: &str) -> Result<DeadLetterView, EngineError> {
        let Some((task_broker, mailbox)) = self.rejected_queue(service).await? else {
            return Err(EngineError::DeadLetterNotFound);
        };
        let letters = task_broker.dead_letters(&mailbox, MOST_DEAD_LETTERS).await.map_err(EngineError::Broker)?;
        let letter = letters.into_iter().find(|letter| letter.id == id).ok_or(EngineError::DeadLetterNotFound)?;
        Ok(view(service, letter, usize::MAX))
    }

    /// Replays dead letters: those with these ids, or all. Returns how many.
    pub async fn replay_dead_letters(&self, service: &str, ids: Option<Vec<String>>) -> Result<u64, EngineError> {
        judge(ids.as_deref())?;
        let Some((task_broker, mailbox)) = self.rejected_queue(service).await? else { return Ok(0) };
        let count = task_broker.replay(&mailbox, ids).await.map_err(EngineError::Broker)?;
        self.dead_letters_removed(service, count);
        Ok(count)
    }

    /// Discards dead letters: those with these ids, or all. Returns how many.
    pub async fn discard_dead_letters(&self, service: &str, ids: Option<Vec<String>>) -> Result<u64, EngineError> {
        judge(ids.as_deref())?;
        let Some((task_broker, mailbox)) = self.rejected_queue(service).await? else { return Ok(0) };
        let count = task_broker.discard(&mailbox, ids).await.map_err(EngineError::Broker)?;
        self.dead_letters_removed(service, count);
        Ok(count)
    }

    fn dead_letters_removed(&self, service: &str, count: u64) {
        if let Some(service) = self.snapshot().ok().and_then(|s| s.declared.services.get(service).cloned()) {
            self.0.dispatcher.uncount_dead_letters(service.key, count);
        }
    }

    /// The queues of a service; none if it has no broker, and so no dead letters.
    async fn rejected_queue(&self, service: &str) -> Result<Option<(Arc<dyn TaskBroker>, Mailbox)>, EngineError> {
        let service = self.declared_service(service).await?;
        if !service.transport.is_brokered() {
            return Ok(None);
        }
        let none = || EngineError::Broker(TaskBrokerError::Away("this server has none".to_owned()));
        let task_broker = self.0.options.dispatch.task_broker.clone().ok_or_else(none)?;
        Ok(Some((task_broker, mailbox(&service))))
    }
}

fn judge(ids: Option<&[String]>) -> Result<(), EngineError> {
    match ids {
        Some(ids) if ids.is_empty() || ids.len() > MOST_DEAD_LETTERS => {
            let message = format!("must have between 1 and {MOST_DEAD_LETTERS} entries");
            Err(EngineError::Invalid(vec![Problem::at("/ids", message)]))
        }
        _ => Ok(()),
    }
}

fn view(service: &str, letter: DeadLetter, most: usize) -> DeadLetterView {
    let message: String = String::from_utf8_lossy(&letter.body).chars().take(most).collect();
    DeadLetterView {
        id: letter.id,
        service: service.to_owned(),
        reason: letter.reason,
        date: Some(letter.at).filter(|at| !at.is_empty()),
        bytes: letter.body.len(),
        message,
    }
}
