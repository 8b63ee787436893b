//! A handler that does what its task says, and reports to the test what it does.
#![expect(clippy::unwrap_used, reason = "what can not be unwrapped here fails the test, which is what it is for")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use relais_tests::app::DEADLINE;
use relais_worker::{Context, HandlerError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::hired::{Hired, Report};

/// What a task asks for. Workers in other languages play the same: `play.py`, `play.mjs`.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "camelCase", deny_unknown_fields)]
pub enum Order {
    Double {
        n: i64,
    },
    Fail {
        message: String,
    },
    Panic,
    /// Tells much progress, this in the end, then waits.
    Progress {
        percent: u32,
    },
    /// Tells progress, and fails.
    Stumble {
        percent: u32,
    },
    /// Waits until the test lets it go, or it is told to stop.
    Wait,
    /// Waits, whatever it is told.
    Never,
    /// Wants another try, the first time.
    Again,
    /// Tells what it knows.
    Know,
}

/// What the test sees, and what it lets happen.
#[derive(Clone)]
pub struct Stage(Arc<Inner>);

struct Inner {
    starts: watch::Sender<Vec<(String, Instant)>>,
    stops: watch::Sender<usize>,
    free: Semaphore,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Stage {
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            starts: watch::Sender::default(),
            stops: watch::Sender::default(),
            free: Semaphore::new(0),
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }))
    }

    /// Waits for so many starts in all, and tells of which tasks and when.
    pub async fn starts(&self, count: usize) -> Vec<(String, Instant)> {
        let mut starts = self.0.starts.subscribe();
        let reached = timeout(DEADLINE, starts.wait_for(|starts| starts.len() >= count)).await;
        match reached {
            Ok(starts) => starts.unwrap().clone(),
            Err(_) => panic!("there were never {count} starts, only {:?}", self.0.starts.borrow()),
        }
    }

    /// How many starts there were.
    pub fn started(&self) -> usize {
        self.0.starts.borrow().len()
    }

    /// Waits until so many tasks were told to stop.
    pub async fn stops(&self, count: usize) {
        let mut stops = self.0.stops.subscribe();
        let reached = timeout(DEADLINE, stops.wait_for(|stops| *stops >= count)).await;
        assert!(reached.is_ok(), "never were {count} tasks told to stop");
    }

    /// Lets so many waiting tasks go.
    pub fn let_go(&self, count: usize) {
        self.0.free.add_permits(count);
    }

    /// The most that ran at the same time.
    pub fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    /// Runs a worker.
    pub fn run(&self, worker: impl Into<Hired>) -> Running {
        let (worker, shutdown) = (worker.into(), CancellationToken::new());
        Running { task: tokio::spawn(worker.run(self.clone(), shutdown.clone())), shutdown }
    }

    /// A task starts.
    pub fn enter(&self, task_id: &str) -> OnStage {
        let running = self.0.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(running, Ordering::SeqCst);
        self.0.starts.send_modify(|starts| starts.push((task_id.to_owned(), Instant::now())));
        OnStage(self.clone())
    }

    /// Waits until one that waits may go.
    pub async fn one_may_go(&self) {
        self.0.free.acquire().await.unwrap().forget();
    }

    /// One that waited was told to stop.
    pub fn one_is_told_to_stop(&self) {
        self.0.stops.send_modify(|stops| *stops += 1);
    }

    /// The handler of workers in Rust.
    pub async fn play(self, order: Order, context: Context) -> Result<Value, HandlerError> {
        let _on = self.enter(context.task_id());
        match order {
            Order::Double { n } => Ok(json!(2 * n)),
            Order::Fail { message } => Err(HandlerError::permanent(message).kind("told")),
            Order::Panic => panic!("told to"),
            Order::Progress { percent } => {
                for step in 0..10_000 {
                    context.progress(f64::from(step % 100));
                }
                context.progress(f64::from(percent));
                self.wait(&context).await
            }
            Order::Stumble { percent } => {
                context.progress(f64::from(percent));
                Err(HandlerError::new("stumbled"))
            }
            Order::Wait => self.wait(&context).await,
            Order::Never => std::future::pending().await,
            Order::Again => {
                let starts = self.0.starts.borrow().iter().filter(|(id, _)| id == context.task_id()).count();
                if starts == 1 { Err(HandlerError::again("not yet")) } else { Ok(json!(starts)) }
            }
            Order::Know => Ok(json!({
                "taskId": context.task_id(),
                "attempt": context.attempt(),
                "redelivered": context.redelivered(),
                "correlationId": context.correlation_id(),
                "deadline": context.deadline().is_some(),
            })),
        }
    }

    async fn wait(&self, context: &Context) -> Result<Value, HandlerError> {
        tokio::select! {
            () = self.one_may_go() => {}
            () = context.cancelled() => {
                self.one_is_told_to_stop();
                return Err(HandlerError::new("told to stop"));
            }
        }
        Ok(json!({"redelivered": context.redelivered()}))
    }
}

/// Counts a task for as long as it is being done, however it ends.
pub struct OnStage(Stage);

impl Drop for OnStage {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A worker that runs.
pub struct Running {
    task: JoinHandle<anyhow::Result<Report>>,
    shutdown: CancellationToken,
}

impl Running {
    /// Tells it to stop.
    pub fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Waits for its end.
    pub async fn ended(self) -> Report {
        let ended = timeout(DEADLINE + Duration::from_secs(10), self.task).await;
        ended.expect("the worker did not end").unwrap().unwrap()
    }

    /// Tells it to stop, and waits for its end.
    pub async fn stop(self) -> Report {
        self.shut_down();
        self.ended().await
    }

    /// Ends it as a crash would: nothing is told to anybody.
    pub async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}
