//! Background services. Each is one loop of one shape: wait for a reason to act or for the end, then act. It logs once
//! when it fails, and once when it works again.

pub(crate) mod schedule;

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use relais_core::{ServiceKey, Status};
use tokio::time::Instant;

use crate::{Engine, EngineError, callbacks, error::chain, operate::depth};

/// How often timers are fired without a wake-up: nobody announces a lease, and a clock may be set.
const TIME: Duration = Duration::from_secs(1);

/// How often dead instances are looked for.
const DEATHS: Duration = Duration::from_secs(5);

/// How often orphans are looked for.
const ORPHANS: Duration = Duration::from_secs(10);

/// The most tasks that timers change in one transaction.
const TIME_BATCH: usize = 500;

/// How often unresolved dependencies on ended tasks are looked for.
const RECHECK: Duration = Duration::from_secs(60);

/// How many of those are looked at in one transaction.
const RECHECK_BATCH: usize = 1000;

/// How often the queues are read for the gauges and the pace.
const OBSERVE: Duration = Duration::from_secs(10);

/// How often a process asks whether it is its turn to purge.
const ASK_FOR_PURGE: Duration = Duration::from_secs(300);

/// Starts the services that the options ask for.
pub(crate) fn start(engine: &Engine) {
    let relay = engine.clone();
    engine.spawn(async move {
        tokio::select! {
            () = relay.0.store.relay_wakeups() => {}
            () = relay.0.stopping.cancelled() => {}
        }
    });
    let refresh = engine.clone();
    engine.spawn(async move {
        let hub = refresh.0.hub.clone();
        every(&refresh, "refresh", refresh.0.options.sweep, || hub.declared_bell.notified(), || refresh.refresh())
            .await;
    });
    let observe = engine.clone();
    engine.spawn(async move {
        // Queues have no names before the declaration was read.
        if !until_declared(&observe).await {
            return;
        }
        every(&observe, "observe", OBSERVE, std::future::pending::<()>, || observe.look_around()).await;
    });
    engine.spawn(depth::run(engine.clone()));
    if engine.0.options.rescue {
        let clock = engine.clone();
        engine.spawn(async move {
            let hub = clock.0.hub.clone();
            paced(&clock, "clock", || hub.timer_bell.notified(), || clock.fire_timers()).await;
        });
        let inbox = engine.clone();
        engine.spawn(async move {
            let hub = inbox.0.hub.clone();
            // Nothing can be validated before.
            if !until_declared(&inbox).await {
                return;
            }
            every(&inbox, "inbox", inbox.0.options.sweep, || hub.submissions_bell.notified(), || inbox.take_in()).await;
        });
        let dead = engine.clone();
        engine.spawn(async move {
            let failed = AtomicBool::new(false);
            paced(&dead, "reap", std::future::pending::<()>, || dead.reap(&failed)).await;
        });
        let recheck = engine.clone();
        engine.spawn(async move {
            let every_one = || recheck.recheck_dependencies();
            every(&recheck, "dependencies", RECHECK, std::future::pending::<()>, every_one).await;
        });
        let orphans = engine.clone();
        engine.spawn(async move {
            every(&orphans, "lease orphans", ORPHANS, std::future::pending::<()>, || orphans.lease_orphans()).await;
        });
    }
    if engine.0.options.send_callbacks {
        engine.spawn(callbacks::run(engine.clone()));
    }
    if engine.0.options.scheduling {
        engine.spawn(schedule::run(engine.clone()));
    }
    if engine.0.options.purging {
        let purge = engine.clone();
        engine.spawn(async move {
            every(&purge, "purge", ASK_FOR_PURGE, std::future::pending::<()>, || purge.purge_in_turn()).await;
        });
    }
}

/// Waits until the declaration was read; false if the engine stops before.
async fn until_declared(engine: &Engine) -> bool {
    let mut declared = engine.0.registry.changes();
    while engine.snapshot().is_err() {
        tokio::select! {
            _ = declared.changed() => {}
            () = engine.0.stopping.cancelled() => return false,
        }
    }
    true
}

/// Acts at once, then whenever `bell` rings or `period` has passed, until the engine stops. See [`paced`].
pub(crate) async fn every<B, A>(
    engine: &Engine,
    name: &'static str,
    period: Duration,
    bell: impl Fn() -> B,
    act: impl Fn() -> A,
) where
    B: Future<Output = ()>,
    A: Future<Output = Result<(), EngineError>>,
{
    paced(engine, name, bell, || async { act().await.map(|()| period) }).await;
}

/// Acts at once, then whenever `bell` rings or the returned time has passed, until the engine stops. On an error it
/// tries again every second; it logs one line when it begins to fail, and one when it works again.
pub(crate) async fn paced<B, A>(engine: &Engine, name: &'static str, bell: impl Fn() -> B, act: impl Fn() -> A)
where
    B: Future<Output = ()>,
    A: Future<Output = Result<Duration, EngineError>>,
{
    let mut failing_since: Option<Instant> = None;
    loop {
        let acted = tokio::select! {
            acted = act() => acted,
            // Each action is one transaction at a time: what is not done stays to be done.
            () = engine.0.stopping.cancelled() => return,
        };
        let mut pause = Duration::from_secs(1);
        match acted {
            Ok(next) => {
                pause = next;
                if let Some(since) = failing_since.take() {
                    tracing::info!(service = name, seconds = since.elapsed().as_secs_f64(), "works again");
                }
            }
            Err(error) if failing_since.is_none() => {
                failing_since = Some(Instant::now());
                tracing::warn!(service = name, error = %chain(&error), "does not work; tried again until it does");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = bell() => {}
            () = tokio::time::sleep(pause) => {}
            () = engine.0.stopping.cancelled() => return,
        }
    }
}

impl Engine {
    /// Reads the declaration again, if it has changed.
    pub async fn refresh(&self) -> Result<(), EngineError> {
        self.0.registry.refresh(self.0.store.as_ref()).await
    }

    /// Calls [`Engine::observe`], unless somebody has just done so: for callers who may come as often as they like.
    pub async fn observe_if_due(&self) -> Result<(), EngineError> {
        if self.0.pace.is_due(std::time::Instant::now()) { self.observe().await } else { Ok(()) }
    }

    /// Reads the queues, and publishes the worker registry.
    async fn look_around(&self) -> Result<(), EngineError> {
        self.observe().await?;
        self.publish_workers().await
    }

    /// Reads the queues: sets the gauges, and measures the pace of the services.
    pub async fn observe(&self) -> Result<(), EngineError> {
        let backlog = self.0.store.backlog().await?;
        self.0.pace.sample(&backlog, std::time::Instant::now());
        if self.0.trends.sample(&backlog, std::time::Instant::now()) {
            self.0.hub.found_changes();
        }
        let snapshot = self.snapshot()?;
        let name = |key: ServiceKey| snapshot.declared.service_by_key(key).map(|service| service.name.to_string());
        for tally in &backlog.counters {
            let Some(service) = name(tally.service) else { continue };
            match tally.status {
                Status::Pending => metrics::gauge!("relais_tasks_pending", "service" => service),
                Status::InProgress => metrics::gauge!("relais_tasks_running", "service" => service),
                _ => continue,
            }
            .set(tally.current() as f64);
        }
        for service in snapshot.declared.services.values() {
            let oldest = backlog.oldest_pending.iter().find(|(key, _)| *key == service.key);
            let age = backlog.now.zip(oldest).map_or(0.0, |(now, (_, submitted))| now.since(*submitted).as_secs_f64());
            metrics::gauge!("relais_queue_age_seconds", "service" => service.name.to_string()).set(age);
        }
        metrics::gauge!("relais_tasks_watched").set(self.0.hub.watched() as f64);
        Ok(())
    }

    /// Gives leases to orphans: running tasks of services that left the broker.
    async fn lease_orphans(&self) -> Result<(), EngineError> {
        while self.0.store.lease_orphans(TIME_BATCH).await? == TIME_BATCH {}
        Ok(())
    }

    /// Looks for unresolved dependencies on ended tasks, if it is this process's turn.
    async fn recheck_dependencies(&self) -> Result<(), EngineError> {
        if !self.0.store.take_turn("dependencies", RECHECK).await? {
            return Ok(());
        }
        let mut from = 0;
        while let Some(next) = self.0.store.recheck_dependencies(from, RECHECK_BATCH).await? {
            from = next;
            self.0.hub.timer_bell.notify_one();
        }
        Ok(())
    }

    /// Fires timers and resolves dependencies, and returns when to look again.
    async fn fire_timers(&self) -> Result<Duration, EngineError> {
        loop {
            let settled = self.0.store.resolve_dependencies(TIME_BATCH).await?;
            if settled.more {
                continue;
            }
            let passed = self.0.store.fire_timers(TIME_BATCH).await?;
            if passed.lost > 0 {
                metrics::counter!("relais_leases_expired_total").increment(passed.lost as u64);
                tracing::info!(tasks = passed.lost, "leases expired: their workers were not heard of");
            }
            match passed.next {
                Some(next) if next.is_zero() && passed.changed > 0 => {}
                // Never at once: what failed now would fail a moment later too.
                next => return Ok(next.map_or(TIME, |next| next.clamp(Duration::from_millis(1), TIME))),
            }
        }
    }

    /// The reaper: reaps dead instances, and returns when to look again.
    async fn reap(&self, failed: &AtomicBool) -> Result<Duration, EngineError> {
        // After an outage all instances have been silent for too long: their heartbeats come first.
        if failed.swap(false, Ordering::Relaxed) {
            return Ok(DEATHS);
        }
        let reaped = self.0.store.reap_instances().await.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        if reaped.instances > 0 {
            metrics::counter!("relais_instances_lost_total").increment(reaped.instances as u64);
            tracing::warn!(
                instances = reaped.instances,
                tasks = reaped.tasks,
                "instances died; their tasks were taken care of"
            );
        }
        Ok(reaped.next.map_or(DEATHS, |next| next.clamp(Duration::from_millis(100), DEATHS)))
    }

    /// Purges, if it is this process's turn.
    async fn purge_in_turn(&self) -> Result<(), EngineError> {
        // A turn that was taken and not used stays this process's: no other process will purge today.
        if !self.0.purge_owed.load(Ordering::Relaxed)
            && !self.0.store.take_turn("purge", self.0.options.purge.every).await?
        {
            return Ok(());
        }
        self.0.purge_owed.store(true, Ordering::Relaxed);
        let report = self.purge_tasks(false).await?;
        let purged: u64 = report.services.iter().map(|service| service.purged).sum();
        let keys = self.tidy().await?;
        let audit = self.purge_audit(self.0.options.audit_age).await?;
        self.0.purge_owed.store(false, Ordering::Relaxed);
        tracing::info!(tasks = purged, idempotency_keys = keys, audit_lines = audit, "purged what was too old");
        Ok(())
    }
}
