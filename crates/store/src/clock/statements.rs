//! The database's clock, and what happens when somebody sets it.
//!
//! Leases, deadlines, waits and signs of life are written as moments of that clock. If it is set forward by an hour,
//! all of them would be over at once: tasks taken from workers that are well, processes given up that are alive. Set
//! back, nobody would be missed for an hour. So whoever does what time does compares it first with the time that has
//! passed for this process; where the two differ, the clock was set, and what is counted in durations is moved along.
//! Dates that somebody named stay what they are.
//!
//! By how much it was set so far is a row of the database: of all the processes that notice, one moves.

use std::{
    future::Future,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use relais_core::Timestamp;

use crate::{row::Columns, session::Result};

/// By so much a clock is set, and not only kept in time.
const STEP: Duration = Duration::from_secs(2);

/// An answer that took longer says too little about when it was given for others to be compared with it.
const PROMPT: Duration = Duration::from_millis(500);

/// What the clock says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub now: Timestamp,
    /// By how many milliseconds it was set so far, with what is counted in durations moved along.
    pub stepped: i64,
}

pub(crate) fn reading(row: &impl Columns) -> Result<Reading> {
    Ok(Reading { now: row.moment("now")?, stepped: row.big("stepped")? })
}

/// The clock, outside of a transaction.
pub(crate) trait ClockReader: Send + Sync {
    /// What the clock says.
    fn read_clock(&self) -> impl Future<Output = Result<Reading>> + Send;
}

/// The clock, within a transaction.
pub(crate) trait Clock: Send {
    /// What the clock says.
    fn read_clock(&mut self) -> impl Future<Output = Result<Reading>> + Send;

    /// Moves what is counted in durations along with the clock, by so many milliseconds, unless somebody else has since
    /// it was read by how much it was set; tells whether it did.
    fn step_clock(&mut self, known: i64, by: i64) -> impl Future<Output = Result<bool>> + Send;
}

/// Compares the database's clock with this process's own, which nobody sets.
#[derive(Debug, Default)]
pub(crate) struct ClockWatch(Mutex<Option<Seen>>);

/// What the clock said, and when that was, give or take so much.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    give_or_take: Duration,
    reading: Reading,
}

impl ClockWatch {
    /// By how many milliseconds the clock was set since the last look, if it was and nothing was moved along yet.
    pub(crate) fn look(&self, asked: Instant, answered: Instant, reading: Reading) -> Option<i64> {
        let took = answered.saturating_duration_since(asked);
        let new = Seen { at: asked + took / 2, give_or_take: took / 2, reading };
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let step = seen.and_then(|old| {
            let passed = i64::try_from(new.at.saturating_duration_since(old.at).as_millis()).unwrap_or(i64::MAX);
            let told = reading.now.as_millis() - old.reading.now.as_millis();
            let step = told - passed - (reading.stepped - old.reading.stepped);
            let certain = STEP + old.give_or_take + new.give_or_take;
            (u128::from(step.unsigned_abs()) >= certain.as_millis()).then_some(step)
        });
        if step.is_none() && (took <= PROMPT || seen.is_none()) {
            *seen = Some(new);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    /// Looks after so many milliseconds, when the clock says so many and was set by so many.
    fn look(watch: &ClockWatch, begin: Instant, after: u64, says: i64, stepped: i64) -> Option<i64> {
        let at = begin + Duration::from_millis(after);
        watch.look(at, at, Reading { now: Timestamp::from_millis(HOUR + says), stepped })
    }

    #[test]
    fn a_clock_that_was_set_is_noticed_until_somebody_has_moved_along() {
        let (watch, begin) = (ClockWatch::default(), Instant::now());
        assert_eq!(look(&watch, begin, 0, 0, 0), None, "nothing is known yet");
        assert_eq!(look(&watch, begin, 1000, 1000, 0), None);
        assert_eq!(look(&watch, begin, 2000, 2000 + HOUR, 0), Some(HOUR));
        assert_eq!(look(&watch, begin, 3000, 3000 + HOUR, 0), Some(HOUR), "nobody has");
        assert_eq!(look(&watch, begin, 4000, 4000 + HOUR, HOUR), None, "somebody has");
        assert_eq!(look(&watch, begin, 5000, 5000, HOUR), Some(-HOUR), "it was set back");
        assert_eq!(look(&watch, begin, 6000, 6000, 0), None);
    }

    #[test]
    fn a_clock_that_is_kept_in_time_was_not_set() {
        let (watch, begin) = (ClockWatch::default(), Instant::now());
        // A second in each minute, for an hour.
        for minute in 0..60 {
            assert_eq!(look(&watch, begin, minute * 60_000, i64::try_from(minute).unwrap_or(0) * 61_000, 0), None);
        }
    }

    #[test]
    fn a_late_answer_says_less() {
        let (watch, begin) = (ClockWatch::default(), Instant::now());
        assert_eq!(look(&watch, begin, 0, 0, 0), None);
        let late = |says: i64| {
            let reading = Reading { now: Timestamp::from_millis(HOUR + says), stepped: 0 };
            watch.look(begin, begin + Duration::from_secs(4), reading)
        };
        assert_eq!(late(5_900), None, "it may have been given at the end");
        assert_eq!(look(&watch, begin, 1000, 1000, 0), None, "nothing is compared with it");
        assert_eq!(late(2_000 + HOUR), Some(HOUR), "that long it did not take");
    }
}
