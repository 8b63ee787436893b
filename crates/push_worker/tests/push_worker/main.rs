//! What a push worker promises whatever feeds it, on a paused clock, fed by a script.

#![expect(clippy::unwrap_used, reason = "tests")]

mod ends;
mod failures;
mod once;
mod partitions;
mod retries;
mod script;
