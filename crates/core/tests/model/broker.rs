//! A broker: that a task is to be published is a row, kept until the broker has confirmed; publishers die between any
//! two steps, or do not learn what became of them; the broker gives a task to another worker when a connection ends,
//! and may lose its queue with all that was in it. Workers send no number of an attempt, and what they say may be heard
//! again, or be handed out once more without having been heard: nobody can tell which.
//!
//! The row and its round are written in SQL, by the stores; here they are as the port (`settle_dispatches`,
//! `dispatch_again`, `refill_dispatches`) says. What becomes of the task is decided by the real
//! [`apply`](relais_core::apply).

use relais_core::{Event, Failure, State, Status};
use relais_explore::Model;

use crate::kept::{HOSTS, Kept, LEASE, check_change, is_result, response};

/// What is wrong on purpose, to show that it would be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// The row is removed before the task is published.
    AcknowledgedFirst,
    /// Whoever settles a row does not say of which round it speaks.
    NoRounds,
    /// A row that is written anew has the round of those before it.
    OldRounds,
    /// A queue that is gone is made again, and nothing else.
    NotNoted,
    /// Nobody looks for rows that a publisher left behind.
    NoSweep,
    /// What may have been heard before is taken for new.
    NoDoubt,
    /// What may have been heard before is not listened to.
    Deaf,
    /// A failure counts, whoever tells of it.
    Usurped,
    /// A failure counts only if whoever has the task tells of it.
    Strict,
}

/// How much there is of everything.
#[derive(Debug, Clone, Copy)]
pub struct Broker {
    /// Processes that publish. Without any, the broker has the task from the start.
    pub publishers: usize,
    /// Workers.
    pub workers: usize,
    /// How often the broker loses its queue.
    pub queue_losses: u8,
    /// Copies of the task in the queue at once.
    pub copies: u8,
    /// Messages of workers under way at once.
    pub under_way: usize,
    /// What workers say besides that they are done.
    pub words: &'static [Word],
    /// How often a task loses its worker before it fails.
    pub delivery_limit: u32,
    /// How often a task that failed is tried again.
    pub retries: u32,
    /// Whether workers say that they have begun where others could not tell, and then only.
    pub careful: bool,
    /// What is wrong.
    pub flaw: Flaw,
}

/// The row that says that the task is to be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    round: u8,
    /// Whether anybody may take it; else somebody has.
    due: bool,
}

/// What a publisher does. The number is the round that it speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Publisher {
    Idle,
    /// It has the task and is to publish it.
    Has(u8),
    /// The broker has confirmed.
    Sent(u8),
    /// The broker has not confirmed, whatever it did.
    Refused(u8),
}

/// A worker that has a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Job {
    /// Whether the broker still waits for its acknowledgement; else another one may have it, too.
    linked: bool,
    /// Whether it has said that it has begun.
    said: bool,
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Word {
    Started,
    Progress,
    Success,
    Failure,
    GivenBack,
}

/// A message of a worker, in the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    worker: usize,
    word: Word,
    /// Whether it may have been heard before, as far as the broker knows.
    again: bool,
    /// Whether it was.
    heard: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    task: Kept,
    results: u8,
    /// How many failures workers have told of.
    failures: u8,
    /// Workers that are known to have had the task, and how it ended there: the attempts that are kept.
    lost: [bool; HOSTS.len()],
    failed: [bool; HOSTS.len()],
    row: Option<Row>,
    /// The round of a row that is written anew.
    fresh: u8,
    /// It is noted that what is unfinished is to be published again.
    noted: bool,
    /// Somebody found the queue gone, has noted it, and is about to make it again.
    keeping: bool,
    /// Copies that wait; none if there is no queue.
    queue: Option<u8>,
    publishers: [Publisher; 2],
    jobs: [Option<Job>; HOSTS.len()],
    messages: Vec<Message>,
    queue_losses: u8,
}

#[derive(Debug, Clone)]
pub enum Step {
    /// The sweep takes a row that is due.
    Take {
        publisher: usize,
    },
    /// It was taken for too long.
    HoldEnds,
    Publish {
        publisher: usize,
    },
    /// It is published, perhaps, and there is no answer.
    PublishUnsure {
        publisher: usize,
        carried: bool,
    },
    Settle {
        publisher: usize,
    },
    /// It is settled, and there is no answer.
    SettleUnsure {
        publisher: usize,
    },
    GiveUp {
        publisher: usize,
    },
    Die {
        publisher: usize,
    },
    LoseQueue {
        messages: bool,
    },
    Note,
    MakeQueue,
    Refill,
    Deliver {
        worker: usize,
    },
    Say {
        worker: usize,
        word: Word,
    },
    /// The connection ends; the worker goes on.
    Cut {
        worker: usize,
    },
    Crash {
        worker: usize,
    },
    Hear {
        message: Message,
        again: bool,
    },
    /// Whoever was to hear it has died, and it is handed out once more.
    Requeue {
        message: Message,
    },
    /// The wait after a failure is over.
    Due,
    Cancel,
}

impl Broker {
    fn happen(&self, world: &mut World, event: &Event) -> Result<(), String> {
        let Ok(after) = world.task.after(event) else { return Ok(()) };
        // Nobody here knows numbers of attempts, but for whether there was one; without them there are fewer states.
        let after = Kept(State { attempt: after.0.attempt.min(1), ..after.0 });
        check_change(&world.task, &after, event)?;
        if let Some(worker) = HOSTS.iter().position(|host| world.task.0.worker_host.as_deref() == Some(*host)) {
            world.lost[worker] |= after.0.losses > world.task.0.losses;
            world.failed[worker] |= after.0.failures > world.task.0.failures;
        }
        world.results += u8::from(is_result(event) && after.has_ended());
        // What comes into its queue, and was not put there by the broker, is published anew.
        if after.0.status == Status::Pending && !matches!(event, Event::GivenBack { .. }) {
            world.fresh += 1;
            world.row = Some(Row { round: world.fresh, due: true });
        }
        world.task = after;
        Ok(())
    }

    /// What a message means; nothing, if it is of no use any more.
    fn event(&self, message: Message, world: &World) -> Option<Event> {
        let worker_host = Some(HOSTS[message.worker].to_owned());
        let again = message.again && self.flaw != Flaw::NoDoubt;
        if again && self.flaw == Flaw::Deaf && message.word != Word::Success {
            return None;
        }
        Some(match message.word {
            Word::Started => Event::Delivered { worker_host, again, delivery_limit: self.delivery_limit },
            Word::Progress if again => return None,
            Word::Progress => Event::Progressed { attempt: None, progress: 50.0, lease: None },
            Word::Success => Event::Succeeded { attempt: None, response: response() },
            Word::Failure => Event::Failed {
                attempt: None,
                failure: Failure::new("no"),
                // What a policy says, when it is recorded.
                again_after: (world.task.0.failures < self.retries).then_some(LEASE),
                again,
                replaced: match self.flaw {
                    Flaw::Usurped => false,
                    Flaw::Strict => world.is_at_another_worker(message.worker),
                    _ => world.is_at_another_worker(message.worker) && world.had_it(message.worker, again),
                },
                worker_host,
            },
            Word::GivenBack => Event::GivenBack { worker_host },
        })
    }

    /// A publisher says that it is done with a row.
    fn acknowledge(&self, world: &mut World, round: u8) {
        world.row = world.row.filter(|row| row.round != round && self.flaw != Flaw::NoRounds);
    }
}

impl World {
    fn requeue(&mut self) {
        if let Some(copies) = &mut self.queue {
            *copies += 1;
        }
    }

    fn send(&mut self, message: Message) {
        if let Err(place) = self.messages.binary_search(&message) {
            self.messages.insert(place, message);
        }
    }

    /// Whether somebody else has the task.
    fn is_at_another_worker(&self, worker: usize) -> bool {
        let State { status, worker_host, .. } = &self.task.0;
        *status == Status::InProgress && worker_host.as_deref().is_some_and(|host| host != HOSTS[worker])
    }

    /// Whether it is known that the worker had the task before.
    fn had_it(&self, worker: usize, again: bool) -> bool {
        self.lost[worker] || again && self.failed[worker]
    }

    /// Whether the task is somewhere from where it will go on.
    fn is_somewhere(&self) -> bool {
        let delivered = self.jobs.iter().flatten().any(|job| job.linked);
        let ends = |message: &Message| matches!(message.word, Word::Success | Word::Failure);
        self.row.is_some()
            || self.task.0.status == Status::Waiting
            || self.noted
            || delivered
            || self.queue.is_none_or(|copies| copies > 0)
            || self.messages.iter().any(ends)
    }
}

impl Model for Broker {
    type State = World;
    type Step = Step;

    /// The process that took the task in has written the row with it, and is to publish it.
    fn start(&self) -> World {
        let taken_in = self.publishers > 0;
        World {
            task: Kept::new(),
            results: 0,
            failures: 0,
            lost: [false; HOSTS.len()],
            failed: [false; HOSTS.len()],
            row: taken_in.then_some(Row { round: 0, due: false }),
            fresh: 0,
            noted: false,
            keeping: false,
            queue: Some(u8::from(!taken_in)),
            publishers: [if taken_in { Publisher::Has(0) } else { Publisher::Idle }, Publisher::Idle],
            jobs: [None; HOSTS.len()],
            messages: Vec::new(),
            queue_losses: self.queue_losses,
        }
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = vec![Step::Cancel];
        let has_room = world.queue.is_none_or(|copies| copies < self.copies);
        for (publisher, doing) in world.publishers.iter().enumerate().take(self.publishers) {
            match doing {
                Publisher::Idle => {
                    if self.flaw != Flaw::NoSweep && world.row.is_some_and(|row| row.due) {
                        steps.push(Step::Take { publisher });
                    }
                    continue;
                }
                Publisher::Has(_) if has_room => {
                    steps.push(Step::Publish { publisher });
                    steps.push(Step::PublishUnsure { publisher, carried: true });
                    steps.push(Step::PublishUnsure { publisher, carried: false });
                }
                Publisher::Has(_) => {}
                Publisher::Sent(_) => {
                    steps.push(Step::Settle { publisher });
                    steps.push(Step::SettleUnsure { publisher });
                }
                Publisher::Refused(_) => steps.push(Step::GiveUp { publisher }),
            }
            steps.push(Step::Die { publisher });
        }
        if world.row.is_some_and(|row| !row.due) {
            steps.push(Step::HoldEnds);
        }
        if world.queue.is_some() && world.queue_losses > 0 {
            steps.extend([Step::LoseQueue { messages: false }, Step::LoseQueue { messages: true }]);
        }
        if world.queue.is_none() {
            steps.push(if world.keeping { Step::MakeQueue } else { Step::Note });
        }
        if world.noted {
            steps.push(Step::Refill);
        }
        let may_say = world.messages.len() < self.under_way;
        // After the end, only those who wait for room in the queue need workers that go on.
        let working = if world.task.has_ended() && self.publishers == 0 { 0 } else { self.workers };
        for (worker, job) in world.jobs.iter().enumerate().take(working) {
            let Some(job) = job else {
                if world.queue.is_some_and(|copies| copies > 0) {
                    steps.push(Step::Deliver { worker });
                }
                continue;
            };
            steps.push(Step::Crash { worker });
            if may_say {
                let fits = |word: &Word| match word {
                    // Whoever was cut off says how it ended, if anything.
                    Word::Started => !job.said && (job.linked || !self.careful),
                    // Without a word it is as if it had crashed.
                    Word::GivenBack => job.linked,
                    // Who has it once more says so before it fails, or would be taken for the slow worker that it was.
                    Word::Failure => {
                        u32::from(world.failures) <= self.retries
                            && (job.said || !self.careful || !world.had_it(worker, true))
                    }
                    _ => true,
                };
                let words = self.words.iter().copied().filter(fits).chain([Word::Success]);
                steps.extend(words.map(|word| Step::Say { worker, word }));
            }
            if job.linked {
                steps.push(Step::Cut { worker });
            }
        }
        for &message in &world.messages {
            steps.push(Step::Hear { message, again: false });
            if !message.again {
                steps.push(Step::Hear { message, again: true });
                if self.retries > 0 {
                    steps.push(Step::Requeue { message });
                }
            }
        }
        if world.task.0.status == Status::Waiting {
            steps.push(Step::Due);
        }
        steps
    }

    fn take(&self, world: &World, step: &Step) -> Result<World, String> {
        let mut world = world.clone();
        match *step {
            Step::Take { publisher } => {
                let Some(row) = &mut world.row else { return Ok(world) };
                row.due = false;
                // One that has ended has only its row removed.
                let ended = world.task.has_ended();
                world.publishers[publisher] =
                    if ended { Publisher::Sent(row.round) } else { Publisher::Has(row.round) };
            }
            Step::HoldEnds => world.row = world.row.map(|row| Row { due: true, ..row }),
            Step::Publish { publisher } => {
                let Publisher::Has(round) = world.publishers[publisher] else { return Ok(world) };
                if self.flaw == Flaw::AcknowledgedFirst {
                    self.acknowledge(&mut world, round);
                }
                world.publishers[publisher] =
                    if world.queue.is_some() { Publisher::Sent(round) } else { Publisher::Refused(round) };
                world.requeue();
            }
            Step::PublishUnsure { publisher, carried } => {
                let Publisher::Has(round) = world.publishers[publisher] else { return Ok(world) };
                if self.flaw == Flaw::AcknowledgedFirst {
                    self.acknowledge(&mut world, round);
                }
                world.publishers[publisher] = Publisher::Refused(round);
                if carried {
                    world.requeue();
                }
            }
            Step::Settle { publisher } | Step::SettleUnsure { publisher } => {
                let Publisher::Sent(round) = world.publishers[publisher] else { return Ok(world) };
                self.acknowledge(&mut world, round);
                if matches!(step, Step::Settle { .. }) {
                    world.publishers[publisher] = Publisher::Idle;
                }
            }
            Step::GiveUp { publisher } => {
                let Publisher::Refused(round) = world.publishers[publisher] else { return Ok(world) };
                world.row = world.row.map(|row| Row { due: row.due || row.round == round, ..row });
                world.publishers[publisher] = Publisher::Idle;
            }
            Step::Die { publisher } => world.publishers[publisher] = Publisher::Idle,
            Step::LoseQueue { messages } => {
                (world.queue, world.keeping) = (None, false);
                world.queue_losses -= 1;
                world.fresh += u8::from(self.flaw != Flaw::OldRounds);
                world.jobs.iter_mut().flatten().for_each(|job| job.linked = false);
                if messages {
                    world.messages.clear();
                }
            }
            Step::Note => (world.noted, world.keeping) = (self.flaw != Flaw::NotNoted, true),
            Step::MakeQueue => (world.queue, world.keeping) = (Some(0), false),
            Step::Refill => {
                world.noted = false;
                if !world.task.has_ended() {
                    let round = match world.row {
                        Some(row) if self.flaw == Flaw::OldRounds => row.round + 1,
                        _ => world.fresh,
                    };
                    world.row = Some(Row { round, due: true });
                }
            }
            Step::Deliver { worker } => {
                world.queue = world.queue.map(|copies| copies - 1);
                world.jobs[worker] = Some(Job { linked: true, said: false });
            }
            Step::Say { worker, word } => {
                world.send(Message { worker, word, again: false, heard: false });
                match word {
                    Word::Started | Word::Progress => {
                        let said = |job: Job| Job { said: job.said || word == Word::Started, ..job };
                        world.jobs[worker] = world.jobs[worker].map(said);
                    }
                    // Acknowledged, if it still can be.
                    Word::Success => world.jobs[worker] = None,
                    Word::Failure => {
                        world.failures += 1;
                        world.jobs[worker] = None;
                    }
                    Word::GivenBack => {
                        world.jobs[worker] = None;
                        world.requeue();
                    }
                }
            }
            Step::Cut { worker } => {
                world.jobs[worker] = world.jobs[worker].map(|job| Job { linked: false, ..job });
                world.requeue();
            }
            Step::Crash { worker } => {
                if world.jobs[worker].is_some_and(|job| job.linked) {
                    world.requeue();
                }
                world.jobs[worker] = None;
            }
            Step::Hear { message, again } => {
                world.messages.retain(|other| *other != message);
                if again {
                    world.send(Message { again: true, heard: true, ..message });
                }
                let before = world.task.clone();
                let slow = message.word == Word::Failure
                    && world.is_at_another_worker(message.worker)
                    && world.lost[message.worker];
                if let Some(event) = self.event(message, &world) {
                    if let Some(start) = event.unsaid_start(&world.task.0) {
                        self.happen(&mut world, &start)?;
                    }
                    self.happen(&mut world, &event)?;
                }
                if slow && world.task != before {
                    return Err("a slow worker does not fail the task of its successor".to_owned());
                }
                // With a worker it can not be told from a failure of that one, unless they give their names.
                let counted = world.task.0.failures > before.0.failures;
                if message.heard && counted && before.0.status == Status::Pending {
                    return Err("a failure that was counted is not counted again where nobody has the task".to_owned());
                }
            }
            Step::Requeue { message } => {
                world.messages.retain(|other| *other != message);
                world.send(Message { again: true, ..message });
            }
            Step::Due => {
                world.task.later();
                self.happen(&mut world, &Event::Due)?;
            }
            Step::Cancel => self.happen(&mut world, &Event::Cancelled)?,
        }
        // Two publishers are alike: who of them does what makes no difference.
        world.publishers.sort_unstable();
        Ok(world)
    }

    fn check(&self, world: &World) -> Result<(), String> {
        if world.results > 1 {
            return Err("at most one result is accepted".to_owned());
        }
        if !world.task.has_ended() && !world.is_somewhere() {
            return Err("an unfinished task is in the store's rows, in the broker, or with a worker".to_owned());
        }
        if world.task.0.status == Status::InProgress && world.task.0.lease_until.is_some() {
            return Err("where a broker watches, there is no lease".to_owned());
        }
        Ok(())
    }

    fn end(&self, world: &World) -> Option<String> {
        let tidy = world.row.is_none() && !world.noted;
        world.task.end().filter(|_| tidy).map(str::to_owned)
    }

    fn is_certain(&self, step: &Step) -> bool {
        match step {
            Step::Take { .. }
            | Step::HoldEnds
            | Step::Publish { .. }
            | Step::Settle { .. }
            | Step::GiveUp { .. }
            | Step::Note
            | Step::MakeQueue
            | Step::Refill
            | Step::Deliver { .. }
            | Step::Due
            | Step::Say { .. } => true,
            Step::Hear { again, .. } => !again,
            Step::PublishUnsure { .. }
            | Step::SettleUnsure { .. }
            | Step::Die { .. }
            | Step::LoseQueue { .. }
            | Step::Cut { .. }
            | Step::Crash { .. }
            | Step::Requeue { .. }
            | Step::Cancel => false,
        }
    }
}
