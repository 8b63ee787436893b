//! Retry policies: when a failed task is run again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The most retries of a policy.
pub const MOST_RETRIES: u32 = 1000;

/// The longest backoff, whatever the policy says.
pub const LONGEST_RETRY: Duration = Duration::from_secs(30 * 86_400);

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// For people.
    pub message: String,
    /// The kind: a word for programs.
    pub kind: Option<String>,
    /// Where it happened: a stack trace of the worker's language.
    pub trace: Option<String>,
    /// Whether a retry may help; none leaves it to the policy.
    pub retryable: Option<bool>,
    /// The wait before the retry; none leaves it to the policy.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure with only a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// A failure with a message and a kind.
    #[must_use]
    pub fn of_kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }
}

/// A retry policy: how often a failed task is retried, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryPolicy {
    /// The most retries.
    pub limit: u32,
    /// The wait before the first retry.
    #[serde(with = "millis")]
    pub base: Duration,
    /// The factor by which each wait grows.
    pub factor: f64,
    /// The longest wait.
    #[serde(with = "millis_if_any", default)]
    pub cap: Option<Duration>,
    /// The jitter: this share of each wait, from 0 to 1, is random, so that tasks that failed together are not retried
    /// together.
    pub jitter: f64,
    /// No retry starts later than this after the submission, the due time, or a retry by an operator.
    #[serde(with = "millis_if_any", default)]
    pub within: Option<Duration>,
    /// Failures of these kinds are not retried.
    #[serde(default)]
    pub except_kinds: Vec<String>,
    /// No task of the service is retried, whatever its own policy. Only a service can say so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
}

impl RetryPolicy {
    /// No retry: a failure is the end.
    pub const fn none() -> Self {
        Self {
            limit: 0,
            base: Duration::from_secs(60),
            factor: 2.0,
            cap: None,
            jitter: 0.0,
            within: None,
            except_kinds: Vec::new(),
            never: false,
        }
    }

    /// No retry, also for tasks with a policy of their own.
    pub fn never() -> Self {
        Self { never: true, ..Self::none() }
    }

    /// The policy of a task with a policy of its own: a service that forbids retries overrides it.
    #[must_use]
    pub fn under(mut self, service: Self) -> Self {
        if service.never {
            return service;
        }
        self.except_kinds.extend(service.except_kinds);
        self
    }

    /// Ten retries, 1, 2, 4, … 512 minutes apart: the last one begins about 17 hours after the first failure.
    pub fn classic() -> Self {
        Self { limit: 10, ..Self::none() }
    }

    /// How long to wait before the retry with this number, counted from 0. `luck` is from 0 to 1.
    pub fn wait(&self, retry: u32, luck: f64) -> Duration {
        let longest = self.cap.unwrap_or(LONGEST_RETRY).min(LONGEST_RETRY);
        let grown = self.base.as_secs_f64() * self.factor.powi(retry.try_into().unwrap_or(i32::MAX));
        // Not a number, or beyond all measure: the longest.
        let seconds = if grown.is_finite() { grown.clamp(0.0, longest.as_secs_f64()) } else { longest.as_secs_f64() };
        let left_to_chance = seconds * self.jitter.clamp(0.0, 1.0);
        Duration::from_secs_f64(seconds - left_to_chance * luck.clamp(0.0, 1.0))
    }

    /// How long to wait until a task is tried again that has failed `failures` times before, and was submitted `age`
    /// ago; none if this failure is the end.
    pub fn again(&self, failure: &Failure, failures: u32, age: Duration, luck: f64) -> Option<Duration> {
        let excepted = failure.kind.as_ref().is_some_and(|kind| self.except_kinds.contains(kind));
        if failures >= self.limit || failure.retryable == Some(false) || excepted {
            return None;
        }
        let wait = failure.retry_after.map_or_else(|| self.wait(failures, luck), |wait| wait.min(LONGEST_RETRY));
        let in_time = self.within.is_none_or(|within| age.saturating_add(wait) <= within);
        in_time.then_some(wait)
    }
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

mod millis_if_any {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn waits(policy: &RetryPolicy, luck: f64) -> Vec<Duration> {
        let failure = Failure::default();
        (0..).map_while(|failures| policy.again(&failure, failures, Duration::ZERO, luck)).collect()
    }

    #[test]
    fn the_classic_policy_ends_17_hours_after_the_first_failure() {
        let waits = waits(&RetryPolicy::classic(), 0.7);
        assert_eq!(waits[..4], [MINUTE, MINUTE * 2, MINUTE * 4, MINUTE * 8]);
        assert_eq!(waits.len(), 10);
        assert_eq!(waits.iter().sum::<Duration>(), MINUTE * 1023);
    }

    #[test]
    fn a_worker_can_override_the_retry_delay_within_limits() {
        let policy = RetryPolicy { except_kinds: vec!["paper".to_owned()], ..RetryPolicy::classic() };
        let again = |failure: Failure, failures| policy.again(&failure, failures, Duration::ZERO, 0.0);
        let soon = Failure { retry_after: Some(Duration::from_secs(3)), ..Failure::default() };
        assert_eq!(again(soon.clone(), 5), Some(Duration::from_secs(3)));
        assert_eq!(again(soon, 10), None);
        assert_eq!(again(Failure { retryable: Some(false), ..Failure::default() }, 0), None);
        assert_eq!(again(Failure { retryable: Some(true), ..Failure::default() }, 0), Some(MINUTE));
        assert_eq!(again(Failure::new("jam").of_kind("paper"), 0), None);
        assert_eq!(again(Failure::new("jam").of_kind("ink"), 0), Some(MINUTE));
        let never = Failure { retry_after: Some(MINUTE), retryable: Some(true), ..Failure::default() };
        assert_eq!(RetryPolicy::none().again(&never, 0, Duration::ZERO, 0.0), None);
    }

    #[test]
    fn a_service_that_forbids_retries_overrides_every_task_policy() {
        let paper = RetryPolicy { except_kinds: vec!["paper".to_owned()], ..RetryPolicy::none() };
        let again =
            |policy: &RetryPolicy, kind: &str| policy.again(&Failure::new("jam").of_kind(kind), 0, Duration::ZERO, 0.0);
        let own = RetryPolicy { except_kinds: vec!["ink".to_owned()], ..RetryPolicy::classic() }.under(paper);
        assert_eq!((again(&own, "paper"), again(&own, "ink")), (None, None));
        assert_eq!(again(&own, "toner"), Some(MINUTE), "how often and when is the task's own choice");
        let forbidden = RetryPolicy::classic().under(RetryPolicy::never());
        assert_eq!(again(&forbidden, "toner"), None);
        assert_eq!(
            again(&RetryPolicy::classic().under(RetryPolicy::none()), "toner"),
            Some(MINUTE),
            "no more than a default"
        );
        let text = serde_json::to_string(&RetryPolicy::never()).unwrap();
        assert_eq!(serde_json::from_str::<RetryPolicy>(&text).unwrap(), RetryPolicy::never());
    }

    proptest! {
        #[test]
        fn the_retry_backoff_is_capped_and_jitter_only_shortens_it(
            limit in 0u32..50,
            base in 0u64..10_000_000,
            factor in prop_oneof![1.0..10.0f64, Just(1e300)],
            cap in proptest::option::of(0u64..100_000_000),
            jitter in 0.0..=1.0f64,
            luck in 0.0..=1.0f64,
        ) {
            let cap = cap.map(Duration::from_millis);
            let base = Duration::from_millis(base);
            let policy = RetryPolicy { limit, base, factor, cap, jitter, ..RetryPolicy::none() };
            let (full, lucky) = (waits(&policy, 0.0), waits(&policy, luck));
            prop_assert_eq!(full.len(), limit as usize);
            for (full, lucky) in full.iter().zip(&lucky) {
                prop_assert!(*full <= cap.unwrap_or(LONGEST_RETRY).min(LONGEST_RETRY) && lucky <= full);
                prop_assert!(lucky.as_secs_f64() >= full.as_secs_f64() * (1.0 - jitter) - 1e-6);
            }
            prop_assert!(full.is_sorted(), "{full:?}");
        }

        #[test]
        fn no_retry_starts_after_the_retry_deadline(age in 0u64..100_000, within in 0u64..100_000, failures in 0u32..10) {
            let (age, within) = (Duration::from_secs(age), Duration::from_secs(within));
            let policy = RetryPolicy { within: Some(within), ..RetryPolicy::classic() };
            let wait = policy.wait(failures, 0.0);
            let again = policy.again(&Failure::default(), failures, age, 0.0);
            prop_assert_eq!(again, (age + wait <= within).then_some(wait));
        }

        #[test]
        fn a_retry_policy_is_stored_as_declared(limit in 0u32..50, base in 0u64..10_000_000, cap in proptest::option::of(0u64..9)) {
            let policy = RetryPolicy {
                limit,
                base: Duration::from_millis(base),
                cap: cap.map(Duration::from_secs),
                except_kinds: vec!["a".to_owned()],
                ..RetryPolicy::classic()
            };
            let text = serde_json::to_string(&policy).unwrap();
            prop_assert_eq!(serde_json::from_str::<RetryPolicy>(&text).unwrap(), policy);
        }
    }
}
