//! The trend of each service over the last quarter of an hour, as this process has seen it.
//!
//! The store's counters tell of all processes; a sample of them every ten seconds is enough for a line. Nothing is
//! written: a process that has just started knows little, and says so by a short line.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use relais_core::{Backlog, ServiceKey, Status};

use crate::{Engine, EngineError};

/// How far apart samples are, at least.
const STEP: Duration = Duration::from_secs(9);

/// How many samples are kept: a quarter of an hour.
const KEPT: usize = 91;

/// The most services with samples.
const MOST_SERVICES: usize = 1000;

/// What had happened until a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    at: Instant,
    submitted: u64,
    succeeded: u64,
    failed: u64,
}

#[derive(Default)]
struct Samples {
    services: HashMap<ServiceKey, VecDeque<Sample>>,
    /// When the last sample was taken: a service that has none of then had done nothing yet.
    last: Option<Instant>,
}

/// The samples of all services.
#[derive(Default)]
pub(crate) struct Trends(Mutex<Samples>);

/// How a service has been doing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trend {
    /// How long was looked at.
    pub span: Duration,
    /// Tasks that ended well, step by step, the last one last.
    pub succeeded: Vec<u64>,
    /// Tasks that failed.
    pub failed: Vec<u64>,
    /// Tasks that were submitted.
    pub submitted: Vec<u64>,
}

impl Trend {
    /// How many a minute, of a row of numbers.
    pub fn per_minute(&self, row: &[u64]) -> f64 {
        let minutes = self.span.as_secs_f64() / 60.0;
        if minutes > 0.0 { row.iter().sum::<u64>() as f64 / minutes } else { 0.0 }
    }
}

impl Trends {
    /// Takes a sample, unless there has just been one. Tells whether anything has changed since.
    pub(crate) fn sample(&self, backlog: &Backlog, at: Instant) -> bool {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = samples.last;
        if last.is_some_and(|last| at.saturating_duration_since(last) < STEP) {
            return false;
        }
        samples.last = Some(at);
        let nothing = |at| Sample { at, submitted: 0, succeeded: 0, failed: 0 };
        let mut sums: HashMap<ServiceKey, Sample> = HashMap::new();
        for tally in &backlog.counters {
            let sum = sums.entry(tally.service).or_insert(nothing(at));
            match tally.status {
                Status::Pending => sum.submitted = tally.arrived,
                Status::Success => sum.succeeded = tally.arrived,
                Status::Failure => sum.failed = tally.arrived,
                _ => {}
            }
        }
        let mut changed = false;
        for (service, sample) in sums {
            if samples.services.len() >= MOST_SERVICES && !samples.services.contains_key(&service) {
                continue;
            }
            let seen = samples.services.entry(service).or_insert_with(|| last.map(nothing).into_iter().collect());
            changed |= seen.back().is_some_and(|before| Sample { at: before.at, ..sample } != *before);
            seen.push_back(sample);
            if seen.len() > KEPT {
                seen.pop_front();
            }
        }
        changed
    }

    /// How a service has been doing.
    pub(crate) fn of(&self, service: ServiceKey) -> Trend {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = samples.services.get(&service) else { return Trend::default() };
        let (Some(first), Some(last)) = (seen.front(), seen.back()) else { return Trend::default() };
        let row = |number: fn(&Sample) -> u64| {
            seen.iter().zip(seen.iter().skip(1)).map(|(a, b)| number(b).saturating_sub(number(a))).collect()
        };
        Trend {
            span: last.at.saturating_duration_since(first.at),
            succeeded: row(|sample| sample.succeeded),
            failed: row(|sample| sample.failed),
            submitted: row(|sample| sample.submitted),
        }
    }
}

impl Engine {
    /// Takes a sample as of a moment that is to come: for pictures, which have no quarter of an hour.
    pub async fn sample_at(&self, at: Instant) -> Result<(), EngineError> {
        self.0.trends.sample(&self.0.store.backlog().await?, at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use relais_core::StatusCounter;

    use super::*;

    fn backlog(succeeded: u64, failed: u64) -> Backlog {
        let tally = |status, arrived| StatusCounter { service: ServiceKey(1), status, arrived, departed: 0 };
        let counters = vec![tally(Status::Success, succeeded), tally(Status::Failure, failed)];
        Backlog { counters, ..Backlog::default() }
    }

    #[test]
    fn a_line_has_a_point_for_each_step_and_no_more_than_a_quarter_of_an_hour() {
        let (trends, begun) = (Trends::default(), Instant::now());
        assert_eq!(trends.of(ServiceKey(1)), Trend::default());
        for step in 0..200 {
            let at = begun + Duration::from_secs(10 * step);
            let changed = trends.sample(&backlog(step * 6, step), at);
            assert_eq!(changed, step > 0);
            assert!(!trends.sample(&backlog(9999, 0), at + Duration::from_secs(1)), "too soon");
        }
        let trend = trends.of(ServiceKey(1));
        assert_eq!((trend.succeeded.len(), trend.span), (90, Duration::from_secs(900)));
        assert!(trend.succeeded.iter().all(|n| *n == 6) && trend.failed.iter().all(|n| *n == 1));
        assert!((trend.per_minute(&trend.succeeded) - 36.0).abs() < 0.001);
        let at = begun + Duration::from_secs(2001);
        assert!(!trends.sample(&backlog(199 * 6, 199), at), "nothing happened");
        let late = Trends::default();
        late.sample(&Backlog::default(), begun);
        assert!(late.sample(&backlog(7, 0), begun + Duration::from_secs(10)));
        assert_eq!(late.of(ServiceKey(1)).succeeded, [7], "what a service did at once is seen");
    }
}
