//! An event bus and push workers: publish on a channel, and whoever subscribes is woken at once.
//!
//! In memory by default, over Redis or PostgreSQL with a line more, and the same to its users on each. Nobody polls: a
//! subscriber, a worker and the bus itself cost nothing while there is nothing to do. Of Relais's other crates
//! it knows `relais-push-worker`, and `relais-message` for [`BusSink`]: messages of an outbox become events.
//!
//! # Publish and subscribe
//!
//! A [`Bus`] carries [`Event`]s on channels, which are words with dots between them. A subscriber names a channel or a
//! [`Pattern`]: `*` is one word, anywhere, and `>` the rest.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use relais_bus::Bus;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     number: u32,
//! }
//!
//! let bus = Bus::in_memory();
//! let mut orders = bus.subscribe_to::<Order>("orders.*").await?; // A `Stream`; `recv` is enough.
//!
//! bus.publish("orders.created", Order { number: 7 }).await?;
//! bus.publish_with("orders.shipped", Order { number: 6 }, [("shipper", "post")]).await?;
//!
//! let order = orders.recv().await.expect("the bus runs")?;
//! assert_eq!(order.number, 7); // The very value that was published: nothing was serialised.
//! assert_eq!(&*order.event.channel, "orders.created");
//! assert_eq!(orders.untyped().waiting(), 1);
//! # Ok(()) }
//! ```
//!
//! A handler is called for each event, and [`Bus::publish_confirmed`] returns the outcome of one:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let bus = relais_bus::Bus::in_memory();
//! let _subscribed = bus
//!     .on("orders.>", |event| async move {
//!         println!("{} {}", event.channel, event.payload.as_json()?);
//!         Ok(())
//!     })
//!     .await?; // Until this is dropped.
//! let confirmation = bus.publish_confirmed("orders.eu.created", 7).await?;
//! assert_eq!((confirmation.delivered, confirmation.failed), (1, 0));
//! # Ok(()) }
//! ```
//!
//! # Work
//!
//! A [`PushWorker`] has what work needs: concurrency, [order](Order) per channel or key, retries, dead letters, hooks,
//! and a stop that drains. [`Bus::work`] is the short form, for a handler that wants nothing but the payload.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use relais_bus::{SubscriberError, Order, Outgoing, PushWorker};
//! # let bus = relais_bus::Bus::in_memory();
//! let worker = PushWorker::builder("invoices")
//!     .channel("orders.created")
//!     .channel("payments.*")
//!     .concurrency(8)
//!     .order(Order::Key) // Events of one key one after the other; eight keys at a time.
//!     .start(&bus, |event| async move {
//!         let number: std::sync::Arc<u32> = event.payload.get().map_err(SubscriberError::fatal)?;
//!         if *number == 13 {
//!             return Err(SubscriberError::fatal("unlucky")); // `retryable` would be retried after 2, 4 and 8 seconds.
//!         }
//!         Ok(())
//!     })
//!     .await?;
//!
//! bus.send(Outgoing::new("orders.created", 13).key("customer 7")).await?;
//! let report = worker.stop().await;
//! assert_eq!((report.errors, report.dead_lettered, report.left.len()), (1, 1, 0));
//!
//! let letters = bus.dead_letters("orders.created", 100).await?;
//! assert_eq!(letters[0].error(), "unlucky");
//! bus.replay(letters[0].id()).await?; // Once the cause is gone.
//! # Ok(()) }
//! ```
//!
//! # Full queues
//!
//! What waits is bounded: 10,000 events for each subscriber. A publisher who finds a queue full waits up to 100 ms;
//! then the subscriber's [`Backpressure`] says what happens: the event is dropped for it, or kept as a dead letter, or
//! the publisher waits on. Every drop is counted by subscription ([`Bus::subscriptions`]) and by channel.
//!
//! # Many instances
//!
//! A [`Transport`] carries events between processes, with [`Features`] that say what it can do.
//!
//! | transport | feature | delivery | an instance that was away |
//! |---|---|---|---|
//! | memory | | at most once, to all | |
//! | `redis::RedisPubSub` | `redis` | at most once, to all | is told that it may have missed some |
//! | `redis::RedisStreams` | `redis` | at least once, shared in a group | gets what it missed |
//! | `postgres::PostgresNotify` | `postgres` | at most once, to all, small events | is told that it may have missed some |
//!
//! Connections that are lost are restored for ever, and subscriptions with them. [`Bus::health`] says how it stands,
//! and subscribers of `$bus.>` get a [`Notice`] of each loss and return.
//!
//! # Metrics
//!
//! Through the `metrics` crate, with a [prefix](BusBuilder::metrics_prefix); install the recorder before the bus is
//! built. `eventbus_published_total`, `eventbus_delivered_total`, `eventbus_failed_total`, `eventbus_dropped_total` (by
//! `channel`), `eventbus_subscriptions_active`, `eventbus_queue_size`, `eventbus_queue_capacity`;
//! `push_worker_processed_total` (successes), `push_worker_errors_total`, `push_worker_queue_size`,
//! `push_worker_duration_seconds` (by `worker`). The size of queues is brought up to date when a batch is taken and on every 64th event, so it may lag
//! behind by 63 for each subscriber.
//!
//! # What it does not do
//!
//! It keeps nothing on disk: what must survive belongs in a store, an outbox or on Redis Streams. It knows no
//! transactions, and no exactly-once; handlers of a transport that delivers at least once should do no harm when run
//! twice.

#[cfg(any(feature = "postgres", feature = "redis"))]
mod backoff;
mod builder;
mod bus;
mod channels;
mod dead_letters;
mod deliver;
mod error;
mod event;
mod hub;
mod id;
mod interest;
mod name;
mod payload;
#[cfg(feature = "postgres")]
pub mod postgres;
mod queue;
mod receipt;
#[cfg(feature = "redis")]
pub mod redis;
mod router;
mod sink;
mod stats;
mod subscribe;
mod subscriber;
mod sync;
mod telemetry;
mod transport;
mod trie;
mod worker;

#[cfg(test)]
mod core_tests;

pub use builder::BusBuilder;
pub use bus::{Bus, Confirmation, Outgoing, StopReport};
pub use channels::ChannelStats;
pub use dead_letters::{DeadLetter, DeadLetterStore};
pub use error::BusError;
pub use event::{Event, Metadata};
pub use interest::Interest;
pub use name::{DEAD_LETTER_PREFIX, NameError, Pattern};
pub use payload::{Payload, PayloadError};
pub use receipt::DeliveryOutcome;
pub use relais_push_worker::{
    ErrorDecision, Hooks, InitializeError, Order, SubscriberError, WorkerSchedule, WorkerSettings, WorkerState,
    WorkerStats, WorkerSubscription,
};
pub use sink::{BusSink, BusSinkOptions};
pub use stats::{BusHealth, BusState, BusStats};
pub use subscribe::{HandlerGuard, Received, Subscribe, Subscription, TypedSubscription};
pub use subscriber::{Backpressure, SubscriberKind, SubscriptionStats};
pub use transport::{Features, Inbox, Notice, Transport};
pub use worker::{FailedEvent, PushWorker, PushWorkerBuilder, PushWorkerReport};
