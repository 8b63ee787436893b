//! Instance leases: instances lease tasks in one row and write nothing to the tasks until there is something to report.
//! Instances crash, or are slow and reaped and report all the same; answers are lost; others cancel and revive tasks,
//! in another process or in the same one; a worker claims with a lease beside them.
//!
//! The rows, the memory of an instance and the order of looking belong to the stores; here they are in [`verbs`], one
//! transaction per step. The real [`apply`](relais_core::apply) decides what happens to a task.

mod verbs;

use std::collections::{BTreeMap, BTreeSet};

use relais_core::{Event, State, Status};
use relais_explore::Model;

use crate::kept::{Kept, LEASE, NOW, response};

/// A deliberate flaw, to show that the model finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// A claim takes a task that is already leased.
    Shared,
    /// A result is written, whatever happened to the task since it was leased.
    Unguarded,
    /// Nobody checks whether an instance has leased a task that looks pending.
    Unseen,
    /// A task stays leased by an instance that never got the answer of its claim.
    Kept,
    /// A task whose claim was not answered is written as started, and nobody recovers it.
    NoRecovery,
    /// No instance is reaped or replaced.
    Immortal,
    /// A reap does not write that the tasks had begun.
    Uncounted,
    /// A message of another process is written to a leased task as if nobody had begun it.
    Unbegun,
    /// A revived task stays in the lease of the instance that had finished it.
    Listed,
}

/// The size of the world.
#[derive(Debug, Clone, Copy)]
pub struct InstanceLeases {
    /// Tasks.
    pub tasks: usize,
    /// Processes.
    pub processes: usize,
    /// Whether there is a worker over HTTP.
    pub worker: bool,
    /// Whether the service has flow limits: then a lease is written to its tasks at once.
    pub written: bool,
    /// Whether the tasks of reaped instances fail.
    pub fail: bool,
    /// Results under way at once.
    pub under_way: usize,
    /// The delivery limit.
    pub delivery_limit: u32,
    /// How often a failed task is retried.
    pub retries: u32,
    /// How often something goes wrong: an answer is lost, an instance dies, is reaped, deregisters or returns a task,
    /// another process cancels or revives.
    pub troubles: u8,
    /// The flaw.
    pub flaw: Flaw,
}

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Word {
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
    /// It returned the task.
    Returned,
}

/// The result of an attempt, until the store has confirmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    process: usize,
    task: usize,
    attempt: u32,
    word: Word,
}

/// A leased task, as its instance remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    lease: u8,
    task: Kept,
    /// Whether its lease is not written to the task.
    taken: bool,
}

/// A row that lists leased tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Row {
    process: usize,
    tasks: BTreeSet<usize>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Process {
    /// Whether it runs at all.
    up: bool,
    /// Whether the store knows it.
    known: bool,
    held: BTreeMap<usize, Held>,
    /// Its leases, and how many tasks of each have not ended.
    leases: BTreeMap<u8, usize>,
    done_with: BTreeSet<u8>,
    /// Whether it does not know the outcome of its last claim.
    doubts: bool,
    /// The attempts that it runs.
    runs: BTreeSet<(usize, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    tasks: Vec<Kept>,
    rows: BTreeMap<u8, Row>,
    processes: Vec<Process>,
    /// The task and the attempt that the worker over HTTP believes it has.
    worker: Option<(usize, u32)>,
    messages: BTreeSet<Message>,
    /// How many results were accepted since the submission or the last revival, by task.
    results: Vec<u8>,
    troubles: u8,
}

/// Where a message comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// From this instance, which remembers its leases.
    Process(usize),
    /// From another process.
    Outsider,
}

#[derive(Debug, Clone)]
pub enum Step {
    Begin {
        process: usize,
    },
    Claim {
        process: usize,
        most: usize,
        answered: bool,
    },
    Say {
        process: usize,
        task: usize,
        word: Word,
    },
    /// It asks whether it still has the task. It may do so while a result is under way.
    Ask {
        process: usize,
        run: (usize, u32),
        answered: bool,
    },
    Arrive {
        message: Message,
        answered: bool,
    },
    Beat {
        process: usize,
    },
    Leave {
        process: usize,
    },
    Crash {
        process: usize,
    },
    GivenUp {
        process: usize,
        slow: bool,
    },
    WorkerClaims,
    WorkerIsDone,
    WorkerIsGone,
    TimePasses,
    Rescue {
        task: usize,
    },
    Watch {
        task: usize,
    },
    Due {
        task: usize,
    },
    Cancel {
        task: usize,
        through: Option<usize>,
    },
    Revive {
        task: usize,
        through: Option<usize>,
    },
}

impl Held {
    /// The attempt that the instance runs.
    fn attempt(&self) -> u32 {
        self.task.0.attempt + u32::from(self.taken)
    }
}

impl Process {
    fn end(&mut self, task: usize, lease: u8) {
        if self.held.get(&task).is_none_or(|held| held.lease != lease) {
            return;
        }
        self.held.remove(&task);
        if let Some(left) = self.leases.get_mut(&lease) {
            *left -= 1;
            if *left == 0 {
                self.leases.remove(&lease);
                self.done_with.insert(lease);
            }
        }
    }

    fn forget(&mut self) {
        self.held.clear();
        self.leases.clear();
        self.doubts = false;
    }
}

impl World {
    fn is_leased_by_instance(&self, task: usize) -> bool {
        self.rows.values().any(|row| row.tasks.contains(&task))
    }

    /// Whether an instance was told that it has the task, and was not told otherwise.
    fn is_at(&self, process: usize, task: usize) -> bool {
        let process = &self.processes[process];
        process.up && process.held.contains_key(&task)
    }

    fn drop_rows(&mut self, process: usize) {
        self.rows.retain(|_, row| row.process != process);
    }

    /// The first tasks that can be claimed.
    fn front(&self, most: usize, flaw: Flaw) -> Vec<usize> {
        let pending = |task: &usize| self.tasks[*task].0.status == Status::Pending;
        let free = |task: &usize| flaw == Flaw::Shared || !self.is_leased_by_instance(*task);
        (0..self.tasks.len()).filter(pending).filter(free).take(most).collect()
    }

    /// A number that no row has, and nobody remembers.
    fn new_lease(&self) -> u8 {
        let used = |lease: &u8| {
            self.rows.contains_key(lease)
                || self.processes.iter().any(|process| {
                    process.leases.contains_key(lease)
                        || process.done_with.contains(lease)
                        || process.held.values().any(|held| held.lease == *lease)
                })
        };
        (0..u8::MAX).find(|lease| !used(lease)).unwrap_or(u8::MAX)
    }

    /// Leaves out what makes no difference. Of revisions it is only which of them are the current ones.
    fn tidied(mut self) -> Self {
        self.rows.retain(|_, row| !row.tasks.is_empty());
        for process in &mut self.processes {
            process.done_with.retain(|lease| self.rows.contains_key(lease));
            let held = &process.held;
            process
                .leases
                .retain(|lease, _| self.rows.contains_key(lease) || held.values().any(|held| held.lease == *lease));
        }
        for (number, task) in self.tasks.iter_mut().enumerate() {
            for held in self.processes.iter_mut().filter_map(|process| process.held.get_mut(&number)) {
                let known = &held.task.0;
                held.task = Kept(match known.revision == task.0.revision {
                    true => State { revision: 1, ..known.clone() },
                    false => State { status: known.status, attempt: known.attempt, ..State::pending() },
                });
            }
            task.0.revision = 1;
        }
        self
    }
}

impl Step {
    /// Whether it need not happen.
    const fn is_trouble(&self) -> bool {
        match self {
            Self::Claim { answered, .. } | Self::Ask { answered, .. } | Self::Arrive { answered, .. } => !*answered,
            Self::GivenUp { slow, .. } => *slow,
            Self::Say { word, .. } => matches!(word, Word::Returned),
            Self::Leave { .. }
            | Self::Crash { .. }
            | Self::WorkerIsGone
            | Self::Cancel { .. }
            | Self::Revive { .. } => true,
            Self::Begin { .. }
            | Self::Beat { .. }
            | Self::WorkerClaims
            | Self::WorkerIsDone
            | Self::TimePasses
            | Self::Rescue { .. }
            | Self::Watch { .. }
            | Self::Due { .. } => false,
        }
    }
}

fn source(through: Option<usize>) -> Source {
    through.map_or(Source::Outsider, Source::Process)
}

impl Model for InstanceLeases {
    type State = World;
    type Step = Step;

    fn start(&self) -> World {
        World {
            tasks: vec![Kept::new(); self.tasks],
            rows: BTreeMap::new(),
            processes: vec![Process { up: true, known: true, ..Process::default() }; self.processes],
            worker: None,
            messages: BTreeSet::new(),
            results: vec![0; self.tasks],
            troubles: self.troubles,
        }
        .tidied()
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        let answers: &[bool] = if world.troubles > 0 { &[true, false] } else { &[true] };
        for &message in &world.messages {
            steps.extend(answers.iter().map(|&answered| Step::Arrive { message, answered }));
        }
        if world.tasks.iter().all(Kept::has_ended) && world.troubles == 0 {
            return steps;
        }
        for (process, it) in world.processes.iter().enumerate() {
            if it.known && self.flaw != Flaw::Immortal {
                steps.push(Step::GivenUp { process, slow: it.up });
            }
            if !it.up {
                steps.push(Step::Begin { process });
                continue;
            }
            steps.extend([Step::Beat { process }, Step::Crash { process }]);
            if it.known && !world.messages.iter().any(|message| message.process == process) {
                steps.push(Step::Leave { process });
            }
            if it.runs.is_empty() {
                let claims = (1..=self.tasks).flat_map(|most| answers.iter().map(move |answered| (most, *answered)));
                steps.extend(claims.map(|(most, answered)| Step::Claim { process, most, answered }));
            }
            let under_way = world.messages.iter().filter(|message| message.process == process);
            let said = under_way.map(|message| (message.task, message.attempt));
            for run in it.runs.iter().copied().chain(said) {
                steps.extend(answers.iter().map(|&answered| Step::Ask { process, run, answered }));
            }
            if world.messages.len() < self.under_way {
                let words = [Word::Success, Word::Failure, Word::Returned];
                let says = |&(task, _): &(usize, u32)| words.map(|word| Step::Say { process, task, word });
                steps.extend(it.runs.iter().flat_map(says));
            }
        }
        match world.worker {
            None if self.worker && !world.front(1, self.flaw).is_empty() => steps.push(Step::WorkerClaims),
            None => {}
            Some(_) => steps.extend([Step::WorkerIsDone, Step::WorkerIsGone]),
        }
        if world.tasks.iter().any(Kept::has_time) {
            steps.push(Step::TimePasses);
        }
        for (task, kept) in world.tasks.iter().enumerate() {
            let in_progress = kept.0.status == Status::InProgress;
            let leased = kept.0.lease_until.is_some();
            if in_progress && leased {
                steps.push(Step::Rescue { task });
            }
            if in_progress && !leased && !world.is_leased_by_instance(task) && self.flaw != Flaw::NoRecovery {
                steps.push(Step::Watch { task });
            }
            if kept.0.status == Status::Waiting {
                steps.push(Step::Due { task });
            }
            // An instance that does not remember the task is like any other process.
            let holders = (0..self.processes).filter(|process| world.is_at(*process, task));
            steps.extend(holders.map(Some).chain([None]).map(|through| match kept.has_ended() {
                false => Step::Cancel { task, through },
                true => Step::Revive { task, through },
            }));
        }
        steps.retain(|step| world.troubles > 0 || !step.is_trouble());
        steps
    }

    fn take(&self, world: &World, step: &Step) -> Result<World, String> {
        let mut world = world.clone();
        world.troubles -= u8::from(step.is_trouble());
        match *step {
            // An instance that registers under a name replaces its predecessor.
            Step::Begin { process } => {
                if self.flaw != Flaw::Immortal {
                    self.reap(&mut world, process)?;
                }
                world.processes[process] = Process { up: true, known: true, ..Process::default() };
            }
            Step::Claim { process, most, answered } => self.claim(&mut world, process, most, answered)?,
            Step::Say { process, task, word } => {
                let runs = &mut world.processes[process].runs;
                let Some(&run) = runs.iter().find(|run| run.0 == task) else { return Ok(world) };
                runs.remove(&run);
                world.messages.insert(Message { process, task, attempt: run.1, word });
            }
            Step::Ask { process, run: (task, attempt), answered } => {
                let event = Event::Kept { attempt };
                let kept = self.record(&mut world, Source::Process(process), task, &event, answered)?;
                if kept.is_err() && answered {
                    world.processes[process].runs.remove(&(task, attempt));
                }
            }
            Step::Arrive { message, answered } => self.arrive(&mut world, message, answered)?,
            Step::Beat { process } => {
                let it = &mut world.processes[process];
                let done_with = std::mem::take(&mut it.done_with);
                if !it.known {
                    // It registers again.
                    it.forget();
                    it.known = true;
                }
                world.rows.retain(|lease, _| !done_with.contains(lease));
            }
            Step::Leave { process } => {
                let tasks: Vec<usize> = (0..self.tasks)
                    .filter(|task| world.rows.values().any(|row| row.process == process && row.tasks.contains(task)))
                    .collect();
                for task in tasks {
                    let _ = self.happen(&mut world, task, &Event::Returned { attempt: None })?;
                }
                world.drop_rows(process);
                world.processes[process] = Process::default();
            }
            Step::Crash { process } => {
                let known = world.processes[process].known;
                world.processes[process] = Process { known, ..Process::default() };
                world.messages.retain(|message| message.process != process);
            }
            Step::GivenUp { process, .. } => self.reap(&mut world, process)?,
            Step::WorkerClaims => {
                for task in world.front(1, self.flaw) {
                    let _ = self.happen(&mut world, task, &Event::Claimed { worker_host: None, lease: LEASE })?;
                    world.worker = Some((task, world.tasks[task].0.attempt));
                }
            }
            Step::WorkerIsDone => {
                let Some((task, attempt)) = world.worker.take() else { return Ok(world) };
                let theirs = self.somebody_else(&world, task, None);
                let event = Event::Succeeded { attempt: Some(attempt), response: response() };
                if self.record(&mut world, Source::Outsider, task, &event, true)?.is_ok() && theirs {
                    return Err("a task of another is not changed by a worker".to_owned());
                }
            }
            Step::WorkerIsGone => world.worker = None,
            Step::TimePasses => world.tasks.iter_mut().for_each(Kept::later),
            Step::Rescue { task } => {
                let event = Event::LeaseExpired { delivery_limit: self.delivery_limit };
                let _ = self.happen(&mut world, task, &event)?;
            }
            Step::Watch { task } => world.tasks[task].0.lease_until = Some(NOW.after(LEASE)),
            Step::Due { task } => {
                let _ = self.happen(&mut world, task, &Event::Due)?;
            }
            Step::Cancel { task, through } => {
                let _ = self.record(&mut world, source(through), task, &Event::Cancelled, true)?;
            }
            Step::Revive { task, through } => {
                let _ = self.record(&mut world, source(through), task, &Event::Revived, true)?;
            }
        }
        Ok(world.tidied())
    }

    fn check(&self, world: &World) -> Result<(), String> {
        for (number, task) in world.tasks.iter().enumerate() {
            if world.results[number] > 1 {
                return Err("at most one result is accepted in a life".to_owned());
            }
            let rows: Vec<&Row> = world.rows.values().filter(|row| row.tasks.contains(&number)).collect();
            if rows.len() > 1 {
                return Err("no task is leased twice".to_owned());
            }
            if task.is_leased() && !rows.is_empty() {
                return Err("no leased task is given to a worker".to_owned());
            }
            let mut attempts = BTreeSet::new();
            let said = world.messages.iter().map(|message| (message.task, message.attempt));
            let at = world.processes.iter().flat_map(|process| process.runs.iter().copied());
            for (_, attempt) in said.chain(at).chain(world.worker).filter(|(task, _)| *task == number) {
                if !attempts.insert(attempt) {
                    return Err("never two at the same attempt".to_owned());
                }
            }
            let idle = |row: &&Row| {
                let process = &world.processes[row.process];
                process.up && !process.doubts && !process.held.contains_key(&number)
            };
            if task.0.status == Status::Pending && rows.iter().any(idle) {
                return Err("nobody keeps a task from others that it does not have".to_owned());
            }
            if task.0.failures > task.0.attempt {
                return Err("an attempt fails at most once".to_owned());
            }
        }
        Ok(())
    }

    fn end(&self, world: &World) -> Option<String> {
        let ends: Option<Vec<&str>> = world.tasks.iter().map(Kept::end).collect();
        ends.map(|ends| ends.join(" and "))
    }

    fn is_certain(&self, step: &Step) -> bool {
        !step.is_trouble()
    }
}
