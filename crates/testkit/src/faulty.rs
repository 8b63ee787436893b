//! A store that fails on purpose: any call may be refused, done without an answer, or broken off half-way.
//!
//! A user of the store port must handle all three: an error never says whether a write was done. The
//! plan is a seed, and what happens to the n-th call of a verb depends on nothing else, so that a plan can be tried
//! again.

use std::{
    collections::{BTreeMap, HashMap},
    future::{Future, poll_fn},
    ops::AddAssign,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use relais_core::*;

/// A call that is broken off has been given at most so many chances to go on.
const MOST_POLLS: u64 = 12;

/// What processes that do tasks themselves are given is counted apart.
const CLAIM_BY_INSTANCE: &str = "claim_tasks_by_instance";
const SUBMIT_BY_INSTANCE: &str = "submit_and_claim_by_instance";

/// What a process is given and not told of is known to nobody but the driver, so these are broken off where others are
/// not answered.
const BY_INSTANCE: [&str; 2] = [CLAIM_BY_INSTANCE, SUBMIT_BY_INSTANCE];

/// How many calls of a thousand fail, and how.
#[derive(Debug, Clone, Copy)]
pub struct FaultPlan {
    /// What all else follows from.
    pub seed: u64,
    /// Not made at all.
    pub refused: u64,
    /// Made, and the caller gets an error that it may have failed.
    pub unanswered: u64,
    /// Broken off half-way, as by a caller that has waited long enough.
    pub broken_off: u64,
    /// Only calls of this verb, where one is given.
    pub only: Option<&'static str>,
}

/// The outcomes of the calls of one verb, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCount {
    /// All calls while faults were on.
    pub calls: u64,
    /// Not made at all.
    pub refused: u64,
    /// Made, and not answered.
    pub unanswered: u64,
    /// Broken off.
    pub broken_off: u64,
}

impl FaultCount {
    /// All that went wrong.
    pub const fn faults(&self) -> u64 {
        self.refused + self.unanswered + self.broken_off
    }
}

impl AddAssign for FaultCount {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.broken_off += other.broken_off;
    }
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Refused,
    Unanswered,
    BrokenOff { polls: u64 },
}

/// A store that fails on purpose while its faults are on. They are off at first.
pub struct Faulty {
    store: Arc<dyn Store>,
    plan: FaultPlan,
    on: AtomicBool,
    counts: Mutex<BTreeMap<&'static str, FaultCount>>,
}

impl Faulty {
    /// Wraps a store.
    pub fn new(store: Arc<dyn Store>, plan: FaultPlan) -> Arc<Self> {
        Arc::new(Self { store, plan, on: AtomicBool::new(false), counts: Mutex::default() })
    }

    /// Calls fail from now on, or do not.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// The outcomes of the calls so far, by verb.
    pub fn counts(&self) -> BTreeMap<&'static str, FaultCount> {
        self.book().clone()
    }

    /// The outcomes of all calls so far.
    pub fn total(&self) -> FaultCount {
        let mut total = FaultCount::default();
        self.book().values().for_each(|count| total += *count);
        total
    }

    fn book(&self) -> MutexGuard<'_, BTreeMap<&'static str, FaultCount>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, verb: &'static str, add: impl FnOnce(&mut FaultCount)) {
        add(self.book().entry(verb).or_default());
    }

    /// What happens to the next call of a verb.
    fn next(&self, verb: &'static str) -> Option<Fault> {
        if !self.on.load(Ordering::Relaxed) || self.plan.only.is_some_and(|only| only != verb) {
            return None;
        }
        let mut number = 0;
        self.count(verb, |count| {
            number = count.calls;
            count.calls += 1;
        });
        let name = verb.bytes().fold(0, |name, byte| mix(name ^ u64::from(byte)));
        let chance = mix(mix(self.plan.seed) ^ name ^ mix(number));
        let FaultPlan { refused, unanswered, broken_off, .. } = self.plan;
        match chance % 1000 {
            at if at < refused => Some(Fault::Refused),
            at if at < refused + unanswered && !BY_INSTANCE.contains(&verb) => Some(Fault::Unanswered),
            at if at < refused + unanswered + broken_off => {
                Some(Fault::BrokenOff { polls: (chance >> 32) % MOST_POLLS })
            }
            _ => None,
        }
    }

    async fn disturb<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match self.next(verb) {
            None => call.await,
            Some(Fault::Refused) => {
                self.count(verb, |count| count.refused += 1);
                Err(away("refused on purpose"))
            }
            Some(Fault::Unanswered) => {
                call.await?;
                self.count(verb, |count| count.unanswered += 1);
                Err(away("done, and not answered on purpose"))
            }
            Some(Fault::BrokenOff { polls }) => {
                let done = break_off(call, polls).await;
                done.unwrap_or_else(|| {
                    self.count(verb, |count| count.broken_off += 1);
                    Err(away("broken off on purpose"))
                })
            }
        }
    }
}

/// Gives a call so many chances to go on, and then breaks it off. None if it had not ended by then.
pub async fn break_off<T>(call: impl Future<Output = T>, polls: u64) -> Option<T> {
    let (mut call, mut left) = (pin!(call), polls);
    poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

fn away(why: &str) -> StoreError {
    StoreError::Unavailable(why.into())
}

/// One step of SplitMix64.
const fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The name under which a call is counted: what instances are given is counted apart.
macro_rules! counted_as {
    (claim_tasks, $requests:ident) => {
        if $requests.iter().any(|request| request.instance.is_some()) { CLAIM_BY_INSTANCE } else { "claim_tasks" }
    };
    (submit_and_claim, $tasks:ident, $request:ident) => {
        if $request.instance.is_some() { SUBMIT_BY_INSTANCE } else { "submit_and_claim" }
    };
    ($verb:ident $(, $name:ident)*) => {
        stringify!($verb)
    };
}

macro_rules! faulty {
    ($($(#[$port_doc:meta])* $port:ident {
        $($(#[$doc:meta])* $verb:ident($($name:ident: $type:ty),*) -> $output:ty;)*
    })*) => {
        $(#[async_trait]
        impl $port for Faulty {
            $(async fn $verb(&self, $($name: $type),*) -> Result<$output, StoreError> {
                let verb = counted_as!($verb $(, $name)*);
                self.disturb(verb, self.store.$verb($($name),*)).await
            })*
        })*
    };
}

relais_core::store_ports!(faulty);

#[async_trait]
impl Store for Faulty {
    fn listen(&self, listener: Arc<dyn WakeupListener>) {
        self.store.listen(listener);
    }

    async fn relay_wakeups(&self) {
        self.store.relay_wakeups().await;
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
