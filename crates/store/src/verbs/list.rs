//! Listing tasks, by dates too, at a cost that does not grow with what is stored.

use std::time::Duration;

use relais_core::{Page, StoreError, TaskFilter, Timestamp};

use super::Verbs;
use crate::session::Database;

/// Tasks are numbered in the order in which they are submitted, but for those submitted at the same time.
const SAME_TIME: Duration = Duration::from_secs(60);

impl<D: Database> Verbs<D> {
    /// Dates become bounds on `id`, found by bisection, so that an index does the rest.
    pub(super) async fn list(&self, mut filter: TaskFilter) -> Result<Page, StoreError> {
        let mut from_id = 0;
        if let Some(from) = filter.submitted_from {
            from_id = self.first_submitted(from.before(SAME_TIME)).await?;
        }
        if let Some(before) = filter.submitted_before {
            let bound = self.first_submitted(before.after(SAME_TIME)).await?;
            filter.before_id = Some(filter.before_id.map_or(bound, |cursor| cursor.min(bound)));
        }
        self.database.list_tasks(&filter, from_id).await
    }

    /// The `id` of the first task submitted at `moment` or later, or the one that the next task may get.
    async fn first_submitted(&self, moment: Timestamp) -> Result<i64, StoreError> {
        let (mut low, mut high) = (0, self.database.last_id().await? + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.database.first_from(middle).await? {
                Some((id, submitted)) if submitted < moment => low = id + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }
}
