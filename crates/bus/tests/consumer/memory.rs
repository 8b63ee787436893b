//! In memory: nothing can be cut, and nothing comes again.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use relais_bus::{Bus, Event, WorkerSettings};
use relais_push_worker::{ConsumerFeatures, Handler};
use relais_testkit::consumer_suite::{ConsumerHarness, Seen, SeenDeadLetter, SuiteWorker};

struct InMemory(Bus);

async fn harness() -> Result<InMemory> {
    Ok(InMemory(Bus::in_memory()))
}

#[async_trait(?Send)]
impl ConsumerHarness for InMemory {
    type Message = Event;

    fn features(&self) -> ConsumerFeatures {
        ConsumerFeatures { keeps_order: true, ..ConsumerFeatures::default() }
    }

    async fn start(
        &self,
        settings: WorkerSettings<Event>,
        handler: Handler<Event>,
    ) -> Result<Box<dyn SuiteWorker<Event>>> {
        Ok(Box::new(crate::start(&self.0, settings, handler).await?))
    }

    async fn publish(&self, messages: &[(String, usize)]) -> Result<()> {
        crate::publish(&self.0, messages).await
    }

    fn read(event: &Event) -> Seen {
        crate::read(event)
    }

    async fn dead_letters(&self) -> Result<Vec<SeenDeadLetter>> {
        crate::dead_letters(&self.0).await
    }

    async fn cut(&self) -> Result<bool> {
        Ok(false)
    }

    async fn restore(&self) -> Result<()> {
        Ok(())
    }

    async fn crash(&self) -> Result<bool> {
        Ok(false)
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(20)
    }
}

relais_testkit::consumer_suite!(harness);
