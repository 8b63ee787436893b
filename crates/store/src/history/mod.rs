//! What is kept of a task besides its state: attempts, and unique keys.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;
