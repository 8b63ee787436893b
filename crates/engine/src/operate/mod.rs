//! What operators do and see: declaring, looking, acting. Whoever acts does so through [`operator::Operator`], which
//! checks the role and writes the audit log.

pub(crate) mod admin;
pub(crate) mod audiences;
pub(crate) mod captures;
pub(crate) mod depth;
pub(crate) mod notification_sources;
pub(crate) mod operator;
pub(crate) mod outboxes;
pub(crate) mod overview;
mod relays;
pub(crate) mod retry;
pub(crate) mod select;
pub(crate) mod trend;
pub(crate) mod waiting;
pub(crate) mod worker_registry;
