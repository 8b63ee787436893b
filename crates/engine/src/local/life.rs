//! The life of an instance: registration, heartbeats, registration after it was reaped, and deregistration.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use relais_core::{CrashPolicy, InstanceKey, InstanceStatus, NewInstance, Registration, ServiceKey};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{InstanceOptions, InstanceReport, Key, Tallies};
use crate::{Engine, EngineError, error::chain};

/// The wait before a failed heartbeat is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// One instance of this process.
pub(super) struct InstanceLife {
    engine: Engine,
    new: NewInstance,
    key: watch::Sender<Key>,
    /// Whether a registration was sent and not answered: the instance with its name may be this one.
    in_doubt: AtomicBool,
    /// Cancelled when running tasks must stop now.
    interrupted: CancellationToken,
    pub(super) counters: Tallies,
}

impl InstanceLife {
    /// Registers, under the name that the options give.
    pub(super) async fn begin(
        engine: Engine,
        options: InstanceOptions,
        services: Vec<ServiceKey>,
    ) -> Result<Self, EngineError> {
        let host = host_name();
        let name = options.name.unwrap_or_else(|| {
            let chance = uuid::Uuid::now_v7().simple().to_string();
            format!("{}-{}", host.as_deref().unwrap_or("instance"), &chance[24..])
        });
        let new = NewInstance {
            name,
            host,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            policy: options.crash_policy,
            silence: options.silence.max(Duration::from_secs(1)),
            services,
        };
        let life = Self {
            engine,
            new,
            key: watch::Sender::new(None),
            in_doubt: AtomicBool::new(false),
            interrupted: CancellationToken::new(),
            counters: Tallies::default(),
        };
        life.join().await?;
        Ok(life)
    }

    /// An instance that is never registered, for tasks that tests run.
    pub(super) fn by_hand(engine: Engine) -> Self {
        let new = NewInstance {
            name: "by hand".to_owned(),
            host: None,
            version: String::new(),
            policy: CrashPolicy::Restart,
            silence: Duration::MAX,
            services: Vec::new(),
        };
        let (key, in_doubt, counters) = (watch::Sender::new(None), AtomicBool::new(false), Tallies::default());
        Self { engine, new, key, in_doubt, interrupted: CancellationToken::new(), counters }
    }

    async fn join(&self) -> Result<(), EngineError> {
        self.in_doubt.store(true, Ordering::Relaxed);
        let joined = self.engine.0.store.register_instance(self.new.clone()).await?;
        self.in_doubt.store(false, Ordering::Relaxed);
        match joined {
            Registration::In { key, recovered } => {
                if recovered > 0 {
                    tracing::warn!(
                        instance = self.new.name,
                        tasks = recovered,
                        "its tasks of before were taken care of"
                    );
                }
                self.key.send_replace(Some(key));
                Ok(())
            }
            Registration::Refused { tasks } => Err(EngineError::Conflict(format!(
                "the instance {0} died with {tasks} leased tasks: decide what happens to them \
                 (relais instance resolve {0} --restart or --fail)",
                self.new.name
            ))),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.new.name
    }

    /// The key under which it is registered, if it is.
    pub(super) fn key(&self) -> Option<InstanceKey> {
        *self.key.borrow()
    }

    /// Waits until it has another key, or none.
    pub(super) async fn changed(&self, key: InstanceKey) {
        // The sender is here: it does not go away.
        let _ = self.key.subscribe().wait_for(|now| *now != Some(key)).await;
    }

    /// Stops the running tasks now.
    pub(super) fn interrupt(&self) {
        self.interrupted.cancel();
    }

    pub(super) fn interrupted(&self) -> &CancellationToken {
        &self.interrupted
    }

    /// Sends heartbeats until the instance has ended.
    pub(super) async fn send_heartbeats(self: Arc<Self>, ended: CancellationToken) {
        let mut failing = false;
        loop {
            tokio::select! {
                // A failed heartbeat is repeated soon: the reaper may be about to act.
                () = tokio::time::sleep(if failing { AGAIN } else { self.new.silence / 3 }) => {}
                () = ended.cancelled() => return,
                () = self.engine.0.closing.cancelled() => return,
            }
            let heard = match self.key() {
                Some(key) => {
                    self.engine.0.store.heartbeat_instance(key, self.new.silence).await.map_err(EngineError::from)
                }
                None => Ok(false),
            };
            let heard = match heard {
                Ok(false) => self.begin_anew().await,
                heard => heard,
            };
            match heard {
                Ok(true) if std::mem::take(&mut failing) => {
                    tracing::info!(instance = self.new.name, "its signs of life are heard again");
                }
                Ok(true) => {}
                Ok(false) => return,
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!(instance = self.new.name, error = %chain(&error), "its signs of life are not heard");
                }
                Err(_) => {}
            }
        }
    }

    /// It was reaped. It registers again, unless another instance has its name, or an operator has to decide about its
    /// tasks first: then it never does.
    async fn begin_anew(&self) -> Result<bool, EngineError> {
        if self.key.send_replace(None).is_some() {
            tracing::warn!(instance = self.new.name, "it was silent for too long and given up; it begins anew");
        }
        let known = self.engine.0.store.list_instances().await?;
        match known.iter().find(|instance| instance.name == self.new.name) {
            // If the other instance is itself, it falls silent, and then that is known.
            Some(other) if other.status == InstanceStatus::Alive && self.in_doubt.load(Ordering::Relaxed) => {
                return Err(EngineError::Conflict("it is not known whether it has begun".to_owned()));
            }
            Some(other) if other.status != InstanceStatus::Undecided && !self.in_doubt.load(Ordering::Relaxed) => {
                tracing::error!(
                    instance = self.new.name,
                    "another instance has taken its name: this one takes no more tasks"
                );
                return Ok(false);
            }
            _ => {}
        }
        match self.join().await {
            Ok(()) => Ok(true),
            Err(EngineError::Conflict(why)) => {
                tracing::error!(instance = self.new.name, why, "it takes no more tasks");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Deregisters: its leased tasks are returned.
    pub(super) async fn end(&self) {
        let Some(key) = self.key.send_replace(None) else { return };
        if let Err(error) = self.engine.0.store.deregister_instance(key).await {
            tracing::warn!(
                instance = self.new.name,
                error = %chain(&error),
                "it could not say that it ends; what it had is taken care of when it has been silent for long enough"
            );
        }
    }

    pub(super) fn report(&self) -> InstanceReport {
        self.counters.report()
    }
}

/// The host's or pod's name, as Kubernetes or Linux gives it.
pub(crate) fn host_name() -> Option<String> {
    let name = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
