//! An instance's life: it begins, gives signs of life, may be given up and begin anew, and ends.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use relais_core::{CrashPolicy, InstanceKey, Joined, NewInstance, ServiceKey};
use tokio_util::sync::CancellationToken;

use super::{InstanceOptions, InstanceReport, Key, Tallies};
use crate::{Engine, EngineError, background::chain};

/// One instance of this process.
pub(super) struct Life {
    engine: Engine,
    new: NewInstance,
    key: Mutex<Key>,
    /// Cancelled when running tasks are to stop now.
    interrupted: CancellationToken,
    pub(super) tallies: Tallies,
}

impl Life {
    /// Begins, under the name that the options give.
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
            key: Mutex::new(None),
            interrupted: CancellationToken::new(),
            tallies: Tallies::default(),
        };
        life.join().await?;
        Ok(life)
    }

    /// One that is never known, for tasks that are done by hand.
    pub(super) fn by_hand(engine: Engine) -> Self {
        let new = NewInstance {
            name: "by hand".to_owned(),
            host: None,
            version: String::new(),
            policy: CrashPolicy::Restart,
            silence: Duration::MAX,
            services: Vec::new(),
        };
        let (key, tallies) = (Mutex::new(None), Tallies::default());
        Self { engine, new, key, interrupted: CancellationToken::new(), tallies }
    }

    async fn join(&self) -> Result<(), EngineError> {
        match self.engine.0.store.join(self.new.clone()).await? {
            Joined::In { key, recovered } => {
                if recovered > 0 {
                    tracing::warn!(
                        instance = self.new.name,
                        tasks = recovered,
                        "its tasks of before were taken care of"
                    );
                }
                *self.key.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
                Ok(())
            }
            Joined::Refused { tasks } => Err(EngineError::Conflict(format!(
                "the instance {0} died with {tasks} tasks in hand: decide what becomes of them \
                 (relais instance resolve {0} --restart or --fail)",
                self.new.name
            ))),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.new.name
    }

    /// The number under which the store knows it, while it is alive.
    pub(super) fn key(&self) -> Option<InstanceKey> {
        *self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Running tasks are to stop now.
    pub(super) fn interrupt(&self) {
        self.interrupted.cancel();
    }

    pub(super) fn interrupted(&self) -> &CancellationToken {
        &self.interrupted
    }

    /// Gives signs of life until the instance stops and nothing runs any more.
    pub(super) async fn beat(self: Arc<Self>, stop: CancellationToken) {
        let mut failing = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.new.silence / 3) => {}
                () = stop.cancelled() => return,
            }
            let Some(key) = self.key() else { return };
            match self.engine.0.store.beat(key, self.new.silence).await {
                Ok(true) if failing => {
                    failing = false;
                    tracing::info!(instance = self.new.name, "its signs of life are heard again");
                }
                Ok(true) => {}
                Ok(false) => {
                    if !self.revive().await {
                        return;
                    }
                }
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(instance = self.new.name, error = %chain(&error), "its signs of life are not heard");
                }
                Err(_) => {}
            }
        }
    }

    /// It was given up. It begins anew, unless another one has taken its name.
    async fn revive(&self) -> bool {
        *self.key.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let known = self.engine.0.store.instances().await.unwrap_or_default();
        if known.iter().any(|instance| instance.name == self.new.name) {
            tracing::error!(
                instance = self.new.name,
                "another instance has taken its name: this one takes no more tasks"
            );
            return false;
        }
        tracing::warn!(instance = self.new.name, "it was silent for too long and given up; it begins anew");
        match self.join().await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(instance = self.new.name, error = %chain(&error), "it can not begin anew");
                false
            }
        }
    }

    /// Ends: what it still has in hand goes back.
    pub(super) async fn end(&self) {
        let Some(key) = self.key.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if let Err(error) = self.engine.0.store.leave(key).await {
            tracing::warn!(
                instance = self.new.name,
                error = %chain(&error),
                "it could not say that it ends; what it had is taken care of when it has been silent for long enough"
            );
        }
    }

    pub(super) fn report(&self) -> InstanceReport {
        self.tallies.report()
    }
}

/// The host's or pod's name, as Kubernetes or Linux gives it.
pub(crate) fn host_name() -> Option<String> {
    let name = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
