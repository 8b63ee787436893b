//! Reports the start and the progress of long tasks, and stops those that were cancelled or taken away.

use std::{sync::Arc, time::Duration};

use relais_core::{Event, Ignored, Outcome, TaskEvent, TaskId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{life::InstanceLife, running::Running};
use crate::Engine;

/// A task that runs for longer than this reports its start. Shorter ones only report their end.
const SHORT: Duration = Duration::from_millis(50);

/// How often it checks whether the tasks are still ours.
const ASK: Duration = Duration::from_secs(1);

/// The most tasks of one call.
const BATCH: usize = 500;

/// Reports until the instance stops, and then for as long as its tasks run.
pub(super) async fn run(engine: Engine, life: Arc<InstanceLife>, running: Arc<Running>, stop: CancellationToken) {
    let mut asked = Instant::now();
    loop {
        if running.lock().is_empty() {
            tokio::select! {
                () = running.bell.notified() => {}
                () = stop.cancelled() => return,
            }
        }
        tokio::time::sleep(SHORT).await;
        let ask = asked.elapsed() >= ASK;
        if ask {
            asked = Instant::now();
        }
        let events = news(&running, ask);
        for batch in events.chunks(BATCH) {
            tell(&engine, &life, &running, batch).await;
        }
    }
}

/// The reports that are due.
fn news(running: &Running, ask: bool) -> Vec<TaskEvent> {
    let now = Instant::now();
    let mut events = Vec::new();
    for (task_id, run) in running.lock().iter_mut() {
        let attempt = run.attempt;
        let event = match run.progress.take() {
            Some(progress) => Event::Progressed { attempt: Some(attempt), progress, lease: None },
            None if !run.begun && now.duration_since(run.since) < SHORT => continue,
            None if run.begun && !ask => continue,
            None => Event::Kept { attempt },
        };
        events.push(TaskEvent { task_id: *task_id, service: run.service, client: None, event });
    }
    events
}

/// Sends the reports, and stops tasks that were taken away.
async fn tell(engine: &Engine, life: &InstanceLife, running: &Running, events: &[TaskEvent]) {
    let Ok(outcomes) = engine.0.store.record_events(events.to_vec()).await else {
        let mut runs = running.lock();
        for event in events {
            if let (Event::Progressed { progress, .. }, Some(run)) = (&event.event, runs.get_mut(&event.task_id)) {
                run.progress.get_or_insert(*progress);
            }
        }
        return;
    };
    let mut runs = running.lock();
    for (event, outcome) in events.iter().zip(outcomes) {
        let task_id: TaskId = event.task_id;
        let Some(run) = runs.get_mut(&task_id).filter(|run| Some(run.attempt) == event.event.attempt()) else {
            continue;
        };
        match outcome {
            Outcome::Applied(_) => run.begun = true,
            // It is told to stop, and fails when it has.
            Outcome::Ignored(Ignored::Overdue) => {
                run.overdue = true;
                run.cancel.cancel();
            }
            Outcome::Ignored(_) | Outcome::NotFound => {
                run.cancel.cancel();
                runs.remove(&task_id);
                life.counters.lost.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
}
