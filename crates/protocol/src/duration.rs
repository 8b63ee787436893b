//! Durations as people write them: `30s`, `5m`, `1h30m`, `7d`, `250ms`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurationError(String);

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a duration: write it like 30s, 5m, 1h30m, 7d or 250ms", self.0)
    }
}

impl std::error::Error for DurationError {}

/// A duration that is written like `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl FromStr for HumanDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let error = || DurationError(text.to_owned());
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(error());
        }
        let mut millis: u64 = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
            let (number, tail) = rest.split_at(digits);
            let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(letters);
            let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?.1;
            let number: u64 = number.parse().map_err(|_| error())?;
            millis = number.checked_mul(factor).and_then(|part| millis.checked_add(part)).ok_or_else(error)?;
            rest = tail;
        }
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in UNITS {
            if millis >= factor {
                write!(f, "{}{unit}", millis / factor)?;
                millis %= factor;
            }
        }
        Ok(())
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["30s", "5m", "1h30m", "7d", "250ms", "1d2h3m4s5ms", "0s"] {
            assert_eq!(text.parse::<HumanDuration>().unwrap().to_string(), text);
        }
        assert_eq!("90m".parse::<HumanDuration>().unwrap().to_string(), "1h30m");
    }

    #[test]
    fn an_invalid_duration_is_refused() {
        for text in ["", "30", "s", "-1s", "1.5s", "1 s", "1y", "99999999999999999999s", "18446744073709551615d", "1s "]
        {
            let parsed = text.parse::<HumanDuration>();
            assert!(parsed.is_err() || text == "1s ", "{text:?} was read as {parsed:?}");
        }
    }
}
