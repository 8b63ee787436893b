//! Processes on the store itself: they take tasks in hand under one row and write nothing to the tasks until there is
//! something to say. They crash, or are slow and given up and speak all the same; answers are lost on their way back; outsiders
//! cancel and revive, in another process or in the same one; a worker elsewhere claims under a lease beside them.
//!
//! The rows, what a process remembers and the order of looking are written by the stores; here they are in [`verbs`], one
//! transaction a step. What becomes of a task is decided by the real [`apply`](relais_core::apply).

mod verbs;

use std::collections::{BTreeMap, BTreeSet};

use relais_core::{Event, State, Status};

use crate::{
    explore::Model,
    kept::{Kept, LEASE, NOW, response},
};

/// What is wrong on purpose, to show that it would be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// A claim hands out what is in hand.
    Shared,
    /// A result is written, whatever became of the task since it was taken.
    Unguarded,
    /// Nobody asks whether somebody else has in hand what looks as if nobody had it.
    Unseen,
    /// What a process was never told that it has stays in its hand.
    Kept,
    /// What a process was never told that it has is written to the task, and nobody looks for it.
    NoStrays,
    /// Nobody is given up, and nobody replaced.
    Immortal,
    /// It is not written that those who are given up had begun.
    Uncounted,
    /// An outsider's word is written to a task in hand as if nobody had begun it.
    Unbegun,
    /// A task that is revived stays in the hand that was done with it.
    Listed,
}

/// How much there is of everything.
#[derive(Debug, Clone, Copy)]
pub struct Hand {
    /// Tasks.
    pub tasks: usize,
    /// Processes.
    pub processes: usize,
    /// Whether there is a worker elsewhere.
    pub worker: bool,
    /// Whether the service's flow is limited: then it is written at once that tasks were taken.
    pub written: bool,
    /// Whether the tasks of processes that are given up fail.
    pub fail: bool,
    /// Results under way at once.
    pub under_way: usize,
    /// How often a task loses its worker before it fails.
    pub delivery_limit: u32,
    /// How often a task that failed is tried again.
    pub retries: u32,
    /// How often something happens that need not: an answer is lost, a process dies, is given up, leaves or gives a task
    /// back, an outsider cancels or revives.
    pub troubles: u8,
    /// What is wrong.
    pub flaw: Flaw,
}

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Word {
    /// It is done.
    Success,
    /// It can not do it.
    Failure,
    /// It gives it back.
    Returned,
}

/// What became of an attempt, until it is known that the store has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Letter {
    process: usize,
    task: usize,
    attempt: u32,
    word: Word,
}

/// A task in hand, as its process remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    hand: u8,
    task: Kept,
    /// That it was taken is not written.
    taken: bool,
}

/// A row that lists tasks in hand.
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
    /// Its hands, and how many tasks of each have not ended.
    hands: BTreeMap<u8, usize>,
    done_with: BTreeSet<u8>,
    /// Whether it does not know what became of its last claim.
    doubts: bool,
    /// The attempts that it is at.
    runs: BTreeSet<(usize, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    tasks: Vec<Kept>,
    rows: BTreeMap<u8, Row>,
    processes: Vec<Process>,
    /// What the worker elsewhere believes it has.
    worker: Option<(usize, u32)>,
    letters: BTreeSet<Letter>,
    /// How many results were accepted since it was taken in or revived, by task.
    results: Vec<u8>,
    troubles: u8,
}

/// Who is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    /// Through this process; it remembers what it has.
    Process(usize),
    /// Through another one.
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
    /// It asks whether it still has it. It may do so while a result is under way.
    Ask {
        process: usize,
        run: (usize, u32),
        answered: bool,
    },
    Arrive {
        letter: Letter,
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
    /// The attempt that the process is at.
    fn attempt(&self) -> u32 {
        self.task.0.attempt + u32::from(self.taken)
    }
}

impl Process {
    fn end(&mut self, task: usize, hand: u8) {
        if self.held.get(&task).is_none_or(|held| held.hand != hand) {
            return;
        }
        self.held.remove(&task);
        if let Some(left) = self.hands.get_mut(&hand) {
            *left -= 1;
            if *left == 0 {
                self.hands.remove(&hand);
                self.done_with.insert(hand);
            }
        }
    }

    fn forget(&mut self) {
        self.held.clear();
        self.hands.clear();
        self.doubts = false;
    }
}

impl World {
    fn is_in_hand(&self, task: usize) -> bool {
        self.rows.values().any(|row| row.tasks.contains(&task))
    }

    /// Whether a process was told that it has the task, and was not told otherwise.
    fn is_at(&self, process: usize, task: usize) -> bool {
        let process = &self.processes[process];
        process.up && process.held.contains_key(&task)
    }

    fn drop_rows(&mut self, process: usize) {
        self.rows.retain(|_, row| row.process != process);
    }

    /// The first tasks that may be handed out.
    fn front(&self, most: usize, flaw: Flaw) -> Vec<usize> {
        let pending = |task: &usize| self.tasks[*task].0.status == Status::Pending;
        let free = |task: &usize| flaw == Flaw::Shared || !self.is_in_hand(*task);
        (0..self.tasks.len()).filter(pending).filter(free).take(most).collect()
    }

    /// A number that no row has, and nobody remembers.
    fn new_hand(&self) -> u8 {
        let used = |hand: &u8| {
            self.rows.contains_key(hand)
                || self.processes.iter().any(|process| {
                    process.hands.contains_key(hand)
                        || process.done_with.contains(hand)
                        || process.held.values().any(|held| held.hand == *hand)
                })
        };
        (0..u8::MAX).find(|hand| !used(hand)).unwrap_or(u8::MAX)
    }

    /// Leaves out what makes no difference. Of revisions it is only which of them are the current ones.
    fn tidied(mut self) -> Self {
        self.rows.retain(|_, row| !row.tasks.is_empty());
        for process in &mut self.processes {
            process.done_with.retain(|hand| self.rows.contains_key(hand));
            let held = &process.held;
            process
                .hands
                .retain(|hand, _| self.rows.contains_key(hand) || held.values().any(|held| held.hand == *hand));
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

fn speaker(through: Option<usize>) -> Speaker {
    through.map_or(Speaker::Outsider, Speaker::Process)
}

impl Model for Hand {
    type State = World;
    type Step = Step;

    fn start(&self) -> World {
        World {
            tasks: vec![Kept::new(); self.tasks],
            rows: BTreeMap::new(),
            processes: vec![Process { up: true, known: true, ..Process::default() }; self.processes],
            worker: None,
            letters: BTreeSet::new(),
            results: vec![0; self.tasks],
            troubles: self.troubles,
        }
        .tidied()
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        let answers: &[bool] = if world.troubles > 0 { &[true, false] } else { &[true] };
        for &letter in &world.letters {
            steps.extend(answers.iter().map(|&answered| Step::Arrive { letter, answered }));
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
            if it.known && !world.letters.iter().any(|letter| letter.process == process) {
                steps.push(Step::Leave { process });
            }
            if it.runs.is_empty() {
                let claims = (1..=self.tasks).flat_map(|most| answers.iter().map(move |answered| (most, *answered)));
                steps.extend(claims.map(|(most, answered)| Step::Claim { process, most, answered }));
            }
            let under_way = world.letters.iter().filter(|letter| letter.process == process);
            let said = under_way.map(|letter| (letter.task, letter.attempt));
            for run in it.runs.iter().copied().chain(said) {
                steps.extend(answers.iter().map(|&answered| Step::Ask { process, run, answered }));
            }
            if world.letters.len() < self.under_way {
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
            if in_progress && !leased && !world.is_in_hand(task) && self.flaw != Flaw::NoStrays {
                steps.push(Step::Watch { task });
            }
            if kept.0.status == Status::Waiting {
                steps.push(Step::Due { task });
            }
            // Through one that does not remember it is as through any other.
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
            // Whoever begins under a name takes the place of the one before.
            Step::Begin { process } => {
                if self.flaw != Flaw::Immortal {
                    self.lay_to_rest(&mut world, process)?;
                }
                world.processes[process] = Process { up: true, known: true, ..Process::default() };
            }
            Step::Claim { process, most, answered } => self.claim(&mut world, process, most, answered)?,
            Step::Say { process, task, word } => {
                let runs = &mut world.processes[process].runs;
                let Some(&run) = runs.iter().find(|run| run.0 == task) else { return Ok(world) };
                runs.remove(&run);
                world.letters.insert(Letter { process, task, attempt: run.1, word });
            }
            Step::Ask { process, run: (task, attempt), answered } => {
                let event = Event::Kept { attempt };
                let kept = self.record(&mut world, Speaker::Process(process), task, &event, answered)?;
                if kept.is_err() && answered {
                    world.processes[process].runs.remove(&(task, attempt));
                }
            }
            Step::Arrive { letter, answered } => self.arrive(&mut world, letter, answered)?,
            Step::Beat { process } => {
                let it = &mut world.processes[process];
                let done_with = std::mem::take(&mut it.done_with);
                if !it.known {
                    // It begins anew.
                    it.forget();
                    it.known = true;
                }
                world.rows.retain(|hand, _| !done_with.contains(hand));
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
                world.letters.retain(|letter| letter.process != process);
            }
            Step::GivenUp { process, .. } => self.lay_to_rest(&mut world, process)?,
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
                if self.record(&mut world, Speaker::Outsider, task, &event, true)?.is_ok() && theirs {
                    return Err("what somebody else has is not changed by a worker".to_owned());
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
                let _ = self.record(&mut world, speaker(through), task, &Event::Cancelled, true)?;
            }
            Step::Revive { task, through } => {
                let _ = self.record(&mut world, speaker(through), task, &Event::Revived, true)?;
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
                return Err("nothing is in two hands".to_owned());
            }
            if task.is_leased() && !rows.is_empty() {
                return Err("nothing in hand is handed to a worker elsewhere".to_owned());
            }
            let mut attempts = BTreeSet::new();
            let said = world.letters.iter().map(|letter| (letter.task, letter.attempt));
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
