//! Workers behind a broker, and a broker that loses its queue now and then.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use relais_core::{Status, Store, TaskFilter, TaskId};
use relais_messaging::rabbitmq::{Broker, BrokerOptions, ConsumeOptions, Consumer, Delivery, Publish};
use relais_testkit::TestVhost;
use relais_tests::chaos::Random;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    PAUSE,
    ledger::Ledger,
    worker::result_data,
    world::{SERVICES, WINDOW},
};

/// Somebody who does things and knows two queues.
pub struct BrokerWorker {
    pub url: String,
    pub queue: String,
    pub name: String,
    pub ledger: Arc<Ledger>,
    pub underneath: Arc<dyn Store>,
    pub random: Random,
    /// Whether it does nothing but its work.
    pub calm: watch::Receiver<bool>,
}

impl BrokerWorker {
    /// Works until it is stopped. What breaks is begun anew: a queue may be gone, and its own connection may be its
    /// doing.
    pub async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            tokio::select! {
                worked = self.live() => if worked.is_err() { tokio::time::sleep(PAUSE).await },
                () = stop.cancelled() => {}
            }
        }
    }

    /// From its birth to its death, when the broker gives to others what it did not acknowledge.
    async fn live(&mut self) -> Result<()> {
        let broker = Broker::new(&self.url, BrokerOptions::default())?;
        let options = ConsumeOptions { prefetch: 4, ..ConsumeOptions::default() };
        let mut consumer = broker.consume(&format!("{}-in", self.queue), options).await?;
        loop {
            let delivery = consumer.next().await?;
            if self.work(&broker, &consumer, &delivery).await? {
                return Ok(());
            }
        }
    }

    /// Tells whether it died of it.
    async fn work(&mut self, broker: &Broker, consumer: &Consumer, delivery: &Delivery) -> Result<bool> {
        let message: Value = serde_json::from_slice(&delivery.body)?;
        let Some(task_id) = message["taskId"].as_str().and_then(TaskId::parse) else {
            self.ledger.wrong(format!("a worker was given {message}"));
            return Ok(false);
        };
        self.look_at_window(task_id).await?;
        let started = json!({"messageType": "started", "hostName": self.name});
        let returned = json!({"messageType": "returned", "hostName": self.name});
        let what = if *self.calm.borrow() { 9 } else { self.random.between(0, 10) };
        let how = self.random.between(0, 1000);
        let result = format!("{}/-/{how}", self.name);
        let end = result_data(&result, *self.calm.borrow() || !self.random.once_in(4));
        let says = match what {
            0 => vec![],
            1 => vec![started],
            2 => vec![started, returned],
            3 => vec![end.clone(), end],
            4 => vec![end, started],
            _ => vec![started, end],
        };
        if what > 2 {
            self.ledger.sent(task_id, &result);
        }
        for data in says {
            let body = json!({"taskId": task_id.to_string(), "data": data}).to_string();
            broker.publish(Publish::new("", format!("{}-out", self.queue), body)).await?;
        }
        match what {
            // It dies without a word, or with one.
            0 | 1 => return Ok(true),
            2 => consumer.nack(delivery.tag, true)?,
            _ => consumer.ack(delivery.tag)?,
        }
        Ok(false)
    }
}

impl BrokerWorker {
    /// Whatever was seen by workers was published: of that, no more is unfinished than may be out at once.
    async fn look_at_window(&self, task_id: TaskId) -> Result<()> {
        if self.queue != SERVICES[1] {
            return Ok(());
        }
        // Before the tasks are listed: what is delivered later may have taken the place of one that has ended since.
        let delivered = {
            let mut book = self.ledger.book();
            book.delivered.insert(task_id);
            book.delivered.clone()
        };
        let filter =
            TaskFilter { statuses: vec![Status::Pending, Status::InProgress], limit: 1000, ..TaskFilter::default() };
        let unfinished = self.underneath.list_tasks(filter).await?.tasks;
        let out = unfinished.iter().filter(|task| delivered.contains(&task.task_id)).count();
        if out > WINDOW {
            self.ledger.book().wrong.push(format!("{out} tasks are out at once, of {WINDOW}"));
        }
        Ok(())
    }
}

/// Has the broker forget a queue of tasks, now and then.
pub async fn forget(vhost: &TestVhost, queue: &str, mut random: Random, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(random.between(200, 1500) as u64)) => {}
            () = stop.cancelled() => return,
        }
        // It may not be there yet, or not any more.
        let _ = vhost.delete_queue(&format!("{queue}-in")).await;
    }
}
