//! Wraps a store: measures and bounds every call, so that drivers need not.

use std::{
    collections::HashMap,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use relais_core::*;
use tracing::Instrument as _;

/// The timeout of a call: a database that hangs counts as away.
const DEADLINE: Duration = Duration::from_secs(15);

/// Migrations may rewrite tables.
const MIGRATION_DEADLINE: Duration = Duration::from_secs(3600);

/// A store whose calls are measured.
pub(crate) struct Measured(pub(crate) Arc<dyn Store>);

async fn measure<T>(
    verb: &'static str,
    deadline: Duration,
    call: impl Future<Output = Result<T, StoreError>> + Send,
) -> Result<T, StoreError> {
    let begun = Instant::now();
    let span = tracing::debug_span!("store", verb);
    let result = match tokio::time::timeout(deadline, call).instrument(span).await {
        Ok(result) => result,
        Err(elapsed) => Err(StoreError::Unavailable(elapsed.into())),
    };
    metrics::histogram!("relais_store_seconds", "verb" => verb).record(begun.elapsed().as_secs_f64());
    if let Err(error) = &result {
        let kind = match error {
            StoreError::Unavailable(_) => "unavailable",
            StoreError::Failed(_) => "failed",
            StoreError::Conflict(_) => "conflict",
            StoreError::Schema(_) => "schema",
            StoreError::Encrypted(_) => "encrypted",
        };
        metrics::counter!("relais_store_errors_total", "verb" => verb, "kind" => kind).increment(1);
    }
    result
}

/// How long a verb may take.
macro_rules! deadline {
    (migrate) => {
        MIGRATION_DEADLINE
    };
    (encrypt_secrets) => {
        MIGRATION_DEADLINE
    };
    ($verb:ident) => {
        DEADLINE
    };
}

macro_rules! measured {
    ($($(#[$port_doc:meta])* $port:ident {
        $($(#[$doc:meta])* $verb:ident($($name:ident: $type:ty),*) -> $output:ty;)*
    })*) => {
        $(#[async_trait]
        impl $port for Measured {
            $(async fn $verb(&self, $($name: $type),*) -> Result<$output, StoreError> {
                measure(stringify!($verb), deadline!($verb), self.0.$verb($($name),*)).await
            })*
        })*
    };
}

relais_core::store_ports!(measured);

#[async_trait]
impl Store for Measured {
    fn listen(&self, listener: Arc<dyn WakeupListener>) {
        self.0.listen(listener);
    }

    async fn relay_wakeups(&self) {
        self.0.relay_wakeups().await;
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
