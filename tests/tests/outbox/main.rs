//! Outboxes and captures in the server: declared by file, API and command line, published to a real broker, operated, and shared.

mod captures;
mod declare;
mod examples;
mod operate;
mod share;
mod sinks;
mod stage;
