//! Topologies: the exchanges, queues and bindings that an application needs, as data.
//!
//! A [`Topology`] is built in Rust or read from a file (it is [`Deserialize`](serde::Deserialize)); both are the same
//! model, and [`Topology::check`] judges it without a broker. [`Broker::plan_topology`](super::Broker::plan_topology)
//! compares it with what a broker has, and [`Broker::apply_topology`](super::Broker::apply_topology) creates what is
//! missing.
//!
//! ```
//! use std::time::Duration;
//!
//! use relais_messaging::rabbitmq::topology::{
//!     BindingDeclaration, ExchangeDeclaration, ExchangeType, QueueDeclaration, Topology,
//! };
//!
//! let topology = Topology::new()
//!     .exchange(ExchangeDeclaration::new("orders", ExchangeType::Topic))
//!     .exchange(ExchangeDeclaration::new("orders.dead", ExchangeType::Fanout))
//!     .queue(QueueDeclaration::quorum("invoices").dead_letter_exchange("orders.dead").max_retries(3))
//!     .queue(QueueDeclaration::classic("invoices.dead").message_ttl(Duration::from_secs(7 * 86_400)))
//!     .binding(BindingDeclaration::to_queue("orders", "invoices").routing_key("order.placed"))
//!     .binding(BindingDeclaration::to_queue("orders.dead", "invoices.dead"));
//! assert_eq!(topology.check(), []);
//! ```
//!
//! Nothing that exists is changed, and nothing is deleted unless somebody asks for it: a queue holds messages, and an
//! exchange may be somebody else's. What differs is reported. Streams, policies and exchange types of plugins are not
//! here; [`Management::put_policy`](super::Management::put_policy) sets policies.

mod apply;
mod check;
mod cycle;
mod declare;
mod file;
mod look;
mod model;
mod plan;
mod routing;

pub use apply::ApplyOptions;
pub use check::{TopologyFault, TopologyProblem};
pub use model::{
    Arguments, BindingDeclaration, BindingDestination, ExchangeDeclaration, ExchangeType, QueueDeclaration, Topology,
};
pub use plan::{ObjectReport, ObjectState, PropertyDifference, TopologyObject, TopologyReport};

use super::{ConsumeError, ManagementError};

/// The argument that says after how many retries a consumer gives up. It is for consumers and is never sent to a broker.
pub const MAX_RETRIES: &str = "x-max-retries";

/// Why a topology could not be compared or applied.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The topology contradicts itself; the broker was not asked.
    #[error("the topology has {} that must be mended first", count(.0))]
    Invalid(Vec<TopologyProblem>),
    /// The broker did not answer.
    #[error(transparent)]
    Broker(#[from] ConsumeError),
    /// The management API did not answer.
    #[error(transparent)]
    Management(#[from] ManagementError),
    /// Only the management API knows which bindings there are.
    #[error("extra bindings can be deleted only with the management API, which tells them")]
    ExtraBindingsUnknown,
}

fn count(problems: &[TopologyProblem]) -> String {
    if problems.len() == 1 { "a problem".to_owned() } else { format!("{} problems", problems.len()) }
}

#[cfg(test)]
mod tests;
