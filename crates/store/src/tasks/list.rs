//! Lists and counts tasks, also by date. The cost grows with the page, not with what is stored.

use std::time::Duration;

use relais_core::{Page, StoreError, TaskFilter, TaskLink, Timestamp};

use crate::{dependencies::statements::LinkRow, session::Database, verbs::Verbs};

/// A page of linked tasks looks at no more than this number of them. Linked tasks have a batch, a parent, a correlation
/// id or a prerequisite in common ([`TaskLink`]).
const LOOK: usize = 2_000;

/// Tasks are numbered in the order of submission, except those submitted within this time of each other.
const SAME_TIME: Duration = Duration::from_secs(60);

impl<D: Database> Verbs<D> {
    /// Turns dates into bounds on `id`, found by bisection, so that an index can be used.
    pub(crate) async fn list_tasks(&self, mut filter: TaskFilter) -> Result<Page, StoreError> {
        let from_id = self.bounds(&mut filter).await?;
        match &filter.link {
            Some(link) => self.list_linked(link, &filter, from_id).await,
            None => self.database.list_tasks(&filter, from_id).await,
        }
    }

    /// How many tasks match, counted up to the limit of the filter.
    pub(crate) async fn count_tasks(&self, mut filter: TaskFilter) -> Result<u64, StoreError> {
        let from_id = self.bounds(&mut filter).await?;
        match filter.link.clone() {
            Some(link) => self.count_linked(&link, &filter, from_id).await,
            None => self.database.count_tasks(&filter, from_id).await,
        }
    }

    /// The lowest `id` that can match; the highest is put into the filter.
    async fn bounds(&self, filter: &mut TaskFilter) -> Result<i64, StoreError> {
        let mut from_id = 0;
        if let Some(from) = filter.submitted_from {
            from_id = self.first_submitted(from.before(SAME_TIME)).await?;
        }
        if let Some(before) = filter.submitted_before {
            let bound = self.first_submitted(before.after(SAME_TIME)).await?;
            filter.before_id = Some(filter.before_id.map_or(bound, |cursor| cursor.min(bound)));
        }
        Ok(from_id)
    }

    /// Looks at up to [`LOOK`] linked tasks, and lists those that match.
    async fn list_linked(&self, link: &TaskLink, filter: &TaskFilter, from_id: i64) -> Result<Page, StoreError> {
        let before = filter.before_id.unwrap_or(i64::MAX);
        let look = if takes_all(filter, from_id) { filter.limit.min(LOOK) } else { LOOK };
        let looked = self.database.linked(link, filter.client, before, look).await?;
        let ids: Vec<i64> = looked
            .iter()
            .filter(|task| matches(task, filter, from_id))
            .take(filter.limit)
            .map(|task| task.id)
            .collect();
        let next_before_id = match (ids.last(), looked.last()) {
            (Some(&last), _) if ids.len() == filter.limit => Some(last),
            (_, Some(last)) if looked.len() == look && last.id > from_id => Some(last.id),
            _ => None,
        };
        let tasks = if ids.is_empty() { Vec::new() } else { self.database.tasks_by_row(&ids).await? };
        Ok(Page { tasks, next_before_id })
    }

    /// How many linked tasks match, counted up to the limit of the filter.
    async fn count_linked(&self, link: &TaskLink, filter: &TaskFilter, from_id: i64) -> Result<u64, StoreError> {
        let (mut counted, mut before) = (0, filter.before_id.unwrap_or(i64::MAX));
        loop {
            let looked = self.database.linked(link, filter.client, before, LOOK).await?;
            counted += looked.iter().filter(|task| matches(task, filter, from_id)).count();
            match looked.last() {
                Some(last) if looked.len() == LOOK && last.id > from_id && counted < filter.limit => before = last.id,
                _ => return Ok(counted.min(filter.limit) as u64),
            }
        }
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

/// Whether the filter matches every linked task. Then no more are looked at than are listed.
fn takes_all(filter: &TaskFilter, from_id: i64) -> bool {
    from_id == 0
        && filter.services.is_empty()
        && filter.statuses.is_empty()
        && filter.submitted_from.is_none()
        && filter.submitted_before.is_none()
}

/// Whether a linked task matches the filter.
fn matches(task: &LinkRow, filter: &TaskFilter, from_id: i64) -> bool {
    task.id >= from_id
        && (filter.services.is_empty() || filter.services.contains(&task.service))
        && (filter.statuses.is_empty() || filter.statuses.contains(&task.status))
        && filter.submitted_from.is_none_or(|from| task.submitted >= from)
        && filter.submitted_before.is_none_or(|before| task.submitted < before)
}
