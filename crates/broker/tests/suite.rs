//! The TaskBroker conformance suite on RabbitMQ.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_broker::{RabbitMq, RabbitMqOptions};
use relais_core::TaskBroker;
use relais_messaging::rabbitmq::{Broker, BrokerOptions, ConsumeOptions, Publish};
use relais_testkit::{TestVhost, broker_suite::BrokerHarness};

struct OnRabbitMq {
    vhost: TestVhost,
    broker: Arc<RabbitMq>,
}

async fn harness() -> Result<OnRabbitMq> {
    let vhost = TestVhost::create().await?;
    let options = RabbitMqOptions { management_url: Some(vhost.management_url()), ..RabbitMqOptions::default() };
    let broker = Arc::new(RabbitMq::new(vhost.url(), options)?);
    Ok(OnRabbitMq { vhost, broker })
}

impl OnRabbitMq {
    /// Another connection, as a worker has.
    fn worker(&self) -> Result<Broker> {
        Ok(Broker::new(self.vhost.url(), BrokerOptions::default())?)
    }
}

#[async_trait]
impl BrokerHarness for OnRabbitMq {
    fn broker(&self) -> Arc<dyn TaskBroker> {
        Arc::<RabbitMq>::clone(&self.broker)
    }

    async fn take(&self, queue: &str, count: usize) -> Result<Vec<Vec<u8>>> {
        let mut consumer = self.worker()?.consume(queue, ConsumeOptions::default()).await?;
        let mut taken = Vec::new();
        while taken.len() < count {
            let next = tokio::time::timeout(Duration::from_secs(60), consumer.next());
            let delivery = next.await.context("a task arrives")??;
            consumer.ack(delivery.tag)?;
            taken.push(delivery.body.to_vec());
        }
        Ok(taken)
    }

    async fn report(&self, queue: &str, bodies: Vec<Vec<u8>>) -> Result<()> {
        let message = |(number, body): (usize, Vec<u8>)| Publish::new("", queue, body).message_id(number.to_string());
        let messages = bodies.into_iter().enumerate().map(message).collect();
        for published in self.worker()?.publish_all(messages).await {
            published?;
        }
        Ok(())
    }

    async fn delete(&self, queue: &str) -> Result<()> {
        self.vhost.delete_queue(queue).await
    }
}

relais_testkit::broker_suite!(harness);
