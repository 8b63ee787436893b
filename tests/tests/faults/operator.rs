//! Operators, who use every operation; a caretaker, who constantly does what engines do periodically; and a watcher.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use relais_core::{BatchId, InstanceStatus, PurgeRule, ServiceKey, Status, Store, StoreError, TaskFilter, Timestamp};
use relais_engine::{Actor, Engine, EngineError};
use relais_protocol::{admin::LimitsChange, batch::BatchStatusName, instance::DecisionName};
use relais_tests::chaos::Random;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    PAUSE,
    ledger::Ledger,
    stage::Cast,
    world::{BY_HAND, FEW, FREE, MOST_OF_ONE, MOST_RUNNING, SERVICES},
};

/// Older than all that there is.
const AGES: Duration = Duration::from_secs(3600);

/// Between two acts.
async fn pause(random: &mut Random, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(random.between(20, 100) as u64)) => {}
        () = stop.cancelled() => {}
    }
}

/// Somebody who looks after things.
pub struct Operator {
    pub cast: Cast,
    pub engine: Engine,
    pub ledger: Arc<Ledger>,
    pub random: Random,
    /// Whether they do nothing but what has to be done.
    pub calm: watch::Receiver<bool>,
}

/// An operator does so many things.
const ACTS: usize = 7;

impl Operator {
    /// Acts until it is stopped, one thing after the other, each until it is answered.
    pub async fn run(mut self, stop: CancellationToken) {
        for turn in 0.. {
            let mut answered = false;
            while !answered && !stop.is_cancelled() {
                answered = match self.act(turn % ACTS).await {
                    Ok(()) => true,
                    Err(EngineError::Store(_)) => false,
                    Err(error) => {
                        self.ledger.wrong(format!("an operator was answered: {error}"));
                        true
                    }
                };
                pause(&mut self.random, &stop).await;
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }

    async fn act(&mut self, what: usize) -> Result<(), EngineError> {
        let operator = self.engine.operator(Actor::local("test"));
        if *self.calm.borrow() {
            return self.resume_all().await;
        }
        if self.cast == Cast::Brokered {
            return operator.redispatch(SERVICES[0]).await;
        }
        match what {
            0 => self.let_rest().await?,
            1 => self.sign_in_and_out().await?,
            2 => {
                let answer = operator.run_schedule(BY_HAND).await?;
                self.ledger.accepted(answer.submitted.task_id, BY_HAND);
            }
            3 => {
                operator.redeliver_failed(Timestamp::from_millis(0), None, None).await?;
            }
            4 => {
                let change = LimitsChange { max_running: Some(MOST_RUNNING as u32), ..LimitsChange::default() };
                operator.change_limits(FEW, change).await?;
            }
            // Many calls, which would seldom all be answered: once is enough.
            5 => drop(operator.purge(false).await),
            _ => self.resume_all().await?,
        }
        Ok(())
    }

    /// Resumes everything, resolves instances that died with leased tasks, and closes open batches.
    async fn resume_all(&mut self) -> Result<(), EngineError> {
        let operator = self.engine.operator(Actor::local("test"));
        if self.cast == Cast::InProcess {
            self.engine.pause_service(FREE, false).await?;
        }
        let mut undecided = self.engine.instances().await?.instances;
        undecided.retain(|instance| instance.status == InstanceStatus::Undecided.as_str());
        let undecided = undecided.into_iter().map(|instance| instance.name);
        for name in ["nobody".to_owned()].into_iter().chain(undecided) {
            let decision = if self.random.once_in(3) { DecisionName::Fail } else { DecisionName::Restart };
            match operator.resolve_instance(&name, decision).await {
                Ok(_) | Err(EngineError::Conflict(_) | EngineError::InstanceNotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let batches = self.engine.admin_batches(None, None, 1000).await?.batches;
        for view in batches.iter().map(|view| &view.batch).filter(|view| view.status == BatchStatusName::Open) {
            let batch_id = BatchId::parse(&view.batch_id).ok_or(EngineError::BatchNotFound)?;
            operator.close_batch(batch_id).await?;
        }
        Ok(())
    }

    /// Has a service rest for a moment; if nobody hears that it is to go on, until somebody does.
    async fn let_rest(&self) -> Result<(), EngineError> {
        self.engine.pause_service(FREE, true).await?;
        tokio::time::sleep(PAUSE).await;
        self.engine.pause_service(FREE, false).await.map(drop)
    }

    /// A session that is ended is not open.
    async fn sign_in_and_out(&mut self) -> Result<(), EngineError> {
        let (actor, id) = (Actor::local("test"), format!("session{}", self.random.between(0, usize::MAX)));
        self.engine.open_session(&actor, &id, AGES).await?;
        if !self.engine.session_is_open(&id).await? {
            self.ledger.wrong("a session that was opened is not open".to_owned());
        }
        self.engine.end_session(&actor, &id, false).await?;
        if self.engine.session_is_open(&id).await? {
            self.ledger.wrong("a session that was ended is open".to_owned());
        }
        Ok(())
    }
}

/// Somebody who watches how many tasks run where that is limited: what is committed, at one moment.
pub struct Watcher {
    pub store: Arc<dyn Store>,
    pub ledger: Arc<Ledger>,
}

impl Watcher {
    /// Watches until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            // Once is enough.
            if let Err(error) = self.look().await {
                return self.ledger.wrong(error.to_string());
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn look(&self) -> anyhow::Result<()> {
        let declared = self.store.declared().await?;
        let key = declared.services.get(FEW).map(|service| service.key).context("the service is declared")?;
        let (services, statuses) = (vec![key], vec![Status::InProgress]);
        let running =
            self.store.list_tasks(TaskFilter { services, statuses, limit: 100, ..TaskFilter::default() }).await?;
        let mut by_client: BTreeMap<&str, usize> = BTreeMap::new();
        for task in &running.tasks {
            *by_client.entry(task.client_id.as_str()).or_default() += 1;
        }
        let too_many = running.tasks.len() > MOST_RUNNING || by_client.values().any(|number| *number > MOST_OF_ONE);
        ensure!(!too_many, "too many run at once: {by_client:?}");
        Ok(())
    }
}

/// Somebody who does what is to be done now and then. Nothing that is there is old enough to go.
pub struct Caretaker {
    pub store: Arc<dyn Store>,
    pub ledger: Arc<Ledger>,
    pub random: Random,
}

/// A caretaker does so many things.
const CHORES: usize = 11;

impl Caretaker {
    /// Goes round until it is stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        for turn in 0.. {
            if let Err(error) = self.do_chore(turn % CHORES).await
                && !matches!(error, StoreError::Unavailable(_))
            {
                self.ledger.wrong(format!("a caretaker was answered: {error}"));
            }
            pause(&mut self.random, &stop).await;
            if stop.is_cancelled() {
                return;
            }
        }
    }

    async fn do_chore(&self, what: usize) -> Result<(), StoreError> {
        let store = &self.store;
        match what {
            0 => store.recheck_dependencies(0, 1000).await.map(drop),
            1 => store.purge_keys(AGES).await.map(drop),
            2 => store.purge_audit(AGES).await.map(drop),
            3 => store.lease_orphans(100).await.map(drop),
            4 => store.broadcast(vec!["nothing".to_owned()]).await,
            5 => store.publish_workers("caretaker".to_owned(), Some("[]".to_owned())).await,
            6 => store.expire_callbacks(1, AGES, 100).await.map(drop),
            7 => store.purge_batches(AGES, AGES, 100).await.map(drop),
            8 => store.reap_instances().await.map(drop),
            9 => store.take_turn("caretaker", Duration::from_millis(100)).await.map(drop),
            _ => {
                let (finished, any) = (AGES, AGES);
                let service = ServiceKey(1);
                let rule = PurgeRule { service, finished, any, dry_run: false, batch: 100, cursor: None };
                store.purge_tasks(rule).await.map(drop)
            }
        }
    }
}
