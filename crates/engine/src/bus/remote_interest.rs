//! Whether somebody follows tasks' events in another process.
//!
//! Publishing what nobody wants would cost every process something for every task, so processes tell each other whether
//! they want it: once when that changes, and again every so often while they do, so that one that vanished is forgotten. Who
//! comes new asks. Between processes nothing is said while nobody follows anything.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use relais_bus::{Bus, Notice, Subscription};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{TASKS, publisher::EventPublisher};
use crate::error::chain;

/// Where processes say what they want.
pub(super) const CHANNEL: &str = "relais.interest";

/// How often a process that wants events says so.
const RENEW: Duration = Duration::from_secs(10);

/// How soon it says again what could not be said.
const AGAIN: Duration = Duration::from_secs(1);

/// How long that is believed.
const BELIEVED: Duration = Duration::from_secs(35);

/// How long somebody who begins to follow waits for the others to have been told.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most processes that are kept apart; one that is beyond counts for as long as the last word of it.
const MOST: usize = 10_000;

/// What a process says.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    /// Who.
    origin: String,
    /// Whether it wants tasks' events.
    wants: bool,
    /// Whether it wants to know who else does.
    #[serde(default)]
    asks: bool,
}

/// What the other processes want, as far as is known.
pub(crate) struct RemoteInterest {
    /// Whether there may be others.
    shared: bool,
    base: Instant,
    /// Milliseconds after `base` until which somebody wants events.
    until: AtomicU64,
    /// Until when each is believed.
    known: Mutex<HashMap<String, Instant>>,
    /// What the others were last told of this process.
    told: watch::Sender<bool>,
}

impl RemoteInterest {
    pub(super) fn new(shared: bool) -> Self {
        let (until, known) = (AtomicU64::new(0), Mutex::default());
        Self { shared, base: Instant::now(), until, known, told: watch::channel(false).0 }
    }

    /// Whether somebody does.
    pub(super) fn any(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        // Most of the time nobody ever did, and the clock need not be asked.
        until != 0 && self.millis(Instant::now()) < until
    }

    /// Waits until the others were told what is wanted here, if there are others and they can be told.
    pub(super) async fn until_told(&self, wants: bool) {
        if self.shared {
            let mut told = self.told.subscribe();
            let _ = tokio::time::timeout(PATIENCE, told.wait_for(|told| *told == wants)).await;
        }
    }

    fn millis(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.base).as_millis()).unwrap_or(u64::MAX)
    }

    fn note(&self, said: Said, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, until| *until > now);
        if !said.wants {
            known.remove(&said.origin);
        } else if known.len() < MOST || known.contains_key(&said.origin) {
            known.insert(said.origin, now + BELIEVED);
        }
        let latest = known.values().max().map_or(0, |until| self.millis(*until));
        self.until.store(latest, Ordering::Relaxed);
    }
}

/// Says what this process wants, and hears what others do, until all is quiet. `reconnected` is called when what was said in
/// between may have been missed.
pub(super) async fn listen(
    elsewhere: &RemoteInterest,
    bus: &Bus,
    event_publisher: &EventPublisher,
    mut heard: Subscription,
    quiet: &CancellationToken,
    reconnected: impl Fn(),
) {
    let Ok(mut here) = bus.interest(&format!("{TASKS}.>")) else { return };
    let (mut asks, mut again) = (true, false);
    let mut renewal = tokio::time::Instant::now() + RENEW;
    loop {
        let (wants, mut untold) = (here.any(), false);
        if asks || again || wants != *elsewhere.told.borrow() {
            let said = Said { origin: event_publisher.origin().to_owned(), wants, asks };
            match bus.publish(CHANNEL, said).await {
                Ok(_) => {
                    (asks, again) = (false, false);
                    renewal = tokio::time::Instant::now() + RENEW;
                    elsewhere.told.send_replace(wants);
                }
                Err(error) => {
                    untold = true;
                    tracing::debug!(error = %chain(&error), "others are not told what is followed here");
                }
            }
        }
        tokio::select! {
            event = heard.recv() => {
                let Some(event) = event else { return };
                if &*event.channel == Notice::RECONNECTED {
                    asks = true;
                    reconnected();
                } else if let Ok(said) = event.payload.get::<Said>()
                    && said.origin != event_publisher.origin()
                {
                    again |= said.asks && wants;
                    let said = Said { origin: said.origin.clone(), ..*said };
                    elsewhere.note(said, Instant::now());
                }
            }
            () = here.changed() => {}
            () = tokio::time::sleep(AGAIN), if untold => {}
            () = tokio::time::sleep_until(renewal), if wants && !untold => again = true,
            () = quiet.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(origin: &str, wants: bool) -> Said {
        Said { origin: origin.to_owned(), wants, asks: false }
    }

    #[test]
    fn remote_interest_lasts_until_withdrawn_or_silent() {
        let elsewhere = RemoteInterest::new(true);
        assert!(!elsewhere.any());
        let now = Instant::now();
        elsewhere.note(says("a", true), now);
        elsewhere.note(says("b", true), now);
        assert!(elsewhere.any());
        elsewhere.note(says("a", false), now);
        assert!(elsewhere.any(), "b still does");
        elsewhere.note(says("b", false), now);
        assert!(!elsewhere.any());
        elsewhere.note(says("a", true), now);
        elsewhere.note(says("c", false), now + BELIEVED);
        assert!(!elsewhere.any(), "nothing was heard of a for too long");
    }
}
