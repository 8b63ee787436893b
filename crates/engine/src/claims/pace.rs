//! The pace of each service, to estimate when a pending task may start.
//!
//! Also keeps the database's time: a sample relates it to this process's monotonic clock.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use relais_core::{Backlog, ServiceKey, Status, Timestamp};

/// How far back the pace is measured.
const WINDOW: Duration = Duration::from_secs(300);

/// How long a sample is reused.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Samples {
    /// When the last sample was requested.
    looked: Option<Instant>,
    /// The database's time, and when it was read.
    clock: Option<(Timestamp, Instant)>,
    /// When, and how many tasks had been started until then.
    started: HashMap<ServiceKey, VecDeque<(Instant, u64)>>,
}

/// What was seen of the services' pace.
#[derive(Default)]
pub(crate) struct Pace(Mutex<Samples>);

impl Pace {
    /// Whether it is time for another sample. The caller that gets true must take it.
    pub(crate) fn is_due(&self, at: Instant) -> bool {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = samples.looked.is_none_or(|looked| at.saturating_duration_since(looked) >= MIN_INTERVAL);
        if due {
            samples.looked = Some(at);
        }
        due
    }

    /// Takes a sample.
    pub(crate) fn sample(&self, backlog: &Backlog, at: Instant) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = backlog.now {
            samples.clock = Some((now, at));
        }
        for tally in backlog.counters.iter().filter(|tally| tally.status == Status::InProgress) {
            let seen = samples.started.entry(tally.service).or_default();
            seen.push_back((at, tally.arrived));
            while seen.len() > 2 && seen.get(1).is_some_and(|(when, _)| at.duration_since(*when) >= WINDOW) {
                seen.pop_front();
            }
        }
    }

    /// The time from one start to the next; none if none was started lately.
    pub(crate) fn interval(&self, service: ServiceKey) -> Option<Duration> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = samples.started.get(&service)?;
        let ((first_at, first), (last_at, last)) = (seen.front()?, seen.back()?);
        let (started, elapsed) = (last.saturating_sub(*first), last_at.duration_since(*first_at));
        (started > 0 && !elapsed.is_zero()).then(|| elapsed.div_f64(started as f64))
    }

    /// When the task at this position may start; none if none was started lately.
    pub(crate) fn estimate(&self, service: ServiceKey, position: u64, at: Instant) -> Option<Timestamp> {
        let interval = self.interval(service)?;
        let (clock, read) = self.0.lock().unwrap_or_else(PoisonError::into_inner).clock?;
        let wait = interval.as_secs_f64() * position as f64;
        // An estimate of more than a year is no estimate.
        let wait = Duration::try_from_secs_f64(wait).ok().filter(|wait| *wait < Duration::from_secs(31_536_000))?;
        Some(clock.after(at.saturating_duration_since(read)).after(wait))
    }
}

#[cfg(test)]
mod tests {
    use relais_core::StatusCounter;

    use super::*;

    fn backlog(now: i64, started: u64) -> Backlog {
        let service = ServiceKey(1);
        let tally = StatusCounter { service, status: Status::InProgress, arrived: started, departed: 0 };
        Backlog { counters: vec![tally], oldest_pending: Vec::new(), now: Some(Timestamp::from_millis(now)) }
    }

    #[test]
    fn the_estimated_start_follows_the_pace_of_the_queue() {
        let (pace, begun) = (Pace::default(), Instant::now());
        assert_eq!(pace.estimate(ServiceKey(1), 50, begun), None);
        pace.sample(&backlog(1_000_000, 100), begun);
        assert_eq!(pace.estimate(ServiceKey(1), 50, begun), None, "one sample is no pace");
        let later = begun + Duration::from_secs(10);
        pace.sample(&backlog(1_010_000, 200), later);
        let estimate = pace.estimate(ServiceKey(1), 50, later + Duration::from_secs(1));
        assert_eq!(estimate, Some(Timestamp::from_millis(1_010_000 + 1_000 + 5_000)));
        assert_eq!(pace.estimate(ServiceKey(2), 50, later), None);
    }
}
