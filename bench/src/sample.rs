//! What one measurement gives: a rate, latencies, and whose processor time it was.

use std::time::Duration;

use crate::cpu::Split;

/// One measurement, or many of the same thing in one.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// What was done in a second.
    pub rate: f64,
    latencies: Vec<Duration>,
    /// Processor time for one thing done, if it was looked at.
    pub split: Option<Split>,
}

impl Sample {
    /// `done` things in `time`; the latencies are of calls, which may do more than one thing.
    pub fn new(done: usize, time: Duration, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        Self { rate: done as f64 / time.as_secs_f64(), latencies, split: None }
    }

    /// The latency that `share` (0 to 1) of all calls do not exceed.
    pub fn percentile(&self, share: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        let index = (self.latencies.len() as f64 * share).ceil() as usize;
        self.latencies.get(index.saturating_sub(1).min(last)).copied().unwrap_or_default()
    }

    /// How many calls were timed.
    pub fn len(&self) -> usize {
        self.latencies.len()
    }

    /// Rounds in one: the median rate with its round's processor times, all latencies.
    pub fn median(mut rounds: Vec<Self>) -> Self {
        rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let mut latencies: Vec<Duration> = rounds.iter().flat_map(|round| round.latencies.iter().copied()).collect();
        latencies.sort_unstable();
        let middle = rounds.len() / 2;
        let Some(round) = rounds.get(middle) else { return Self::default() };
        Self { rate: round.rate, split: round.split, latencies }
    }
}

/// A duration in milliseconds, as it is printed.
pub fn ms(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1000.0)
}

/// A number with commas, as it is printed.
pub fn number(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_and_medians_are_of_rounds() {
        let millis = |range: std::ops::RangeInclusive<u64>| range.map(Duration::from_millis).collect();
        let sample = Sample::new(100, Duration::from_secs(2), millis(1..=100));
        assert_eq!(sample.percentile(0.5), Duration::from_millis(50));
        assert_eq!(sample.percentile(0.99), Duration::from_millis(99));
        assert_eq!(sample.percentile(1.0), Duration::from_millis(100));
        let slow = Sample::new(10, Duration::from_secs(2), millis(1..=1));
        let fast = Sample::new(1000, Duration::from_secs(2), millis(1..=1));
        assert!((Sample::median(vec![fast, slow, sample]).rate - 50.0).abs() < f64::EPSILON);
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!(["7", "999", "1,000", "1,234,567"], [7.0, 999.0, 1000.0, 1_234_567.0].map(number));
    }
}
