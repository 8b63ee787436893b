//! The Sink conformance suite on the event bus, over each transport, and what only this sink promises.

#![expect(clippy::unwrap_used, reason = "tests")]

mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use relais_bus::{BusSink, Event};
use relais_message::{Message, Sink};
use relais_testkit::sink_suite::{Received, SinkHarness};

const CHANNEL: &str = "orders.placed";

/// What carries the events, and those who receive them.
#[async_trait(?Send)]
trait Backend {
    async fn events(&self) -> Result<Vec<Event>>;
    async fn cut(&self) -> Result<()>;
    async fn stall(&self) -> Result<()>;
    async fn restore(&self) -> Result<()>;
    async fn crash(&self) -> Result<bool>;
}

struct OnBus<B> {
    sink: Arc<BusSink>,
    backend: B,
}

#[async_trait(?Send)]
impl<B: Backend> SinkHarness for OnBus<B> {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::<BusSink>::clone(&self.sink)
    }

    fn destination(&self) -> String {
        CHANNEL.to_owned()
    }

    fn carries_keys(&self) -> bool {
        true
    }

    async fn received(&self) -> Result<Vec<Received>> {
        Ok(self.backend.events().await?.iter().map(received).collect())
    }

    fn missing(&self) -> Option<String> {
        // Every channel exists whose name is one.
        Some("orders..placed".to_owned())
    }

    fn forbidden(&self) -> Option<String> {
        Some("dlq.orders".to_owned())
    }

    fn enlarge(&self, message: &mut Message) -> bool {
        // Too large for PostgreSQL; and no JSON, for transports to which nothing is too large.
        message.payload = Some(vec![b'x'; 10_000].into());
        true
    }

    async fn cut(&self) -> Result<()> {
        self.backend.cut().await
    }

    async fn stall(&self) -> Result<()> {
        self.backend.stall().await
    }

    async fn restore(&self) -> Result<()> {
        self.backend.restore().await
    }

    async fn crash(&self) -> Result<bool> {
        self.backend.crash().await
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

fn received(event: &Event) -> Received {
    let mut headers: HashMap<String, String> =
        event.metadata.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Received {
        id: headers.remove("id").unwrap(),
        key: headers.remove("key"),
        headers,
        payload: event.payload.as_json().unwrap().get().as_bytes().to_vec(),
    }
}
