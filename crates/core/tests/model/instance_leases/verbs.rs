//! The verbs of the store, one transaction each: claim by an instance, results, events, and the reaper.

use relais_core::{Event, Failure, Ignored, Status, apply};

use super::{Flaw, Held, InstanceLeases, Message, Row, Source, Word, World};
use crate::kept::{Kept, LEASE, NOW, check_change, is_result, response};

impl InstanceLeases {
    /// Applies an event to a task in the store: whether it is accepted, and which promise that breaks.
    pub(super) fn happen(&self, world: &mut World, task: usize, event: &Event) -> Result<Result<(), Ignored>, String> {
        let before = world.tasks[task].clone();
        match apply(&before.0, event, NOW) {
            Ok(state) => self.write(world, task, event, Kept(state)).map(Ok),
            Err(ignored) => Ok(Err(ignored)),
        }
    }

    fn write(&self, world: &mut World, task: usize, event: &Event, after: Kept) -> Result<(), String> {
        if matches!(event, Event::Revived) {
            world.results[task] = 0;
        } else {
            check_change(&world.tasks[task], &after, event)?;
        }
        world.results[task] += u8::from(is_result(event) && after.has_ended());
        // A task that goes back is leased by nobody.
        let back = matches!(after.0.status, Status::Pending | Status::Waiting);
        if back && !(self.flaw == Flaw::Listed && matches!(event, Event::Revived)) {
            for row in world.rows.values_mut() {
                row.tasks.remove(&task);
            }
        }
        world.tasks[task] = after;
        Ok(())
    }

    /// Records a message of an instance, as all events are.
    pub(super) fn record(
        &self,
        world: &mut World,
        source: Source,
        task: usize,
        event: &Event,
        answered: bool,
    ) -> Result<Result<(), Ignored>, String> {
        let mut held = None;
        if let Source::Process(number) = source {
            held = world.processes[number].held.get(&task).cloned();
            if held.is_some() && !world.processes[number].known {
                world.processes[number].forget();
                held = None;
            }
        }
        if let Some(held) = &held {
            let state = &world.tasks[task].0;
            if held.taken && state.status == Status::Pending && state.revision == held.task.0.revision {
                let _ = self.happen(world, task, &Event::Taken { worker_host: None })?;
            }
        }
        // An instance may have begun it, and that is not written.
        let unseen = match event.attempt() {
            Some(_) => Flaw::Unseen,
            None => Flaw::Unbegun,
        };
        if world.is_leased_by_instance(task) && self.flaw != unseen {
            let _ = self.happen(world, task, &Event::Taken { worker_host: None })?;
        }
        let outcome = self.happen(world, task, event)?;
        let status = world.tasks[task].0.status;
        if let (Some(held), Source::Process(number)) = (held, source)
            && answered
        {
            let now = world.tasks[task].clone();
            let process = &mut world.processes[number];
            let same = now.0.attempt == held.attempt();
            match process.held.get_mut(&task) {
                Some(known) if status == Status::InProgress && same && known.lease == held.lease => {
                    (known.task, known.taken) = (now, false);
                }
                _ => process.end(task, held.lease),
            }
        }
        Ok(outcome)
    }

    /// Writes a result of a leased task, if nobody else has changed the task; none if it has to be recorded like any
    /// event.
    fn record_done(
        &self,
        world: &mut World,
        message: Message,
        event: &Event,
        answered: bool,
    ) -> Result<Option<Result<(), Ignored>>, String> {
        let Message { process, task, attempt, .. } = message;
        let Some(held) = world.processes[process].held.get(&task).cloned() else { return Ok(None) };
        if held.attempt() != attempt {
            return Ok(None);
        }
        if !world.processes[process].known {
            world.processes[process].forget();
            return Ok(Some(Err(Ignored::NotHeld)));
        }
        let mut state = held.task.0.clone();
        if held.taken && state.status == Status::Pending {
            state = apply(&state, &Event::Taken { worker_host: None }, NOW).unwrap_or(state);
        }
        let Ok(after) = apply(&state, event, NOW) else { return Ok(None) };
        if held.task.0.revision != world.tasks[task].0.revision && self.flaw != Flaw::Unguarded {
            return Ok(None);
        }
        self.write(world, task, event, Kept(after))?;
        if answered {
            world.processes[process].end(task, held.lease);
        }
        Ok(Some(Ok(())))
    }

    pub(super) fn arrive(&self, world: &mut World, message: Message, answered: bool) -> Result<(), String> {
        let Message { process, task, attempt, word } = message;
        let number = Some(attempt);
        let event = match word {
            Word::Success => Event::Succeeded { attempt: number, response: response() },
            Word::Failure => {
                let again_after = (world.tasks[task].0.failures < self.retries).then_some(LEASE);
                Event::Failed {
                    attempt: number,
                    failure: Failure::new("no"),
                    again_after,
                    again: false,
                    worker_host: None,
                    replaced: false,
                }
            }
            Word::Returned => Event::Returned { attempt: number },
        };
        let theirs = self.somebody_else(world, task, Some(process));
        let done = match word {
            Word::Success => self.record_done(world, message, &event, answered)?,
            _ => None,
        };
        let outcome = match done {
            Some(outcome) => outcome,
            None => self.record(world, Source::Process(process), task, &event, answered)?,
        };
        if outcome.is_ok() && theirs {
            return Err(format!("a task of another is not changed: {message:?}"));
        }
        if answered {
            world.messages.remove(&message);
        }
        Ok(())
    }

    /// Whether an instance or a worker has leased the task, and runs it.
    pub(super) fn somebody_else(&self, world: &World, task: usize, but: Option<usize>) -> bool {
        let current = (task, world.tasks[task].0.attempt);
        let leased = world.tasks[task].is_leased() && world.worker == Some(current);
        leased && but.is_some()
            || world
                .rows
                .values()
                .any(|row| Some(row.process) != but && row.tasks.contains(&task) && world.is_at(row.process, task))
    }

    pub(super) fn claim(&self, world: &mut World, number: usize, most: usize, answered: bool) -> Result<(), String> {
        let process = &mut world.processes[number];
        let (doubts, known) = (process.doubts, process.known);
        let done_with = process.done_with.clone();
        process.doubts = !answered;
        if answered {
            process.done_with.clear();
        }
        world.rows.retain(|lease, _| !done_with.contains(lease));
        if !known {
            return Ok(());
        }
        if doubts && self.flaw != Flaw::Kept {
            let leases = &world.processes[number].leases;
            world.rows.retain(|lease, row| row.process != number || leases.contains_key(lease));
        }
        let front = world.front(most, self.flaw);
        if front.is_empty() {
            return Ok(());
        }
        let lease = world.new_lease();
        world.rows.insert(lease, Row { process: number, tasks: front.iter().copied().collect() });
        if answered {
            world.processes[number].leases.insert(lease, front.len());
        }
        for task in front {
            let mut held = Held { lease, task: world.tasks[task].clone(), taken: true };
            if self.written {
                let _ = self.happen(world, task, &Event::Taken { worker_host: None })?;
                held = Held { lease, task: world.tasks[task].clone(), taken: false };
            }
            if answered {
                let attempt = held.attempt();
                world.processes[number].held.insert(task, held);
                world.processes[number].runs.insert((task, attempt));
            }
        }
        Ok(())
    }

    /// Reaps an instance: recovers its leased tasks, and removes its registration.
    pub(super) fn reap(&self, world: &mut World, number: usize) -> Result<(), String> {
        let tasks: Vec<usize> =
            world.rows.values().filter(|row| row.process == number).flat_map(|row| row.tasks.iter().copied()).collect();
        for task in tasks {
            if self.flaw != Flaw::Uncounted {
                let _ = self.happen(world, task, &Event::Taken { worker_host: None })?;
            }
            if world.tasks[task].0.status == Status::InProgress {
                let event = match self.fail {
                    true => Event::failed(None, "crashed"),
                    false => Event::Abandoned { delivery_limit: self.delivery_limit },
                };
                let _ = self.happen(world, task, &event)?;
            }
        }
        world.drop_rows(number);
        world.processes[number].known = false;
        Ok(())
    }
}
