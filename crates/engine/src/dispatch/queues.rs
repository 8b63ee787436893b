//! Declares the queues of all services: at the start, after a declaration, when the broker is back, when a queue was
//! missing, and periodically.

use std::{sync::Arc, time::Duration};

use relais_core::{QueueSight, Service, StoreError, TaskBroker, TaskBrokerError};

use super::mailbox;
use crate::{Engine, EngineError, error::chain};

/// How often it checks.
const PERIOD: Duration = Duration::from_secs(10);

/// How soon it checks again while a queue is missing.
const SOON: Duration = Duration::from_secs(1);

/// The chore: of several processes that find a queue missing, one has its tasks dispatched again.
const TURN: Duration = Duration::from_secs(5);

/// The period of that chore: it is not repeated within it.
const EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Checks the queues until the engine stops.
pub(super) async fn run(engine: Engine, task_broker: Arc<dyn TaskBroker>) {
    let mut declared = engine.0.registry.changes();
    loop {
        tokio::select! {
            () = task_broker.until_up() => {}
            () = engine.0.stopping.cancelled() => return,
        }
        let mut period = PERIOD.min(engine.0.options.dispatch.patience / 2);
        for service in engine.brokered() {
            let kept = tokio::select! {
                kept = keep(&engine, task_broker.as_ref(), &service) => kept,
                () = engine.0.stopping.cancelled() => return,
            };
            match kept {
                Ok(QueueCheck::There) => {}
                Ok(QueueCheck::Soon) => period = SOON,
                Err(error) => {
                    period = SOON;
                    tracing::debug!(service = %service.name, error, "its queues could not be looked at");
                }
            }
        }
        tokio::select! {
            () = engine.0.dispatcher.queues_bell.notified() => {}
            // The other end is the engine's.
            _ = declared.changed() => {}
            () = task_broker.until_down() => {}
            () = tokio::time::sleep(period) => {}
            () = engine.0.stopping.cancelled() => return,
        }
    }
}

/// Whether a service's queues exist.
enum QueueCheck {
    There,
    /// Another process is about to declare them.
    Soon,
}

/// Makes sure that a service's queues exist. The tasks of a missing queue are dispatched again: that is written before
/// the queue is declared, so that it is not lost if the process dies in between.
async fn keep(engine: &Engine, task_broker: &dyn TaskBroker, service: &Service) -> Result<QueueCheck, String> {
    let words = |error: TaskBrokerError| error.to_string();
    let store = |error: EngineError| chain(&error);
    let mailbox = mailbox(service);
    let sight = task_broker.look(&mailbox).await.map_err(words)?;
    let missing = sight == QueueSight::Missing;
    // Not declared without the chore. If another process did it, the queue exists at the next check; if it is missing
    // for the second time, its tasks must be written once more.
    if missing && !take_turn(engine, format!("dispatch again: {}", mailbox.name), TURN).await.map_err(store)? {
        return Ok(QueueCheck::Soon);
    }
    // A service that never had queues has lost nothing.
    let new = engine.0.dispatcher.is_new(service.key)
        && take_turn(engine, format!("queues of service {}", service.key.0), EVER).await.map_err(store)?;
    engine.0.dispatcher.is_known(service.key);
    if missing && !new {
        tracing::info!(service = %service.name, queue = mailbox.tasks(), "there is no queue: made, and filled with what is not finished");
        // Nothing is published until the queue exists: an earlier task would come back, and be published after the
        // rest.
        engine.0.dispatcher.park(service.key, TURN, true);
        engine.0.store.redispatch_service(service.key).await.map_err(|error| store(error.into()))?;
    }
    task_broker.prepare(&mailbox, missing).await.map_err(words)?;
    // Another process may have declared it.
    if engine.0.dispatcher.is_found(service.key) || missing {
        engine.0.hub.dispatch_bell.notify_one();
    }
    notice_loss(engine, service, sight).await.map_err(|error| store(error.into()))?;
    Ok(QueueCheck::There)
}

/// Notices that the broker has no task of a service while published tasks wait: somebody purged the queue, or a policy
/// dropped them. Only an operator can be sure, and can have them published again.
async fn notice_loss(engine: &Engine, service: &Service, sight: QueueSight) -> Result<(), StoreError> {
    let lost = match sight.is_bare(false) {
        Some(false) => None,
        _ => match engine.0.store.oldest_published(service.key).await? {
            None => None,
            Some(oldest) => match sight.is_bare(oldest.running) {
                Some(bare) => Some(oldest.task_id).filter(|_| bare),
                // Workers are busy, and may have the task: nothing changes.
                None => return Ok(()),
            },
        },
    };
    let dispatcher = &engine.0.dispatcher;
    if dispatcher.suspect(service.key, lost, engine.0.options.dispatch.patience) {
        tracing::warn!(
            service = %service.name,
            queue = mailbox(service).tasks(),
            oldest = ?lost.map(|task_id| task_id.to_string()),
            "the queue is empty, but tasks wait that were published to it: if nobody has them, \
             `relais service redispatch` publishes them again"
        );
    }
    let is_lost = dispatcher.lost().contains(&service.key);
    metrics::gauge!("relais_broker_tasks_lost", "service" => service.name.to_string()).set(if is_lost {
        1.0
    } else {
        0.0
    });
    Ok(())
}

async fn take_turn(engine: &Engine, chore: String, period: Duration) -> Result<bool, EngineError> {
    Ok(engine.0.store.take_turn(&chore, period).await?)
}

impl Engine {
    /// Publishes all unfinished tasks of a service again, for an operator who knows that the broker has lost them.
    pub async fn redispatch(&self, service: &str) -> Result<(), EngineError> {
        let service = self.declared_service(service).await?;
        if !service.transport.is_brokered() {
            return Err(EngineError::Conflict(format!("service {} does not use a broker", service.name)));
        }
        self.0.store.redispatch_service(service.key).await?;
        Ok(())
    }
}
