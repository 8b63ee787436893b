//! The bus as a sink: an event for each message, on the channel that the destination names.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink, header, in_waves};
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::{Bus, BusError, Event, Features, Metadata, Payload, channels::Channel, deliver::chain};

/// Names of metadata that mean something to the bus itself: a message's headers can not set them.
const OWN_NAMES: [&str; 7] = [
    Metadata::KEY,
    Metadata::RETRY_COUNT,
    Metadata::ERROR,
    Metadata::ORIGINAL_CHANNEL,
    Metadata::ORIGINAL_ID,
    Metadata::ORIGINAL_SOURCE,
    Metadata::FAILED_BY,
];

/// How messages are published on a bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusSinkOptions {
    /// How long a wave of messages may take. Subscribers that make publishers wait are waited for no longer.
    pub timeout: Duration,
    /// What a confirmation means, on a transport that delivers at least once. Redis answers before the disk has an event,
    /// unless it runs with `appendfsync always`: say [`Durability::Disk`] only then. On other transports an event is
    /// handed over, whatever is said here.
    pub durability: Durability,
}

impl Default for BusSinkOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), durability: Durability::HandedOver }
    }
}

/// Publishes messages as events: the destination is the channel, and the payload is the event's.
///
/// In the event's metadata are the message's `id`, `key`, `event-type`, `time`, and its headers. A header can not set what the
/// bus itself reads (`key`, `retry_count` and what dead letters carry). The event's own id is another one each time: whoever
/// drops repeats looks at `id` in the metadata.
///
/// Events are JSON. A payload that is not JSON is refused; a tombstone is `null`.
#[derive(Debug)]
pub struct BusSink {
    bus: Bus,
    options: BusSinkOptions,
    closed: AtomicBool,
}

impl BusSink {
    /// A sink on a bus, which others may use as well. [`close`](Sink::close) does not stop the bus.
    pub fn new(bus: Bus, options: BusSinkOptions) -> Self {
        Self { bus, options, closed: AtomicBool::new(false) }
    }

    /// The event of a message, and its channel; or why it can not be published.
    fn event(&self, outgoing: RoutedMessage, features: Features) -> Result<(Arc<Channel>, Event), BusError> {
        let RoutedMessage { destination, message, .. } = outgoing;
        let channel = self.bus.channel(&destination)?;
        let payload = match &message.payload {
            None => RawValue::NULL.to_owned(),
            Some(bytes) => serde_json::from_slice(bytes).map_err(BusError::NotJson)?,
        };
        let source = Arc::clone(&self.bus.hub.settings.source);
        let event = Event::new(Arc::clone(&channel.name), source, Payload::json(payload), metadata(message));
        if let Some(limit) = features.max_event_bytes {
            let size = event.to_json()?.len();
            if size > limit {
                return Err(BusError::TooLarge { size, limit });
            }
        }
        Ok((channel, event))
    }

    async fn wave(&self, wave: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let features = self.features();
        let (mut outcomes, mut places) = (vec![PublishOutcome::Confirmed; wave.len()], Vec::new());
        let (mut channels, mut events) = (Vec::new(), Vec::new());
        for (place, outgoing) in wave.into_iter().enumerate() {
            match self.event(outgoing, features) {
                Ok((channel, event)) => {
                    places.push(place);
                    channels.push(channel);
                    events.push(event);
                }
                Err(error) => outcomes[place] = outcome(&error),
            }
        }
        if let Err(trouble) = self.in_time(self.bus.hub.send_all(&channels, events)).await {
            places.into_iter().for_each(|place| outcomes[place] = trouble.clone());
        }
        outcomes
    }

    async fn in_time(&self, sending: impl Future<Output = Result<(), BusError>>) -> Result<(), PublishOutcome> {
        let limit = self.options.timeout;
        match timeout(limit, sending).await {
            Ok(Ok(())) => Ok(()),
            // Of one event, and nobody knows what became of the others.
            Ok(Err(error)) => Err(PublishOutcome::Unknown(chain(&error))),
            Err(_) => Err(PublishOutcome::Unknown(format!("the bus did not take it within {limit:?}"))),
        }
    }

    fn features(&self) -> Features {
        self.bus.hub.transport.as_ref().map_or(Features::MEMORY, |transport| transport.features())
    }
}

#[async_trait]
impl Sink for BusSink {
    fn durability(&self) -> Durability {
        if self.features().at_least_once { self.options.durability } else { Durability::HandedOver }
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if self.closed.load(Ordering::Acquire) {
            return vec![PublishOutcome::Refused("the sink is closed".to_owned()); batch.len()];
        }
        in_waves(batch, self.options.timeout, |wave| self.wave(wave)).await
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

fn metadata(message: Message) -> Metadata {
    let headers = message.headers.iter().filter(|(name, _)| !OWN_NAMES.contains(name));
    let mut metadata: Metadata = headers.collect();
    metadata.set("id", message.id);
    metadata.set(header::EVENT_TYPE, message.event_type);
    metadata.set("time", message.time.to_string());
    if let Some(key) = message.key {
        metadata.set(Metadata::KEY, key);
    }
    metadata
}

/// What is wrong with one message before anything was sent.
fn outcome(error: &BusError) -> PublishOutcome {
    match error {
        // No message's fault: it is not there yet, or not any more.
        BusError::NotRunning => PublishOutcome::Unknown(error.to_string()),
        _ => PublishOutcome::Refused(chain(error)),
    }
}
