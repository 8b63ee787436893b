//! What the answer of a push service means.

use std::time::Duration;

use relais_core::{Reply, ReplyOutcome};

/// The longest pause between two tries, unless the push service asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);

/// A push that was tried so often is given up.
pub(super) const MOST_TRIES: u32 = 20;

/// What the answer of a push service means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It has taken the push.
    Pushed,
    /// The subscription is no more.
    Gone,
    /// Another try may help, after a pause.
    Retry(Duration),
    /// No other try will help.
    Failed,
}

/// Judges an answer to a try with this number; pauses double from the first one.
pub(super) fn outcome(reply: &Reply, tries: u32, first_pause: Duration) -> Outcome {
    let retry = |asked: Option<Duration>| {
        if tries >= MOST_TRIES {
            return Outcome::Failed;
        }
        let doubled = first_pause.saturating_mul(1_u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX));
        Outcome::Retry(doubled.min(LONGEST_PAUSE).max(asked.unwrap_or_default()))
    };
    match (reply.outcome, reply.status) {
        (ReplyOutcome::Delivered, _) => Outcome::Pushed,
        (ReplyOutcome::Gone, _) | (_, Some(404 | 410)) => Outcome::Gone,
        (ReplyOutcome::Unwell { retry_after }, _) => retry(retry_after),
        // Too slow, too early, too many.
        (ReplyOutcome::Refused { retry_after }, Some(408 | 425 | 429)) => retry(retry_after),
        (ReplyOutcome::Refused { .. } | ReplyOutcome::Forbidden, _) => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(30);

    fn of(outcome: ReplyOutcome, status: Option<u16>, tries: u32) -> Outcome {
        super::outcome(&Reply { outcome, status, error: None, answer: None }, tries, FIRST)
    }

    fn retry(seconds: u64) -> Outcome {
        Outcome::Retry(Duration::from_secs(seconds))
    }

    #[test]
    fn only_what_may_get_better_is_tried_again() {
        let refused = ReplyOutcome::Refused { retry_after: None };
        assert_eq!(of(ReplyOutcome::Delivered, Some(201), 1), Outcome::Pushed);
        assert_eq!(of(ReplyOutcome::Gone, Some(410), 1), Outcome::Gone);
        assert_eq!(of(refused, Some(404), 1), Outcome::Gone);
        for status in [301, 400, 401, 403, 413] {
            assert_eq!(of(refused, Some(status), 1), Outcome::Failed, "{status}");
        }
        assert_eq!(of(ReplyOutcome::Forbidden, None, 1), Outcome::Failed);
        for status in [408, 425, 429] {
            assert_eq!(of(refused, Some(status), 1), retry(30), "{status}");
        }
        assert_eq!(of(ReplyOutcome::Unwell { retry_after: None }, None, 1), retry(30));
    }

    #[test]
    fn pauses_double_up_to_an_hour_and_respect_what_is_asked_for() {
        let unwell = |asked: Option<u64>| ReplyOutcome::Unwell { retry_after: asked.map(Duration::from_secs) };
        let pauses: Vec<Outcome> = [1, 2, 3, 7, 8, 19].into_iter().map(|n| of(unwell(None), Some(503), n)).collect();
        assert_eq!(pauses, [retry(30), retry(60), retry(120), retry(1920), retry(3600), retry(3600)]);
        assert_eq!(of(unwell(Some(7200)), Some(503), 1), retry(7200));
        assert_eq!(of(unwell(Some(5)), Some(503), 2), retry(60));
        assert_eq!(of(unwell(None), Some(503), MOST_TRIES), Outcome::Failed);
    }
}
