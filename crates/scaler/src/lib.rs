//! KEDA's external scaler: answers KEDA over gRPC how much work a service has, and notifies it when there is some.
//!
//! A trigger of a ScaledObject or a ScaledJob names the service in its metadata ([`Question`]). The answer is the
//! backlog, by default pending and running tasks, so that a busy worker is not removed. Streams are fed by
//! [`relais_engine::QueueWatch`]: woken, not polled.
//!
//! Does not authenticate: everybody who reaches the port may ask. TLS authenticates the server. The workloads and their
//! replicas belong to KEDA.

mod connection;
mod question;
mod serve;
mod service;

pub use question::Question;
pub use serve::{ServeError, Tls, serve};
pub use service::Scaler;

/// The protocol, as it is compiled from `externalscaler.proto`.
#[expect(missing_docs, clippy::allow_attributes, reason = "generated")]
pub mod proto {
    tonic::include_proto!("externalscaler");
}
