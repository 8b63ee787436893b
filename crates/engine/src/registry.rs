//! The declaration in memory: requests are checked without asking the store.
//!
//! It is read again after a wake-up, after this process's own changes, and by a slow sweep.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use relais_core::{Declared, ServiceKey, Store};
use tokio::sync::{Mutex, watch};

use crate::{EngineError, submit::schema::Schema};

/// A snapshot of the declaration, with compiled schemas.
#[derive(Default)]
pub(crate) struct Snapshot {
    pub(crate) declared: Declared,
    pub(crate) schemas: HashMap<ServiceKey, Arc<Schema>>,
}

/// The newest snapshot.
#[derive(Default)]
pub(crate) struct Registry {
    current: ArcSwap<Snapshot>,
    loaded: AtomicBool,
    /// The number of the newest snapshot, for those who wait for the next one.
    version: watch::Sender<i64>,
    /// One refresh at a time, so that an older reading never replaces a newer one.
    refreshing: Mutex<()>,
}

impl Registry {
    /// The declaration. An error until it was read once: nobody is refused for what is not known yet.
    pub(crate) fn current(&self) -> Result<Arc<Snapshot>, EngineError> {
        if self.loaded.load(Ordering::Acquire) {
            Ok(self.current.load_full())
        } else {
            Err(EngineError::from(relais_core::StoreError::Unavailable("not read yet".into())))
        }
    }

    /// Notified when the declaration changes.
    pub(crate) fn changes(&self) -> watch::Receiver<i64> {
        self.version.subscribe()
    }

    /// Reads it again, if it has changed.
    pub(crate) async fn refresh(&self, store: &dyn Store) -> Result<(), EngineError> {
        let _turn = self.refreshing.lock().await;
        if self.loaded.load(Ordering::Acquire)
            && store.declared_version().await? == self.current.load().declared.version
        {
            return Ok(());
        }
        let declared = store.declared().await?;
        let before = self.current.load_full();
        let mut schemas = HashMap::new();
        for service in declared.services.values() {
            let Some(text) = &service.json_schema else { continue };
            let schema = match before.schemas.get(&service.key).filter(|schema| schema.is_of(text)) {
                Some(schema) => Arc::clone(schema),
                None => match Schema::compile(text) {
                    Ok(schema) => Arc::new(schema),
                    Err(error) => {
                        // It was checked when it was declared, by another version perhaps.
                        tracing::error!(service = %service.name, error, "a service's schema can not be used; its bodies go unchecked");
                        continue;
                    }
                },
            };
            schemas.insert(service.key, schema);
        }
        let version = declared.version;
        self.current.store(Arc::new(Snapshot { declared, schemas }));
        self.loaded.store(true, Ordering::Release);
        self.version.send_replace(version);
        Ok(())
    }
}
