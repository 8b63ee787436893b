//! Keeps the queues of all services there: at the start, when something was declared, when the broker is back, when a task
//! found no queue, and now and then.

use std::{sync::Arc, time::Duration};

use relais_core::{QueueSight, Service, StoreError, TaskBroker, TaskBrokerError};

use super::mailbox;
use crate::{Engine, EngineError, error::chain};

/// How often it looks by itself.
const PERIOD: Duration = Duration::from_secs(10);

/// How soon it looks again while something is missing.
const SOON: Duration = Duration::from_secs(1);

/// Of several processes that find a queue gone, one has its tasks dispatched again.
const TURN: Duration = Duration::from_secs(5);

/// What was done once for a service is not done again.
const EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Keeps queues until the engine stops.
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
                Ok(Kept::There) => {}
                Ok(Kept::Soon) => period = SOON,
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

/// Whether a service's queues are there.
enum Kept {
    There,
    /// Somebody else is about to make them.
    Soon,
}

/// Makes sure that a service's queues are there. What was in one that is gone is dispatched again: that is noted before there
/// is a queue again, so that a process that dies in between leaves the trace for the next one.
async fn keep(engine: &Engine, task_broker: &dyn TaskBroker, service: &Service) -> Result<Kept, String> {
    let words = |error: TaskBrokerError| error.to_string();
    let store = |error: EngineError| chain(&error);
    let mailbox = mailbox(service);
    let sight = task_broker.look(&mailbox).await.map_err(words)?;
    let missing = sight == QueueSight::Missing;
    // Not made without its turn: if it was another process that did so, the queue is there when one looks again, and if it is
    // gone for the second time, what was in it is still to be noted.
    if missing && !take_turn(engine, format!("dispatch again: {}", mailbox.name), TURN).await.map_err(store)? {
        return Ok(Kept::Soon);
    }
    // A service that never had queues has lost nothing with them.
    let new = engine.0.dispatcher.is_new(service.key)
        && take_turn(engine, format!("queues of service {}", service.key.0), EVER).await.map_err(store)?;
    engine.0.dispatcher.is_known(service.key);
    if missing && !new {
        tracing::info!(service = %service.name, queue = mailbox.tasks(), "there is no queue: made, and filled with what is not finished");
        // Nothing is published until it is there: what came before its queue would come back, and then after the rest.
        engine.0.dispatcher.park(service.key, TURN, true);
        engine.0.store.redispatch_service(service.key).await.map_err(|error| store(error.into()))?;
    }
    task_broker.prepare(&mailbox, missing).await.map_err(words)?;
    // It may be there because somebody else made it.
    if engine.0.dispatcher.is_found(service.key) || missing {
        engine.0.hub.dispatch_bell.notify_one();
    }
    notice_loss(engine, service, sight).await.map_err(|error| store(error.into()))?;
    Ok(Kept::There)
}

/// Notices that the broker has nothing of a service while tasks wait that were published to it: somebody purged the queue, or a
/// policy dropped them. Nobody is sure of it but an operator, who can have them published again.
async fn notice_loss(engine: &Engine, service: &Service, sight: QueueSight) -> Result<(), StoreError> {
    let lost = match sight.is_bare(false) {
        Some(false) => None,
        _ => match engine.0.store.oldest_published(service.key).await? {
            None => None,
            Some(oldest) => match sight.is_bare(oldest.running) {
                Some(bare) => Some(oldest.task_id).filter(|_| bare),
                // Workers are busy, and may have it: it stays as it was.
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
    /// Has all unfinished tasks of a service published again, for an operator who knows that the broker has lost them.
    pub async fn redispatch(&self, service: &str) -> Result<(), EngineError> {
        let service = self.declared_service(service).await?;
        if !service.transport.is_brokered() {
            return Err(EngineError::Conflict(format!("service {} does not use a broker", service.name)));
        }
        self.0.store.redispatch_service(service.key).await?;
        Ok(())
    }
}
