//! Dispatching tasks to a broker: what is still to be published, and by whom.

use std::time::Duration;

use relais_core::{DispatchName, Dispatched, DueDispatch, ServiceKey, StoreError, Wakeup};

use super::{Verbs, ledger::Ledger};
use crate::{
    dispatch::Dispatch as _,
    session::{Database, Session},
};

impl<D: Database> Verbs<D> {
    pub(super) async fn hold_dispatches(
        &self,
        services: &[ServiceKey],
        each: usize,
        lease: Duration,
    ) -> Result<Vec<DueDispatch>, StoreError> {
        let limited = self.limited();
        let (mut windowed, mut free): (Vec<ServiceKey>, Vec<ServiceKey>) =
            services.iter().partition(|service| limited.windows.contains(service));
        let mut session = self.database.begin().await?;
        let mut held = Vec::new();
        // In the order of their keys, so that two sessions never wait for each other in a circle.
        windowed.sort_unstable();
        for service in windowed {
            match session.window_room(service).await? {
                Some(room) => held.extend(session.hold_places(service, each, room, lease).await?),
                None => free.push(service),
            }
        }
        if !free.is_empty() {
            held.extend(session.hold_dispatches(&free, each, lease).await?);
        }
        session.commit().await?;
        Ok(held)
    }

    pub(super) async fn settle_dispatches(
        &self,
        mut tasks: Vec<DispatchName>,
        outcome: Dispatched,
    ) -> Result<(), StoreError> {
        if tasks.is_empty() {
            return Ok(());
        }
        // In the order of their keys, so that two sessions never wait for each other in a circle.
        tasks.sort_unstable();
        let mut session = self.database.begin().await?;
        session.settle_dispatches(&tasks, outcome).await?;
        session.commit().await
    }

    pub(super) async fn note_dispatch_again(&self, service: ServiceKey) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        session.note_dispatch_again(service, true).await?;
        let wakeup = Wakeup { dispatch: vec![service], ..Wakeup::default() };
        self.finish(session, Ledger::default(), wakeup).await
    }

    pub(super) async fn dispatch_noted(&self, limit: usize) -> Result<bool, StoreError> {
        let mut session = self.database.begin().await?;
        let service = session.dispatch_noted(limit).await?;
        let wakeup = Wakeup { dispatch: service.into_iter().collect(), ..Wakeup::default() };
        self.finish(session, Ledger::default(), wakeup).await?;
        Ok(service.is_some())
    }

    pub(super) async fn lease_some_strays(&self, limit: usize) -> Result<usize, StoreError> {
        let mut session = self.database.begin().await?;
        let found = session.lease_strays(limit).await?;
        session.commit().await?;
        Ok(found)
    }
}
