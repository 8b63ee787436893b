//! Who processes messages: a name, how long a message counts as processed, and what is counted.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::{DedupError, DedupKey, telemetry::Metrics};

/// How long a message counts as processed, unless it is said.
const WINDOW: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone)]
pub(crate) struct Consumer {
    pub(crate) name: Arc<str>,
    pub(crate) window: Duration,
    pub(crate) prefix: Arc<str>,
    metrics: Arc<OnceLock<Metrics>>,
}

impl Default for Consumer {
    fn default() -> Self {
        Self { name: "".into(), window: WINDOW, prefix: "".into(), metrics: Arc::default() }
    }
}

impl Consumer {
    pub(crate) fn named(self, name: &str) -> Result<Self, DedupError> {
        if name.is_empty() {
            return Err(DedupError::Consumer { longest: crate::port::LONGEST_CONSUMER });
        }
        DedupKey::new(name, "any")?;
        Ok(Self { name: name.into(), metrics: Arc::default(), ..self })
    }

    pub(crate) fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.into(), metrics: Arc::default(), ..self }
    }

    pub(crate) fn key(&self, id: &str) -> Result<DedupKey, DedupError> {
        DedupKey::new(Arc::clone(&self.name), id)
    }

    pub(crate) fn check(&self, longest_retry: Duration) -> Result<(), DedupError> {
        match self.window {
            Duration::ZERO => Err(DedupError::NoTime),
            window if window <= longest_retry => Err(DedupError::ShortWindow { window, longest_retry }),
            _ => Ok(()),
        }
    }

    /// Made when something is counted first: the recorder may be installed late.
    pub(crate) fn metrics(&self) -> &Metrics {
        self.metrics.get_or_init(|| Metrics::new(&self.prefix, &self.name))
    }
}
