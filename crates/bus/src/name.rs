//! Channel names and the patterns that match them.
//!
//! A channel is segments with dots between them: `orders.created`. In a pattern, `*` stands for one segment, anywhere,
//! and `>` at the end for one or more. A wildcard in the first place does not match the reserved channels (`dlq.…`, the
//! dead letters, and `$…`, the bus's own notices): who subscribes to everything means the events, and a worker that
//! took its own dead letters for events would never come to an end.

use std::fmt;

use thiserror::Error;

/// What the channels of dead letters begin with.
pub const DEAD_LETTER_PREFIX: &str = "dlq.";

/// Longer names are refused: they are labels and keys elsewhere.
const LONGEST: usize = 255;

/// Why a channel's name or a pattern was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name:?} is not {what}: {why}")]
pub struct NameError {
    name: String,
    what: &'static str,
    why: &'static str,
}

/// One channel, or many by wildcards.
///
/// ```
/// use relais_bus::Pattern;
///
/// let pattern = Pattern::new("orders.*")?;
/// assert!(pattern.matches("orders.created"));
/// assert!(!pattern.matches("orders.created.eu"));
/// assert!(Pattern::new("orders.>")?.matches("orders.created.eu"));
/// assert!(Pattern::new("*.created")?.matches("orders.created"));
/// # Ok::<(), relais_bus::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// Reads a pattern; a channel's name is one too.
    ///
    /// # Errors
    ///
    /// If a segment is empty, mixes a wildcard with text, or has `>` before the end.
    pub fn new(pattern: impl Into<String>) -> Result<Self, NameError> {
        let pattern = pattern.into();
        match check(&pattern, true) {
            None => Ok(Self(pattern.into_boxed_str())),
            Some(why) => Err(NameError { name: pattern, what: "a pattern", why }),
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is one channel's name.
    pub fn is_channel(&self) -> bool {
        !self.segments().any(is_wildcard)
    }

    /// Whether an event on this channel is for subscribers of this pattern.
    pub fn matches(&self, channel: &str) -> bool {
        let mut segments = channel.split('.');
        for (depth, wanted) in self.segments().enumerate() {
            let Some(segment) = segments.next() else { return false };
            match wanted {
                "*" | ">" if depth == 0 && is_reserved(segment) => return false,
                ">" => return true,
                "*" => {}
                _ if wanted == segment => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }

    /// Whether there is a channel that both match.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.segments().enumerate(), other.segments());
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (None, _) | (_, None) => return false,
                (Some((0, one)), Some(two)) if is_wildcard(one) && is_reserved(two) => return false,
                (Some((0, one)), Some(two)) if is_wildcard(two) && is_reserved(one) => return false,
                (Some((_, ">")), Some(_)) | (Some(_), Some(">")) => return true,
                (Some((_, one)), Some(two)) if one == two || one == "*" || two == "*" => {}
                _ => return false,
            }
        }
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `name` can be published to. Reserved channels pass: who may use them is not a matter of spelling.
pub(crate) fn check_channel(name: &str) -> Result<(), NameError> {
    match check(name, false) {
        None => Ok(()),
        Some(why) => Err(NameError { name: name.to_owned(), what: "a channel", why }),
    }
}

/// First segments that a leading wildcard does not match.
pub(crate) fn is_reserved(first_segment: &str) -> bool {
    first_segment == "dlq" || first_segment.starts_with('$')
}

/// The channel that an event's dead letter goes to. A dead letter's own is itself: there is no `dlq.dlq.…`.
pub(crate) fn dead_letter_channel(channel: &str) -> String {
    if channel.starts_with(DEAD_LETTER_PREFIX) { channel.to_owned() } else { format!("{DEAD_LETTER_PREFIX}{channel}") }
}

fn is_wildcard(segment: &str) -> bool {
    segment == "*" || segment == ">"
}

fn check(name: &str, wildcards: bool) -> Option<&'static str> {
    if name.len() > LONGEST {
        return Some("it is longer than 255 bytes");
    }
    let mut segments = name.split('.').peekable();
    while let Some(segment) = segments.next() {
        if segment.is_empty() {
            return Some("a segment is empty");
        }
        if segment.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Some("it has a space or a control character");
        }
        if is_wildcard(segment) {
            if !wildcards {
                return Some("it has a wildcard");
            }
            if segment == ">" && segments.peek().is_some() {
                return Some("> stands only at the end");
            }
        } else if segment.contains(['*', '>']) {
            return Some("a wildcard is a whole segment");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, channel: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(channel)
    }

    #[test]
    fn a_star_is_one_segment_anywhere() {
        assert!(matches("orders.*", "orders.created"));
        assert!(!matches("orders.*", "orders"));
        assert!(!matches("orders.*", "orders.created.eu"));
        assert!(matches("*.created", "orders.created"));
        assert!(matches("orders.*.eu", "orders.created.eu"));
        assert!(!matches("*.created", "orders.deleted"));
    }

    #[test]
    fn a_greater_than_is_the_rest_and_not_nothing() {
        assert!(matches("orders.>", "orders.created"));
        assert!(matches("orders.>", "orders.created.eu.fr"));
        assert!(!matches("orders.>", "orders"));
        assert!(matches(">", "orders"));
        assert!(matches("*.*.>", "a.b.c.d"));
    }

    #[test]
    fn reserved_channels_are_matched_by_name_only() {
        assert!(!matches(">", "dlq.orders.created"));
        assert!(!matches("*.orders.created", "dlq.orders.created"));
        assert!(!matches(">", "$bus.reconnected"));
        assert!(matches("dlq.>", "dlq.orders.created"));
        assert!(matches("$bus.*", "$bus.reconnected"));
        assert!(matches("orders.*", "orders.dlq"), "only the first segment is reserved");
    }

    #[test]
    fn names_that_would_surprise_are_refused() {
        for bad in ["", ".", "a.", ".a", "a..b", "a.b*", "a.>.b", "a b", "a\n"] {
            assert!(Pattern::new(bad).is_err(), "{bad:?}");
        }
        for bad in ["a.*", ">", "", "a..b"] {
            assert!(check_channel(bad).is_err(), "{bad:?}");
        }
        let error = Pattern::new("a.>.b").unwrap_err();
        assert_eq!(error.to_string(), r#""a.>.b" is not a pattern: > stands only at the end"#);
        assert!(check_channel(&"a".repeat(256)).is_err());
    }

    #[test]
    fn patterns_overlap_where_a_channel_matches_both() {
        let overlap = |one: &str, two: &str| {
            let (one, two) = (Pattern::new(one).unwrap(), Pattern::new(two).unwrap());
            assert_eq!(one.overlaps(&two), two.overlaps(&one), "{one} {two}");
            one.overlaps(&two)
        };
        for (one, two) in [("a.>", ">"), ("a.>", "*.b"), ("a.*.c", "*.b.>"), ("a.b", "a.b"), ("dlq.>", "dlq.*")] {
            assert!(overlap(one, two), "{one} {two}");
        }
        for (one, two) in [("a.>", "a"), ("a.>", "b.>"), ("a.*", "a.b.c"), ("dlq.a", "*.a"), (">", "$bus.lost")] {
            assert!(!overlap(one, two), "{one} {two}");
        }
    }

    #[test]
    fn a_dead_letter_gets_no_dead_letter_of_its_own() {
        assert_eq!(dead_letter_channel("orders.created"), "dlq.orders.created");
        assert_eq!(dead_letter_channel("dlq.orders.created"), "dlq.orders.created");
    }
}
