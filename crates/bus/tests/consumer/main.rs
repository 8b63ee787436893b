//! The conformance suite of consumers on the event bus: in memory, and over Redis Streams.

mod memory;
#[cfg(feature = "redis")]
mod redis;

use anyhow::Result;
use relais_bus::{Bus, Event, Metadata, Outgoing, PushWorker, PushWorkerBuilder, WorkerSettings};
use relais_push_worker::Handler;
use relais_testkit::consumer_suite::{Seen, SeenDeadLetter};

/// The number of a message is its payload, its key is its event's.
const CHANNEL: &str = "orders.placed";

async fn publish(bus: &Bus, messages: &[(String, usize)]) -> Result<()> {
    let events = messages.iter().map(|(key, number)| Outgoing::new(CHANNEL, *number).key(key.as_str()));
    Ok(bus.send_all(events).await?)
}

async fn start(bus: &Bus, settings: WorkerSettings<Event>, handler: Handler<Event>) -> Result<PushWorker> {
    let worker = PushWorkerBuilder::from(settings).channel("orders.*");
    Ok(worker.start(bus, move |event| handler(event)).await?)
}

#[expect(clippy::unwrap_used, reason = "the suite published it")]
fn read(event: &Event) -> Seen {
    let told = |name| event.metadata.get(name);
    let retries = told(Metadata::RETRY_COUNT).map_or(0, |count| count.parse().unwrap());
    Seen { key: told(Metadata::KEY).unwrap().to_owned(), number: *event.payload.get().unwrap(), retries }
}

async fn dead_letters(bus: &Bus) -> Result<Vec<SeenDeadLetter>> {
    let letters = bus.dead_letters(">", 1000).await?;
    let seen = letters.iter().map(|letter| {
        let Seen { key, number, .. } = read(letter.event());
        SeenDeadLetter { key, number, error: letter.error().to_owned() }
    });
    Ok(seen.collect())
}
