//! Queue depths: read once, or watched.
//!
//! One actor reads for all who watch, woken by the store's wake-ups: nobody who watches costs a read of their own, and
//! while nothing happens nothing is read, but for a slow sweep that makes up for wake-ups that were lost.

use std::time::Duration;

use relais_core::{QueueDepth, ServiceKey};
use tokio::{sync::watch, time::Instant};

use crate::{Engine, EngineError, error::chain};

/// Changes that come faster than this are seen as one.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// How long to wait before a store that did not answer is asked again.
const RETRY: Duration = Duration::from_secs(1);

impl Engine {
    /// How full a service's queue is now.
    pub async fn queue_depth(&self, service: &str) -> Result<QueueDepth, EngineError> {
        let key = self.snapshot()?.declared.services.get(service).ok_or(EngineError::ServiceNotFound)?.key;
        let depths = self.0.store.queue_depths(vec![key]).await?;
        depths.into_iter().next().ok_or(EngineError::ServiceNotFound)
    }

    /// Watches how full a service's queue is.
    pub fn watch_queue(&self, service: &str) -> Result<QueueWatch, EngineError> {
        let key = self.snapshot()?.declared.services.get(service).ok_or(EngineError::ServiceNotFound)?.key;
        let receiver = Some(self.0.hub.watch_queue(key));
        Ok(QueueWatch { engine: self.clone(), service: key, receiver, last: None })
    }
}

/// Watches one queue until it is dropped.
pub struct QueueWatch {
    engine: Engine,
    service: ServiceKey,
    receiver: Option<watch::Receiver<Option<QueueDepth>>>,
    /// What was last returned: how many waited and ran.
    last: Option<(u64, u64)>,
}

impl QueueWatch {
    /// How full the queue is, as soon as that is known for the first time, and then whenever it is another than before.
    /// Changes that come fast are seen as one. None when the engine stops.
    pub async fn next(&mut self) -> Option<QueueDepth> {
        let receiver = self.receiver.as_mut()?;
        loop {
            let seen = *receiver.borrow_and_update();
            if let Some(depth) = seen
                && self.last != Some((depth.pending, depth.in_progress))
            {
                self.last = Some((depth.pending, depth.in_progress));
                return Some(depth);
            }
            tokio::select! {
                changed = receiver.changed() => changed.ok()?,
                () = self.engine.0.stopping.cancelled() => return None,
            }
        }
    }
}

impl Drop for QueueWatch {
    fn drop(&mut self) {
        self.receiver = None;
        self.engine.0.hub.forget_queue(self.service);
    }
}

/// Looks at the queues that are watched when they may have changed, until the engine stops.
pub(crate) async fn run(engine: Engine) {
    let (hub, stopping) = (&engine.0.hub, &engine.0.stopping);
    let mut failing = false;
    loop {
        // While nobody watches there is nothing to sweep.
        let sweep = async {
            match hub.watches_queues() {
                true => tokio::time::sleep(if failing { RETRY } else { engine.0.options.sweep }).await,
                false => std::future::pending().await,
            }
        };
        let all = tokio::select! {
            () = hub.queues_bell.notified() => failing,
            () = sweep => true,
            () = stopping.cancelled() => return,
        };
        let services = hub.take_queues(all);
        if services.is_empty() {
            continue;
        }
        let begun = Instant::now();
        match engine.0.store.queue_depths(services).await {
            Ok(depths) => {
                hub.tell_depths(&depths);
                failing = false;
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(error = %chain(&error), "watched queues can not be looked at; tried again until they can");
                }
                failing = true;
            }
        }
        tokio::select! {
            () = tokio::time::sleep_until(begun + MIN_INTERVAL) => {}
            () = stopping.cancelled() => return,
        }
    }
}
