//! Batches: create, follow, close and cancel them.

use std::sync::Arc;

use relais_core::{
    Batch, BatchCreated, BatchId, BatchStatus, Callback, CallbackEvent, Client, Event, NewBatch, NewTask, Role, Status,
    Submission, Task, TaskEvent, TaskFilter, TaskLink,
};
use relais_protocol::{
    batch::{AdminBatchPage, AdminBatchView, BatchPage, BatchStatusName, BatchView},
    callback::CallbackRequest,
    consumer::{SubmitRequest, TraceHeaders},
};

use crate::{
    Accepted, Access, Engine, EngineError, Idempotency, ListQuery, Problem,
    dispatch::{Dispatcher, give_back},
    follow::views::text,
    follow::{filter, paged},
    submit::links::{self, References},
    submit::{callback, correlation, dispatched, refused, unjudged_task},
};

/// How many tasks of a batch are cancelled at once.
const CANCEL: usize = 500;

/// A batch to be created.
#[derive(Debug, Default)]
pub struct BatchRequest {
    /// Its tasks, each with its service.
    pub tasks: Vec<SubmitRequest>,
    /// The callback for its end.
    pub callback: Option<CallbackRequest>,
    /// One id through a chain of tasks.
    pub correlation_id: Option<String>,
    /// Whether tasks may be added later.
    pub open: bool,
    /// The trace context that it belongs to.
    pub trace: TraceHeaders,
}

/// A batch that was created.
#[derive(Debug, Clone)]
pub struct AcceptedBatch {
    /// Its public name.
    pub batch_id: BatchId,
    /// Its tasks, in the order of the request.
    pub tasks: Vec<Accepted>,
    /// Whether it existed before, under the same idempotency key.
    pub replayed: bool,
}

impl Engine {
    /// Creates a batch with its tasks: all of them, or none if one is refused.
    pub async fn create_batch(
        &self,
        client: &Arc<Client>,
        request: BatchRequest,
        idempotency: Option<Idempotency>,
    ) -> Result<AcceptedBatch, EngineError> {
        let batch = NewBatch {
            batch_id: BatchId::generate(),
            client: client.key,
            open: request.open,
            callback: request.callback.map(|asked| self.batch_callback(client, asked)).transpose()?,
            correlation_id: correlation(request.correlation_id)?,
            trace: links::trace(&request.trace),
            idempotency: idempotency.map(Idempotency::into_key),
        };
        let (mut tasks, mut accesses, mut references) = (Vec::new(), Vec::new(), References::default());
        for (place, task) in request.tasks.into_iter().enumerate() {
            let judged = self.batch_task(client, task, &batch, &mut references).await;
            let (access, task) = judged.map_err(|error| EngineError::InBatch(place, Box::new(error)))?;
            accesses.push(access);
            tasks.push(task);
        }
        let bodies = tasks.iter().map(|task: &NewTask| Some((task.service, task.request.clone()))).collect();
        for (place, judged) in self.judge(&*self.snapshot()?, client, bodies).await?.into_iter().enumerate() {
            judged.map_err(|error| EngineError::InBatch(place, Box::new(error)))?;
        }
        let (batch_id, picked) = (batch.batch_id, Dispatcher::pick(&tasks));
        let tasks_of = |answers: Vec<Submission>| {
            let answers = accesses.iter().zip(answers).map(|(access, answer)| self.account(access, refused(answer)));
            answers.collect::<Result<Vec<_>, _>>()
        };
        let answers = match self.0.store.create_batch(batch, tasks).await? {
            BatchCreated::Taken(answers) => answers,
            BatchCreated::Replayed(batch_id, answers) => {
                let tasks = tasks_of(answers.into_iter().map(Ok).collect())?;
                return Ok(AcceptedBatch { batch_id, tasks, replayed: true });
            }
            BatchCreated::KeyReused => return Err(EngineError::KeyReused),
            BatchCreated::Refused(place, refusal) => {
                let error = refused(Err(refusal)).err().unwrap_or(EngineError::Stopping);
                let error = match accesses.get(place) {
                    Some(access) => self.account(access, Err(error)).err().unwrap_or(EngineError::Stopping),
                    None => error,
                };
                return Err(EngineError::InBatch(place, Box::new(error)));
            }
        };
        let left = self.0.dispatcher.offer(picked, &answers);
        if !left.is_empty() {
            give_back(self.0.store.as_ref(), &self.0.hub, left).await;
        }
        metrics::counter!("relais_batches_total").increment(1);
        tracing::debug!(%batch_id, client_id = %client.client_id, tasks = answers.len(), "batch made");
        Ok(AcceptedBatch { batch_id, tasks: tasks_of(answers)?, replayed: false })
    }

    async fn batch_task(
        &self,
        client: &Arc<Client>,
        mut request: SubmitRequest,
        batch: &NewBatch,
        references: &mut References,
    ) -> Result<(Access, NewTask), EngineError> {
        let wrong = |field: &str, message: &str| Err(EngineError::Invalid(vec![Problem::at(field, message)]));
        let Some(service) = request.service.take() else { return wrong("/service", "is needed in a batch") };
        if request.batch_id.is_some() {
            return wrong("/batchId", "is not for a task that comes with its batch");
        }
        let access = self.allow(Arc::clone(client), &service, |roles| roles.has(Role::Consume))?;
        let reference = request.reference.clone();
        let mut task = unjudged_task(&self.0.options.callback_senders, &access, request, Some(references))?;
        self.adopt(client, &mut task).await?;
        task.correlation_id = task.correlation_id.take().or_else(|| batch.correlation_id.clone());
        task.links.trace = task.links.trace.take().or_else(|| batch.trace.clone());
        if let Some(reference) = reference {
            references.add(reference, task.task_id)?;
        }
        let mut task = dispatched(task, self.dispatch_of(&access.service));
        task.links.batch = Some(batch.batch_id);
        Ok((access, task))
    }

    /// A batch has one callback event: its end.
    fn batch_callback(&self, client: &Client, asked: CallbackRequest) -> Result<Callback, EngineError> {
        if asked.events.is_some() {
            let message = "is not for a batch: its end is told, and nothing else";
            return Err(EngineError::Invalid(vec![Problem::at("/callback/events", message)]));
        }
        let judged = callback(&self.0.options.callback_senders, client, asked)?;
        Ok(Callback { events: vec![CallbackEvent::BatchEnded], ..judged })
    }

    /// One of the caller's own batches.
    pub async fn batch(&self, client: &Client, batch_id: BatchId) -> Result<BatchView, EngineError> {
        Ok(batch_view(&self.own_batch(client, batch_id).await?))
    }

    /// The caller's own batches, the newest first.
    pub async fn batches(
        &self,
        client: &Client,
        cursor: Option<BatchId>,
        limit: usize,
    ) -> Result<BatchPage, EngineError> {
        let batches = self.0.store.list_batches(Some(client.key), cursor, limit).await?;
        let next_cursor = next(&batches, limit);
        Ok(BatchPage { batches: batches.iter().map(batch_view).collect(), next_cursor })
    }

    /// The tasks of one of the caller's own batches, the newest first, and the cursor of the next page.
    pub async fn batch_tasks(
        &self,
        client: &Client,
        batch_id: BatchId,
        query: ListQuery,
    ) -> Result<(Vec<Task>, Option<String>), EngineError> {
        self.own_batch(client, batch_id).await?;
        let filter = TaskFilter {
            client: Some(client.key),
            link: Some(TaskLink::Batch(batch_id)),
            ..filter(query, Vec::new())?
        };
        Ok(paged(self.0.store.list_tasks(filter).await?))
    }

    /// Closes a batch. This is idempotent.
    pub async fn close_batch(&self, client: &Client, batch_id: BatchId) -> Result<BatchView, EngineError> {
        self.own_batch(client, batch_id).await?;
        self.0.store.close_batch(batch_id).await?;
        self.batch(client, batch_id).await
    }

    /// Closes a batch, and cancels all its unfinished tasks. This is idempotent.
    pub async fn cancel_batch(&self, client: &Client, batch_id: BatchId) -> Result<BatchView, EngineError> {
        self.own_batch(client, batch_id).await?;
        self.give_up_batch(batch_id).await?;
        self.batch(client, batch_id).await
    }

    async fn own_batch(&self, client: &Client, batch_id: BatchId) -> Result<Batch, EngineError> {
        // A batch of another client is not found.
        let batch = self.0.store.find_batch(batch_id).await?.filter(|batch| batch.client == client.key);
        batch.ok_or(EngineError::BatchNotFound)
    }

    async fn give_up_batch(&self, batch_id: BatchId) -> Result<(), EngineError> {
        self.0.store.close_batch(batch_id).await?;
        let snapshot = self.snapshot()?;
        let unfinished = vec![Status::Pending, Status::InProgress, Status::Waiting];
        let link = Some(TaskLink::Batch(batch_id));
        let mut filter = TaskFilter { statuses: unfinished, link, limit: CANCEL, ..TaskFilter::default() };
        loop {
            let page = self.0.store.list_tasks(filter.clone()).await?;
            let events = page.tasks.iter().filter_map(|task| {
                let service = snapshot.declared.services.get(&task.service)?.key;
                Some(TaskEvent { task_id: task.task_id, service, client: None, event: Event::Cancelled })
            });
            // One that ended in the meantime has ended.
            self.record_all(events.collect()).await?;
            filter.before_id = page.next_before_id;
            if filter.before_id.is_none() {
                return Ok(());
            }
        }
    }

    /// Any batch.
    pub async fn admin_batch(&self, batch_id: BatchId) -> Result<AdminBatchView, EngineError> {
        let batch = self.0.store.find_batch(batch_id).await?.ok_or(EngineError::BatchNotFound)?;
        self.admin_batch_view(&batch)
    }

    /// The batches of a client, or of all, the newest first.
    pub async fn admin_batches(
        &self,
        client_id: Option<&str>,
        cursor: Option<BatchId>,
        limit: usize,
    ) -> Result<AdminBatchPage, EngineError> {
        let snapshot = self.snapshot()?;
        let client = match client_id {
            Some(id) => Some(snapshot.declared.clients.get(id).ok_or(EngineError::ClientNotFound)?.key),
            None => None,
        };
        let batches = self.0.store.list_batches(client, cursor, limit).await?;
        let next_cursor = next(&batches, limit);
        let batches = batches.iter().map(|batch| self.admin_batch_view(batch)).collect::<Result<_, _>>()?;
        Ok(AdminBatchPage { batches, next_cursor })
    }

    /// Closes any batch.
    pub async fn admin_close_batch(&self, batch_id: BatchId) -> Result<AdminBatchView, EngineError> {
        self.admin_batch(batch_id).await?;
        self.0.store.close_batch(batch_id).await?;
        self.admin_batch(batch_id).await
    }

    /// Cancels any batch.
    pub async fn admin_cancel_batch(&self, batch_id: BatchId) -> Result<AdminBatchView, EngineError> {
        self.admin_batch(batch_id).await?;
        self.give_up_batch(batch_id).await?;
        self.admin_batch(batch_id).await
    }

    fn admin_batch_view(&self, batch: &Batch) -> Result<AdminBatchView, EngineError> {
        let snapshot = self.snapshot()?;
        let client = snapshot.declared.client_by_key(batch.client);
        Ok(AdminBatchView {
            client_id: client.map_or_else(|| "(deleted)".to_owned(), |client| client.client_id.to_string()),
            notification_status: batch.notification.map(|status| status.as_str().to_owned()),
            batch: batch_view(batch),
        })
    }
}

fn next(batches: &[Batch], limit: usize) -> Option<String> {
    batches.last().filter(|_| batches.len() == limit).map(|last| last.batch_id.to_string())
}

/// A batch, as its consumer sees it, and as its callback tells of it.
pub(crate) fn batch_view(batch: &Batch) -> BatchView {
    let counts = &batch.counts;
    BatchView {
        batch_id: batch.batch_id.to_string(),
        status: match batch.status() {
            BatchStatus::Open => BatchStatusName::Open,
            BatchStatus::InProgress => BatchStatusName::InProgress,
            BatchStatus::Ended => BatchStatusName::Ended,
        },
        total: counts.total(),
        pending: counts.pending,
        in_progress: counts.in_progress,
        success: counts.success,
        failure: counts.failure,
        cancelled: counts.cancelled,
        submition_date: text(batch.created),
        close_date: batch.closed.map(text),
        end_date: batch.ended.map(text),
        correlation_id: batch.correlation_id.clone(),
    }
}
