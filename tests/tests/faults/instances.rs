//! Instances: they register, deregister, die silently, and register again under the same name or another.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use relais_core::{CrashPolicy, TaskId};
use relais_engine::{Context, Engine, EngineError, HandlerError, Handlers, InstanceOptions};
use relais_tests::chaos::Random;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    PAUSE,
    ledger::Ledger,
    world::{OWN_SERVICES, PERMANENT_KIND},
};

/// A failure with this word asks for its next attempt after so long.
pub const LATER: &str = "later";
pub const LATER_BY: Duration = Duration::from_millis(700);

/// A failure with one of these words is the end.
pub const PERMANENT: [&str; 2] = ["permanent", PERMANENT_KIND];

/// A process that does tasks.
pub struct FaultyInstance {
    pub engine: Engine,
    pub name: String,
    pub ledger: Arc<Ledger>,
    pub random: Random,
    /// Whether it does nothing but its work.
    pub calm: watch::Receiver<bool>,
}

/// Of so many lives, one ends without a word.
const DEATHS: usize = 3;

impl FaultyInstance {
    /// Lives one life after the other until it is stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut lives = 0;
        while !stop.is_cancelled() {
            let handlers = self.handlers();
            match self.engine.work(handlers).await {
                Ok(instance) => {
                    let calm = *self.calm.borrow();
                    let life = Duration::from_millis(self.random.between(100, 1500) as u64);
                    tokio::select! {
                        () = tokio::time::sleep(life), if !calm => {}
                        () = stop.cancelled() => {}
                    }
                    lives += 1;
                    if calm || lives % DEATHS > 0 {
                        instance.stop().await;
                    }
                }
                // Somebody has to decide first what becomes of its tasks.
                Err(EngineError::Store(_) | EngineError::Conflict(_)) => tokio::time::sleep(PAUSE).await,
                Err(error) => {
                    self.ledger.wrong(format!("{} could not begin: {error}", self.name));
                    return;
                }
            }
        }
    }

    fn handlers(&mut self) -> Handlers {
        let crash_policy = match self.random.between(0, 6) {
            0 => CrashPolicy::Fail,
            1 => CrashPolicy::Refuse,
            _ => CrashPolicy::Restart,
        };
        let options = InstanceOptions {
            name: Some(self.name.clone()).filter(|_| !self.random.once_in(4)),
            crash_policy,
            silence: Duration::from_secs(1),
            grace: Duration::from_millis(300),
            stop_limit: Duration::from_millis(100),
            once: self.random.once_in(8) && !*self.calm.borrow(),
        };
        let work = Arc::new(Work {
            name: self.name.clone(),
            ledger: Arc::clone(&self.ledger),
            random: Mutex::new(Random::from_seed(self.random.between(0, usize::MAX) as u64)),
            calm: self.calm.clone(),
        });
        OWN_SERVICES.iter().fold(Handlers::new().options(options), |handlers, service| {
            let work = Arc::clone(&work);
            handlers.on_up_to(4, *service, move |_: Value, context| Arc::clone(&work).run(context))
        })
    }
}

/// What its handlers do.
struct Work {
    name: String,
    ledger: Arc<Ledger>,
    random: Mutex<Random>,
    calm: watch::Receiver<bool>,
}

impl Work {
    async fn run(self: Arc<Self>, context: Context) -> Result<Value, HandlerError> {
        let (Some(task_id), Some(attempt)) = (TaskId::parse(context.task_id()), context.attempt()) else {
            self.ledger.wrong(format!("a handler was given {context:?}"));
            return Err(HandlerError::permanent("a task without a name"));
        };
        self.ledger.claimed(task_id, attempt);
        let (what, how_long) = {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            (random.between(0, 14), random.between(10, 300) as u64)
        };
        let says = |how: &str| {
            let result = format!("{}/{attempt}/{how}", self.name);
            self.ledger.sent(task_id, &result);
            result
        };
        if *self.calm.borrow() {
            return Ok(json!({"result": says("calm")}));
        }
        match what {
            0 => return Err(HandlerError::permanent(says(PERMANENT[0]))),
            1 => return Err(HandlerError::new(says(PERMANENT_KIND)).kind(PERMANENT_KIND)),
            2 => return Err(HandlerError::new(says(LATER)).retry_after(LATER_BY)),
            3 => return Err(HandlerError::new(says("plain"))),
            4 => return Err(HandlerError::again("not now")),
            // It hears whether it is to stop.
            5 | 6 => {
                context.progress(50.0);
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(how_long)) => {}
                    () = context.cancelled() => return Err(HandlerError::new(says("stopped"))),
                }
            }
            // It does not.
            7 => tokio::time::sleep(Duration::from_millis(how_long * 4)).await,
            _ => {}
        }
        Ok(json!({"result": says("good")}))
    }
}
