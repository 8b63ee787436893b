//! Push workers: handlers with concurrency, order, retries, dead letters and a stop that drains, whatever feeds them.
//!
//! A worker is one task that owns all of its state (`dispatch.rs`: what to do next; `lanes.rs`: in which order), and runs
//! the handler in a task of its own for each message (`execute.rs`). It sleeps until a message arrives, a handler ends or a
//! retry is due. Where messages come from is behind the port [`Consumer`]: the event bus (`relais-bus`), and queues and
//! topics of brokers (`relais-messaging`). Programs use the builders of those; this crate is for whoever writes one.
//!
//! It opens no connection and keeps nothing: what must survive a crash is the consumer's to redeliver.
//!
//! # A consumer
//!
//! ```
//! use std::{borrow::Cow, collections::VecDeque, sync::{Arc, Mutex}};
//!
//! use relais_push_worker::{
//!     BoxError, Consumer, ConsumerFeatures, ConsumerMonitor, FailedMessage, Incoming, InitializeError, Order, Settled,
//!     SubscriberError, WorkerSettings, WorkerSubscription, handler,
//! };
//!
//! /// The words of a list, which are gone once they were received.
//! struct Words(Arc<List>);
//! struct List(Mutex<VecDeque<Arc<String>>>);
//!
//! impl Consumer for Words {
//!     type Message = String;
//!     type Delivery = Arc<String>; // Nobody wants a receipt.
//!
//!     fn features(&self) -> ConsumerFeatures {
//!         ConsumerFeatures::default() // None of them.
//!     }
//!     fn monitor(&self) -> Arc<dyn ConsumerMonitor> {
//!         Arc::<List>::clone(&self.0)
//!     }
//!     async fn receive(&self, batch: &mut VecDeque<Arc<String>>) -> Incoming<Arc<String>> {
//!         batch.append(&mut self.0.0.lock().unwrap());
//!         Incoming::Closed // A worker ends when it has handled everything there is.
//!     }
//!     fn message(&self, word: &Arc<String>) -> Arc<String> {
//!         Arc::clone(word)
//!     }
//!     fn id<'a>(&self, word: &'a String) -> Cow<'a, str> {
//!         word.into()
//!     }
//!     fn channel<'a>(&self, _: &'a String) -> &'a str {
//!         "words"
//!     }
//!     fn lane(&self, word: &Arc<String>, _: Order) -> Option<Arc<str>> {
//!         Some(word.as_str().into())
//!     }
//!     fn settle(&self, _: Arc<String>, _: Settled) {}
//!     async fn dead_letter(&self, failed: &FailedMessage<'_, String>) -> Result<bool, BoxError> {
//!         println!("{}: {}", failed.message, failed.error);
//!         Ok(true)
//!     }
//!     async fn stop_receiving(&self) {}
//!     async fn close(&self) {}
//! }
//!
//! impl ConsumerMonitor for List {
//!     fn channels(&self) -> Vec<String> {
//!         vec!["words".to_owned()]
//!     }
//!     fn queue_size(&self) -> usize {
//!         self.0.lock().unwrap().len()
//!     }
//!     fn queue_capacity(&self) -> usize {
//!         usize::MAX
//!     }
//!     fn subscriptions(&self) -> Vec<WorkerSubscription> {
//!         let channel = "words".to_owned();
//!         vec![WorkerSubscription { id: "1".to_owned(), channel, pending: self.queue_size() }]
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), InitializeError> {
//! let words = ["tea", "coffee", "tea"].map(|word| Arc::new(word.to_owned()));
//! let list = Arc::new(List(Mutex::new(words.into())));
//! let consumer = async { Ok::<_, InitializeError>(Words(list)) };
//! let drink = handler(|word: Arc<String>| async move {
//!     if *word == "coffee" { Err(SubscriberError::fatal("too late for coffee")) } else { Ok(()) }
//! });
//! let worker = WorkerSettings::new("waiter").concurrency(4).order(Order::Key).start(consumer, drink).await?;
//! let report = worker.stop().await;
//! assert_eq!((report.processed, report.errors, report.dead_lettered), (2, 1, 1));
//! # Ok(()) }
//! ```

mod consumer;
mod dispatch;
mod error;
mod execute;
mod hooks;
mod lanes;
mod revocation;
mod settings;
mod stats;
mod telemetry;
mod worker;

pub use relais_dedup::Dedup;

pub use consumer::{
    BoxError, Consumer, ConsumerFeatures, ConsumerMonitor, Covers, Incoming, RetriedBy, Revoked, Settled,
    WorkerSubscription,
};
pub use error::{InitializeError, SubscriberError};
pub use hooks::{ErrorDecision, FailedMessage, Hooks};
pub use settings::{KeyOf, WorkerSettings};
pub use stats::{WorkerSchedule, WorkerState, WorkerStats};
pub use worker::{Handler, Order, PushWorker, PushWorkerReport, Pushed, handler};
