//! [`Verbs`]: what a store does, once for all databases.
//!
//! Each feature's folder adds its verbs to it. Every verb that writes is one transaction of the same shape: lock rows,
//! ask `relais-core` what they become, write them back with the counters, commit, then wake whoever waits. No
//! transaction spans anything but the database.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Instant,
};

use relais_core::{Revocation, ServiceKey, StoreError, TaskChange, Wakeup, WakeupListener};

use crate::{
    clock::statements::ClockWatch,
    counters::ledger::Ledger,
    counters::statements::CounterRows as _,
    dependencies::statements::Dependencies as _,
    flow::Limited,
    instances::leases::InstanceLeases,
    secrets::encryption::Keys,
    session::{Database, Session as _},
};

/// A store, over any database.
pub(crate) struct Verbs<D> {
    pub(crate) database: D,
    /// What signing secrets are encrypted with.
    pub(crate) keys: Keys,
    pub(crate) listeners: RwLock<Vec<Arc<dyn WakeupListener>>>,
    /// Services that somebody waits for to make room, as far as this process knows.
    pub(crate) limited: RwLock<Arc<Limited>>,
    /// The instance leases of this process.
    pub(crate) leased: Mutex<InstanceLeases>,
    /// Services of which somebody else has claimed tasks in the same moment, and when.
    pub(crate) crowded: Mutex<HashMap<ServiceKey, Instant>>,
    pub(crate) clock: ClockWatch,
}

impl<D: Database> Verbs<D> {
    pub(crate) fn new(database: D, keys: Keys) -> Self {
        Self {
            database,
            keys,
            listeners: RwLock::default(),
            limited: RwLock::default(),
            leased: Mutex::default(),
            crowded: Mutex::default(),
            clock: ClockWatch::default(),
        }
    }

    /// Wakes those who wait in this process.
    pub(crate) fn wake(&self, wakeup: &Wakeup) {
        self.each_listener(|listener| listener.wake(wakeup));
    }

    /// Whether somebody in this process wants to hear of every change.
    pub(crate) fn wants_changes(&self) -> bool {
        self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter().any(|listener| listener.wants_changes())
    }

    /// Tells them, after the commit.
    pub(crate) fn changed(&self, changes: &[TaskChange]) {
        if !changes.is_empty() {
            self.each_listener(|listener| listener.changed(changes));
        }
    }

    /// The same, of tasks that workers are to leave alone.
    pub(crate) fn revoked(&self, tasks: &[Revocation]) {
        if !tasks.is_empty() {
            self.each_listener(|listener| listener.revoked(tasks));
        }
    }

    pub(crate) fn each_listener(&self, say: impl Fn(&dyn WakeupListener)) {
        for listener in self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter() {
            say(listener.as_ref());
        }
    }

    /// Adds to the counters, tells other processes, commits, wakes this one. It commits also where nothing was written:
    /// a session that is dropped keeps its locks for a moment longer, and whoever passes over locked rows would miss
    /// them.
    pub(crate) async fn finish(&self, session: D::Session, ledger: Ledger, wakeup: Wakeup) -> Result<(), StoreError> {
        self.finish_telling(session, ledger, wakeup, &[]).await
    }

    /// The same, of a transaction that has told all who wait for these ends. They are forgotten last: whoever notes the
    /// same end anew waits for this transaction from then on, and it must not wait for anybody any more.
    pub(crate) async fn finish_telling(
        &self,
        mut session: D::Session,
        ledger: Ledger,
        mut wakeup: Wakeup,
        told: &[i64],
    ) -> Result<(), StoreError> {
        let accounts = ledger.close();
        if !accounts.batches.is_empty() {
            wakeup.callbacks.extend(Self::count_batches(&mut session, &accounts.batches).await?);
        }
        if !accounts.is_empty() || !wakeup.is_empty() {
            session.account(&accounts, &wakeup).await?;
        }
        if !told.is_empty() {
            session.drop_endings(told).await?;
        }
        session.commit().await?;
        if !wakeup.is_empty() {
            self.wake(&wakeup);
        }
        Ok(())
    }
}
