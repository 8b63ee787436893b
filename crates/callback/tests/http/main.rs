//! The HTTP callback sender against real receivers on loopback: friendly, rude, slow, lying, and out of bounds.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod answers;
mod endings;
mod environment;
mod names;
mod receiver;
mod sink;
mod support;
mod tls;
