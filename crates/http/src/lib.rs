//! How HTTP gets in and out of Relais: connections, bodies of requests, and the addresses that they come from. Each has its
//! limits, so that nobody can keep the server from serving others.
//!
//! [`serve`] runs the routes of `relais-api` and `relais-ui` on a listener. What the routes do is none of its business, and
//! it knows none of our crates.
//!
//! Whoever keeps the server waiting has a deadline: for the head of a request ([`HttpOptions::head_timeout`]), for its body
//! ([`read_body`]), for reading an answer ([`HttpOptions::write_timeout`]), and between two requests
//! ([`HttpOptions::idle_timeout`]). Whoever waits for the server (a long-poll, a stream of events) has none.

mod body;
mod connection;
mod connections;
mod peer;
mod serve;
pub mod sse;
mod state;

pub use body::{BodyError, carrying, read_body};
pub use peer::{Peer, TrustedProxies};
pub use serve::{HttpOptions, serve};
