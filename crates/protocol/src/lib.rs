//! Every byte that Relais sends or is sent: HTTP bodies, worker messages, error numbers.
//!
//! Wire names are exact, odd spellings included (`submitionDate`). Nothing here decides anything: these types say what a
//! message looks like, and other crates say what it means. Payloads are opaque: they are carried as the text they came in.

pub mod admin;
pub mod audience;
pub mod audit;
pub mod batch;
pub mod broker;
pub mod callback;
pub mod capture;
pub mod consumer;
mod duration;
mod envelope;
pub mod events;
pub mod instance;
pub mod notification_source;
mod numbers;
pub mod outbox;
pub mod retry;
pub mod schedule;
pub mod worker;
pub mod worker_state;

pub use duration::{DurationError, HumanDuration};
pub use envelope::{ErrorBody, ErrorDetail, Failure, Success};
pub use numbers::ErrorNumber;
