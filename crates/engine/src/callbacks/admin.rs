//! Looking at callbacks, and sending them again.

use relais_core::{
    CallbackAttempt, CallbackEvent, CallbackFilter, CallbackId, CallbackRecord, CallbackStatus, Declared, Resend,
    TaskId, Timestamp,
};
use relais_protocol::callback::{CallbackAttemptView, CallbackPageView, CallbackView};

use crate::{Access, Engine, EngineError, Problem, follow::base36, follow::views::text};

/// The callbacks of one task that are shown with their tries: the newest.
const SHOWN_WITH_TRIES: usize = 50;

/// Which callbacks an operator asks for.
#[derive(Debug, Clone, Default)]
pub struct CallbackQuery {
    /// Of this service.
    pub service: Option<String>,
    /// Of this client.
    pub client_id: Option<String>,
    /// Of this task.
    pub task: Option<TaskId>,
    /// In this status.
    pub status: Option<CallbackStatus>,
    /// Stored at this time or later.
    pub from: Option<Timestamp>,
    /// Where the page begins.
    pub cursor: Option<String>,
    /// At most so many.
    pub limit: usize,
}

impl Engine {
    /// The callbacks that match, the newest first.
    pub async fn callbacks(&self, query: CallbackQuery) -> Result<CallbackPageView, EngineError> {
        let snapshot = self.snapshot()?;
        let declared = &snapshot.declared;
        let filter = CallbackFilter {
            service: query.service.as_deref().map(|name| service(declared, name)).transpose()?,
            client: query.client_id.as_deref().map(|id| client(declared, id)).transpose()?,
            task: query.task,
            revision: None,
            status: query.status,
            from: query.from,
            before: query.cursor.as_deref().map(cursor).transpose()?,
            limit: query.limit,
        };
        let page = self.0.store.list_callbacks(filter).await?;
        Ok(CallbackPageView {
            callbacks: page.records.iter().map(|record| view(declared, record, None)).collect(),
            next_cursor: page.next_before.map(base36),
        })
    }

    /// One callback, with its tries.
    pub async fn callback(&self, id: CallbackId) -> Result<CallbackView, EngineError> {
        let filter = CallbackFilter {
            task: Some(id.task_id),
            revision: Some(id.revision),
            limit: 1,
            ..CallbackFilter::default()
        };
        self.with_tries(filter).await?.pop().ok_or(EngineError::CallbackNotFound)
    }

    /// The callbacks of one's own task, with their tries.
    pub async fn callbacks_of_task(&self, access: &Access, task_id: TaskId) -> Result<Vec<CallbackView>, EngineError> {
        let filter = CallbackFilter {
            service: Some(access.service.key),
            client: Some(access.client.key),
            task: Some(task_id),
            limit: SHOWN_WITH_TRIES,
            ..CallbackFilter::default()
        };
        let found = self.with_tries(filter).await?;
        if found.is_empty() {
            // A task of another client is not found; one's own may have no callback yet.
            self.task(access, task_id).await?;
        }
        Ok(found)
    }

    /// Sends one callback again, whatever its status, under the same id.
    pub async fn redeliver(&self, id: CallbackId) -> Result<CallbackView, EngineError> {
        let before = self.callback(id).await?;
        if self.0.store.resend_callbacks(Resend::One(id)).await?.count == 0 {
            return Err(EngineError::Conflict(format!("callback {} is being sent at this moment", before.callback_id)));
        }
        tracing::info!(callback = %id, "callback to be sent again");
        self.callback(id).await
    }

    /// Sends again all callbacks that failed since a time, and returns how many.
    pub async fn redeliver_failed(
        &self,
        since: Timestamp,
        service_name: Option<&str>,
        client_id: Option<&str>,
    ) -> Result<u64, EngineError> {
        let snapshot = self.snapshot()?;
        let service = service_name.map(|name| service(&snapshot.declared, name)).transpose()?;
        let client = client_id.map(|id| client(&snapshot.declared, id)).transpose()?;
        let (mut count, mut after) = (0, 0);
        loop {
            let resent = self.0.store.resend_callbacks(Resend::Failed { since, service, client, after }).await?;
            count += resent.count;
            match resent.next_after {
                Some(next) => after = next,
                None => break,
            }
        }
        tracing::info!(callbacks = count, "failed callbacks to be sent again");
        Ok(count)
    }

    async fn with_tries(&self, filter: CallbackFilter) -> Result<Vec<CallbackView>, EngineError> {
        let snapshot = self.snapshot()?;
        let records = self.0.store.list_callbacks(filter).await?.records;
        let mut tries = self.0.store.list_callback_attempts(records.iter().map(|record| record.row).collect()).await?;
        let views = records.iter().map(|record| {
            let tries = tries.remove(&record.row).unwrap_or_default();
            view(&snapshot.declared, record, Some(tries))
        });
        Ok(views.collect())
    }
}

fn service(declared: &Declared, name: &str) -> Result<relais_core::ServiceKey, EngineError> {
    Ok(declared.services.get(name).ok_or(EngineError::ServiceNotFound)?.key)
}

fn client(declared: &Declared, id: &str) -> Result<relais_core::ClientKey, EngineError> {
    Ok(declared.clients.get(id).ok_or(EngineError::ClientNotFound)?.key)
}

fn cursor(text: &str) -> Result<i64, EngineError> {
    i64::from_str_radix(text, 36)
        .map_err(|_| EngineError::Invalid(vec![Problem::at("cursor", "is not one that was given out")]))
}

fn view(declared: &Declared, record: &CallbackRecord, tries: Option<Vec<CallbackAttempt>>) -> CallbackView {
    // A batch has tasks of many.
    let gone = || if record.event == CallbackEvent::BatchEnded { "(batch)" } else { "(deleted)" }.to_owned();
    CallbackView {
        callback_id: record.id.to_string(),
        task_id: record.id.task_id.to_string(),
        service: declared.service_by_key(record.service).map_or_else(gone, |service| service.name.to_string()),
        client_id: declared.client_by_key(record.client).map_or_else(gone, |client| client.client_id.to_string()),
        event: record.event.as_str().to_owned(),
        notification_status: record.status.as_str().to_owned(),
        kind: record.callback.kind.as_str().to_owned(),
        target: record.callback.target.clone(),
        attempts: record.attempts,
        created_date: text(record.created),
        next_attempt_date: record.due.map(text),
        end_date: record.ended.map(text),
        tries: tries.map(|tries| tries.into_iter().map(attempt_view).collect()),
    }
}

fn attempt_view(attempt: CallbackAttempt) -> CallbackAttemptView {
    CallbackAttemptView {
        number: attempt.number,
        date: text(attempt.at),
        duration_ms: u64::try_from(attempt.duration.as_millis()).unwrap_or(u64::MAX),
        status: attempt.status,
        error: attempt.error,
        answer: attempt.answer,
    }
}
