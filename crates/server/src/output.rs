//! Everything that a command prints: data to stdout, words about it to stderr.
//!
//! Nothing here panics when the reader has gone away, as `relais task list | head` makes it do. The server does not
//! print; it logs.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write as _},
};

/// Prints data, with a line end if it has none.
pub fn data(text: &str) -> io::Result<()> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}{end}").and_then(|()| stdout.flush()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints one line of data that goes on, JSON or text with JSON in it; false when nobody reads it any more.
pub fn line(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{}", printable_json(text)).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a character would steer a terminal, or change the order in which a line is read, instead of being seen.
fn steers(c: char) -> bool {
    let bidirectional =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    bidirectional || (c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Text that others wrote, for a terminal: what would steer it is written as `\u{1b}`. Lines and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if steers(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// The same JSON, for a terminal: what would steer it is escaped. It can only be within strings.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let steers = |c: char| steers(c) && c != '\r';
    if !json.contains(steers) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        // All of them have four digits at most, and writing to a string does not fail.
        let _ = if steers(c) { write!(shown, "\\u{:04x}", u32::from(c)) } else { shown.write_char(c) };
    }
    Cow::Owned(shown)
}

/// Says something about the data.
pub fn note(text: &str) {
    // There is nobody left to tell when stderr is gone.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Says what went wrong, and why.
pub fn error(error: &anyhow::Error) {
    note(&printable(&format!("error: {error:#}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_steer_a_terminal_is_escaped() {
        assert_eq!(printable("a\n\tb é 👩‍🏫 ‏"), "a\n\tb é 👩‍🏫 \\u{200f}");
        assert_eq!(printable("\u{1b}[2J\r\u{9b}\u{7f}\u{202e}"), r"\u{1b}[2J\u{d}\u{9b}\u{7f}\u{202e}");
        assert!(matches!(printable("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_says_the_same_when_it_is_escaped() {
        let json = "{\r\n \"\u{9b}2J\": \"\u{202e}\\u001b\u{7f}\"}";
        let shown = printable_json(json);
        assert_eq!(shown, "{\r\n \"\\u009b2J\": \"\\u202e\\u001b\\u007f\"}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&shown), read(json));
    }
}
