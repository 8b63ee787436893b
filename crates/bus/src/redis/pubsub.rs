//! Redis Pub/Sub: fire and forget, to everybody who is connected.
//!
//! One task keeps the connection and knows what is subscribed to; another reads, so that a subscriber without room
//! holds up the reading and never the subscribing. After an outage everything is subscribed to again, and then it is
//! said that events may have been missed.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
};
use redis::{
    AsyncCommands, RedisError,
    aio::{PubSubSink, PubSubStream},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::{AbortHandle, JoinSet},
};

use super::{PATIENCE, Server, dead_letters::RedisDeadLetters, log_garbage};
use crate::{BusError, DeadLetterStore, Event, Features, Inbox, Pattern, Transport, backoff::Backoff};

/// The transport. Confirmations count the connections that received the event.
#[derive(Debug)]
pub struct RedisPubSub {
    server: Server,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    orders: mpsc::UnboundedSender<Order>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Order {
    Subscribe(Pattern, oneshot::Sender<()>),
    Unsubscribe(Pattern),
    Stop(oneshot::Sender<()>),
}

impl RedisPubSub {
    /// Over the server at `url`: `redis://host:port/`, or `rediss://` for TLS.
    ///
    /// # Errors
    ///
    /// If that is not an address. Does not connect yet.
    pub fn new(url: &str) -> Result<Self, BusError> {
        Ok(Self { server: Server::new(url)?, running: Mutex::default() })
    }

    /// What the names of channels and keys in Redis begin with; `relais:bus:` unless set. Buses with different prefixes
    /// do not hear each other.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.server.prefix = prefix.into();
        self
    }

    fn order(&self, order: Order) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().is_some_and(|running| running.orders.send(order).is_ok())
    }
}

#[async_trait]
impl Transport for RedisPubSub {
    fn name(&self) -> &'static str {
        "redis pub/sub"
    }

    fn features(&self) -> Features {
        Features {
            at_least_once: false,
            shares_work: false,
            counts_receivers: true,
            in_process_payloads: false,
            keeps_dead_letters: true,
            catches_up: false,
            max_event_bytes: None,
        }
    }

    async fn start(&self, inbox: Inbox) -> Result<(), BusError> {
        let connected = connect(&self.server).await?;
        self.server.commands().await?;
        let (orders, receiver) = mpsc::unbounded_channel();
        let keeper = Keeper { server: self.server.clone(), inbox, wanted: HashSet::new(), unanswered: Vec::new() };
        let task = tokio::spawn(keeper.run(connected, receiver)).abort_handle();
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { orders, task });
        Ok(())
    }

    async fn stop(&self) {
        let (tell, told) = oneshot::channel();
        if self.order(Order::Stop(tell)) {
            let _ = told.await;
        }
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    async fn publish(&self, event: &Event) -> Result<usize, BusError> {
        let text = event.to_json()?;
        let mut connection = self.server.commands().await?;
        let published = connection.publish(self.server.key(&event.channel), text).await;
        published.map_err(|error| BusError::transport("publish", error))
    }

    /// In one pipeline.
    async fn publish_all(&self, events: &[Event]) -> Result<(), BusError> {
        let mut pipeline = redis::pipe();
        for event in events {
            pipeline.publish(self.server.key(&event.channel), event.to_json()?).ignore();
        }
        let mut connection = self.server.commands().await?;
        let published = pipeline.query_async(&mut connection).await;
        published.map_err(|error| BusError::transport("publish", error))
    }

    fn subscribe(&self, pattern: &Pattern) -> BoxFuture<'static, Result<(), BusError>> {
        let (tell, told) = oneshot::channel();
        let asked = self.order(Order::Subscribe(pattern.clone(), tell));
        async move { if asked { told.await.map_err(|_| BusError::NotRunning) } else { Err(BusError::NotRunning) } }
            .boxed()
    }

    fn unsubscribe(&self, pattern: &Pattern) {
        self.order(Order::Unsubscribe(pattern.clone()));
    }

    fn dead_letters(&self) -> Option<Arc<dyn DeadLetterStore>> {
        Some(Arc::new(RedisDeadLetters::new(self.server.clone())))
    }
}

type Connected = (PubSubSink, PubSubStream);

async fn connect(server: &Server) -> Result<Connected, BusError> {
    match tokio::time::timeout(PATIENCE, server.client.get_async_pubsub()).await {
        Ok(Ok(connection)) => Ok(connection.split()),
        Ok(Err(error)) => Err(BusError::transport("connect", error)),
        Err(late) => Err(BusError::transport("connect", late)),
    }
}

/// Owns the connection and what is subscribed to.
struct Keeper {
    server: Server,
    inbox: Inbox,
    wanted: HashSet<Pattern>,
    /// Subscribers who wait until they are heard, which a lost connection delays.
    unanswered: Vec<oneshot::Sender<()>>,
}

/// Why a connection is left.
enum Left {
    Lost(BusError),
    Stopped,
}

impl Keeper {
    async fn run(mut self, mut connected: Connected, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            let Left::Lost(error) = self.stay(connected, &mut orders).await else { return };
            self.inbox.disconnected(&error).await;
            connected = match self.reconnect(&mut orders).await {
                Some(connected) => connected,
                None => return,
            };
            self.inbox.connected(true).await;
        }
    }

    /// Serves one connection until it is lost.
    async fn stay(&mut self, (mut sink, stream): Connected, orders: &mut mpsc::UnboundedReceiver<Order>) -> Left {
        let mut reading = JoinSet::new();
        reading.spawn(read(stream, self.inbox.clone()));
        loop {
            let order = tokio::select! {
                order = orders.recv() => order,
                _ = reading.join_next() => return Left::Lost(lost("the connection was closed")),
            };
            let done = match order {
                None => return Left::Stopped,
                Some(Order::Stop(tell)) => {
                    // Nothing is delivered after the answer.
                    reading.shutdown().await;
                    let _ = tell.send(());
                    return Left::Stopped;
                }
                Some(Order::Subscribe(pattern, tell)) => {
                    self.unanswered.push(tell);
                    let new = self.wanted.insert(pattern.clone());
                    let done = if new { self.subscribe(&mut sink, &pattern).await } else { Ok(()) };
                    if done.is_ok() {
                        self.answer();
                    }
                    done
                }
                Some(Order::Unsubscribe(pattern)) => {
                    self.wanted.remove(&pattern);
                    let name = self.name(&pattern);
                    if pattern.is_channel() { sink.unsubscribe(name).await } else { sink.punsubscribe(name).await }
                }
            };
            if let Err(error) = done {
                return Left::Lost(BusError::transport("subscribe", error));
            }
        }
    }

    async fn subscribe(&self, sink: &mut PubSubSink, pattern: &Pattern) -> Result<(), RedisError> {
        let name = self.name(pattern);
        if pattern.is_channel() { sink.subscribe(name).await } else { sink.psubscribe(name).await }
    }

    /// What a pattern is subscribed to as. A channel's name is taken as it is, and has nothing to escape.
    fn name(&self, pattern: &Pattern) -> String {
        if pattern.is_channel() {
            self.server.key(pattern.as_str())
        } else {
            format!("{}{}", escape(&self.server.prefix), glob(pattern))
        }
    }

    fn answer(&mut self) {
        for tell in self.unanswered.drain(..) {
            // One that does not wait any more needs no answer.
            let _ = tell.send(());
        }
    }

    /// Connects again and subscribes to everything that is wanted. `None` if told to stop.
    async fn reconnect(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) -> Option<Connected> {
        let mut backoff = Backoff::default();
        loop {
            tokio::select! {
                () = backoff.wait() => {}
                order = orders.recv() => match order {
                    None => return None,
                    Some(Order::Stop(tell)) => {
                        let _ = tell.send(());
                        return None;
                    }
                    Some(Order::Subscribe(pattern, tell)) => {
                        self.wanted.insert(pattern);
                        self.unanswered.push(tell);
                        continue;
                    }
                    Some(Order::Unsubscribe(pattern)) => {
                        self.wanted.remove(&pattern);
                        continue;
                    }
                },
            }
            let Ok((mut sink, stream)) = connect(&self.server).await else { continue };
            let mut done = Ok(());
            for pattern in &self.wanted {
                done = self.subscribe(&mut sink, pattern).await;
                if done.is_err() {
                    break;
                }
            }
            if done.is_ok() {
                self.answer();
                return Some((sink, stream));
            }
        }
    }
}

fn lost(why: &'static str) -> BusError {
    BusError::transport("stay connected", why)
}

/// Delivers what comes in, until the connection ends.
async fn read(mut stream: PubSubStream, inbox: Inbox) {
    let mut last = Vec::new();
    while let Some(message) = stream.next().await {
        // Redis sends an event once for each of our subscriptions that match, one right after the other. It carries an
        // id, so the same bytes are the same event.
        if message.get_payload_bytes() == last {
            continue;
        }
        last.clear();
        last.extend_from_slice(message.get_payload_bytes());
        match std::str::from_utf8(&last).map_err(|error| BusError::transport("read", error)).and_then(Event::from_json)
        {
            Ok(event) => inbox.deliver(event).await,
            Err(error) => log_garbage(&error),
        }
    }
}

/// A pattern as Redis understands it. Its `*` matches dots too, so more may come in than was asked for; the bus looks
/// again at who gets what.
fn glob(pattern: &Pattern) -> String {
    let segments = pattern.segments().map(|segment| match segment {
        "*" | ">" => "*".to_owned(),
        text => escape(text),
    });
    segments.collect::<Vec<_>>().join(".")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_globs_and_nothing_else_is_one() {
        for (pattern, expected) in [("a.*.b", "a.*.b"), ("a.>", "a.*"), ("a[1].*", "a\\[1\\].*")] {
            assert_eq!(glob(&Pattern::new(pattern).unwrap()), expected);
        }
    }
}
