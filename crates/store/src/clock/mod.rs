//! Minding the clock, before anything is done because of the time.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::time::Instant;

use relais_core::StoreError;

use crate::{
    clock::statements::Clock as _,
    session::{Database, Session as _},
    verbs::Verbs,
};

impl<D: Database> Verbs<D> {
    /// Moves what is counted in durations along, if the database's clock was set.
    pub(crate) async fn mind_the_clock(&self) -> Result<(), StoreError> {
        let asked = Instant::now();
        let reading = self.database.read_clock().await?;
        let Some(by) = self.clock.look(asked, Instant::now(), reading) else { return Ok(()) };
        let mut session = self.database.begin().await?;
        let moved = session.step_clock(reading.stepped, by).await?;
        session.commit().await?;
        if moved {
            tracing::warn!(
                by_ms = by,
                "the database's clock was set; leases, deadlines and waits were moved along, dates were not"
            );
        }
        Ok(())
    }

    /// Whether the clock was set since it was minded. Asked when it is known what is to be done because of the time,
    /// and before it is done: then the clock by which that was found is one that was minded.
    pub(crate) async fn was_set_meanwhile(&self, session: &mut D::Session) -> Result<bool, StoreError> {
        let asked = Instant::now();
        let reading = session.read_clock().await?;
        Ok(self.clock.look(asked, Instant::now(), reading).is_some())
    }
}
