//! Over Redis Streams: each worker is on a bus of its own, as in a process of its own.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use relais_bus::{Bus, Event, PushWorker, PushWorkerReport, WorkerSettings, redis::RedisStreams};
use relais_push_worker::{ConsumerFeatures, Handler};
use relais_testkit::{
    RedisServer, TcpProxy,
    consumer_suite::{ConsumerHarness, Seen, SeenDeadLetter, SuiteWorker},
};
use tokio::sync::Mutex;

/// How long an instance may give no sign of life. It gives one three times as often.
const CLAIM_AFTER: Duration = Duration::from_secs(1);

struct OnStreams {
    server: Mutex<RedisServer>,
    proxy: TcpProxy,
    /// In a group of its own, past the proxy.
    publisher: Bus,
}

async fn harness() -> Result<OnStreams> {
    let server = RedisServer::start().await?;
    let proxy = TcpProxy::start(server.addr()).await?;
    let publisher = Bus::builder().transport(RedisStreams::new(&server.url(), "publisher")?).start().await?;
    Ok(OnStreams { server: Mutex::new(server), proxy, publisher })
}

struct OnBus {
    worker: PushWorker,
    bus: Bus,
}

#[async_trait(?Send)]
impl SuiteWorker<Event> for OnBus {
    fn worker(&self) -> &PushWorker {
        &self.worker
    }

    /// By its bus: one that goes on without it would take what nobody here wants as done.
    async fn stop(self: Box<Self>) -> PushWorkerReport {
        self.bus.stop().await;
        self.worker.stop().await
    }
}

#[async_trait(?Send)]
impl ConsumerHarness for OnStreams {
    type Message = Event;

    fn features(&self) -> ConsumerFeatures {
        ConsumerFeatures {
            redelivers: true,
            shares_work: true,
            keeps_order: true,
            retries_at_broker: false,
            has_partitions: false,
            keeps_dead_letters: true,
        }
    }

    async fn start(
        &self,
        settings: WorkerSettings<Event>,
        handler: Handler<Event>,
    ) -> Result<Box<dyn SuiteWorker<Event>>> {
        let url = self.server.lock().await.url_via(self.proxy.addr());
        let bus = Bus::builder().transport(RedisStreams::new(&url, "workers")?.claim_after(CLAIM_AFTER)).build();
        let worker = crate::start(&bus, settings, handler).await?;
        bus.start().await?;
        Ok(Box::new(OnBus { worker, bus }))
    }

    async fn publish(&self, messages: &[(String, usize)]) -> Result<()> {
        crate::publish(&self.publisher, messages).await
    }

    fn read(event: &Event) -> Seen {
        crate::read(event)
    }

    async fn dead_letters(&self) -> Result<Vec<SeenDeadLetter>> {
        crate::dead_letters(&self.publisher).await
    }

    async fn cut(&self) -> Result<bool> {
        self.proxy.cut().await?;
        Ok(true)
    }

    async fn restore(&self) -> Result<()> {
        Ok(self.proxy.restore().await?)
    }

    async fn crash(&self) -> Result<bool> {
        let mut server = self.server.lock().await;
        server.kill9()?;
        server.restart().await?;
        Ok(true)
    }

    fn patience(&self) -> Duration {
        CLAIM_AFTER
    }
}

relais_testkit::consumer_suite!(harness);
