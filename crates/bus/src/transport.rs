//! The seam between the bus and what carries events between instances.
//!
//! A transport moves events and nothing else: who subscribes to what, queues, back-pressure, retries and counts are the
//! bus's, the same on every transport. Without one the bus is in memory. `tests/suite` holds every transport to this
//! contract, each to the [`Features`] that it declares.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use async_trait::async_trait;
use futures::future::{self, BoxFuture, FutureExt};
use serde::{Deserialize, Serialize};

use crate::{
    BusError, DeliveryOutcome, Event, Pattern, dead_letters::DeadLetterStore, deliver::chain, hub::Hub,
    receipt::Tracker,
};

/// What a transport can do. What it can not, it says here, and the suite holds it to the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// An event is delivered until it is acknowledged: it survives a crash of either side.
    pub at_least_once: bool,
    /// Instances of one group share the events; else every instance gets them all.
    pub shares_work: bool,
    /// A confirmation counts who received the event; else it counts 1 for "taken".
    pub counts_receivers: bool,
    /// Payloads that serde does not know can be published.
    pub in_process_payloads: bool,
    /// Dead letters outlive the process and are seen by all instances.
    pub keeps_dead_letters: bool,
    /// Events that were published while an instance was away are delivered when it is back.
    pub catches_up: bool,
    /// The largest event, in bytes as JSON.
    pub max_event_bytes: Option<usize>,
}

impl Features {
    /// The bus in memory.
    pub const MEMORY: Self = Self {
        at_least_once: false,
        shares_work: false,
        counts_receivers: true,
        in_process_payloads: true,
        keeps_dead_letters: false,
        catches_up: false,
        max_event_bytes: None,
    };
}

/// Carries events between instances.
///
/// All methods may be called from many tasks at once. `start` and `stop` alternate, and each start follows the end of
/// the stop before it.
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// A word for logs and health.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn features(&self) -> Features;

    /// Connects, and delivers what comes in to `inbox` until it is stopped or dropped. A connection that is lost later
    /// is the transport's to restore, for ever; it tells the stored submissions of both.
    async fn start(&self, inbox: Inbox) -> Result<(), BusError>;

    /// Disconnects. Nothing is delivered after it returns.
    async fn stop(&self);

    /// Hands an event over, for all instances including this one. Returns, when the transport has it, how many received
    /// it, or 1.
    async fn publish(&self, event: &Event) -> Result<usize, BusError>;

    /// Hands events over in their order, at the price of one where the transport can. After an error, some may have
    /// left.
    async fn publish_all(&self, events: &[Event]) -> Result<(), BusError> {
        for event in events {
            self.publish(event).await?;
        }
        Ok(())
    }

    /// Somebody here wants events of this pattern. Resolves when events that are published from then on will come in.
    /// Calls are in order; the future may be awaited later. A transport that gets everything anyway need not do
    /// anything.
    fn subscribe(&self, pattern: &Pattern) -> BoxFuture<'static, Result<(), BusError>> {
        let _ = pattern;
        future::ready(Ok(())).boxed()
    }

    /// Nobody here wants events of this pattern any more.
    fn unsubscribe(&self, pattern: &Pattern) {
        let _ = pattern;
    }

    /// Where dead letters are kept, if not in the memory of this process.
    fn dead_letters(&self) -> Option<Arc<dyn DeadLetterStore>> {
        None
    }
}

/// Where a transport puts what comes in. Cheap to clone. Does not keep the bus alive.
#[derive(Clone)]
pub struct Inbox {
    hub: Weak<Hub>,
}

impl Inbox {
    pub(crate) fn new(hub: Weak<Hub>) -> Self {
        Self { hub }
    }

    /// Hands an event to the subscribers of this instance. Waits while their queues are full, as they have chosen.
    pub async fn deliver(&self, event: Event) {
        if let Some(hub) = self.hub.upgrade() {
            hub.receive(event, None).await;
        }
    }

    /// The same, and calls `completed` when all subscribers are done with it: a stream has handed it to its owner, a
    /// handler has returned, a worker has succeeded or put it to the dead letters. Acknowledge unless some have
    /// [abandoned](DeliveryOutcome::abandoned) it. Without subscribers that is at once; without a bus, never.
    pub async fn deliver_followed(&self, event: Event, completed: impl FnOnce(DeliveryOutcome) + Send + 'static) {
        if let Some(hub) = self.hub.upgrade() {
            hub.receive(event, Some(Tracker::for_ack(completed))).await;
        }
    }

    /// The connection was lost. Said once, until it is [back](Self::connected).
    pub async fn disconnected(&self, error: &BusError) {
        if let Some(hub) = self.hub.upgrade() {
            hub.link_down(chain(error)).await;
        }
    }

    /// The connection is there again. `may_have_missed` says that events of the meantime are gone.
    pub async fn connected(&self, may_have_missed: bool) {
        if let Some(hub) = self.hub.upgrade() {
            hub.link_up(may_have_missed).await;
        }
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

/// What the bus itself has to say, on the channels `$bus.disconnected` and `$bus.reconnected`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Notice {
    /// The transport has lost its connection and tries to get it back. Subscriptions stay.
    Disconnected {
        /// What the driver says.
        error: String,
    },
    /// The connection is back, and every subscription with it.
    Reconnected {
        /// When it was lost, RFC 3339. What was published since then is what may have been missed.
        since: String,
        /// How long it was away.
        down_ms: u64,
        /// Whether events of that time are gone. If not, they follow.
        may_have_missed: bool,
    },
}

impl Notice {
    /// The channel of [`Notice::Disconnected`].
    pub const DISCONNECTED: &str = "$bus.disconnected";
    /// The channel of [`Notice::Reconnected`].
    pub const RECONNECTED: &str = "$bus.reconnected";
}
