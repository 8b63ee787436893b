//! Collects transactional submissions.

use std::{sync::Arc, time::Duration};

use relais_core::{NewTask, Publisher, Role, StoredSubmission, SubmissionValidator, TaskId};
use relais_protocol::consumer::SubmitRequest;

use crate::{Access, Engine, EngineError, registry::Snapshot, submit::new_task, timers::schedule::explained};

/// How many are collected at once.
const BATCH: usize = 500;

/// Validates transactional submissions against one version of the declaration.
struct SnapshotSubmissionValidator {
    engine: Engine,
    snapshot: Arc<Snapshot>,
}

impl SubmissionValidator for SnapshotSubmissionValidator {
    fn version(&self) -> i64 {
        self.snapshot.declared.version
    }

    fn judge(&self, entry: &StoredSubmission) -> Result<NewTask, String> {
        let request = serde_json::from_str(entry.request.get()).map_err(|error| error.to_string())?;
        let judged = self.engine.entry_task(&self.snapshot, &entry.service, &entry.client, request);
        judged.map(|task| NewTask { task_id: entry.task_id, ..task }).map_err(|error| explained(&error))
    }
}

impl Engine {
    /// Collects transactional submissions now, because a transaction with one was committed. PostgreSQL notifies by
    /// itself.
    pub fn collect_submissions(&self) {
        self.0.hub.submissions_bell.notify_one();
    }

    /// Validates a submission now, and returns what a program can store in a transaction of its own.
    pub fn prepare(&self, access: &Access, request: &SubmitRequest) -> Result<StoredSubmission, EngineError> {
        let text = serde_json::to_string(request).map_err(|error| EngineError::Conflict(error.to_string()))?;
        let (service, client) = (access.service.name.to_string(), access.client.client_id.to_string());
        let again = serde_json::from_str(&text).map_err(|error| EngineError::Conflict(error.to_string()))?;
        let snapshot = self.snapshot()?;
        self.entry_task(&snapshot, &service, &client, again)?;
        let request = relais_core::Json::parse(text).map_err(|error| EngineError::Conflict(error.to_string()))?;
        Ok(StoredSubmission { task_id: TaskId::generate(), service, client, request })
    }

    fn entry_task(
        &self,
        snapshot: &Snapshot,
        service: &str,
        client: &str,
        request: SubmitRequest,
    ) -> Result<NewTask, EngineError> {
        let declared = &snapshot.declared;
        let service = declared.services.get(service).ok_or(EngineError::ServiceNotFound)?;
        let client = declared.clients.get(client).ok_or(EngineError::ClientNotFound)?;
        if !declared.roles(client.key, service.key).has(Role::Consume) {
            return Err(EngineError::Forbidden);
        }
        let access = Access { client: Arc::clone(client), service: Arc::clone(service) };
        let task = new_task(snapshot, &self.0.options.callback_senders, &access, request)?;
        // Publishers are woken at once.
        let dispatch = self.dispatch_of(&access.service).map(|ours| Publisher { held: Duration::ZERO, ..ours });
        Ok(NewTask { dispatch, ..task })
    }

    /// Collects all transactional submissions.
    pub(crate) async fn take_in(&self) -> Result<(), EngineError> {
        loop {
            let Ok(snapshot) = self.snapshot() else { return Ok(()) };
            let validator = SnapshotSubmissionValidator { engine: self.clone(), snapshot };
            let report = self.0.store.collect_submissions(BATCH, Arc::new(validator)).await?;
            if report.stale {
                self.refresh().await?;
                continue;
            }
            metrics::counter!("relais_inbox_taken_total").increment(report.taken as u64);
            metrics::counter!("relais_inbox_refused_total").increment(report.refused.len() as u64);
            for (task_id, why) in &report.refused {
                let task_id = task_id.map(|task_id| task_id.to_string());
                tracing::error!(
                    task_id,
                    why,
                    "what was put into the inbox is no task; it stays there, with the reason"
                );
            }
            if !report.more {
                return Ok(());
            }
        }
    }
}
