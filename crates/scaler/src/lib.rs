//! KEDA's external scaler: KEDA asks over gRPC how much work a service has, and is told the moment there is some.
//!
//! A trigger of a ScaledObject or a ScaledJob names the service in its metadata ([`Question`]); what it is answered is the
//! backlog, by default what waits and what is being worked on, so that a worker that is busy is not taken away. Streams are
//! fed by [`relais_engine::QueueWatch`]: woken, not polled.
//!
//! Does not authenticate: whoever reaches the port may ask. TLS says who *we* are. Which workloads there are, and how many
//! replicas they get, is KEDA's business.

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
