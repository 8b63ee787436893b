//! Everything that a command prints: data to stdout, words about it to stderr.
//!
//! Nothing here panics when the reader has gone away, as `relais task list | head` makes it do. The server does not
//! print; it logs.

use std::io::{self, Write as _};

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

/// Prints one line of data that goes on; false when nobody reads it any more.
pub fn line(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Says something about the data.
pub fn note(text: &str) {
    // There is nobody left to tell when stderr is gone.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Says what went wrong, and why.
pub fn error(error: &anyhow::Error) {
    note(&format!("error: {error:#}"));
}
