//! What is due by the server's clock.

use std::time::Duration;

use relais_core::StoreError;
use relais_notify::{AckEffect, AckEvent, AckStatus, Fired};
use uuid::Uuid;

use crate::{
    RedisNotifications,
    change::{Changed, Plan},
    error::corrupt,
    message::{MessageRow, moment, uuid},
    scripts,
};

impl RedisNotifications {
    /// Messages that one of the indexes by time (`timers`, `expirations`) has up to so long ago, with the server's time.
    pub(crate) async fn read_due(
        &self,
        index: &str,
        ago: Duration,
        limit: usize,
        inclusive: bool,
    ) -> Result<(jiff::Timestamp, Vec<Uuid>), StoreError> {
        let arguments =
            [index.to_owned(), ago.as_millis().to_string(), limit.to_string(), u8::from(inclusive).to_string()];
        let (now, ids): (String, Vec<String>) = self.0.connections.run(&scripts::DUE, &arguments).await?;
        Ok((moment(&now)?, ids.iter().map(|id| uuid(id)).collect::<Result<_, _>>()?))
    }

    pub(crate) async fn fire(&self, limit: usize) -> Result<Fired, StoreError> {
        let (now, ids) = self.read_due("timers", Duration::ZERO, limit, true).await?;
        let mut fired = Fired { more: ids.len() >= limit, ..Fired::default() };
        let rows = self.read_messages(&ids).await?;
        let gone: Vec<String> = ids.iter().filter(|id| !rows.contains_key(id)).map(Uuid::to_string).collect();
        if !gone.is_empty() {
            let mut pipeline = redis::pipe();
            pipeline.cmd("ZREM").arg(self.keys().only("timers")).arg(&gone).ignore();
            self.ask::<()>(&pipeline).await?;
        }
        let rows: Vec<MessageRow> = ids.iter().filter_map(|id| rows.get(id).cloned()).collect();
        let awaited = self.count_awaited(&rows).await?;
        let (mut plan, mut effects) = (Plan::default(), Vec::with_capacity(rows.len()));
        for (row, awaited) in rows.iter().zip(awaited) {
            let applied = plan.apply(row, AckEvent::Due, awaited, now);
            // Only a resend is ever refused.
            effects.push(applied.map_err(|refused| corrupt(refused.to_string()))?);
        }
        // Where somebody else was quicker, the timer stays, and fires again.
        let Changed::Done { fits, .. } = self.change(&plan).await? else {
            return Err(corrupt("messages that are due can not be stale"));
        };
        for ((effect, status), _) in effects.into_iter().zip(fits).filter(|(_, fits)| *fits) {
            match effect {
                AckEffect::Replay { .. } => fired.replayed += 1,
                AckEffect::LogError => fired.failed += 1,
                AckEffect::None | AckEffect::SettleError | AckEffect::TellWithdrawn => {
                    fired.expired += usize::from(status == AckStatus::Expired);
                }
            }
        }
        fired.again = self.next_due().await?;
        Ok(fired)
    }

    /// How long until the next timer; none if there is none.
    async fn next_due(&self) -> Result<Option<Duration>, StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ZRANGE").arg(self.keys().only("timers")).arg(0).arg(0).arg("WITHSCORES").cmd("TIME");
        let (first, (seconds, micros)): (Vec<(String, f64)>, (i64, i64)) = self.ask(&pipeline).await?;
        let Some((_, due)) = first.first() else { return Ok(None) };
        // Exact: the doubles of sorted sets have 53 bits.
        let left = (*due as i64).saturating_sub(seconds * 1000 + micros / 1000);
        Ok(Some(Duration::from_millis(u64::try_from(left).unwrap_or(0))))
    }
}
