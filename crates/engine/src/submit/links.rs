//! The links of a submission to other tasks: dependencies, parent, trace.

use std::collections::HashMap;

use relais_core::{
    After, BatchId, Client, Condition, MOST_PREREQUISITES, NewLinks, NewTask, Role, Status, Task, TaskId, TraceContext,
};
use relais_handler::trace::{self, Trail};
use relais_protocol::consumer::{AfterRequest, AfterView, AfterWhen, PrerequisiteView, SubmitRequest, TraceHeaders};

use crate::{Engine, EngineError, Problem, follow::views::task_status};

const MAX_REF: usize = 100;

/// The references by which tasks of one call name each other.
#[derive(Debug, Default)]
pub(crate) struct References(HashMap<String, TaskId>);

/// Validates the links of a submission without the store. References are to earlier tasks of the same call.
pub(crate) fn links(request: &SubmitRequest, references: Option<&References>) -> Result<NewLinks, EngineError> {
    if let Some(reference) = &request.reference {
        if references.is_none() {
            return Err(wrong("/ref", "is for many tasks in one call".to_owned()));
        }
        let fine = (1..=MAX_REF).contains(&reference.chars().count()) && !reference.chars().any(char::is_control);
        if !fine {
            return Err(wrong("/ref", format!("must have 1 to {MAX_REF} characters, and no control characters")));
        }
    }
    let parent = match &request.parent_id {
        Some(id) => Some(TaskId::parse(id).ok_or(EngineError::ParentNotFound)?),
        None => None,
    };
    let batch = match &request.batch_id {
        Some(id) => Some(BatchId::parse(id).ok_or(EngineError::BatchNotFound)?),
        None => None,
    };
    let after = request.after.as_ref().map(|asked| after(asked, references)).transpose()?;
    Ok(NewLinks { parent, batch, trace: trace(&request.trace), after })
}

/// A malformed trace context counts as none.
pub(crate) fn trace(headers: &TraceHeaders) -> Option<TraceContext> {
    TraceContext::parse(headers.traceparent.as_deref()?, headers.tracestate.as_deref())
}

/// The same, from a span of ours.
pub(crate) fn as_context(trail: Trail) -> Option<TraceContext> {
    TraceContext::parse(trail.traceparent.as_deref()?, trail.tracestate.as_deref())
}

/// The same, for a span of ours.
pub(crate) fn as_trail(context: &TraceContext) -> Trail {
    Trail { traceparent: Some(context.traceparent().to_owned()), tracestate: context.tracestate().map(str::to_owned) }
}

fn after(asked: &AfterRequest, references: Option<&References>) -> Result<After, EngineError> {
    let named = asked.tasks.len() + asked.refs.len();
    if !(1..=MOST_PREREQUISITES).contains(&named) {
        return Err(wrong("/after", format!("must name between 1 and {MOST_PREREQUISITES} tasks")));
    }
    let mut tasks = Vec::with_capacity(named);
    for (i, id) in asked.tasks.iter().enumerate() {
        tasks.push(TaskId::parse(id).ok_or_else(|| EngineError::PrerequisiteNotFound(format!("/after/tasks/{i}")))?);
    }
    for (i, word) in asked.refs.iter().enumerate() {
        let path = format!("/after/refs/{i}");
        let Some(references) = references else {
            return Err(wrong(&path, "is for many tasks in one call".to_owned()));
        };
        tasks.push(*references.0.get(word).ok_or(EngineError::PrerequisiteNotFound(path))?);
    }
    // Once is enough; the order says whose correlation id is taken.
    let mut seen = std::collections::HashSet::new();
    tasks.retain(|task| seen.insert(*task));
    let when = match asked.when {
        AfterWhen::AllSucceeded => Condition::AllSucceeded,
        AfterWhen::AllEnded => Condition::AllEnded,
        AfterWhen::AnyEnded => Condition::AnyEnded,
    };
    Ok(After { tasks, when })
}

fn wrong(path: &str, message: String) -> EngineError {
    EngineError::Invalid(vec![Problem::at(path, message)])
}

impl References {
    /// Makes this task available under its reference.
    pub(crate) fn add(&mut self, reference: String, task: TaskId) -> Result<(), EngineError> {
        match self.0.insert(reference, task) {
            Some(_) => Err(wrong("/ref", "is there twice in this call".to_owned())),
            None => Ok(()),
        }
    }
}

impl Engine {
    /// A task gets the correlation id and the trace of its parent, unless it has its own. The parent is a task of the
    /// same client, or one that the client is working on.
    ///
    /// Where spans are exported, whoever has to do with the task goes on from the span of its submission.
    pub(crate) async fn adopt(&self, client: &Client, task: &mut NewTask) -> Result<(), EngineError> {
        let alone = task.links.parent.is_none() && task.links.batch.is_none() && task.links.after.is_none();
        if alone || task.links.trace.is_some() {
            task.links.trace = trace::here().and_then(as_context).or(task.links.trace.take());
        }
        let Some(parent) = task.links.parent else { return Ok(()) };
        let parent = self.0.store.find_task(parent).await?.ok_or(EngineError::ParentNotFound)?;
        if parent.client_id != client.client_id && !self.works_on(client, &parent)? {
            return Err(EngineError::ParentNotFound);
        }
        task.correlation_id = task.correlation_id.take().or(parent.correlation_id);
        task.links.trace = task.links.trace.take().or(parent.links.trace);
        Ok(())
    }

    /// Whether the client may be running a task. A task that an instance has leased may look pending.
    fn works_on(&self, client: &Client, task: &Task) -> Result<bool, EngineError> {
        let snapshot = self.snapshot()?;
        let service = snapshot.declared.services.get(&task.service);
        let may = service.is_some_and(|service| snapshot.declared.roles(client.key, service.key).has(Role::Work));
        Ok(may && matches!(task.state.status, Status::InProgress | Status::Pending))
    }
}

/// The dependencies of a task, as they are shown.
pub(crate) fn after_view(task: &Task) -> Option<AfterView> {
    let when = match task.links.when? {
        Condition::AllSucceeded => AfterWhen::AllSucceeded,
        Condition::AllEnded => AfterWhen::AllEnded,
        Condition::AnyEnded => AfterWhen::AnyEnded,
    };
    let tasks: Vec<_> = task
        .links
        .after
        .iter()
        .map(|one| PrerequisiteView { task_id: one.task_id.to_string(), status: one.ended.map(task_status) })
        .collect();
    (!tasks.is_empty()).then_some(AfterView { tasks, when })
}
