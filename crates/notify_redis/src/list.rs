//! Lists and counts.
//!
//! What is counted for a user are the user's own messages that are not over; how many others there are makes no difference.

use std::collections::HashSet;

use relais_core::StoreError;
use relais_notify::{
    Counts, ListFilter, ListRequest, ListedNotification, LogPosition, NotificationFilter, StoredNotification, UserScope,
};
use uuid::Uuid;

use crate::{
    RedisNotifications,
    message::{LiveMessage, MessageRow, moment, status_code, uuid},
};

/// So many messages of an audience key are looked at in one round trip.
const PAGE: usize = 1000;

impl RedisNotifications {
    /// A page of a user's messages that are not over, newest first, each with whether the user has acknowledged it.
    async fn read_page(
        &self,
        scope: &UserScope,
        before: Option<LogPosition>,
        limit: usize,
        now: jiff::Timestamp,
    ) -> Result<(Vec<(LiveMessage, bool)>, Option<LogPosition>), StoreError> {
        let (mut found, next) = self.read_live(scope, before, limit).await?;
        found.retain(|live| live.expiration > now);
        let (Some(newest), Some(oldest)) = (found.first(), found.last()) else { return Ok((Vec::new(), next)) };
        let mut pipeline = redis::pipe();
        pipeline.cmd("ZRANGEBYSCORE").arg(self.keys().read(&scope.user)).arg(oldest.position).arg(newest.position);
        let (read,): (Vec<String>,) = self.ask(&pipeline).await?;
        let read: HashSet<Uuid> = read.iter().map(|id| uuid(id)).collect::<Result<_, _>>()?;
        Ok((found.into_iter().map(|live| (live, read.contains(&live.id))).collect(), next))
    }

    /// What a user has not acknowledged, oldest first.
    pub(crate) async fn unread(&self, scope: &UserScope, limit: usize) -> Result<Vec<Uuid>, StoreError> {
        let (now, mut before, mut unread) = (self.now().await?, None, Vec::new());
        loop {
            let (page, next) = self.read_page(scope, before, PAGE, now).await?;
            unread.extend(page.into_iter().filter(|(_, is_read)| !is_read).map(|(live, _)| live.id));
            match next {
                Some(_) => before = next,
                None => break,
            }
        }
        unread.reverse();
        unread.truncate(limit);
        Ok(unread)
    }

    pub(crate) async fn count(&self, scope: &UserScope) -> Result<Counts, StoreError> {
        let (now, mut before, mut counts) = (self.now().await?, None, Counts::default());
        loop {
            let (page, next) = self.read_page(scope, before, PAGE, now).await?;
            counts.all += page.len() as u64;
            for (live, _) in page.into_iter().filter(|(_, is_read)| !is_read) {
                counts.unread += 1;
                counts.unacknowledged += u64::from(live.is_awaited);
            }
            match next {
                Some(_) => before = next,
                None => return Ok(counts),
            }
        }
    }

    pub(crate) async fn list(&self, request: &ListRequest) -> Result<Vec<ListedNotification>, StoreError> {
        let ListRequest { scope, filter, before, limit } = request;
        let (now, mut before, mut listed) = (self.now().await?, *before, Vec::new());
        while listed.len() < *limit {
            let size = if *filter == ListFilter::All { (*limit).min(PAGE) } else { PAGE };
            let (mut page, next) = self.read_page(scope, before, size, now).await?;
            page.retain(|(live, is_read)| match filter {
                ListFilter::All => true,
                ListFilter::Unread => !is_read,
                ListFilter::Unacknowledged => !is_read && live.is_awaited,
            });
            page.truncate(*limit - listed.len());
            let mut rows = self.read_messages(&page.iter().map(|(live, _)| live.id).collect::<Vec<_>>()).await?;
            listed.extend(page.iter().filter_map(|(live, is_read)| Some((rows.remove(&live.id)?, *is_read))));
            match next {
                Some(_) => before = next,
                None => break,
            }
        }
        self.with_acknowledgements(&scope.user, listed).await
    }

    async fn with_acknowledgements(
        &self,
        user: &str,
        rows: Vec<(MessageRow, bool)>,
    ) -> Result<Vec<ListedNotification>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for (row, _) in &rows {
            pipeline.cmd("HGET").arg(self.keys().acknowledged(&row.id())).arg(user);
        }
        let moments: Vec<Option<String>> = self.ask(&pipeline).await?;
        let with = |((row, is_read), at): ((MessageRow, bool), Option<String>)| {
            // Acknowledged after the list was read: not yet, as the list has it.
            let acknowledged = at.filter(|_| is_read).as_deref().map(moment).transpose()?;
            Ok(ListedNotification { stored: row.stored, acknowledged })
        };
        rows.into_iter().zip(moments).map(with).collect()
    }

    /// For operators and emitters.
    pub(crate) async fn list_all(&self, filter: &NotificationFilter) -> Result<Vec<StoredNotification>, StoreError> {
        let key =
            self.keys().list(filter.status.map_or("all", status_code), filter.client.as_deref().unwrap_or_default());
        let below = filter.before.map_or("+inf".to_owned(), |before| format!("({before}"));
        let mut pipeline = redis::pipe();
        pipeline.cmd("ZREVRANGEBYSCORE").arg(key).arg(below).arg("-inf").arg("LIMIT").arg(0).arg(filter.limit);
        let (ids,): (Vec<String>,) = self.ask(&pipeline).await?;
        let ids = ids.iter().map(|id| uuid(id)).collect::<Result<Vec<_>, _>>()?;
        let mut rows = self.read_messages(&ids).await?;
        Ok(ids.iter().filter_map(|id| rows.remove(id)).map(|row| row.stored).collect())
    }
}
