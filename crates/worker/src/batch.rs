//! Batches, from the consumer's side: tasks of one or many services that are followed together.

use relais_protocol::{
    batch::{BatchView, NewBatchAnswer},
    callback::CallbackRequest,
    consumer::AfterRequest,
};
use reqwest::Method;
use serde::Serialize;
use serde_json::Value;

use crate::{CallError, Client, client::trace, http::send};

/// A batch to be created.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewBatch {
    /// The tasks; at least one unless the batch is open.
    pub tasks: Vec<BatchTask>,
    /// The callback for the end of the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackRequest>,
    /// The correlation id of tasks that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Whether tasks may be added later, by submissions that name the batch.
    pub open: bool,
    /// The idempotency key: a second call with the same key gets the batch of the first one.
    #[serde(skip)]
    pub idempotency_key: Option<String>,
    /// The trace context of its tasks: a W3C `traceparent`.
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
    /// A reference by which later tasks of the batch can depend on this one.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Its dependencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<AfterRequest>,
    /// The correlation id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

impl Client {
    /// Creates a batch: all its tasks are accepted, or none.
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

    /// Closes a batch; it ends when all its tasks have.
    pub async fn close_batch(&self, batch_id: &str) -> Result<BatchView, CallError> {
        send(self.http.request(Method::POST, self.http.above(&["batches", batch_id, "close"]))).await
    }

    /// Closes a batch, and cancels all its unfinished tasks.
    pub async fn cancel_batch(&self, batch_id: &str) -> Result<BatchView, CallError> {
        send(self.http.request(Method::POST, self.http.above(&["batches", batch_id, "cancel"]))).await
    }
}
