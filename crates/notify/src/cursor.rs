//! Cursors: a position of the log as a link tells it to a page, which gives it back to resume.
//!
//! A cursor says nothing about who may read what: whoever resumes gets their own entries after that position, so a forged
//! one is worth nothing.

use std::{fmt, str::FromStr};

use crate::{LogHead, LogPosition};

/// A position of one log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The log.
    pub epoch: String,
    /// The position of the last entry that was seen.
    pub position: LogPosition,
}

/// Why what follows a cursor can not be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gap {
    /// The entries after it were purged.
    Purged,
    /// It belongs to another log, such as one from before a restored backup.
    Epoch,
    /// It is no cursor that was ever given.
    Invalid,
}

impl Gap {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Purged => "purged",
            Self::Epoch => "epoch",
            Self::Invalid => "invalid",
        }
    }
}

impl Cursor {
    /// The position to go on from in this log.
    pub fn position_in(text: &str, head: &LogHead) -> Result<LogPosition, Gap> {
        let cursor: Self = text.parse()?;
        if cursor.epoch != head.epoch {
            return Err(Gap::Epoch);
        }
        if cursor.position > head.position {
            return Err(Gap::Invalid);
        }
        if cursor.position < head.floor { Err(Gap::Purged) } else { Ok(cursor.position) }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}", self.epoch, self.position)
    }
}

impl FromStr for Cursor {
    type Err = Gap;

    fn from_str(text: &str) -> Result<Self, Gap> {
        let (epoch, position) = text.split_once('-').ok_or(Gap::Invalid)?;
        let is_hex = |text: &str| (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex(epoch) || !is_hex(position) {
            return Err(Gap::Invalid);
        }
        let position = LogPosition::from_str_radix(position, 16).map_err(|_| Gap::Invalid)?;
        Ok(Self { epoch: epoch.to_owned(), position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_others_are_gaps() {
        let head = LogHead { epoch: "a1b2".into(), position: 300, floor: 10, now: jiff::Timestamp::UNIX_EPOCH };
        let at = |position| Cursor { epoch: "a1b2".to_owned(), position }.to_string();
        for (text, expected) in [
            (at(300), Ok(300)),
            (at(10), Ok(10)),
            (at(9), Err(Gap::Purged)),
            (at(301), Err(Gap::Invalid)),
            ("ffff-12c".to_owned(), Err(Gap::Epoch)),
            (String::new(), Err(Gap::Invalid)),
            ("a1b2-".to_owned(), Err(Gap::Invalid)),
            ("a1b2-+1".to_owned(), Err(Gap::Invalid)),
            ("a1b2-fffffffffffffffff".to_owned(), Err(Gap::Invalid)),
            ("<script>-1".to_owned(), Err(Gap::Invalid)),
        ] {
            assert_eq!(Cursor::position_in(&text, &head), expected, "{text}");
        }
    }
}
