//! What a consumer of a log may commit: the bookkeeping of partitions, without a client and without a clock.
//!
//! A partition's records are handled side by side and end in any order, but what is committed is one number: everything before
//! it is done. [`Watermark`] is that number, [`Flow`] says when a partition has enough in flight, and [`ParkedKeys`] remembers
//! the keys that failed, whose records are kept elsewhere so that the watermark may pass them.

mod flow;
mod parked;
mod watermark;

pub(crate) use flow::{Flow, FlowChange, FlowLimits};
pub(crate) use parked::{EntryId, Parked, ParkedKeys};
pub(crate) use watermark::Watermark;
