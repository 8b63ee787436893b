//! The reasons why a task is still waiting.

use std::time::Duration;

use relais_core::{Condition, Status, TaskBrokerState, TaskId, Timestamp};

use crate::{Engine, EngineError};

/// A worker that was not heard of for so long is not there.
const LATELY: Duration = Duration::from_secs(60);

/// A reason for which a task waits.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitReason {
    /// It is delayed until this time.
    Scheduled(Timestamp),
    /// It failed, and is retried at this time.
    Retry {
        /// When.
        at: Timestamp,
        /// How many attempts have failed.
        failures: u32,
    },
    /// Its dependencies have to end first.
    Others {
        /// How many have not ended.
        left: u64,
        /// The condition.
        when: Condition,
    },
    /// Its service is paused.
    Paused,
    /// Its service is at its limit of running tasks.
    ServiceBusy {
        /// How many run.
        running: u64,
        /// How many may run.
        most: u32,
    },
    /// Its client is at its limit of running tasks.
    ClientBusy {
        /// How many run.
        running: u64,
        /// How many may run.
        most: u32,
    },
    /// The rate limit delays it.
    Rate {
        /// How many starts.
        count: u32,
        /// The period.
        per: Duration,
    },
    /// The broker is away, or takes nothing.
    Broker(String),
    /// No worker of its service has been heard of lately.
    NoWorker,
    /// Other tasks are before it.
    Behind {
        /// Its position.
        position: u64,
    },
    /// It is next.
    Next,
}

impl Engine {
    /// Why a task is waiting, what matters most first; nothing if it does not wait.
    pub async fn why_waiting(&self, task_id: TaskId) -> Result<Vec<WaitReason>, EngineError> {
        let task = self.0.store.find_task(task_id).await?.ok_or(EngineError::TaskNotFound)?;
        let mut reasons = Vec::new();
        if task.state.status == Status::Waiting {
            let left = task.links.after.iter().filter(|other| other.ended.is_none()).count() as u64;
            if let Some(when) = task.links.when.filter(|_| left > 0) {
                reasons.push(WaitReason::Others { left, when });
            }
            if let Some(due) = task.state.due {
                reasons.push(match task.state.failures {
                    0 => WaitReason::Scheduled(due),
                    failures => WaitReason::Retry { at: due, failures },
                });
            }
            return Ok(reasons);
        }
        if task.state.status != Status::Pending {
            return Ok(reasons);
        }
        let snapshot = self.snapshot()?;
        let Some(service) = snapshot.declared.services.get(&task.service) else { return Ok(reasons) };
        if service.paused {
            reasons.push(WaitReason::Paused);
        }
        if service.transport.is_brokered() {
            match self.0.options.dispatch.task_broker.as_ref().map(|task_broker| task_broker.state()) {
                Some(TaskBrokerState::Away(why) | TaskBrokerState::Blocked(why)) => {
                    reasons.push(WaitReason::Broker(why))
                }
                None => reasons.push(WaitReason::Broker(String::new())),
                Some(TaskBrokerState::Up) => {}
            }
        }
        let shares = self.0.store.queue_shares(service.key).await?;
        let flow = service.limits.flow;
        let running: u64 = shares.iter().map(|share| share.in_progress).sum();
        let most = flow.max_running.into_iter().chain(flow.dispatch_window).min();
        if let Some(most) = most.filter(|most| running >= u64::from(*most)) {
            reasons.push(WaitReason::ServiceBusy { running, most });
        }
        let client = snapshot.declared.clients.get(&task.client_id);
        let own = client.and_then(|client| snapshot.declared.authorizations.get(&(client.key, service.key)));
        let most = own.and_then(|own| own.flow.max_running).or(flow.max_running_per_client);
        let share = client.and_then(|client| shares.iter().find(|share| share.client == client.key));
        if let (Some(most), Some(share)) = (most, share)
            && share.in_progress >= u64::from(most)
        {
            reasons.push(WaitReason::ClientBusy { running: share.in_progress, most });
        }
        if running == 0 && !service.paused && !self.heard_of_worker(service.key, LATELY).await? {
            reasons.push(WaitReason::NoWorker);
        }
        if let Some(rate) = flow.rate.filter(|_| reasons.is_empty()) {
            reasons.push(WaitReason::Rate { count: rate.count, per: rate.per });
        }
        match task.position {
            Some(position) if position > 1 => reasons.push(WaitReason::Behind { position }),
            Some(_) => reasons.push(WaitReason::Next),
            None => {}
        }
        Ok(reasons)
    }
}
