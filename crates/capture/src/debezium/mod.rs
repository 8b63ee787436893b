//! Debezium's form of a captured change, and the import of Debezium's settings.
//!
//! Pure code, no I/O. An [`Envelope`] makes [`Record`]s of changes, byte for byte what Debezium's PostgreSQL connector and
//! Connect's JSON converter would write, as far as it was recorded (`tests/debezium/`). What differs on purpose is listed in
//! `docs/guides/from-debezium.md`.
//!
//! The folder by file: `options` has the settings, `field` decides how a column is published, `value` writes one value,
//! `schema` the schema part, `envelope` whole records. `number`, `time`, `array` and `text` read PostgreSQL's text forms and
//! write them. `import` reads the settings of a connector.

mod array;
mod envelope;
mod field;
pub mod import;
mod number;
mod options;
mod schema;
mod text;
mod time;
mod value;

pub use envelope::{Envelope, Record};
pub use options::{BinaryMode, DecimalMode, EnvelopeOptions, IntervalMode, TimeMode, UNAVAILABLE_VALUE};
