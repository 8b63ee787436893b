//! The HTTP server: connections, bodies of requests, and client addresses. Each has limits, so that nobody can keep the
//! server from serving others.
//!
//! [`serve`] runs the routes of `relais-api` and `relais-ui` on a listener. It does not know what the routes do, nor
//! any of our crates.
//!
//! A client that keeps the server waiting has a timeout: for the head of a request ([`ServeOptions::head_timeout`]), for
//! its body ([`read_body`]), for reading an answer ([`ServeOptions::write_timeout`]), and between two requests
//! ([`ServeOptions::idle_timeout`]). A client that waits for the server (a long-poll, a stream of events) has none.

mod body;
mod connection;
mod connections;
mod handover;
mod openings;
mod peer;
mod serve;
pub mod sse;
mod state;

pub use body::{BodyError, carrying, read_body};
pub use handover::Handover;
pub use peer::{Peer, TrustedProxies};
pub use serve::{ServeOptions, listen, serve};
