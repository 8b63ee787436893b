//! Callback senders: drivers of the `CallbackSender` port, over HTTP and AMQP.
//!
//! A [`relais_core::CallbackSender`] validates the target of a callback and sends it once. [`HttpSender`] is the one
//! for webhooks: a signed `POST` of JSON, with one timeout over everything and a cap on what is read back. Retries,
//! lanes and records of tries belong to the engine, for callback senders of all kinds.
//!
//! Targets are written by clients, so a callback sender must not become a way into the operator's network. [`guard`]
//! has the rules. They are applied when a callback is requested, before each try, and to every address that a name
//! resolves to, on the way to the connection: what was checked is what is connected to.
//!
//! Callbacks are signed as [Standard Webhooks](https://www.standardwebhooks.com) says, so receivers in any language can
//! verify them with an existing library. In Rust, use [`signature::verify`]:
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
//! [`HttpSink`] sends the messages of an outbox by the same rules and with the same signatures: it is a
//! [`relais_message::Sink`] whose destinations are URLs.
//!
//! [`HttpPushSender`] sends Web Push messages by the same rules: a [`relais_core::PushSender`].
//!
//! What is deliberately not here: retries, queues, a clock, redirects, proxies, cookies, and any reading of a
//! receiver's answer beyond its status and its `Retry-After`.

mod amqp;
mod answer;
mod exchange;
mod fetch;
pub mod guard;
mod gzip;
mod http;
mod push;
mod resolve;
pub mod signature;
mod sink;
mod trouble;

pub use amqp::AmqpSender;
pub use exchange::{HttpSenderError, HttpSenderOptions};
pub use fetch::{DocumentFetcher, FetchError};
pub use http::HttpSender;
pub use push::HttpPushSender;
pub use resolve::{Resolver, SystemResolver};
pub use sink::{HttpSink, HttpSinkError, HttpSinkOptions};
