//! Tasks in tests: the test runs them, and the test moves the clock.

use std::{sync::Arc, time::Duration};

use relais_core::{
    ClaimRequest, CrashPolicy, InstanceKey, NewInstance, Registration, Service, Status, TaskFilter, TaskId,
};
use relais_handler::{Return, Verdict};
use serde_json::Value;

use super::Tasks;
use crate::{
    EngineError,
    local::{self, Registered},
};

/// How many tasks are leased at once.
const BATCH: usize = 100;

/// The most tasks that are listed.
const MOST: usize = 1000;

/// A task that a test ran.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Its id.
    pub task_id: TaskId,
    /// Its service.
    pub service: String,
    /// Its attempt.
    pub attempt: u32,
    /// Its result, or why it failed.
    pub outcome: Result<Value, String>,
}

/// A task that waits.
#[derive(Debug, Clone)]
pub struct Enqueued {
    /// Its id.
    pub task_id: TaskId,
    /// Its body.
    pub body: Value,
    /// How many attempts it has had.
    pub attempts: u32,
}

impl Tasks {
    /// Runs all that is due now, one after the other, until nothing is due: runs of schedules, transactional
    /// submissions, delayed tasks, retries and dependents. Returns what ran, in that order. For tests, see
    /// [`TasksBuilder::by_hand`](super::TasksBuilder::by_hand).
    pub async fn run_due(&self) -> Result<Vec<Ran>, EngineError> {
        let engine = self.engine();
        let services = local::services(engine, self.handlers())?;
        engine.0.store.reap_instances().await?;
        let joined = engine.0.store.register_instance(NewInstance {
            name: format!("by hand {}", TaskId::generate()),
            host: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            policy: CrashPolicy::Restart,
            silence: Duration::from_secs(3600),
            services: services.iter().map(|(service, _)| service.key).collect(),
        });
        let Registration::In { key, .. } = joined.await? else { return Ok(Vec::new()) };
        let ran = self.run_due_as(key, &services).await;
        // After an error too: its leased tasks would be unavailable until it has been silent for an hour.
        let left = engine.0.store.deregister_instance(key).await;
        let ran = ran?;
        left?;
        Ok(ran)
    }

    /// Runs all that is due, by a registered instance.
    async fn run_due_as(
        &self,
        key: InstanceKey,
        services: &[(Arc<Service>, Registered)],
    ) -> Result<Vec<Ran>, EngineError> {
        let engine = self.engine();
        let mut ran = Vec::new();
        // Schedules look at running tasks.
        self.fire_due().await?;
        loop {
            engine.fire_schedules().await?;
            engine.take_in().await?;
            self.fire_due().await?;
            let mut moved = false;
            for (service, registered) in services {
                let runner = local::by_hand(engine, Arc::clone(service), registered.clone(), self.handlers());
                let claim = ClaimRequest {
                    service: service.key,
                    max: BATCH,
                    lease: None,
                    worker_host: Some("by hand".to_owned()),
                    instance: Some(key),
                };
                for task in engine.0.store.claim_tasks(vec![claim]).await?.tasks.into_iter().flatten() {
                    let (task_id, attempt) = (task.task_id, task.state.attempt);
                    let returned = runner.run_by_hand(task).await?;
                    moved |= matches!(returned, Return::Ended(_));
                    let outcome = match returned {
                        Return::Again(why) => Err(why),
                        Return::Ended(Verdict::Success(result)) => Ok(value(result.get())),
                        Return::Ended(Verdict::Failure(failure)) => Err(failure.message),
                    };
                    ran.push(Ran { task_id, service: service.name.to_string(), attempt, outcome });
                }
            }
            // A task that asked for another time gets it at the next call.
            if !moved {
                return Ok(ran);
            }
        }
    }

    /// Fires timers and resolves dependencies, until there is nothing left to do.
    async fn fire_due(&self) -> Result<(), EngineError> {
        let store = &self.engine().0.store;
        loop {
            while store.resolve_dependencies(BATCH).await?.more {}
            // Tasks may depend on those that a timer ended.
            if store.fire_timers(BATCH).await?.changed == 0 {
                return Ok(());
            }
        }
    }

    /// Moves the clock forward at once: everything within that time is due afterwards. For tests.
    ///
    /// # Errors
    ///
    /// If the program does not run [by hand](super::TasksBuilder::by_hand), because every time in its database would
    /// change.
    pub async fn advance(&self, by: Duration) -> Result<(), EngineError> {
        if !self.0.by_hand {
            return Err(EngineError::Conflict("time is moved only where tasks are done by hand".to_owned()));
        }
        Ok(self.engine().0.store.advance(by).await?)
    }

    /// The pending tasks of a service, the oldest first. For tests: it reads each of them.
    pub async fn enqueued(&self, service: &str) -> Result<Vec<Enqueued>, EngineError> {
        self.engine().take_in().await?;
        let access = self.access(service)?;
        let store = &self.engine().0.store;
        let page = store.list_tasks(TaskFilter {
            services: vec![access.service.key],
            client: Some(access.client.key),
            statuses: vec![Status::Pending, Status::Waiting],
            limit: MOST,
            ..TaskFilter::default()
        });
        let mut enqueued = Vec::new();
        for task in page.await?.tasks.into_iter().rev() {
            if let Some(task) = store.find_task(task.task_id).await? {
                let (task_id, attempts) = (task.task_id, task.state.attempt);
                enqueued.push(Enqueued { task_id, body: value(task.request.get()), attempts });
            }
        }
        Ok(enqueued)
    }

    /// Asserts that a pending task has at least these fields in its body, and returns the first one. For tests.
    ///
    /// # Panics
    ///
    /// If there is none. The message shows those that there are.
    pub async fn assert_enqueued(&self, service: &str, fields: Value) -> Enqueued {
        let enqueued = match self.enqueued(service).await {
            Ok(enqueued) => enqueued,
            Err(error) => panic!("the tasks of {service} can not be listed: {error}"),
        };
        let found = enqueued.iter().find(|task| includes(&task.body, &fields));
        match found {
            Some(task) => task.clone(),
            None => {
                let bodies: Vec<String> = enqueued.iter().map(|task| task.body.to_string()).collect();
                panic!("no task of {service} waits with {fields}; those that wait: [{}]", bodies.join(", "))
            }
        }
    }
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

/// Whether a value has all that is asked for.
fn includes(value: &Value, asked: &Value) -> bool {
    match (value, asked) {
        (Value::Object(value), Value::Object(asked)) => {
            asked.iter().all(|(key, asked)| value.get(key).is_some_and(|value| includes(value, asked)))
        }
        (value, asked) => value == asked,
    }
}
