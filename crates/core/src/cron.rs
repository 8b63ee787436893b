//! Cron expressions in a time zone: which moments they name.
//!
//! Five fields (minute, hour, day of the month, month, day of the week), or six with seconds first. A field is `*`,
//! numbers, ranges `a-b`, steps `*/n`, `a-b/n`, `a/n`, and lists of these; months and days of the week have names
//! (`JAN`, `MON`). Days of the week go from 0 (Sunday) to 7 (Sunday again). `@hourly`, `@daily`, `@midnight`,
//! `@weekly`, `@monthly`, `@yearly` and `@annually` stand for the usual ones. Where neither the day of the month nor
//! the day of the week begins with `*`, either is enough; else both must be met, as in every cron.
//!
//! A run is a moment whose local time matches. When clocks change:
//!
//! - **Clocks go forward.** Local times in the gap do not exist that day. Whatever would have run in it runs at the first
//!   moment after it, once. A schedule that runs in every hour just goes on: nothing is made up for.
//! - **Clocks go back.** Local times in the overlap happen twice, and a run happens the first time only. A schedule that runs
//!   in every hour, or whose minutes or seconds are `*` or have a step, goes by the clock both times: it neither pauses for an
//!   hour nor runs twice at one moment.
//!
//! Nothing here reads a clock. Time zones come with the program, so that every process of one version has the same
//! ones.

mod fields;
mod french;
mod words;

use jiff::{
    SignedDuration,
    civil::DateTime,
    tz::{Offset, TimeZone},
};

use self::fields::Fields;
use crate::Timestamp;

/// How many years are searched for the next run: 29 February on a given day of the week may be 40 years away.
const HORIZON: i16 = 50;

/// Why an expression, or its time zone, was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// The expression.
    #[error("{0}")]
    Expression(String),
    /// The time zone.
    #[error("{0:?} is not a time zone of the IANA database, such as UTC or Europe/Paris")]
    TimeZone(String),
}

/// A cron expression in a time zone.
#[derive(Debug, Clone)]
pub struct Cron {
    fields: Fields,
    zone: TimeZone,
}

impl Cron {
    /// Reads an expression. One that names no moment ever, such as `0 0 30 2 *`, is refused.
    pub fn parse(expression: &str, time_zone: &str) -> Result<Self, CronError> {
        let fields = Fields::parse(expression).map_err(CronError::Expression)?;
        let refused = || CronError::TimeZone(time_zone.chars().take(50).collect());
        let zone = TimeZone::get(time_zone).map_err(|_| refused())?;
        // Names that are no places: "unknown", and those that only the machine knows.
        zone.iana_name().ok_or_else(refused)?;
        Ok(Self { fields, zone })
    }

    /// The first run after this moment.
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        self.upcoming(moment).next()
    }

    /// The runs after this moment, in their order, as far as there are any.
    pub fn upcoming(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        let mut at = jiff::Timestamp::from_second(after.as_millis().div_euclid(1000)).ok();
        let mut stretch = None;
        std::iter::from_fn(move || {
            at = self.next(at?, &mut stretch);
            at.map(|run| Timestamp::from_millis(run.as_millisecond()))
        })
    }

    /// The first run after this moment. The stretch of time is the one of the call before, if there was one.
    fn next(&self, mut at: jiff::Timestamp, known: &mut Option<Stretch>) -> Option<jiff::Timestamp> {
        let mut earliest = SignedDuration::from_secs(1);
        loop {
            let stretch = match known.take().filter(|stretch| stretch.change.is_none_or(|(change, _)| at < change)) {
                Some(stretch) => stretch,
                None => self.stretch(at)?,
            };
            let mut from = stretch.offset.to_datetime(at).checked_add(earliest).ok()?;
            if !self.fields.runs_twice() {
                from = from.max(stretch.repeats_until);
            }
            let local = self.fields.next_from(from, HORIZON)?;
            let found = stretch.offset.to_timestamp(local).ok()?;
            let Some((change, offset)) = stretch.change.filter(|(change, _)| *change <= found) else {
                *known = Some(stretch);
                return Some(found);
            };
            // It falls into the gap, if there is one.
            if local < offset.to_datetime(change) && !self.fields.every_hour() {
                return Some(change);
            }
            (at, earliest) = (change, SignedDuration::ZERO);
        }
    }

    /// The stretch of time around a moment.
    fn stretch(&self, at: jiff::Timestamp) -> Option<Stretch> {
        let second = SignedDuration::from_secs(1);
        let repeats_until = match self.zone.preceding(at.checked_add(second).ok()?).next() {
            Some(change) => {
                let before = self.zone.to_offset(change.timestamp().checked_sub(second).ok()?);
                before.to_datetime(change.timestamp())
            }
            None => DateTime::MIN,
        };
        let change = self.zone.following(at).next().map(|change| (change.timestamp(), change.offset()));
        Some(Stretch { offset: self.zone.to_offset(at), repeats_until, change })
    }

    /// The moment as the clocks on the wall show it, with its offset: `2026-03-29T03:00:00+02:00`.
    pub fn local(&self, moment: Timestamp) -> String {
        let Ok(moment) = jiff::Timestamp::from_millisecond(moment.as_millis()) else { return moment.to_string() };
        moment.display_with_offset(self.zone.to_offset(moment)).to_string()
    }

    /// The expression in words: `at 02:30 every Monday to Friday, Europe/Paris`.
    pub fn describe(&self) -> String {
        format!("{}, {}", words::describe(&self.fields), self.zone.iana_name().unwrap_or("UTC"))
    }

    /// The same in French: `à 02:30 du lundi au vendredi, Europe/Paris`.
    pub fn describe_in_french(&self) -> String {
        format!("{}, {}", french::describe(&self.fields), self.zone.iana_name().unwrap_or("UTC"))
    }
}

/// From one change of the clocks to the next: local times are as far apart as the moments they name.
#[derive(Debug)]
struct Stretch {
    offset: Offset,
    /// If clocks were put back at its beginning, local times before this one are there for the second time.
    repeats_until: DateTime,
    /// When clocks change next, and how they go from then on.
    change: Option<(jiff::Timestamp, Offset)>,
}
