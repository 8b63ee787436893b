//! Redis Streams with consumer groups: at least once, shared by the instances of a group.
//!
//! All events of a bus are in one stream. Each group reads all of it; within a group, each event goes to one instance,
//! which hands it to its own subscribers and acknowledges it when they are done with it. An instance that dies leaves
//! its events unacknowledged, and another one takes them over.
//!
//! The reading is in `stream_reader.rs`; this file is the transport and its settings.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use redis::Cmd;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinHandle},
};

use super::{Server, dead_letters::RedisDeadLetters, stream_reader::Reader};
use crate::{BusError, DeadLetterStore, Event, Features, Inbox, Transport, builder::host};

/// The transport. Confirmations count 1: the stream has it.
#[derive(Debug)]
pub struct RedisStreams {
    pub(super) server: Server,
    pub(super) group: String,
    pub(super) consumer: String,
    pub(super) claim_after: Duration,
    max_events: Option<usize>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
    abort: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

impl RedisStreams {
    /// Over the server at `url`, as an instance of `group`. Instances of the same group share the events; each group
    /// gets all of them, from the moment it first connects.
    ///
    /// # Errors
    ///
    /// If that is not an address. Does not connect yet.
    pub fn new(url: &str, group: impl Into<String>) -> Result<Self, BusError> {
        let random = getrandom::u32().unwrap_or_default();
        Ok(Self {
            server: Server::new(url)?,
            group: group.into(),
            consumer: format!("{}:{}:{random:08x}", host(), std::process::id()),
            claim_after: Duration::from_secs(60),
            max_events: None,
            running: Mutex::default(),
        })
    }

    /// What the names of keys in Redis begin with; `relais:bus:` unless set.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.server.prefix = prefix.into();
        self
    }

    /// This instance's name in its group, which no other may have at the same time. Made up unless set. A name that is
    /// the same after a restart, such as a StatefulSet's pod, takes up its own events at once.
    #[must_use]
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// How long an instance may give no sign of life before others take over its events; 60 s unless set. Signs are
    /// given three times as often. This is the one timer of the bus: an idle instance asks Redis once in that time.
    #[must_use]
    pub fn claim_after(mut self, time: Duration) -> Self {
        self.claim_after = time.max(Duration::from_millis(30));
        self
    }

    /// A limit to the stream, about. The oldest events beyond it are removed **even if a group has not read them**.
    /// Without one, events are removed when every group is done with them, and never before.
    #[must_use]
    pub fn max_events(mut self, events: usize) -> Self {
        self.max_events = Some(events);
        self
    }

    fn add(&self, event: &Event) -> Result<Cmd, BusError> {
        let mut add = redis::cmd("XADD");
        add.arg(self.stream());
        if let Some(events) = self.max_events {
            add.arg("MAXLEN").arg("~").arg(events);
        }
        add.arg("*").arg("event").arg(event.to_json()?);
        Ok(add)
    }

    pub(super) fn stream(&self) -> String {
        self.server.key("events")
    }
}

#[async_trait]
impl Transport for RedisStreams {
    fn name(&self) -> &'static str {
        "redis streams"
    }

    fn features(&self) -> Features {
        Features {
            at_least_once: true,
            shares_work: true,
            counts_receivers: false,
            in_process_payloads: false,
            keeps_dead_letters: true,
            catches_up: true,
            max_event_bytes: None,
        }
    }

    async fn start(&self, inbox: Inbox) -> Result<(), BusError> {
        let mut reader = Reader::new(self, inbox);
        let connection = reader.connect().await?;
        let (stop, stopping) = watch::channel(false);
        let task = tokio::spawn(reader.run(connection, stopping));
        let running = Running { stop, abort: task.abort_handle(), task: Some(task) };
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok(())
    }

    async fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut running) = running {
            running.stop.send_replace(true);
            if let Some(task) = running.task.take() {
                // It ends by a panic only, of which there is nothing left to tell.
                let _ = task.await;
            }
        }
    }

    async fn publish(&self, event: &Event) -> Result<usize, BusError> {
        let add = self.add(event)?;
        let mut connection = self.server.commands().await?;
        let added: Result<String, _> = add.query_async(&mut connection).await;
        added.map_err(|error| BusError::transport("publish", error))?;
        Ok(1)
    }

    /// In one pipeline.
    async fn publish_all(&self, events: &[Event]) -> Result<(), BusError> {
        let mut pipeline = redis::pipe();
        for event in events {
            pipeline.add_command(self.add(event)?).ignore();
        }
        let mut connection = self.server.commands().await?;
        let added = pipeline.query_async(&mut connection).await;
        added.map_err(|error| BusError::transport("publish", error))
    }

    fn dead_letters(&self) -> Option<Arc<dyn DeadLetterStore>> {
        Some(Arc::new(RedisDeadLetters::new(self.server.clone())))
    }
}
