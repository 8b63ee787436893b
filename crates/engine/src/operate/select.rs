//! Bulk actions on tasks: those that are named, or those that match, a batch at a time.

use std::fmt;

use relais_core::{Event, Status, TaskEvent, TaskFilter, TaskId, TaskLink, Timestamp};
use relais_protocol::{admin::TasksRequest, consumer::TaskStatus};

use crate::{
    Engine, EngineError, Problem,
    follow::{ListQuery, filter, paged},
};

/// The most tasks that one call looks at.
const BATCH: usize = 500;

/// The most tasks that one call may name.
const MOST_NAMED: usize = 1000;

/// Which tasks are meant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// These. With them, nothing else is said.
    pub tasks: Vec<String>,
    /// Or those of this service.
    pub service: Option<String>,
    /// Of this client.
    pub client_id: Option<String>,
    /// That have this in common.
    pub link: Option<TaskLink>,
    /// In one of these; none means any that makes sense.
    pub statuses: Vec<Status>,
    /// Submitted at this time or later.
    pub from: Option<Timestamp>,
    /// Submitted before this time.
    pub before: Option<Timestamp>,
    /// Where the call before left off.
    pub cursor: Option<String>,
}

/// The outcome of a bulk action.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selected {
    /// How many tasks were changed, or would be.
    pub changed: u64,
    /// How many tasks were skipped.
    pub passed_over: u64,
    /// Where to go on; none when all were looked at.
    pub next_cursor: Option<String>,
}

impl fmt::Display for Selection {
    /// For the audit log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.tasks.as_slice() {
            return f.write_str(only);
        }
        if !self.tasks.is_empty() {
            return write!(f, "{} named tasks", self.tasks.len());
        }
        let mut words = Vec::new();
        for (word, value) in [("service", &self.service), ("client", &self.client_id)] {
            words.extend(value.as_ref().map(|value| format!("{word}:{value}")));
        }
        words.extend(self.link.as_ref().map(|link| match link {
            TaskLink::Correlation(id) => format!("correlation:{id}"),
            TaskLink::Parent(id) => format!("parent:{id}"),
            TaskLink::Batch(id) => format!("batch:{id}"),
            TaskLink::After(id) => format!("after:{id}"),
        }));
        words.extend(self.statuses.iter().map(|status| format!("status:{}", status.as_str())));
        words.extend(self.from.map(|from| format!("from:{from}")));
        words.extend(self.before.map(|before| format!("before:{before}")));
        f.write_str(&words.join(" "))
    }
}

impl Engine {
    /// How many tasks match: from the counters where they tell, else counted up to `most`; and whether there may be
    /// more.
    pub async fn count_selected(&self, selection: &Selection, most: usize) -> Result<(u64, bool), EngineError> {
        let whole = Selection { cursor: None, tasks: Vec::new(), ..selection.clone() };
        let by_counters = Selection { service: None, statuses: Vec::new(), ..whole.clone() } == Selection::default()
            && !whole.statuses.is_empty()
            && !whole.statuses.iter().any(|status| status.is_final());
        if by_counters {
            let filter = self.matching(&whole, most)?;
            let backlog = self.0.store.backlog().await?;
            let counted = backlog.counters.iter().filter(|tally| {
                filter.statuses.contains(&tally.status)
                    && (filter.services.is_empty() || filter.services.contains(&tally.service))
            });
            return Ok((counted.map(|tally| tally.current()).sum(), false));
        }
        let counted = self.0.store.count_tasks(self.matching(&whole, most + 1)?).await?;
        Ok((counted.min(most as u64), counted > most as u64))
    }

    /// Retries tasks: those that are named, or a batch of those that match.
    pub async fn retry_selected(&self, selection: Selection, dry_run: bool) -> Result<Selected, EngineError> {
        let may = |status: Status| status.is_final();
        self.on_selected(selection, dry_run, Event::Revived, may, &[Status::Failure], "SUCCESS, FAILURE or CANCELLED")
            .await
            .inspect(|done| {
                if !dry_run {
                    metrics::counter!("relais_tasks_retried_by_hand_total").increment(done.changed);
                }
            })
    }

    /// Cancels tasks: those that are named, or a batch of those that match.
    pub async fn cancel_selected(&self, selection: Selection, dry_run: bool) -> Result<Selected, EngineError> {
        let may = |status: Status| !status.is_final();
        let usual = [Status::Pending, Status::InProgress];
        self.on_selected(selection, dry_run, Event::Cancelled, may, &usual, "PENDING or IN_PROGRESS").await
    }

    async fn on_selected(
        &self,
        mut selection: Selection,
        dry_run: bool,
        event: Event,
        may: impl Fn(Status) -> bool,
        usual: &[Status],
        allowed: &str,
    ) -> Result<Selected, EngineError> {
        let invalid = |path: &str, message: String| Err(EngineError::Invalid(vec![Problem::at(path, message)]));
        if !selection.tasks.is_empty() {
            if selection.tasks.len() > MOST_NAMED {
                return invalid("/tasks", format!("must be at most {MOST_NAMED}"));
            }
            // A task that waits for a retry may be retried at once, or cancelled.
            let named = |status: Status| may(status) || status == Status::Waiting;
            return self.on_named(&selection.tasks, dry_run, &event, named).await;
        }
        if selection.service.is_none() && selection.client_id.is_none() && selection.link.is_none() {
            return invalid("/service", "is needed, or clientId, or correlationId, or tasks".to_owned());
        }
        if !selection.statuses.iter().all(|status| may(*status)) {
            return invalid("/statuses", format!("must be {allowed}"));
        }
        if selection.statuses.is_empty() {
            selection.statuses = usual.to_vec();
        }
        let (tasks, next_cursor) = paged(self.0.store.list_tasks(self.matching(&selection, BATCH)?).await?);
        let snapshot = self.snapshot()?;
        let events = tasks.iter().filter_map(|task| {
            let service = snapshot.declared.services.get(&task.service)?.key;
            Some(TaskEvent { task_id: task.task_id, service, client: None, event: event.clone() })
        });
        let (events, looked) = (events.collect::<Vec<_>>(), tasks.len() as u64);
        let changed = self.apply_all(events, dry_run).await?;
        Ok(Selected { changed, passed_over: looked - changed, next_cursor })
    }

    async fn on_named(
        &self,
        names: &[String],
        dry_run: bool,
        event: &Event,
        may: impl Fn(Status) -> bool,
    ) -> Result<Selected, EngineError> {
        let snapshot = self.snapshot()?;
        let mut events = Vec::new();
        for name in names {
            let Some(task_id) = TaskId::parse(name) else { continue };
            let Some(task) = self.0.store.find_task(task_id).await? else { continue };
            let Some(service) = snapshot.declared.services.get(&task.service) else { continue };
            if may(task.state.status) {
                events.push(TaskEvent { task_id, service: service.key, client: None, event: event.clone() });
            }
        }
        let changed = self.apply_all(events, dry_run).await?;
        Ok(Selected { changed, passed_over: names.len() as u64 - changed, next_cursor: None })
    }

    async fn apply_all(&self, events: Vec<TaskEvent>, dry_run: bool) -> Result<u64, EngineError> {
        if dry_run || events.is_empty() {
            return Ok(events.len() as u64);
        }
        let outcomes = self.record_all(events).await?;
        Ok(outcomes.iter().filter(|outcome| matches!(outcome, relais_core::Outcome::Applied(_))).count() as u64)
    }

    /// What a selection asks of the store.
    pub(crate) fn matching(&self, selection: &Selection, limit: usize) -> Result<TaskFilter, EngineError> {
        let query = ListQuery {
            statuses: selection.statuses.clone(),
            link: match selection.link.clone() {
                // As it is stored: a text that a database does not keep is no text to look for.
                Some(TaskLink::Correlation(id)) => Some(TaskLink::Correlation(id.replace('\0', "\u{fffd}"))),
                link => link,
            },
            from: selection.from,
            before: selection.before,
            limit,
            cursor: selection.cursor.clone(),
        };
        self.found(selection.service.as_deref(), selection.client_id.as_deref(), query)
    }

    /// What a query asks of the store, of these or of all.
    pub(crate) fn found(
        &self,
        service: Option<&str>,
        client_id: Option<&str>,
        query: ListQuery,
    ) -> Result<TaskFilter, EngineError> {
        let snapshot = self.snapshot()?;
        let declared = &snapshot.declared;
        let services = match service {
            Some(name) => vec![declared.services.get(name).ok_or(EngineError::ServiceNotFound)?.key],
            None => Vec::new(),
        };
        let client = match client_id {
            Some(id) => Some(declared.clients.get(id).ok_or(EngineError::ClientNotFound)?.key),
            None => None,
        };
        Ok(TaskFilter { client, ..filter(query, services)? })
    }
}

impl Selection {
    /// The tasks that somebody asks for.
    pub fn of(request: &TasksRequest) -> Result<Self, EngineError> {
        Ok(Self {
            tasks: request.tasks.clone(),
            service: request.service.clone(),
            client_id: request.client_id.clone(),
            link: request.correlation_id.clone().map(TaskLink::Correlation),
            statuses: request.statuses.iter().map(|status| core_status(*status)).collect(),
            from: date("/from", request.from.as_deref())?,
            before: date("/before", request.before.as_deref())?,
            cursor: request.cursor.clone(),
        })
    }
}

fn core_status(status: TaskStatus) -> Status {
    match status {
        TaskStatus::Pending => Status::Pending,
        TaskStatus::InProgress => Status::InProgress,
        TaskStatus::Success => Status::Success,
        TaskStatus::Failure => Status::Failure,
        TaskStatus::Cancelled => Status::Cancelled,
    }
}

fn date(path: &str, given: Option<&str>) -> Result<Option<Timestamp>, EngineError> {
    match given.map(Timestamp::parse) {
        Some(None) => Err(EngineError::Invalid(vec![Problem::at(path, "must be a date like 2026-01-31T08:30:00Z")])),
        date => Ok(date.flatten()),
    }
}
