//! Remote interest: whether another process follows task events.
//!
//! Publishing events that nobody follows would cost every process something for every task. So processes tell each
//! other whether they follow: once when that changes, and again periodically while they do, so that a dead process is
//! forgotten. A new process asks. Nothing is sent while nobody follows anything.

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

/// The channel on which processes send their interest.
pub(super) const CHANNEL: &str = "relais.interest";

/// How often a process that follows sends its interest.
const RENEW: Duration = Duration::from_secs(10);

/// The wait before a failed message is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long an interest lasts.
const BELIEVED: Duration = Duration::from_secs(35);

/// How long a new subscriber waits until the other processes know.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most processes that are tracked. The interest of others lasts as long as their last message.
const MOST: usize = 10_000;

/// A message of interest.
#[derive(Debug, Serialize, Deserialize)]
struct InterestMessage {
    /// The process.
    origin: String,
    /// Whether it follows task events.
    wants: bool,
    /// Whether it asks who else follows.
    #[serde(default)]
    asks: bool,
}

/// The known interest of other processes.
pub(crate) struct RemoteInterest {
    /// Whether there may be other processes.
    shared: bool,
    base: Instant,
    /// Milliseconds after `base` until which another process follows.
    until: AtomicU64,
    /// Until when the interest of each process lasts.
    known: Mutex<HashMap<String, Instant>>,
    /// The last interest of this process that was sent.
    told: watch::Sender<bool>,
}

impl RemoteInterest {
    pub(super) fn new(shared: bool) -> Self {
        let (until, known) = (AtomicU64::new(0), Mutex::default());
        Self { shared, base: Instant::now(), until, known, told: watch::channel(false).0 }
    }

    /// Whether another process follows.
    pub(super) fn any(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        // Usually no process ever followed, so the clock is not read.
        until != 0 && self.millis(Instant::now()) < until
    }

    /// Waits until the other processes know the interest of this one, if there are others and they can be reached.
    pub(super) async fn until_sent(&self, wants: bool) {
        if self.shared {
            let mut told = self.told.subscribe();
            let _ = tokio::time::timeout(PATIENCE, told.wait_for(|told| *told == wants)).await;
        }
    }

    fn millis(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.base).as_millis()).unwrap_or(u64::MAX)
    }

    fn note(&self, said: InterestMessage, now: Instant) {
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

/// Sends the interest of this process and receives that of others, until the engine is closed. `reconnected` is called
/// when messages may have been missed.
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
            let said = InterestMessage { origin: event_publisher.origin().to_owned(), wants, asks };
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
                } else if let Ok(said) = event.payload.get::<InterestMessage>()
                    && said.origin != event_publisher.origin()
                {
                    again |= said.asks && wants;
                    let said = InterestMessage { origin: said.origin.clone(), ..*said };
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

    fn says(origin: &str, wants: bool) -> InterestMessage {
        InterestMessage { origin: origin.to_owned(), wants, asks: false }
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
