//! Batches, from the consumer's side: tasks of one or many services, followed as one.

use relais_protocol::{
    batch::{BatchView, NewBatchAnswer},
    callback::CallbackRequest,
    consumer::AfterRequest,
};
use reqwest::Method;
use serde::Serialize;
use serde_json::Value;

use crate::{CallError, Client, client::trace, http::send};

/// A batch to be made.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewBatch {
    /// The tasks; at least one unless the batch is open.
    pub tasks: Vec<BatchTask>,
    /// Where to tell that the batch has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackRequest>,
    /// One id through a chain of tasks; those that have none get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Whether tasks may be added later, by submissions that name the batch.
    pub open: bool,
    /// A second call under the same key gets the batch of the first one.
    #[serde(skip)]
    pub idempotency_key: Option<String>,
    /// Whose trace its tasks are part of: a W3C `traceparent`.
    #[serde(skip)]
    pub traceparent: Option<String>,
}

/// A task of a batch.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchTask {
    /// The service; the client's own if it is empty.
    pub service: String,
    /// The arguments.
    pub body: Value,
    /// A word by which later tasks of the batch can wait for this one.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<AfterRequest>,
    /// One id through a chain of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

impl Client {
    /// Makes a batch: all its tasks are taken, or none.
    pub async fn make_batch(&self, batch: &NewBatch) -> Result<NewBatchAnswer, CallError> {
        let mut batch = batch.clone();
        for task in batch.tasks.iter_mut().filter(|task| task.service.is_empty()) {
            self.service_name().clone_into(&mut task.service);
        }
        let mut request = self.http.post_to(self.http.above(&["batches"]), &batch)?;
        if let Some(key) = &batch.idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        send(trace(request, batch.traceparent.as_deref())).await
    }

    /// A batch as it is now.
    pub async fn batch(&self, batch_id: &str) -> Result<BatchView, CallError> {
        send(self.http.request(Method::GET, self.http.above(&["batches", batch_id]))).await
    }

    /// Takes no more tasks into a batch; it ends when all of them have.
    pub async fn close_batch(&self, batch_id: &str) -> Result<BatchView, CallError> {
        send(self.http.request(Method::POST, self.http.above(&["batches", batch_id, "close"]))).await
    }

    /// Closes a batch, and cancels all of its tasks that have not ended.
    pub async fn cancel_batch(&self, batch_id: &str) -> Result<BatchView, CallError> {
        send(self.http.request(Method::POST, self.http.above(&["batches", batch_id, "cancel"]))).await
    }
}
