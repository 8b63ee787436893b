//! Chaos: processes are killed, networks cut, disks filled, and the promises hold.
//!
//! Every test runs the real binary on a database of its own. Those with faults under load end with one line,
//! `tasks N, faults N, lost N, doubled N, stuck N`, and fail unless the last three are 0. `RELAIS_CHAOS_ROUNDS` makes
//! them longer, `RELAIS_SEED` repeats one.

mod bus;
mod callbacks;
mod clock;
mod dependencies;
mod disk;
mod flow;
mod judge;
mod kill;
mod network;
mod pair;
mod rabbitmq;
mod schedules;
mod stop;
mod worker;
