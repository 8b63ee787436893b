//! What one side has published so far, in its order, and the sink that fills it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::timeout};

/// For whatever should happen soon, on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Records as JSON objects: `topic`, `key`, `value` and `headers`.
#[derive(Debug, Default)]
pub struct Journal {
    records: Mutex<Vec<Value>>,
    changed: Notify,
}

impl Journal {
    pub fn push(&self, records: impl IntoIterator<Item = Value>) {
        self.records().extend(records);
        self.changed.notify_waiters();
    }

    pub fn records(&self) -> MutexGuard<'_, Vec<Value>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is such a record.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if self.records().iter().rev().any(&wanted) {
                    return;
                }
                changed.await;
            }
        };
        timeout(DEADLINE, waiting).await.with_context(|| format!("{what}: {} came", self.records().len()))
    }
}

/// A sink that writes what a capture publishes into a journal.
pub struct JournalSink(pub Arc<Journal>);

#[async_trait]
impl Sink for JournalSink {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        let records: Result<Vec<Value>, serde_json::Error> = batch.iter().map(record).collect();
        match records {
            Ok(records) => {
                self.0.push(records);
                vec![PublishOutcome::Confirmed; batch.len()]
            }
            Err(error) => vec![PublishOutcome::Refused(format!("not JSON: {error}")); batch.len()],
        }
    }

    async fn close(&self) {}
}

fn record(message: &RoutedMessage) -> Result<Value, serde_json::Error> {
    let RoutedMessage { destination, message, .. } = message;
    let key: Option<Value> = message.key.as_deref().map(serde_json::from_str).transpose()?;
    let value: Option<Value> = message.payload.as_deref().map(serde_json::from_slice).transpose()?;
    let header = |(name, value): (&str, &str)| Ok(json!([name, serde_json::from_str::<Value>(value)?]));
    let headers = message.headers.iter().map(header).collect::<Result<Vec<Value>, serde_json::Error>>()?;
    Ok(json!({"topic": destination, "key": key, "value": value, "headers": headers}))
}
