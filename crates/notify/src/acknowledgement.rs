//! What becomes of a message after it was emitted: acknowledged, sent again, failed, expired, withdrawn.
//!
//! The rules are pure. Whoever calls [`apply`] says what time it is by the database, and how many are awaited and have not
//! acknowledged. Who that is, is never stored: it is computed from the members ([`Memberships::awaited`]) and from the
//! acknowledgements, which are only ever added.
//!
//! [`Memberships::awaited`]: crate::Memberships::awaited

use std::time::Duration;

use jiff::Timestamp;

use crate::{Backoff, Retry};

/// A pause between two sendings is never longer.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);

/// What holds for a message as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AckPolicy {
    /// Whether it must be acknowledged, and how it is sent again.
    pub retry: Retry,
    /// How long a user has to acknowledge before it is sent again for the first time.
    pub ack_timeout: Duration,
    /// From when on it is not sent any more.
    pub expiration: Timestamp,
}

impl AckPolicy {
    /// How long to wait for acknowledgements after a sending; `attempts` is 0 after the first one.
    ///
    /// ```
    /// use relais_notify::{AckPolicy, Backoff, Retry};
    /// use std::time::Duration;
    ///
    /// let retry = Retry { backoff: Backoff::Exponential, ..Retry::default() };
    /// let policy = AckPolicy { retry, ack_timeout: Duration::from_secs(30), expiration: jiff::Timestamp::MAX };
    /// let pauses: Vec<u64> = (0..9).map(|attempts| policy.pause(attempts).as_secs()).collect();
    /// assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
    /// ```
    pub fn pause(&self, attempts: u32) -> Duration {
        let factor = match self.retry.backoff {
            Backoff::Fixed => 1,
            Backoff::Linear => attempts.saturating_add(1),
            Backoff::Exponential => 2_u32.saturating_pow(attempts),
        };
        self.ack_timeout.saturating_mul(factor).min(LONGEST_PAUSE)
    }

    /// A message that was emitted just now.
    pub fn emitted(&self, now: Timestamp) -> AckState {
        let mut state = AckState { status: AckStatus::Open, attempts: 0, resent_at: 0, due: None, revision: 0 };
        state.due = self.due(&state, now);
        state
    }

    /// When an open message that was sent just now must be looked at again.
    fn due(&self, state: &AckState, now: Timestamp) -> Option<Timestamp> {
        let Retry { ack_required, enabled, .. } = self.retry;
        if !(ack_required && enabled) {
            return Some(self.expiration);
        }
        let pause = self.pause(state.attempts - state.resent_at);
        Some(now.checked_add(pause).unwrap_or(Timestamp::MAX).min(self.expiration))
    }
}

/// How a message stands as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AckStatus {
    /// It is sent to whoever comes, and acknowledgements are awaited where it needs them.
    Open,
    /// All who had to have acknowledged it.
    Acknowledged,
    /// It was sent as often as its limit allows, and somebody has not acknowledged it. It is in the error log.
    Failed,
    /// Its time was over before that.
    Expired,
    /// Its emitter has taken it back, or put another in its place.
    Withdrawn,
}

/// What is stored about the acknowledgement of a message, beside who has acknowledged it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AckState {
    /// How it stands.
    pub status: AckStatus,
    /// How often it was sent again. It never goes back.
    pub attempts: u32,
    /// The value of `attempts` when an operator sent it again for the last time; its limit counts from there.
    pub resent_at: u32,
    /// When it must be looked at again ([`AckEvent::Due`]).
    pub due: Option<Timestamp>,
    /// Grows with each change. A store writes a new state only over the one that it was made of, so that a message is sent
    /// again once, however many instances have a timer.
    pub revision: u64,
}

/// Something that happens to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AckEvent {
    /// Somebody has acknowledged it, or has left its audience.
    FewerAwaited,
    /// Its timer fired; perhaps early.
    Due,
    /// An operator sends it again from the error log.
    Resend,
    /// Its emitter takes it back.
    Withdraw,
}

/// What follows from a change. It is written with the new state, in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AckEffect {
    /// Nothing.
    None,
    /// A new entry of the log: the same id, with these attempts, for those who are awaited and have not acknowledged when it
    /// is delivered.
    Replay {
        /// How often it was sent again, with this time.
        attempts: u32,
    },
    /// An entry of the error log.
    LogError,
    /// An entry of the error log is settled: all have acknowledged after all.
    SettleError,
    /// A new entry of the log for the whole audience: pages that show the message are told.
    TellWithdrawn,
}

/// Why an event is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AckRefused {
    /// Only what is in the error log is sent again.
    #[error("only a message that has failed can be sent again")]
    NotFailed,
    /// Expired messages are not sent.
    #[error("the message has expired")]
    Expired,
    /// What was withdrawn has no place that another one could take.
    #[error("the message was withdrawn or replaced already")]
    Withdrawn,
}

/// What an event does to a message. `awaited` is how many must acknowledge it and have not.
///
/// An event that changes nothing gives the same state back, with the same revision.
pub fn apply(
    policy: &AckPolicy,
    state: &AckState,
    event: AckEvent,
    awaited: usize,
    now: Timestamp,
) -> Result<(AckState, AckEffect), AckRefused> {
    let ends = |status: AckStatus, effect: AckEffect| Some((AckState { status, due: None, ..state.clone() }, effect));
    let is_settled = policy.retry.ack_required && awaited == 0;
    let changed = match (event, state.status) {
        (AckEvent::Withdraw, AckStatus::Withdrawn) => None,
        (AckEvent::Withdraw, _) => ends(AckStatus::Withdrawn, AckEffect::TellWithdrawn),
        (AckEvent::Resend, AckStatus::Failed) if now >= policy.expiration => return Err(AckRefused::Expired),
        (AckEvent::Resend, AckStatus::Failed) if is_settled => ends(AckStatus::Acknowledged, AckEffect::SettleError),
        (AckEvent::Resend, AckStatus::Failed) => {
            let attempts = state.attempts.saturating_add(1);
            Some(send_again(policy, AckState { resent_at: attempts, attempts, ..state.clone() }, now))
        }
        (AckEvent::Resend, _) => return Err(AckRefused::NotFailed),
        (_, AckStatus::Open) if is_settled => ends(AckStatus::Acknowledged, AckEffect::None),
        (_, AckStatus::Failed) if is_settled => ends(AckStatus::Acknowledged, AckEffect::SettleError),
        (AckEvent::Due, AckStatus::Open) if now >= policy.expiration => ends(AckStatus::Expired, AckEffect::None),
        (AckEvent::Due, AckStatus::Open) if state.due.is_some_and(|due| now >= due) => {
            if state.attempts - state.resent_at >= policy.retry.limit {
                ends(AckStatus::Failed, AckEffect::LogError)
            } else {
                let attempts = state.attempts.saturating_add(1);
                Some(send_again(policy, AckState { attempts, ..state.clone() }, now))
            }
        }
        (AckEvent::Due | AckEvent::FewerAwaited, _) => None,
    };
    Ok(match changed {
        Some((changed, effect)) => (AckState { revision: state.revision + 1, ..changed }, effect),
        None => (state.clone(), AckEffect::None),
    })
}

fn send_again(policy: &AckPolicy, mut state: AckState, now: Timestamp) -> (AckState, AckEffect) {
    state.status = AckStatus::Open;
    state.due = policy.due(&state, now);
    let effect = AckEffect::Replay { attempts: state.attempts };
    (state, effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMITTED: Timestamp = Timestamp::constant(1_000, 0);

    fn policy(retry: Retry) -> AckPolicy {
        AckPolicy { retry, ack_timeout: Duration::from_secs(30), expiration: at(100_000) }
    }

    fn at(seconds: i64) -> Timestamp {
        EMITTED + jiff::SignedDuration::from_secs(seconds)
    }

    fn required(limit: u32, backoff: Backoff) -> AckPolicy {
        policy(Retry { ack_required: true, limit, backoff, ..Retry::default() })
    }

    /// Fires the timer whenever it is due; when, and what came of it.
    fn run(policy: &AckPolicy, awaited: usize) -> Result<Vec<(i64, AckEffect)>, AckRefused> {
        let (mut state, mut told) = (policy.emitted(EMITTED), Vec::new());
        while let Some(due) = state.due {
            let (next, effect) = apply(policy, &state, AckEvent::Due, awaited, due)?;
            assert!(next.revision > state.revision, "a timer that is due changes something");
            told.push((due.as_second() - EMITTED.as_second(), effect));
            state = next;
        }
        Ok(told)
    }

    #[test]
    fn pauses_follow_the_backoff_until_the_error_log() -> Result<(), AckRefused> {
        let replays = |pauses: [i64; 4]| {
            let mut told: Vec<(i64, AckEffect)> = (1..=3)
                .zip(pauses)
                .map(|(attempts, pause)| (pause, AckEffect::Replay { attempts }))
                .chain([(pauses[3], AckEffect::LogError)])
                .collect();
            for number in 1..told.len() {
                told[number].0 += told[number - 1].0;
            }
            told
        };
        assert_eq!(run(&required(3, Backoff::Fixed), 1)?, replays([30, 30, 30, 30]));
        assert_eq!(run(&required(3, Backoff::Linear), 1)?, replays([30, 60, 90, 120]));
        assert_eq!(run(&required(3, Backoff::Exponential), 1)?, replays([30, 60, 120, 240]));
        assert_eq!(run(&required(0, Backoff::Fixed), 1)?, [(30, AckEffect::LogError)]);
        Ok(())
    }

    #[test]
    fn what_is_not_replayed_expires() -> Result<(), AckRefused> {
        let quiet = policy(Retry { ack_required: true, enabled: false, ..Retry::default() });
        assert_eq!(run(&quiet, 1)?, [(100_000, AckEffect::None)]);
        // Nobody is awaited where nobody has to acknowledge: it is there until it expires.
        let free = policy(Retry::default());
        assert_eq!(run(&free, 0)?, [(100_000, AckEffect::None)]);
        // A pause that would end later than the message ends with it.
        let short = AckPolicy { expiration: at(100), ..required(9, Backoff::Exponential) };
        let last = run(&short, 1)?.pop();
        assert_eq!(last, Some((100, AckEffect::None)));
        Ok(())
    }

    #[test]
    fn a_resend_counts_on_and_starts_its_limit_anew() -> Result<(), AckRefused> {
        let policy = required(1, Backoff::Exponential);
        let failed = AckState { status: AckStatus::Failed, attempts: 1, resent_at: 0, due: None, revision: 3 };
        let (resent, effect) = apply(&policy, &failed, AckEvent::Resend, 1, at(500))?;
        assert_eq!(effect, AckEffect::Replay { attempts: 2 });
        assert_eq!((resent.status, resent.due), (AckStatus::Open, Some(at(530))));
        let (again, effect) = apply(&policy, &resent, AckEvent::Due, 1, at(530))?;
        assert_eq!((effect, again.due), (AckEffect::Replay { attempts: 3 }, Some(at(590))));
        assert_eq!(apply(&policy, &again, AckEvent::Due, 1, at(590))?.1, AckEffect::LogError);
        assert_eq!(apply(&policy, &failed, AckEvent::Resend, 1, at(100_000)), Err(AckRefused::Expired));
        assert_eq!(apply(&policy, &again, AckEvent::Resend, 1, at(590)), Err(AckRefused::NotFailed));
        Ok(())
    }

    #[test]
    fn a_timer_that_fires_early_changes_nothing() -> Result<(), AckRefused> {
        let policy = required(3, Backoff::Fixed);
        let state = policy.emitted(EMITTED);
        assert_eq!(apply(&policy, &state, AckEvent::Due, 1, at(29))?, (state, AckEffect::None));
        Ok(())
    }
}
