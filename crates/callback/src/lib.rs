//! CallbackSenders: they carry callbacks to those who wait, so that nobody has to ask.
//!
//! A [`relais_core::CallbackSender`] judges where a callback may go and carries one delivery there, once. [`HttpSender`] is the one
//! for webhooks: a signed `POST` of JSON, with one deadline over everything and a cap on what is read back. When to try
//! again, what shares an endpoint and what is kept of a try is the engine's, for callback senders of all kinds alike.
//!
//! Targets are written by clients, so a callback sender must not become a way into the operator's network. [`guard`] holds the
//! rules; they are applied when a callback is asked for, before each try, and to every address that a name resolves to, on
//! the way to the connection: what was checked is what is connected to.
//!
//! Letters are signed as [Standard Webhooks](https://www.standardwebhooks.com) say, so receivers in any language can check
//! them with a library that exists. In Rust, [`signature::verify`] will do:
//!
//! ```
//! use std::time::Duration;
//!
//! use relais_callback::signature::{generate_secret, sign, verify};
//! use relais_core::Timestamp;
//!
//! let secret = generate_secret()?; // Kept by Relais, and by the receiver.
//! let body = br#"{"status":"SUCCESS"}"#;
//!
//! // What Relais sends:
//! let now = Timestamp::from_millis(1_769_848_200_125);
//! let (id, timestamp) = ("01a1e14b-7", "1769848200");
//! let header = sign(&secret, id, now, body)?;
//! assert!(header.starts_with("v1,"));
//!
//! // What the receiver does with `webhook-id`, `webhook-timestamp`, the body and `webhook-signature`:
//! let five_minutes = Duration::from_secs(300);
//! verify(&secret, id, timestamp, body, &header, five_minutes, now)?;
//! assert!(verify(&secret, id, timestamp, br#"{"status":"FAILURE"}"#, &header, five_minutes, now).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is deliberately not here: retries, queues, a clock, redirects, proxies, cookies, and any reading of what a receiver
//! answers beyond its status and when it wants to be asked again.

mod amqp;
mod answer;
pub mod guard;
mod gzip;
mod http;
mod resolve;
pub mod signature;
mod trouble;

pub use amqp::AmqpSender;
pub use http::{HttpSenderError, HttpOptions, HttpSender};
pub use resolve::{Resolver, SystemResolver};
