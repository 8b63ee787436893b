//! What belongs to no feature: the ports [`MaintenanceStore`] and [`Store`].

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::{MaintenanceStore, Store, StoreError, Timestamp, Wakeup, WakeupListener};

use crate::{
    session::{Database, Heard, Session as _},
    verbs::Verbs,
};

#[async_trait]
impl<D: Database> MaintenanceStore for Verbs<D> {
    async fn take_turn(&self, chore: &str, period: Duration) -> Result<bool, StoreError> {
        let mut session = self.database.begin().await?;
        let mine = session.take_turn(chore, period).await?;
        session.commit().await?;
        Ok(mine)
    }

    async fn advance(&self, by: Duration) -> Result<(), StoreError> {
        self.database.advance(by).await?;
        self.wake(&Wakeup::anything());
        Ok(())
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.database.ping().await
    }

    async fn broadcast(&self, texts: Vec<String>) -> Result<(), StoreError> {
        self.database.broadcast(&texts).await
    }

    async fn migrate(&self) -> Result<usize, StoreError> {
        let applied = self.database.migrate().await?;
        self.encrypt_secrets().await?;
        Ok(applied)
    }
}

#[async_trait]
impl<D: Database> Store for Verbs<D> {
    fn listen(&self, listener: Arc<dyn WakeupListener>) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    async fn relay_wakeups(&self) {
        self.database
            .hear(&|heard| match heard {
                Heard::Wakeup(wakeup) => self.wake(wakeup),
                Heard::Text(text) => self.each_listener(|listener| listener.told(text)),
                Heard::Listening => self.each_listener(|listener| listener.hears(Ok(()))),
                Heard::Lost(why) => self.each_listener(|listener| listener.hears(Err(why))),
            })
            .await;
    }

    async fn close(&self) {
        self.database.close().await;
    }
}
