//! How long to wait before the next try, and one log line per outage.
//!
//! The waits grow so that a server that comes back is not run over, and vary so that a hundred workers do not come back
//! at the same instant. There is no limit to the number of tries: whoever waits decides when to give up.

use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use crate::CallError;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Waits of 100 ms, 200 ms, 400 ms… up to 5 s, each shortened by up to half of it.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next wait.
    pub fn next(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        whole.mul_f64(1.0 - chance() / 2.0)
    }

    /// It worked: the next failure starts over.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Evenly spread over 0..1. Without a source of randomness the waits are only less spread, which is no reason to fail.
fn chance() -> f64 {
    f64::from(getrandom::u32().unwrap_or_default()) / (f64::from(u32::MAX) + 1.0)
}

/// The kinds of calls that can be without an answer at the same time. Progress is not among them: it is not tried again
/// once its task has ended, so that its outage might never end.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Call {
    Claim = 1,
    Results = 2,
    Heartbeat = 4,
    Return = 8,
}

/// Whether the server is away, as the calls see it together: the first that fails says so, the last that works again
/// too.
#[derive(Debug, Default)]
pub(crate) struct Outage(AtomicU8);

impl Outage {
    pub fn failed(&self, call: Call, error: &CallError) {
        if self.begins(call) {
            tracing::warn!(?call, error = error.chain(), "the server does not answer as it should; trying again");
        }
    }

    pub fn worked(&self, call: Call) {
        if self.ends(call) {
            tracing::info!("the server answers again");
        }
    }

    /// Whether any of the calls fails.
    #[cfg(feature = "health")]
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn begins(&self, call: Call) -> bool {
        self.0.fetch_or(call as u8, Ordering::Relaxed) == 0
    }

    fn ends(&self, call: Call) -> bool {
        self.0.fetch_and(!(call as u8), Ordering::Relaxed) == call as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit_and_start_over_after_a_success() {
        let mut backoff = Backoff::default();
        for whole in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.next();
            let whole = Duration::from_millis(whole);
            assert!(wait > whole / 2 - Duration::from_millis(1) && wait <= whole, "{wait:?} of {whole:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }

    #[test]
    fn waits_stay_at_the_limit_however_long_the_outage() {
        let mut backoff = Backoff { failures: u32::MAX };
        assert!(backoff.next() <= LONGEST);
        assert!(backoff.next() >= LONGEST / 2);
    }

    #[test]
    fn waits_differ() {
        let waits: Vec<_> = (0..20).map(|_| Backoff { failures: 10 }.next()).collect();
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }

    #[test]
    fn an_outage_is_logged_once_and_ends_when_every_call_succeeds() {
        let outage = Outage::default();
        assert!(!outage.ends(Call::Claim), "there was none");
        assert!(outage.begins(Call::Claim));
        assert!(!outage.begins(Call::Claim));
        assert!(!outage.begins(Call::Heartbeat));
        assert!(!outage.ends(Call::Claim), "heartbeats still fail");
        assert!(outage.ends(Call::Heartbeat));
        assert!(outage.begins(Call::Results));
    }
}
