//! Counters: how many tasks came into each status and left it, so that nothing on a request path counts rows.
//!
//! [`ledger::Ledger`] collects what one transaction adds to them. [`Verbs::finish`](crate::verbs::Verbs::finish) writes
//! that last. The table `position_tree` holds the position tree, which [`relais_core::position`] explains; a task's
//! position is read with the task (`FIND_TASK` in `tasks/`).

pub(crate) mod ledger;
pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;
