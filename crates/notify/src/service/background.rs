//! What runs in the background: the reader of the log, timers, the ledger's writer, and the purge.

use std::time::Duration;

use relais_core::StoreError;

use super::{AT_ONCE, NotificationOptions, Notifications};
use crate::Tickets;

/// Timers are looked at this often although nobody announced one: a clock may be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Deliveries wait so long to be written to the ledger together.
const RECORD_EVERY: Duration = Duration::from_millis(200);

impl Notifications {
    /// Reads the log whenever it has grown.
    pub(super) async fn follow_log(self) {
        let mut told = false;
        loop {
            match self.0.hub.read_on().await {
                Ok(_) => {
                    if std::mem::take(&mut told) {
                        tracing::info!("the log of notifications is read again");
                    }
                    self.note_trouble(None);
                }
                Err(error) => {
                    let why = reason(&error);
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(error = why, "the log of notifications can not be read; links wait");
                    }
                    self.note_trouble(Some(why));
                }
            }
            tokio::select! {
                () = self.0.log_bell.notified() => {}
                () = tokio::time::sleep(self.0.options.sweep) => {}
            }
        }
    }

    fn note_trouble(&self, trouble: Option<String>) {
        metrics::gauge!("relais_notification_log_up").set(if trouble.is_none() { 1.0 } else { 0.0 });
        self.0.trouble.send_if_modified(|known| {
            let is_new = *known != trouble;
            *known = trouble;
            is_new
        });
    }

    /// The key of tickets is that of all processes.
    pub(super) async fn load_tickets(self) {
        loop {
            match self.0.store.ticket_key().await {
                Ok(key) => return self.0.identities.set_tickets(Tickets::new(key)),
                Err(error) => tracing::debug!(%error, "the key of tickets could not be read yet"),
            }
            tokio::time::sleep(self.0.options.sweep).await;
        }
    }

    pub(super) async fn expire_links(self) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tick.tick().await;
            self.0.hub.expire();
        }
    }

    pub(super) async fn record_deliveries(self) {
        loop {
            self.0.hub.deliveries_bell.notified().await;
            tokio::time::sleep(RECORD_EVERY).await;
            let mut deliveries = self.0.hub.take_deliveries();
            while !deliveries.is_empty() {
                let later = deliveries.split_off(deliveries.len().min(AT_ONCE * 4));
                if let Err(error) = self.0.store.record_deliveries(deliveries).await {
                    tracing::warn!(%error, "deliveries could not be written to the ledger");
                }
                deliveries = later;
            }
        }
    }

    /// Sends messages again when they are due, and sleeps until the next one is.
    pub(super) async fn fire_timers(self) {
        loop {
            let sleep = match self.0.store.fire_notification_timers(AT_ONCE).await {
                Ok(fired) => {
                    let count = |name: &'static str, number: usize| metrics::counter!(name).increment(number as u64);
                    count("relais_notification_replayed_total", fired.replayed);
                    count("relais_notification_failed_total", fired.failed);
                    count("relais_notification_expired_total", fired.expired);
                    if fired.more {
                        continue;
                    }
                    fired.again.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
                }
                Err(error) => {
                    tracing::debug!(%error, "timers of notifications could not be fired");
                    self.0.options.sweep
                }
            };
            tokio::select! {
                // What is due in a fraction of a millisecond is not due yet.
                () = tokio::time::sleep(sleep + Duration::from_millis(1)) => {}
                () = self.0.timer_bell.notified() => {}
            }
        }
    }

    pub(super) async fn purge(self) {
        let mut tick = tokio::time::interval(self.0.options.purge_every);
        loop {
            tick.tick().await;
            loop {
                let NotificationOptions { log_age, age, .. } = self.0.options;
                match self.0.store.purge_notifications(log_age, age, AT_ONCE).await {
                    Ok(purged) if purged.entries.max(purged.notifications) >= AT_ONCE as u64 => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::debug!(%error, "old notifications could not be purged");
                        break;
                    }
                }
            }
        }
    }
}

/// What the store says, and what it says of why.
fn reason(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
