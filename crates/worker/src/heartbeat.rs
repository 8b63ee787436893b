//! Keeps the leases of running tasks, and learns which tasks to stop.
//!
//! Where there are leases, heartbeats extend them, and their answers say which tasks to stop. Where a connection keeps
//! the tasks, its loss says it, or a revocation of the server. A worker that cannot reach the server goes on: its
//! result may still be in time, and if not, fencing by the attempt's number ignores it.

use std::{sync::Arc, time::Duration};

use relais_protocol::worker::{MAX_MESSAGES, OutcomeKind, TaskOutcome};

use crate::{
    CallError,
    backoff::{Backoff, Call},
    run::Shared,
    slots::TaskKey,
    transport::Keeping,
};

/// Runs until it is dropped.
pub(crate) async fn run(shared: Arc<Shared>) {
    match shared.transport.keeping() {
        Keeping::Lease(period) => keep_leases(&shared, period).await,
        Keeping::Connection => loop {
            for (key, outcome) in shared.transport.revoked().await {
                withdraw(&shared, &key, outcome);
                shared.report_queue.forget(&key);
            }
        },
    }
}

async fn keep_leases(shared: &Shared, period: Duration) {
    let mut backoff = Backoff::default();
    let mut wait = period;
    loop {
        tokio::time::sleep(wait).await;
        wait = match renew(shared).await {
            Ok(()) => {
                shared.outage.worked(Call::Heartbeat);
                backoff.reset();
                period
            }
            // Sooner than the next regular one, before the lease expires.
            Err(error) => {
                shared.outage.failed(Call::Heartbeat, &error);
                backoff.next().min(period)
            }
        };
    }
}

async fn renew(shared: &Shared) -> Result<(), CallError> {
    for keys in shared.slots.alive().chunks(MAX_MESSAGES) {
        let outcomes = shared.transport.renew(keys).await?;
        heed(shared, keys, &outcomes);
    }
    Ok(())
}

/// Stops the tasks that the server no longer wants from this worker.
pub(crate) fn heed<'a>(shared: &Shared, keys: impl IntoIterator<Item = &'a TaskKey>, outcomes: &[TaskOutcome]) {
    for (key, outcome) in keys.into_iter().zip(outcomes) {
        match outcome.outcome {
            OutcomeKind::Cancelled | OutcomeKind::Ended | OutcomeKind::Lost | OutcomeKind::NotFound => {
                withdraw(shared, key, outcome.outcome);
            }
            OutcomeKind::Accepted | OutcomeKind::Unchanged | OutcomeKind::Rejected => {}
        }
    }
}

fn withdraw(shared: &Shared, key: &TaskKey, outcome: OutcomeKind) {
    if shared.slots.is_running(key) {
        tracing::info!(task_id = %key.task_id, ?outcome, "told to stop working on the task");
    }
    shared.slots.gone(key);
}
