//! All that operators can do. Each is one use case of the engine, with the role that it needs and its word in the audit
//! log.

use relais_core::{AuditOutcome, BatchId, CallbackId, TaskId, Timestamp};
use relais_protocol::{
    HumanDuration,
    admin::{
        AdminTaskView, AppliedAction, ApplyReport, ClientSecret, Declaration, LimitsChange, PurgeAnswer, ServiceState,
    },
    batch::AdminBatchView,
    callback::{CallbackView, SigningSecrets},
    capture::CaptureState,
    events::PublishAnswer,
    instance::{DecisionName, ResolveAnswer},
    notification_source::NotificationSourceState,
    outbox::OutboxState,
    schedule::ScheduleState,
};
use serde_json::value::RawValue;

use super::{
    Operator,
    OperatorRole::{Admin, Operator as Operating, ReadOnly},
};
use crate::{
    Accepted, ApplyOptions, EngineError, ParkedChoice, Selected, Selection, operate::audiences::audience_name,
};

/// The most changes of a declaration that are named.
const NAMED: usize = 10;

impl Operator {
    /// [`crate::Engine::apply`]. What changes nothing, or only tells, is not written down.
    pub async fn apply(
        &self,
        declaration: Declaration,
        prune: bool,
        dry_run: bool,
    ) -> Result<ApplyReport, EngineError> {
        self.apply_with(declaration, ApplyOptions { prune, dry_run, ..ApplyOptions::default() }).await
    }

    /// [`crate::Engine::apply_with`]. What changes nothing, or only tells, is not written down.
    pub async fn apply_with(
        &self,
        declaration: Declaration,
        options: ApplyOptions,
    ) -> Result<ApplyReport, EngineError> {
        if options.dry_run {
            return self.engine.apply_with(declaration, options).await;
        }
        self.act_with_outcome(Admin, "apply", "", None, self.engine.apply_with(declaration, options), told).await
    }

    /// [`crate::Engine::delete_service`].
    pub async fn delete_service(&self, name: &str) -> Result<ApplyReport, EngineError> {
        self.act(Admin, "service.delete", name, None, self.engine.delete_service(name)).await
    }

    /// [`crate::Engine::pause_service`].
    pub async fn pause_service(&self, name: &str, paused: bool) -> Result<ServiceState, EngineError> {
        let action = if paused { "service.pause" } else { "service.resume" };
        self.act(Operating, action, name, None, self.engine.pause_service(name, paused)).await
    }

    /// [`crate::Engine::change_limits`].
    pub async fn change_limits(&self, name: &str, change: LimitsChange) -> Result<ServiceState, EngineError> {
        let detail = serde_json::to_string(&change).ok();
        self.act(Operating, "service.limits", name, detail, self.engine.change_limits(name, change)).await
    }

    /// [`crate::Engine::redispatch`].
    pub async fn redispatch(&self, name: &str) -> Result<(), EngineError> {
        self.act(Operating, "service.redispatch", name, None, self.engine.redispatch(name)).await
    }

    /// [`crate::Engine::delete_client`].
    pub async fn delete_client(&self, client_id: &str) -> Result<ApplyReport, EngineError> {
        self.act(Admin, "client.delete", client_id, None, self.engine.delete_client(client_id)).await
    }

    /// [`crate::Engine::rotate_secret`].
    pub async fn rotate_secret(&self, client_id: &str) -> Result<ClientSecret, EngineError> {
        self.act(Admin, "client.secret", client_id, None, self.engine.rotate_secret(client_id)).await
    }

    /// [`crate::Engine::signing_secrets`].
    pub async fn signing_secrets(&self, client_id: &str) -> Result<SigningSecrets, EngineError> {
        self.act(Admin, "client.show-signing-secret", client_id, None, self.engine.signing_secrets(client_id)).await
    }

    /// [`crate::Engine::rotate_signing_secret`].
    pub async fn rotate_signing_secret(
        &self,
        client_id: &str,
        overlap: Option<HumanDuration>,
    ) -> Result<SigningSecrets, EngineError> {
        let rotated = self.engine.rotate_signing_secret(client_id, overlap);
        self.act(Admin, "client.signing-secret", client_id, None, rotated).await
    }

    /// [`crate::Engine::delete_authorization`].
    pub async fn delete_authorization(&self, client_id: &str, service: &str) -> Result<ApplyReport, EngineError> {
        let target = format!("{client_id} on {service}");
        let deleted = self.engine.delete_authorization(client_id, service);
        self.act(Admin, "authorization.delete", &target, None, deleted).await
    }

    /// [`crate::Engine::admin_cancel`].
    pub async fn cancel_task(&self, task_id: TaskId) -> Result<AdminTaskView, EngineError> {
        self.act(Operating, "task.cancel", &task_id.to_string(), None, self.engine.admin_cancel(task_id)).await
    }

    /// [`crate::Engine::admin_retry`].
    pub async fn retry_task(&self, task_id: TaskId) -> Result<AdminTaskView, EngineError> {
        self.act(Operating, "task.retry", &task_id.to_string(), None, self.engine.admin_retry(task_id)).await
    }

    /// [`crate::Engine::retry_selected`]. A dry run changes nothing and is not written down.
    pub async fn retry_tasks(&self, selection: Selection, dry_run: bool) -> Result<Selected, EngineError> {
        self.on_many("tasks.retry", selection, dry_run, true).await
    }

    /// [`crate::Engine::cancel_selected`]. A dry run changes nothing and is not written down.
    pub async fn cancel_tasks(&self, selection: Selection, dry_run: bool) -> Result<Selected, EngineError> {
        self.on_many("tasks.cancel", selection, dry_run, false).await
    }

    async fn on_many(
        &self,
        action: &str,
        selection: Selection,
        dry_run: bool,
        again: bool,
    ) -> Result<Selected, EngineError> {
        let target = selection.to_string();
        let done = async {
            if again {
                self.engine.retry_selected(selection, dry_run).await
            } else {
                self.engine.cancel_selected(selection, dry_run).await
            }
        };
        if dry_run {
            return done.await;
        }
        let told = |done: &Selected| {
            let detail = Some(format!("{} tasks", done.changed));
            Some(AuditOutcome { detail, ..AuditOutcome::default() })
        };
        self.act_with_outcome(Operating, action, &target, None, done, told).await
    }

    /// [`crate::Engine::purge`]. A dry run changes nothing and is not written down.
    pub async fn purge(&self, dry_run: bool) -> Result<PurgeAnswer, EngineError> {
        if dry_run {
            return self.engine.purge(true).await;
        }
        self.act(Admin, "purge", "", None, self.engine.purge(false)).await
    }

    /// [`crate::Engine::redeliver`].
    pub async fn redeliver(&self, id: CallbackId) -> Result<CallbackView, EngineError> {
        self.act(Operating, "callback.redeliver", &id.to_string(), None, self.engine.redeliver(id)).await
    }

    /// [`crate::Engine::redeliver_failed`].
    pub async fn redeliver_failed(
        &self,
        since: Timestamp,
        service: Option<&str>,
        client_id: Option<&str>,
    ) -> Result<u64, EngineError> {
        let detail = format!("since {since}, client {}", client_id.unwrap_or("any"));
        let resent = self.engine.redeliver_failed(since, service, client_id);
        self.act(Operating, "callbacks.redeliver", service.unwrap_or(""), Some(detail), resent).await
    }

    /// [`crate::Engine::replay_dead_letters`].
    pub async fn replay_dead_letters(&self, service: &str, ids: Option<Vec<String>>) -> Result<u64, EngineError> {
        let detail = Some(letters(ids.as_deref()));
        self.act(Operating, "deadletter.replay", service, detail, self.engine.replay_dead_letters(service, ids)).await
    }

    /// [`crate::Engine::discard_dead_letters`].
    pub async fn discard_dead_letters(&self, service: &str, ids: Option<Vec<String>>) -> Result<u64, EngineError> {
        let detail = Some(letters(ids.as_deref()));
        self.act(Admin, "deadletter.discard", service, detail, self.engine.discard_dead_letters(service, ids)).await
    }

    /// [`crate::Engine::pause_schedule`].
    pub async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleState, EngineError> {
        let action = if paused { "schedule.pause" } else { "schedule.resume" };
        self.act(Operating, action, name, None, self.engine.pause_schedule(name, paused)).await
    }

    /// [`crate::Engine::run_schedule`].
    pub async fn run_schedule(&self, name: &str) -> Result<Accepted, EngineError> {
        self.act(Operating, "schedule.run", name, None, self.engine.run_schedule(name)).await
    }

    /// [`crate::Engine::delete_schedule`].
    pub async fn delete_schedule(&self, name: &str) -> Result<ApplyReport, EngineError> {
        self.act(Admin, "schedule.delete", name, None, self.engine.delete_schedule(name)).await
    }

    /// [`crate::Engine::pause_outbox`].
    pub async fn pause_outbox(&self, name: &str, paused: bool) -> Result<OutboxState, EngineError> {
        let action = if paused { "outbox.pause" } else { "outbox.resume" };
        self.act(Operating, action, name, None, self.engine.pause_outbox(name, paused)).await
    }

    /// [`crate::Engine::delete_outbox`].
    pub async fn delete_outbox(&self, name: &str) -> Result<ApplyReport, EngineError> {
        self.act(Admin, "outbox.delete", name, None, self.engine.delete_outbox(name)).await
    }

    /// [`crate::Engine::pause_capture`].
    pub async fn pause_capture(&self, name: &str, paused: bool) -> Result<CaptureState, EngineError> {
        let action = if paused { "capture.pause" } else { "capture.resume" };
        self.act(Operating, action, name, None, self.engine.pause_capture(name, paused)).await
    }

    /// [`crate::Engine::request_snapshot`].
    pub async fn request_snapshot(&self, name: &str, tables: &[String]) -> Result<CaptureState, EngineError> {
        let detail = Some(if tables.is_empty() { "all tables".to_owned() } else { tables.join(", ") });
        self.act(Operating, "capture.snapshot", name, detail, self.engine.request_snapshot(name, tables)).await
    }

    /// [`crate::Engine::drop_capture`].
    pub async fn drop_capture(&self, name: &str) -> Result<ApplyReport, EngineError> {
        self.act(Admin, "capture.drop", name, None, self.engine.drop_capture(name)).await
    }

    /// [`crate::Engine::delete_audience`].
    pub async fn delete_audience(&self, kind: &str, target: Option<&str>) -> Result<ApplyReport, EngineError> {
        let name = audience_name(kind, target);
        self.act(Admin, "audience.delete", &name, None, self.engine.delete_audience(kind, target)).await
    }

    /// [`crate::Engine::pause_notification_source`].
    pub async fn pause_notification_source(
        &self,
        name: &str,
        paused: bool,
    ) -> Result<NotificationSourceState, EngineError> {
        let action = if paused { "notification-source.pause" } else { "notification-source.resume" };
        self.act(Operating, action, name, None, self.engine.pause_notification_source(name, paused)).await
    }

    /// [`crate::Engine::delete_notification_source`].
    pub async fn delete_notification_source(&self, name: &str) -> Result<ApplyReport, EngineError> {
        let deleted = self.engine.delete_notification_source(name);
        self.act(Admin, "notification-source.delete", name, None, deleted).await
    }

    /// [`crate::Engine::retry_parked`].
    pub async fn retry_parked(&self, name: &str, which: ParkedChoice) -> Result<u64, EngineError> {
        let detail = Some(parked(&which));
        self.act(Operating, "outbox.retry", name, detail, self.engine.retry_parked(name, which)).await
    }

    /// [`crate::Engine::skip_parked`].
    pub async fn skip_parked(&self, name: &str, which: ParkedChoice) -> Result<u64, EngineError> {
        let detail = Some(parked(&which));
        self.act(Operating, "outbox.skip", name, detail, self.engine.skip_parked(name, which)).await
    }

    /// [`crate::Engine::publish_event`].
    pub async fn publish_event(&self, channel: &str, payload: Box<RawValue>) -> Result<PublishAnswer, EngineError> {
        self.act(Operating, "event.publish", channel, None, self.engine.publish_event(channel, payload)).await
    }

    /// [`crate::Engine::resolve_instance`].
    pub async fn resolve_instance(&self, name: &str, decision: DecisionName) -> Result<ResolveAnswer, EngineError> {
        let detail = serde_json::to_string(&decision).ok();
        self.act(Operating, "instance.resolve", name, detail, self.engine.resolve_instance(name, decision)).await
    }

    /// [`crate::Engine::admin_close_batch`].
    pub async fn close_batch(&self, batch_id: BatchId) -> Result<AdminBatchView, EngineError> {
        let closed = self.engine.admin_close_batch(batch_id);
        self.act(Operating, "batch.close", &batch_id.to_string(), None, closed).await
    }

    /// [`crate::Engine::admin_cancel_batch`].
    pub async fn cancel_batch(&self, batch_id: BatchId) -> Result<AdminBatchView, EngineError> {
        let cancelled = self.engine.admin_cancel_batch(batch_id);
        self.act(Operating, "batch.cancel", &batch_id.to_string(), None, cancelled).await
    }

    /// Whether they may do more than look.
    pub fn may_act(&self) -> bool {
        self.actor.role > ReadOnly
    }
}

/// What a declaration changed; none if nothing.
fn told(report: &ApplyReport) -> Option<AuditOutcome> {
    let changed: Vec<_> = report.applied.iter().filter(|entry| entry.action != AppliedAction::Unchanged).collect();
    let first = changed.first()?;
    let word = |action| match action {
        AppliedAction::Created => "created",
        AppliedAction::Updated => "updated",
        AppliedAction::Deleted => "deleted",
        AppliedAction::Unchanged => "unchanged",
    };
    let mut detail: Vec<String> = changed
        .iter()
        .take(NAMED)
        .map(|entry| format!("{} {} {}", entry.kind, entry.name, word(entry.action)))
        .collect();
    if changed.len() > NAMED {
        detail.push(format!("and {} more", changed.len() - NAMED));
    }
    let target = (changed.len() == 1).then(|| first.name.clone());
    Some(AuditOutcome { target, detail: Some(detail.join(", ")), error: None })
}

/// Which events: skipping loses them, so the log names them.
fn parked(which: &ParkedChoice) -> String {
    match which {
        ParkedChoice::All => "all".to_owned(),
        ParkedChoice::These(ids) if ids.len() <= NAMED => ids.join(", "),
        ParkedChoice::These(ids) => format!("{} and {} more", ids[..NAMED].join(", "), ids.len() - NAMED),
    }
}

fn letters(ids: Option<&[String]>) -> String {
    ids.map_or_else(|| "all".to_owned(), |ids| format!("{} messages", ids.len()))
}
