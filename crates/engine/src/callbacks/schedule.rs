//! The retries of callbacks.

use std::time::Duration;

use relais_core::{CallbackVerdict, ReplyOutcome};

/// The most retries that a service may ask for.
pub const MAX_RETRIES: usize = 20;

/// The longest wait that an endpoint can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// What happens after a reply. `retries` is the backoff, `tries` is how many there were before this one.
pub(super) fn verdict(outcome: ReplyOutcome, retries: &[Duration], tries: u32, random: f64) -> CallbackVerdict {
    match outcome {
        ReplyOutcome::Delivered => CallbackVerdict::Delivered,
        ReplyOutcome::Gone => CallbackVerdict::Gone,
        ReplyOutcome::Forbidden => CallbackVerdict::GivenUp,
        ReplyOutcome::Refused { retry_after } | ReplyOutcome::Unwell { retry_after } => {
            match usize::try_from(tries).ok().and_then(|tries| retries.get(tries)) {
                Some(&wait) => {
                    let asked = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
                    CallbackVerdict::Again(jittered(wait, random).max(asked))
                }
                None => CallbackVerdict::GivenUp,
            }
        }
    }
}

/// Jitter: a fifth more or less, so that callbacks that failed together are not retried together. `random` is between 0
/// and 1.
fn jittered(wait: Duration, random: f64) -> Duration {
    wait.mul_f64(0.8 + 0.4 * random.clamp(0.0, 1.0))
}

/// A random number between 0 and 1.
pub(super) fn random() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRIES: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(360)];

    #[test]
    fn a_callback_is_retried_three_times() {
        let unwell = ReplyOutcome::Unwell { retry_after: None };
        for (tries, seconds) in [(0, 10), (1, 60), (2, 360)] {
            for random in [0.0, 0.3, 1.0] {
                let CallbackVerdict::Again(wait) = verdict(unwell, &RETRIES, tries, random) else { panic!("again") };
                let ratio = wait.as_secs_f64() / f64::from(seconds);
                assert!((0.79..=1.21).contains(&ratio), "{wait:?} after {tries} tries");
            }
        }
        assert_eq!(verdict(unwell, &RETRIES, 3, 0.5), CallbackVerdict::GivenUp);
        assert_eq!(verdict(unwell, &[], 0, 0.5), CallbackVerdict::GivenUp);
    }

    #[test]
    fn retry_after_of_an_endpoint_is_bounded() {
        let refused_for = |seconds| ReplyOutcome::Refused { retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(verdict(refused_for(100), &RETRIES, 0, 0.5), CallbackVerdict::Again(Duration::from_secs(100)));
        assert_eq!(verdict(refused_for(1), &RETRIES, 0, 0.5), CallbackVerdict::Again(Duration::from_secs(10)));
        assert_eq!(verdict(refused_for(u64::MAX), &RETRIES, 0, 0.5), CallbackVerdict::Again(LONGEST_RETRY_AFTER));
        assert_eq!(
            verdict(refused_for(100), &RETRIES, 3, 0.5),
            CallbackVerdict::GivenUp,
            "no more tries are no more tries"
        );
        assert_eq!(verdict(ReplyOutcome::Gone, &RETRIES, 0, 0.5), CallbackVerdict::Gone);
        assert_eq!(verdict(ReplyOutcome::Forbidden, &RETRIES, 0, 0.5), CallbackVerdict::GivenUp);
    }
}
