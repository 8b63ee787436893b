//! The built-in queue: workers claim under a lease and speak over a network that delays, repeats, reorders and loses
//! what they say; they crash, or are slow and speak long after they were replaced; a consumer may cancel at any time.

use std::collections::BTreeSet;

use relais_core::{Event, Failure, Ignored, State, Status};
use relais_explore::Model;

use crate::kept::{HOSTS, Kept, LEASE, check_change, is_result, response};

/// What is wrong on purpose, to show that it would be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// The number of an attempt is not looked at.
    Unfenced,
    /// A claim does not begin a new attempt.
    SameAttempt,
    /// What is said after the end counts.
    Undead,
    /// Nobody takes tasks away from silent workers.
    NoRescue,
    /// They are taken away from all workers.
    Impatient,
    /// A failure counts, although nobody has the task.
    Unheld,
}

/// How much there is of everything.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// Tasks.
    pub tasks: usize,
    /// Messages under way at once.
    pub under_way: usize,
    /// How often a task loses its worker before it fails.
    pub delivery_limit: u32,
    /// How often workers give a task back.
    pub returns: u8,
    /// How often a task that failed is tried again.
    pub retries: u32,
    /// What workers say besides results and returns.
    pub words: &'static [Word],
    /// What is wrong.
    pub flaw: Flaw,
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Word {
    /// It has begun.
    Started,
    /// It is half-way.
    Progress,
    /// It is alive.
    Renewed,
    /// It is done.
    Success,
    /// It can not do it.
    Failure,
    /// It gives it back.
    Returned,
}

/// A message under way. It may arrive any number of times, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    task: usize,
    attempt: u32,
    worker: usize,
    word: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    tasks: Vec<Kept>,
    /// What each worker believes it has.
    held: [Option<(usize, u32)>; HOSTS.len()],
    messages: BTreeSet<Message>,
    returns: u8,
    /// How many results were accepted, by task.
    results: Vec<u8>,
}

#[derive(Debug, Clone)]
pub enum Step {
    Claim { worker: usize, task: usize },
    Say { worker: usize, word: Word },
    Crash { worker: usize },
    Arrive { message: Message, again: bool },
    Lose { message: Message },
    TimePasses,
    Rescue { task: usize },
    Due { task: usize },
    Cancel { task: usize },
}

impl Lease {
    /// What a task becomes, but for what is wrong on purpose.
    fn judge(&self, task: &Kept, event: &Event) -> Result<Kept, Ignored> {
        match self.flaw {
            Flaw::Unfenced => task.after(&unnumbered(event)),
            Flaw::SameAttempt if matches!(event, Event::Claimed { .. }) => {
                let claimed = task.after(event)?;
                Ok(Kept(State { attempt: task.0.attempt.max(1), ..claimed.0 }))
            }
            Flaw::Undead if task.has_ended() => {
                Kept(State { status: Status::InProgress, ..task.0.clone() }).after(event)
            }
            Flaw::Unheld if task.0.status == Status::Pending && matches!(event, Event::Failed { .. }) => {
                Kept(State { status: Status::InProgress, ..task.0.clone() }).after(event)
            }
            Flaw::Impatient if matches!(event, Event::LeaseExpired { .. }) => {
                let mut late = task.clone();
                late.later();
                late.after(event)
            }
            _ => task.after(event),
        }
    }

    /// Something happens to a task: what it is now, and which promise that breaks.
    fn happen(&self, world: &mut World, task: usize, event: &Event) -> Result<(), String> {
        let before = world.tasks[task].clone();
        let Ok(after) = self.judge(&before, event) else { return Ok(()) };
        check_change(&before, &after, event)?;
        if is_result(event) && after.has_ended() {
            world.results[task] += 1;
        }
        world.tasks[task] = after;
        Ok(())
    }

    fn event(&self, message: Message, task: &Kept) -> Event {
        let attempt = Some(message.attempt);
        match message.word {
            Word::Started => {
                Event::Started { attempt, worker_host: Some(HOSTS[message.worker].to_owned()), lease: Some(LEASE) }
            }
            Word::Progress => Event::Progressed { attempt, progress: 50.0, lease: Some(LEASE) },
            Word::Renewed => Event::Renewed { attempt, lease: LEASE },
            Word::Success => Event::Succeeded { attempt, response: response() },
            Word::Failure => {
                // What a policy says, when it is recorded.
                let again_after = (task.0.failures < self.retries).then_some(LEASE);
                let (again, worker_host, replaced) = (false, None, false);
                Event::Failed { attempt, failure: Failure::new("no"), again_after, again, worker_host, replaced }
            }
            Word::Returned => Event::Returned { attempt },
        }
    }
}

fn unnumbered(event: &Event) -> Event {
    let mut event = event.clone();
    match &mut event {
        Event::Started { attempt, .. }
        | Event::Progressed { attempt, .. }
        | Event::Succeeded { attempt, .. }
        | Event::Failed { attempt, .. }
        | Event::Renewed { attempt, .. }
        | Event::Returned { attempt } => *attempt = None,
        _ => {}
    }
    event
}

impl Model for Lease {
    type State = World;
    type Step = Step;

    fn start(&self) -> World {
        World {
            tasks: vec![Kept::new(); self.tasks],
            held: [None; HOSTS.len()],
            messages: BTreeSet::new(),
            returns: self.returns,
            results: vec![0; self.tasks],
        }
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        for (worker, held) in world.held.iter().enumerate() {
            if held.is_none() {
                let pending = |task: &usize| world.tasks[*task].0.status == Status::Pending;
                steps.extend((0..self.tasks).filter(pending).map(|task| Step::Claim { worker, task }));
                continue;
            }
            steps.push(Step::Crash { worker });
            if world.messages.len() < self.under_way {
                let returned = (world.returns > 0).then_some(Word::Returned);
                let words = self.words.iter().copied().chain([Word::Success, Word::Failure]).chain(returned);
                steps.extend(words.map(|word| Step::Say { worker, word }));
            }
        }
        for &message in &world.messages {
            steps.extend([
                Step::Arrive { message, again: false },
                Step::Arrive { message, again: true },
                Step::Lose { message },
            ]);
        }
        if world.tasks.iter().any(Kept::has_time) {
            steps.push(Step::TimePasses);
        }
        for (task, kept) in world.tasks.iter().enumerate() {
            steps.push(Step::Cancel { task });
            if kept.0.status == Status::InProgress && self.flaw != Flaw::NoRescue {
                steps.push(Step::Rescue { task });
            }
            if kept.0.status == Status::Waiting {
                steps.push(Step::Due { task });
            }
        }
        steps
    }

    fn take(&self, world: &World, step: &Step) -> Result<World, String> {
        let mut world = world.clone();
        match *step {
            Step::Claim { worker, task } => {
                let worker_host = Some(HOSTS[worker].to_owned());
                self.happen(&mut world, task, &Event::Claimed { worker_host, lease: LEASE })?;
                world.held[worker] = Some((task, world.tasks[task].0.attempt));
            }
            Step::Say { worker, word } => {
                let Some((task, attempt)) = world.held[worker] else { return Ok(world) };
                world.messages.insert(Message { task, attempt, worker, word });
                if matches!(word, Word::Success | Word::Failure | Word::Returned) {
                    world.held[worker] = None;
                }
                world.returns -= u8::from(word == Word::Returned);
            }
            Step::Crash { worker } => world.held[worker] = None,
            Step::Arrive { message, again } => {
                if !again {
                    world.messages.remove(&message);
                }
                let event = self.event(message, &world.tasks[message.task]);
                self.happen(&mut world, message.task, &event)?;
            }
            Step::Lose { message } => {
                world.messages.remove(&message);
            }
            Step::TimePasses => world.tasks.iter_mut().for_each(Kept::later),
            Step::Rescue { task } => {
                self.happen(&mut world, task, &Event::LeaseExpired { delivery_limit: self.delivery_limit })?;
            }
            Step::Due { task } => self.happen(&mut world, task, &Event::Due)?,
            Step::Cancel { task } => self.happen(&mut world, task, &Event::Cancelled)?,
        }
        Ok(world)
    }

    fn check(&self, world: &World) -> Result<(), String> {
        for (number, task) in world.tasks.iter().enumerate() {
            let running = task.0.status == Status::InProgress;
            let current = Some((number, task.0.attempt));
            if running && world.held.iter().filter(|held| **held == current).count() > 1 {
                return Err("never two workers that both hold the current attempt".to_owned());
            }
            if running && task.0.lease_until.is_none() {
                return Err("a task that a worker has is under a lease".to_owned());
            }
            if task.0.failures > task.0.attempt {
                return Err("an attempt fails at most once".to_owned());
            }
            if world.results[number] > 1 {
                return Err("at most one result is accepted".to_owned());
            }
        }
        Ok(())
    }

    fn end(&self, world: &World) -> Option<String> {
        let ends: Option<Vec<&str>> = world.tasks.iter().map(Kept::end).collect();
        ends.map(|ends| ends.join(" and "))
    }

    fn is_certain(&self, step: &Step) -> bool {
        match step {
            Step::Claim { .. } | Step::TimePasses | Step::Rescue { .. } | Step::Due { .. } | Step::Say { .. } => true,
            Step::Arrive { again, .. } => !again,
            Step::Crash { .. } | Step::Lose { .. } | Step::Cancel { .. } => false,
        }
    }
}
