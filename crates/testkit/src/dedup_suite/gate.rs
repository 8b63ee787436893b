//! A store whose extensions a test sees, and can hold back: so that time need not be guessed.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_dedup::{ClaimOutcome, ClaimToken, DedupError, DedupKey, DedupStore, Hold};
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

use super::DEADLINE;

pub(super) struct Gate {
    store: Arc<dyn DedupStore>,
    open: watch::Sender<bool>,
    extended: Semaphore,
}

impl Gate {
    pub(super) fn open(store: Arc<dyn DedupStore>) -> Self {
        Self { store, open: watch::Sender::new(true), extended: Semaphore::new(0) }
    }

    /// Nothing is extended until it is let through.
    pub(super) fn closed(store: Arc<dyn DedupStore>) -> Self {
        Self { open: watch::Sender::new(false), ..Self::open(store) }
    }

    pub(super) fn let_through(&self) {
        self.open.send_replace(true);
    }

    /// Waits for the next extension.
    pub(super) async fn until_extended(&self) -> Result<()> {
        timeout(DEADLINE, self.extended.acquire()).await.context("the claim is extended")??.forget();
        Ok(())
    }
}

#[async_trait]
impl DedupStore for Gate {
    async fn claim(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<ClaimOutcome, DedupError> {
        self.store.claim(key, token, claim).await
    }

    async fn extend(&self, key: &DedupKey, token: &ClaimToken, claim: Duration) -> Result<Hold, DedupError> {
        self.open.subscribe().wait_for(|open| *open).await.map_err(DedupError::store)?;
        let hold = self.store.extend(key, token, claim).await?;
        self.extended.add_permits(1);
        Ok(hold)
    }

    async fn mark(&self, key: &DedupKey, token: &ClaimToken, window: Duration) -> Result<Hold, DedupError> {
        self.store.mark(key, token, window).await
    }

    async fn release(&self, key: &DedupKey, token: &ClaimToken) -> Result<(), DedupError> {
        self.store.release(key, token).await
    }

    async fn is_marked(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.store.is_marked(key).await
    }
}
