//! Consuming a queue, and acknowledging what was handed out.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::time::timeout;

use super::{Broker, ConsumeError, Delivery, link::Link, queue::short};

/// How long the library may take to say why a channel was closed.
const REASON: Duration = Duration::from_secs(1);

/// How a queue is consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumeOptions {
    /// At most so many are handed out and not acknowledged; 0 is no limit.
    pub prefetch: u16,
    /// What the consumer is called in the broker's own list; empty lets the broker choose.
    pub tag: String,
}

impl Default for ConsumeOptions {
    fn default() -> Self {
        Self { prefetch: 100, tag: String::new() }
    }
}

/// What a queue hands out, one after the other.
///
/// It ends with its channel, its connection or its queue, and then says which, each time it is asked. Whoever wants to
/// go on consumes again: the broker redelivers what was not acknowledged.
///
/// A dropped consumer takes nothing new. What it had not handed out goes back when the last [`Acker`] is dropped, too.
pub struct Consumer {
    stream: lapin::Consumer,
    acker: Acker,
    queue: String,
    end: Option<ConsumeError>,
    /// Keeps the connection.
    broker: Broker,
}

/// Settles what a [`Consumer`] was handed, also while somebody waits for more. Clones are cheap.
///
/// Acknowledging does not wait: there is no answer to it. An `Ok` that does not arrive, because the connection is lost
/// on the way, is a message that is redelivered. A tag that is acknowledged twice ends the channel.
#[derive(Clone)]
pub struct Acker {
    shared: Arc<Acknowledging>,
}

struct Acknowledging {
    channel: Channel,
    link: Arc<Link>,
    cancelled: AtomicBool,
}

impl Broker {
    /// Consumes a queue that exists.
    pub async fn consume(&self, queue: &str, options: ConsumeOptions) -> Result<Consumer, ConsumeError> {
        let (name, tag) = (short(queue)?, short(&options.tag)?);
        self.request(async |link: Arc<Link>| {
            let refused = |error: lapin::Error| ConsumeError::answer(queue, &error);
            let channel = link.open().await.map_err(|error| ConsumeError::end(&error))?;
            channel.basic_qos(options.prefetch, BasicQosOptions::default()).await.map_err(refused)?;
            let consuming = channel.basic_consume(name, tag, BasicConsumeOptions::default(), FieldTable::default());
            let stream = consuming.await.map_err(refused)?;
            Ok(Consumer::new(stream, Acker::new(channel, link), queue, self))
        })
        .await
    }
}

impl Consumer {
    pub(super) fn new(stream: lapin::Consumer, acker: Acker, queue: &str, broker: &Broker) -> Self {
        Self { stream, acker, queue: queue.to_owned(), end: None, broker: broker.clone() }
    }

    /// The next message, as soon as there is one. Nothing is lost if this is dropped while it waits.
    pub async fn next(&mut self) -> Result<Delivery, ConsumeError> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        match self.acker.shared.link.unless_gone(self.stream.next()).await {
            Some(Some(Ok(delivery))) if self.acker.is_open() => Ok(Delivery::new(delivery)),
            Some(Some(Err(error))) => Err(self.over(ConsumeError::end(&error))),
            Some(None) => {
                let end = self.ended();
                Err(self.over(end))
            }
            // What comes out of a channel that is closed can not be acknowledged, and is redelivered.
            Some(Some(Ok(_))) | None => {
                let end = self.reason().await;
                Err(self.over(end))
            }
        }
    }

    /// Waits for a message, and takes what else is there already, `max` in all. Never waits for more than the first.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Delivery>, ConsumeError> {
        let mut batch = vec![self.next().await?];
        while batch.len() < max {
            // An end is for the next call: what there is can be handed out.
            match self.stream.next().now_or_never() {
                Some(Some(Ok(delivery))) => batch.push(Delivery::new(delivery)),
                Some(Some(Err(error))) => {
                    self.over(ConsumeError::end(&error));
                    break;
                }
                Some(None) => {
                    let end = self.ended();
                    self.over(end);
                    break;
                }
                None => break,
            }
        }
        Ok(batch)
    }

    /// Takes nothing new. What was handed out can still be acknowledged, and what had arrived already is still handed
    /// out; then the end is [`Cancelled`](ConsumeError::Cancelled).
    pub async fn cancel(&self) -> Result<(), ConsumeError> {
        let tag = self.stream.tag();
        self.acker.shared.cancelled.store(true, Ordering::Release);
        let acknowledging = &self.acker.shared;
        let limit = self.broker.options().publish_timeout;
        let cancelling = acknowledging.channel.basic_cancel(tag, BasicCancelOptions::default());
        match timeout(limit, acknowledging.link.unless_gone(cancelling)).await {
            Ok(Some(Ok(()))) => Ok(()),
            Ok(Some(Err(error))) => Err(ConsumeError::end(&error)),
            Ok(None) => Err(ConsumeError::lost()),
            Err(_) => Err(ConsumeError::Late(limit)),
        }
    }

    /// What acknowledges, also while somebody waits for [`next`](Self::next).
    pub fn acker(&self) -> Acker {
        self.acker.clone()
    }

    /// See [`Acker::ack`].
    pub fn ack(&self, tag: u64) -> Result<(), ConsumeError> {
        self.acker.ack(tag)
    }

    /// See [`Acker::ack_through`].
    pub fn ack_through(&self, tag: u64) -> Result<(), ConsumeError> {
        self.acker.ack_through(tag)
    }

    /// See [`Acker::nack`].
    pub fn nack(&self, tag: u64, requeue: bool) -> Result<(), ConsumeError> {
        self.acker.nack(tag, requeue)
    }

    /// What the consumer is called in the broker's own list.
    pub fn tag(&self) -> String {
        self.stream.tag().into()
    }

    fn over(&mut self, end: ConsumeError) -> ConsumeError {
        self.end.insert(end).clone()
    }

    /// Why there is nothing more, if nothing went wrong.
    fn ended(&self) -> ConsumeError {
        if self.acker.shared.cancelled.load(Ordering::Acquire) {
            ConsumeError::Cancelled
        } else if self.acker.is_open() {
            ConsumeError::QueueGone { queue: self.queue.clone() }
        } else {
            self.acker.closed()
        }
    }

    /// Why the channel is closed. The library says so after what it received before.
    async fn reason(&mut self) -> ConsumeError {
        let said = async {
            loop {
                match self.stream.next().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Some(ConsumeError::end(&error)),
                    None => return None,
                }
            }
        };
        let said = if self.acker.shared.link.is_open() {
            timeout(REASON, self.acker.shared.link.unless_gone(said)).await.ok().flatten().flatten()
        } else {
            said.now_or_never().flatten()
        };
        said.unwrap_or_else(|| self.acker.closed())
    }
}

impl Acker {
    /// Done: the broker forgets the message.
    pub fn ack(&self, tag: u64) -> Result<(), ConsumeError> {
        self.acknowledge(tag, |channel| channel.basic_ack(tag, BasicAckOptions { multiple: false }))
    }

    /// Done, this one and all that were handed out before it and are not acknowledged.
    pub fn ack_through(&self, tag: u64) -> Result<(), ConsumeError> {
        self.acknowledge(tag, |channel| channel.basic_ack(tag, BasicAckOptions { multiple: true }))
    }

    /// Not done: back to the queue, or else to where its policy leads dead letters, or nowhere.
    pub fn nack(&self, tag: u64, requeue: bool) -> Result<(), ConsumeError> {
        self.acknowledge(tag, |channel| channel.basic_nack(tag, BasicNackOptions { multiple: false, requeue }))
    }

    fn acknowledge<'a, F>(&'a self, tag: u64, send: impl FnOnce(&'a Channel) -> F) -> Result<(), ConsumeError>
    where
        F: Future<Output = lapin::Result<()>>,
    {
        if tag == 0 {
            return Err(ConsumeError::Refused { why: "0 is no message's tag, and would mean all of them".to_owned() });
        }
        if !self.is_open() {
            return Err(self.closed());
        }
        // Handed to the connection when it is first polled. All else would be waiting for the network.
        match pin!(send(&self.shared.channel)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(_)) => Err(self.closed()),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    pub(super) fn new(channel: Channel, link: Arc<Link>) -> Self {
        Self { shared: Arc::new(Acknowledging { channel, link, cancelled: AtomicBool::new(false) }) }
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.shared.channel
    }

    pub(super) fn link(&self) -> &Link {
        &self.shared.link
    }

    fn is_open(&self) -> bool {
        self.shared.channel.status().connected() && self.shared.link.is_open()
    }

    fn closed(&self) -> ConsumeError {
        if self.shared.link.is_open() {
            ConsumeError::Closed { why: "it is closed".to_owned() }
        } else {
            ConsumeError::lost()
        }
    }
}
