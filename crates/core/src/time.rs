//! Moments, as the database told them: milliseconds since 1970, UTC.
//!
//! There is no `now()` here on purpose. Time is the database's (every process sees the same one), and durations are
//! measured with the process's monotonic clock.

use std::{fmt, time::Duration};

use serde::{Serialize, Serializer};

/// A moment, to the millisecond. On the wire it is RFC 3339, UTC: `2026-01-31T08:30:00.125Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Reads RFC 3339, with any offset.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|moment| Self(moment.as_millisecond()))
    }

    /// This moment and a while more.
    #[must_use]
    pub fn after(self, while_: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(while_.as_millis()).unwrap_or(i64::MAX)))
    }

    /// A while before this moment.
    #[must_use]
    pub fn before(self, while_: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(while_.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(moment) => write!(f, "{moment:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_form_is_rfc_3339_utc_with_milliseconds() {
        assert_eq!(Timestamp::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_millis(1_769_848_200_125).to_string(), "2026-01-31T08:30:00.125Z");
        assert_eq!(Timestamp::parse("2026-01-31T09:30:00.125+01:00"), Some(Timestamp::from_millis(1_769_848_200_125)));
        assert_eq!(Timestamp::parse("yesterday"), None);
    }
}
