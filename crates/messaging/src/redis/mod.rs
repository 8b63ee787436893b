//! Redis, Valkey and KeyDB: a stream as a sink.

mod sink;

pub use sink::{RedisSink, RedisSinkError, RedisSinkOptions};
