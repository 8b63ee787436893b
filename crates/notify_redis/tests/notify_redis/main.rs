//! Notifications on Redis and on Valkey: the suite of the port, and what only this driver promises.

mod costs;
mod follow;
mod loss;
mod model;
mod sink;
mod suite;
