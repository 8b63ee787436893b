//! Makes the runs of schedules when they are due.
//!
//! The loop sleeps until the next run by the database's clock, and is woken by a declaration. Every process may do so:
//! the store makes each run once. While there is no schedule, nothing is asked.

use std::{sync::Arc, time::Duration};

use relais_core::{
    FiredSchedules, NewTask, Priority, Publisher, Role, RunOutcome, Schedule, ScheduleValidator, StoreError, Timestamp,
    run_id,
};
use relais_protocol::{HumanDuration, consumer::SubmitRequest};
use tokio::time::Instant;

use crate::{Access, Engine, EngineError, Problem, error::chain, registry::Snapshot, submit::new_task, submit::terms};

/// The wait where another process has locked the due runs.
const IN_OTHER_HANDS: Duration = Duration::from_millis(20);

/// How long to wait before a store that did not answer is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// The most schedules whose runs are made in one transaction.
const BATCH: usize = 100;

/// Makes runs until the engine stops.
pub(crate) async fn run(engine: Engine) {
    let (mut changes, stopping) = (engine.0.registry.changes(), &engine.0.stopping);
    let mut failing_since: Option<Instant> = None;
    loop {
        changes.mark_unchanged();
        // Nothing can be validated before the declaration was read.
        let wait = match engine.snapshot() {
            Err(_) => None,
            Ok(_) => {
                let fired = tokio::select! {
                    fired = engine.fire_schedules() => fired,
                    // A run is one transaction: what is not done stays to be done.
                    () = stopping.cancelled() => return,
                };
                match fired {
                    Ok(wait) => {
                        if let Some(since) = failing_since.take() {
                            tracing::info!(
                                service = "schedule",
                                seconds = since.elapsed().as_secs_f64(),
                                "works again"
                            );
                        }
                        // The database's clock may go otherwise than ours.
                        wait.map(|wait| wait.min(engine.0.options.sweep))
                    }
                    Err(error) => {
                        if failing_since.is_none() {
                            failing_since = Some(Instant::now());
                            let error = chain(&error);
                            tracing::warn!(service = "schedule", %error, "does not work; tried again until it does");
                        }
                        Some(RETRY)
                    }
                }
            }
        };
        let sleep = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep => {}
            _ = changes.changed() => {}
            () = stopping.cancelled() => return,
        }
    }
}

impl Engine {
    /// Makes the due runs, and returns how long it is until the next one.
    pub(crate) async fn fire_schedules(&self) -> Result<Option<Duration>, EngineError> {
        loop {
            match self.0.store.next_schedule_run().await? {
                Some(wait) if wait.is_zero() => {}
                other => return Ok(other),
            }
            let validator = SnapshotScheduleValidator { engine: self.clone(), snapshot: self.snapshot()? };
            let fired = self.0.store.fire_schedules(BATCH, Arc::new(validator)).await?;
            if fired.stale {
                self.refresh().await?;
            } else if fired.schedules.is_empty() {
                return Ok(Some(IN_OTHER_HANDS));
            }
            account(&fired);
        }
    }

    /// The task of a run, validated like any submission, without its capacity.
    pub(crate) fn run_of(
        &self,
        snapshot: &Snapshot,
        schedule: &Schedule,
        due: Timestamp,
    ) -> Result<(Access, NewTask), EngineError> {
        let declared = &snapshot.declared;
        let service = declared.services.get(&schedule.service).ok_or(EngineError::ServiceNotFound)?;
        let client = declared.clients.get(&schedule.client).ok_or(EngineError::ClientNotFound)?;
        if !declared.roles(client.key, service.key).has(Role::Consume) {
            return Err(EngineError::Conflict(format!(
                "client {} has no role consume on service {}",
                schedule.client, schedule.service
            )));
        }
        let access = Access { client: Arc::clone(client), service: Arc::clone(service) };
        let request = submission(schedule, Some(due))?;
        let task = new_task(snapshot, &self.0.options.callback_senders, &access, request)?;
        // Publishers are woken at once.
        let dispatch = self.dispatch_of(&access.service).map(|ours| Publisher { held: Duration::ZERO, ..ours });
        Ok((access, NewTask { dispatch, ..task }))
    }
}

/// The task of a run, as a consumer would submit it.
pub(crate) fn submission(schedule: &Schedule, due: Option<Timestamp>) -> Result<SubmitRequest, EngineError> {
    let callback = schedule.callback.as_ref().map(|callback| serde_json::from_str(callback.get())).transpose();
    let corrupt = |error: serde_json::Error| EngineError::from(StoreError::Failed(error.into()));
    Ok(SubmitRequest {
        callback: callback.map_err(corrupt)?,
        correlation_id: schedule.correlation_id.clone().or_else(|| Some(run_id(&schedule.name, due?))),
        priority: schedule.terms.priority.map(Priority::level),
        retry: schedule.terms.retry.as_ref().map(terms::declared),
        timeout: schedule.terms.timeout.map(HumanDuration),
        expires_after: schedule.terms.expires.map(HumanDuration),
        ..SubmitRequest::new(schedule.body.as_raw().to_owned())
    })
}

/// Validates runs against one version of the declaration.
struct SnapshotScheduleValidator {
    engine: Engine,
    snapshot: Arc<Snapshot>,
}

impl ScheduleValidator for SnapshotScheduleValidator {
    fn version(&self) -> i64 {
        self.snapshot.declared.version
    }

    fn judge(&self, schedule: &Schedule, due: Timestamp) -> Result<NewTask, String> {
        self.engine.run_of(&self.snapshot, schedule, due).map(|(_, task)| task).map_err(|error| explained(&error))
    }
}

/// An error with all that it says, in one line.
pub(crate) fn explained(error: &EngineError) -> String {
    let (EngineError::SchemaMismatch(problems) | EngineError::Invalid(problems)) = error else { return chain(error) };
    let said = |problem: &Problem| format!("{} {}", problem.path, problem.message).trim_start().to_owned();
    format!("{error}: {}", problems.iter().map(said).collect::<Vec<_>>().join("; "))
}

/// Counts and logs the outcomes of runs.
fn account(fired: &FiredSchedules) {
    for schedule in &fired.schedules {
        let name = &schedule.name;
        let count = |outcome: &'static str, number: u64| {
            metrics::counter!("relais_schedule_runs_total", "schedule" => name.to_string(), "outcome" => outcome)
                .increment(number);
        };
        if schedule.missed > 0 {
            count("missed", schedule.missed);
            tracing::warn!(schedule = %name, runs = schedule.missed, "runs were missed and are not made up for");
        }
        for (due, outcome) in &schedule.runs {
            match outcome {
                RunOutcome::Submitted(task_id) => {
                    count("submitted", 1);
                    metrics::counter!("relais_tasks_submitted_total", "service" => schedule.service.to_string())
                        .increment(1);
                    metrics::histogram!("relais_schedule_lateness_seconds")
                        .record(schedule.at.since(*due).as_secs_f64());
                    tracing::debug!(schedule = %name, %due, %task_id, "a scheduled task was submitted");
                }
                RunOutcome::Skipped => {
                    count("skipped", 1);
                    tracing::info!(schedule = %name, %due, "a run was left out: the task of the run before is unfinished");
                }
                RunOutcome::Refused(error) => {
                    count("refused", 1);
                    tracing::warn!(schedule = %name, %due, error, "a run was refused");
                }
            }
        }
    }
}
