//! The sweep: finds dispatches that no process has taken, because their process died, the broker was away, the service
//! was paused, or the broker has lost them.

use std::{collections::HashSet, sync::Arc, time::Duration};

use relais_core::{ServiceKey, TaskBroker, TaskBrokerState};

use super::publisher::{Confirmed, publish};
use crate::{Engine, EngineError, timers};

/// About how many dispatches are taken at a time, as many of each service, so that a long queue does not delay a short
/// one.
const MOST: usize = 200;

/// The lease of a dispatch.
const LEASE: Duration = Duration::from_secs(20);

/// How many lost tasks are made due at once.
const REFILL: usize = 2000;

/// Sweeps until the engine stops.
pub(super) async fn run(engine: Engine, task_broker: Arc<dyn TaskBroker>, confirmed: Confirmed) {
    let declared = tokio::sync::Mutex::new(engine.0.registry.changes());
    let bell = || async {
        let mut declared = declared.lock().await;
        tokio::select! {
            () = engine.0.hub.dispatch_bell.notified() => {}
            // A paused service may be resumed. The other end is the engine's.
            _ = declared.changed() => {}
            () = back(task_broker.as_ref()) => {}
        }
    };
    timers::paced(&engine, "dispatch", bell, || sweep(&engine, task_broker.as_ref(), &confirmed)).await;
}

/// Returns when the broker is back, if it is away.
async fn back(task_broker: &dyn TaskBroker) {
    if task_broker.state() == TaskBrokerState::Up {
        task_broker.until_down().await;
    }
    task_broker.until_up().await;
}

/// Returns when to look again: also when a rate limit allows the next start, or a pause of a service ends.
async fn sweep(engine: &Engine, task_broker: &dyn TaskBroker, confirmed: &Confirmed) -> Result<Duration, EngineError> {
    let watermark = &engine.0.hub.watermark;
    loop {
        let look = watermark.look();
        let parked = engine.0.dispatcher.parked_for();
        let period = engine.0.options.sweep.min(parked.unwrap_or(Duration::MAX));
        if task_broker.state() != TaskBrokerState::Up {
            watermark.note_all();
            return Ok(period);
        }
        let more = engine.0.store.refill_dispatches(REFILL).await?;
        let (passed_over, services): (Vec<_>, Vec<_>) = engine
            .brokered()
            .into_iter()
            .partition(|service| service.paused || engine.0.dispatcher.is_parked(service.key));
        watermark.note(passed_over.iter().map(|service| service.key));
        let services: Vec<ServiceKey> = services.iter().map(|service| service.key).collect();
        if services.is_empty() {
            return Ok(period);
        }
        let each = (MOST / services.len()).max(1);
        let claimed = engine.0.store.claim_dispatches(services.clone(), each, LEASE).await?;
        let found: HashSet<ServiceKey> = claimed.tasks.iter().map(|task| task.name.service).collect();
        if !more {
            watermark.found_nothing(look, services.into_iter().filter(|service| !found.contains(service)));
        }
        if found.is_empty() && !more {
            return Ok(claimed.again.map_or(period, |again| again.min(period)));
        }
        watermark.note(found);
        publish(engine, task_broker, claimed.tasks, confirmed).await;
    }
}
