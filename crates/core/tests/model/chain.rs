//! Tasks that wait for others: they are submitted, started, ended, cancelled and purged in every order, and those who
//! wait are told by whoever comes by. A step is a transaction, so one that dies is one that never was; what is wrong on
//! purpose takes two steps where there must be one.

use std::collections::BTreeMap;

use relais_core::{Condition, Event, Failure, Gate, Prerequisite, State, Status, TaskId, barred};
use relais_explore::Model;

use crate::kept::{Kept, LEASE, check_change, response};

/// What is wrong on purpose, to show that it would be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// A submission looks at what it waits for, and writes what follows from it later.
    Unlocked,
    /// An end is not noted.
    NotNoted,
    /// What was noted is forgotten before those who wait were told.
    Forgetful,
    /// Whoever is told of one end goes on, whatever else it waits for.
    Eager,
    /// A purge does not care who waits.
    Ruthless,
}

/// Who waits for whom, and for what.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    /// For each task, those that it waits for; they come before it.
    pub after: &'static [&'static [usize]],
    /// When it need not wait any more.
    pub when: Condition,
    /// What is wrong.
    pub flaw: Flaw,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// None before it is submitted.
    tasks: Vec<Option<Kept>>,
    gone: Vec<bool>,
    /// How each ended, as it was.
    ends: Vec<Option<Status>>,
    followed: Vec<bool>,
    /// Who waits for whom; and how that one ended, once it was told.
    edges: BTreeMap<(usize, usize), Option<Status>>,
    /// Ends of which those who wait are to be told.
    noted: BTreeMap<usize, Status>,
    /// What a submission saw that has not written yet.
    seen: Option<(usize, Vec<Option<Status>>)>,
}

#[derive(Debug, Clone)]
pub enum Step {
    Submit { task: usize },
    Write,
    Claim { task: usize },
    Succeed { task: usize },
    Fail { task: usize },
    Cancel { task: usize },
    Settle { task: usize },
    Purge { task: usize },
}

impl Chain {
    fn look(&self, world: &World, task: usize) -> Vec<Option<Status>> {
        self.after[task].iter().map(|&other| world.ends[other]).collect()
    }

    /// Takes a task in that saw what it waits for like this.
    fn take_in(&self, world: &mut World, task: usize, seen: &[Option<Status>]) {
        let prerequisites = named(self.after[task].iter().copied().zip(seen.iter().copied()));
        let gate = self.when.gate(&prerequisites);
        world.tasks[task] = Some(Kept(if gate == Gate::Open { State::pending() } else { State::blocked() }));
        for (&other, &ended) in self.after[task].iter().zip(seen) {
            let mut told = ended;
            if let (Gate::Barred(..), Some(status)) = (gate, ended)
                && status != Status::Success
            {
                world.noted.insert(other, status);
                told = None;
            }
            if gate == Gate::Closed && ended.is_none() {
                world.followed[other] = true;
            }
            world.edges.insert((task, other), told);
        }
    }

    fn happen(&self, world: &mut World, task: usize, event: &Event) -> Result<(), String> {
        let Some(before) = world.tasks[task].clone() else { return Ok(()) };
        let Ok(after) = before.after(event) else { return Ok(()) };
        check_change(&before, &after, event)?;
        if after.has_ended() {
            world.ends[task] = Some(after.0.status);
            if world.followed[task] && self.flaw != Flaw::NotNoted {
                world.noted.insert(task, after.0.status);
            }
        }
        world.tasks[task] = Some(after);
        Ok(())
    }
}

fn name(task: usize) -> TaskId {
    TaskId(uuid::Uuid::from_u128(task as u128))
}

fn named(ends: impl Iterator<Item = (usize, Option<Status>)>) -> Vec<Prerequisite> {
    ends.map(|(task, ended)| Prerequisite { task_id: name(task), ended }).collect()
}

impl Model for Chain {
    type State = World;
    type Step = Step;

    fn start(&self) -> World {
        let tasks = self.after.len();
        World {
            tasks: vec![None; tasks],
            gone: vec![false; tasks],
            ends: vec![None; tasks],
            followed: vec![false; tasks],
            edges: BTreeMap::new(),
            noted: BTreeMap::new(),
            seen: None,
        }
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        let next = world.tasks.iter().position(Option::is_none);
        match (next, &world.seen) {
            (_, Some(_)) => steps.push(Step::Write),
            // What is gone can not be waited for: such a submission is refused.
            (Some(task), None) if self.after[task].iter().all(|&other| !world.gone[other]) => {
                steps.push(Step::Submit { task });
            }
            _ => {}
        }
        for (task, kept) in world.tasks.iter().enumerate() {
            let Some(kept) = kept else { continue };
            match kept.0.status {
                Status::Pending => steps.push(Step::Claim { task }),
                Status::InProgress => steps.extend([Step::Succeed { task }, Step::Fail { task }]),
                _ => {}
            }
            let waited_for = world.edges.iter().any(|(&(waiting, other), told)| {
                other == task && told.is_none() && world.tasks[waiting].as_ref().is_some_and(|one| !one.has_ended())
            });
            if !world.gone[task] && next.is_none() && (!waited_for || self.flaw == Flaw::Ruthless) {
                steps.push(Step::Purge { task });
            }
            if !kept.has_ended() {
                steps.push(Step::Cancel { task });
            }
        }
        steps.extend(world.noted.keys().map(|&task| Step::Settle { task }));
        steps
    }

    fn take(&self, world: &World, step: &Step) -> Result<World, String> {
        let mut world = world.clone();
        match *step {
            Step::Submit { task } => {
                let seen = self.look(&world, task);
                if self.flaw == Flaw::Unlocked {
                    world.seen = Some((task, seen));
                } else {
                    self.take_in(&mut world, task, &seen);
                }
            }
            Step::Write => {
                if let Some((task, seen)) = world.seen.take() {
                    self.take_in(&mut world, task, &seen);
                }
            }
            Step::Claim { task } => {
                self.happen(&mut world, task, &Event::Claimed { worker_host: None, lease: LEASE })?;
            }
            Step::Succeed { task } => {
                self.happen(&mut world, task, &Event::Succeeded { attempt: None, response: response() })?;
            }
            Step::Fail { task } => {
                let failure = Failure::new("no");
                self.happen(&mut world, task, &Event::failure(None, failure))?;
            }
            Step::Cancel { task } => self.happen(&mut world, task, &Event::Cancelled)?,
            Step::Settle { task } => {
                let Some(status) = world.noted.remove(&task) else { return Ok(world) };
                if self.flaw == Flaw::Forgetful {
                    return Ok(world);
                }
                let waiting: Vec<usize> = world
                    .edges
                    .iter()
                    .filter(|((_, other), told)| *other == task && told.is_none())
                    .map(|((one, _), _)| *one)
                    .collect();
                for one in waiting {
                    world.edges.insert((one, task), Some(status));
                    let told =
                        world.edges.range((one, 0)..=(one, usize::MAX)).map(|((_, other), told)| (*other, *told));
                    let gate = if self.flaw == Flaw::Eager { Gate::Open } else { self.when.gate(&named(told)) };
                    match gate {
                        Gate::Closed => {}
                        Gate::Open => self.happen(&mut world, one, &Event::Released { due: None })?,
                        Gate::Barred(id, status) => {
                            self.happen(&mut world, one, &Event::Barred(barred(id, status)))?;
                        }
                    }
                }
            }
            Step::Purge { task } => {
                world.gone[task] = true;
                if world.tasks[task].as_ref().is_some_and(|kept| !kept.has_ended()) {
                    // It will never end; to those who count, it is over.
                    world.tasks[task] = Some(Kept(State { status: Status::Cancelled, ..State::pending() }));
                }
            }
        }
        Ok(world)
    }

    fn check(&self, world: &World) -> Result<(), String> {
        for (task, kept) in world.tasks.iter().enumerate() {
            let Some(kept) = kept else { continue };
            let truth = self.when.gate(&named(self.after[task].iter().map(|&other| (other, world.ends[other]))));
            let goes_on = matches!(kept.0.status, Status::Pending | Status::InProgress | Status::Success);
            if goes_on && truth != Gate::Open {
                return Err("nobody goes on before what it waits for has ended as it was to".to_owned());
            }
            if kept.0.status == Status::Failure && kept.0.attempt == 0 && !matches!(truth, Gate::Barred(..)) {
                return Err("nobody fails for another that did not".to_owned());
            }
        }
        Ok(())
    }

    fn end(&self, world: &World) -> Option<String> {
        let ends: Option<Vec<&str>> = world.tasks.iter().map(|kept| kept.as_ref()?.end()).collect();
        ends.map(|ends| ends.join(" and "))
    }

    fn is_certain(&self, step: &Step) -> bool {
        !matches!(step, Step::Cancel { .. } | Step::Purge { .. })
    }
}
