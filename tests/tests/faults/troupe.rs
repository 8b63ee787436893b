//! The participants of a round, each with its own random numbers, and what they do when.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use relais_core::Timestamp;
use relais_testkit::TestVhost;
use relais_tests::chaos::{Random, Verdict};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    PATIENCE,
    broker::{self, BrokerWorker},
    consumer::Consumer,
    inbox::Depositor,
    instances::FaultyInstance,
    judge::{self, runs},
    ledger::Ledger,
    operator::{Caretaker, Operator, Watcher},
    stage::{Cast, Play, Stage, until_answered},
    worker::{Voice, Worker},
    world::{self, SERVICES},
};

/// How many tasks each consumer wants done, and each program puts into the stored submissions.
const TASKS: usize = 14;
const OWN_TASKS: usize = 8;

/// What is left of a round, for whoever wants to look.
pub struct Left {
    pub stage: Stage,
    pub ledger: Arc<Ledger>,
}

/// One seed: a storm, then places, then calm, then the verdict.
pub async fn round(play: Play, seed: u64) -> Result<(Verdict, Left)> {
    let ledger = Arc::new(Ledger::default());
    let vhost = if play.cast == Cast::Brokered { Some(TestVhost::create().await?) } else { None };
    let stage = Stage::set_up(play, seed, &ledger, vhost.as_ref().map(TestVhost::url)).await?;
    let (calm, is_calm) = watch::channel(false);
    let mut troupe = Troupe { ledger: Arc::clone(&ledger), chances: seed, is_calm };

    let stop = CancellationToken::new();
    let mut workers = troupe.workers(&stage, vhost.as_ref(), &stop)?;
    troupe.caretakers(&stage, &stop, &mut workers);
    let chances = troupe.random();
    let forgetting = async {
        if let Some(vhost) = &vhost {
            broker::forget(vhost, SERVICES[0], chances, stop.clone()).await;
        }
    };
    let tasks = if play.cast == Cast::InProcess { OWN_TASKS } else { TASKS };
    let mut consumers = troupe.consumers(&stage, world::services(play.cast), tasks)?;
    troupe.depositors(&stage, &mut consumers)?;
    let consuming = async {
        while let Some(done) = consumers.join_next().await {
            done??;
        }
        // If not everything had its chance to fail, whoever counts the calls will say so.
        judge::until(PATIENCE, async || Ok(world::verbs(play.cast).all(|verb| stage.calls().contains_key(verb))))
            .await?;
        stop.cancel();
        anyhow::Ok(())
    };
    let ((), consumed) = tokio::join!(forgetting, consuming);
    consumed?;
    stage.switch(false);
    workers.join_all().await;
    let faults = stage.calls().values().map(|count| count.faults()).sum();

    if play.cast == Cast::InProcess {
        let now = stage.underneath.ping().await?;
        finish_schedules(&stage, now).await?;
    } else {
        look_at_places(&stage, &mut troupe).await?;
    }

    calm.send_replace(true);
    let stop = CancellationToken::new();
    let mut workers = troupe.workers(&stage, vhost.as_ref(), &stop)?;
    troupe.caretakers(&stage, &stop, &mut workers);
    judge::arrived(&*stage.underneath, &ledger, PATIENCE).await?;
    judge::drained(&*stage.underneath, PATIENCE).await?;
    judge::told(&*stage.underneath, PATIENCE).await?;
    judge::dispatched(&*stage.underneath, PATIENCE).await?;
    stop.cancel();
    workers.join_all().await;
    judge::alone(&*stage.underneath, PATIENCE).await?;
    let verdict = judge::judge(&*stage.underneath, play.cast, &ledger, faults).await?;
    Ok((verdict, Left { stage, ledger }))
}

/// Lets schedules go on without faults until they have caught up, and then no more.
async fn finish_schedules(stage: &Stage, now: Timestamp) -> Result<()> {
    runs::until_past(&*stage.underneath, now, PATIENCE).await?;
    for schedule in [world::EVERY, world::ONE_AT_A_TIME] {
        until_answered(|| stage.engines[0].pause_schedule(schedule, true)).await.context("pause a schedule")?;
    }
    Ok(())
}

/// Some more tasks, so that there are places to be looked at; where there is room, since nobody works.
async fn look_at_places(stage: &Stage, troupe: &mut Troupe) -> Result<()> {
    let mut consumers = troupe.consumers(stage, &SERVICES[..1], 4)?;
    while let Some(done) = consumers.join_next().await {
        done??;
    }
    let mut waiting = 0;
    for service in SERVICES {
        waiting += judge::places(&*stage.underneath, service, PATIENCE).await?;
    }
    ensure!(waiting > 0, "there were no places to be looked at");
    Ok(())
}

struct Troupe {
    ledger: Arc<Ledger>,
    chances: u64,
    is_calm: watch::Receiver<bool>,
}

impl Troupe {
    fn random(&mut self) -> Random {
        self.chances = self.chances.wrapping_add(1 << 32);
        Random::from_seed(self.chances)
    }

    /// Chances, and a name that nobody else has.
    fn member(&mut self, role: &str) -> (Random, String, Arc<Ledger>) {
        let random = self.random();
        (random, format!("{role}{:x}", self.chances >> 32), Arc::clone(&self.ledger))
    }

    /// Two on each of these services, of each process, for two clients.
    fn consumers(&mut self, stage: &Stage, services: &[&str], tasks: usize) -> Result<JoinSet<Result<()>>> {
        let mut consumers = JoinSet::new();
        for client in ["alice", "bob"] {
            for engine in &stage.engines {
                for service in services {
                    let (random, name, ledger) = self.member("consumer");
                    let (engine, access) = (engine.clone(), stage.consumer(engine, client, service)?);
                    let demanding = stage.play.cast == Cast::InProcess;
                    consumers.spawn(Consumer { engine, access, name, ledger, random, demanding }.run(tasks));
                }
            }
        }
        Ok(consumers)
    }

    /// One for each process, where there is an inbox to be looked at.
    fn depositors(&mut self, stage: &Stage, consumers: &mut JoinSet<Result<()>>) -> Result<()> {
        if stage.play.cast != Cast::InProcess {
            return Ok(());
        }
        for (engine, service) in stage.engines.iter().zip(world::OWN_SERVICES) {
            let (random, name, ledger) = self.member("depositor");
            let access = stage.consumer(engine, "alice", service)?;
            let (engine, url) = (engine.clone(), stage.url.clone());
            consumers.spawn(Depositor { engine, access, url, name, ledger, random }.run(OWN_TASKS));
        }
        Ok(())
    }

    /// Two on each service of each process, or of the broker; or two processes on each database, and a worker for each
    /// service.
    fn workers(&mut self, stage: &Stage, vhost: Option<&TestVhost>, stop: &CancellationToken) -> Result<JoinSet<()>> {
        let mut workers = JoinSet::new();
        for engine in stage.engines.iter().chain(&stage.engines) {
            if stage.play.cast == Cast::InProcess {
                let (random, name, ledger) = self.member("hands");
                let (engine, calm) = (engine.clone(), self.is_calm.clone());
                workers.spawn(FaultyInstance { engine, name, ledger, random, calm }.run(stop.clone()));
                continue;
            }
            for service in SERVICES {
                match vhost {
                    None => self.worker(stage, engine, service, stop, &mut workers)?,
                    Some(vhost) => {
                        let (random, name, ledger) = self.member("worker");
                        let (url, queue, calm) = (vhost.url().to_owned(), service.to_owned(), self.is_calm.clone());
                        let underneath = Arc::clone(&stage.underneath);
                        let worker = BrokerWorker { url, queue, name, ledger, underneath, random, calm };
                        workers.spawn(worker.run(stop.clone()));
                    }
                }
            }
        }
        if stage.play.cast == Cast::InProcess {
            for service in world::OWN_SERVICES {
                self.worker(stage, &stage.engines[0], service, stop, &mut workers)?;
            }
        }
        Ok(workers)
    }

    fn worker(
        &mut self,
        stage: &Stage,
        engine: &relais_engine::Engine,
        service: &str,
        stop: &CancellationToken,
        workers: &mut JoinSet<()>,
    ) -> Result<()> {
        let (random, name, ledger) = self.member("worker");
        let voice = Voice {
            engine: engine.clone(),
            access: stage.worker(engine, service)?,
            name,
            ledger,
            underneath: Arc::clone(&stage.underneath),
        };
        workers.spawn(Worker { voice, random, calm: self.is_calm.clone() }.run(stop.clone()));
        Ok(())
    }

    /// An operator, and whoever goes round, of each process; and whoever watches.
    fn caretakers(&mut self, stage: &Stage, stop: &CancellationToken, workers: &mut JoinSet<()>) {
        for (engine, faulty) in stage.engines.iter().zip(&stage.faulty) {
            let (cast, calm) = (stage.play.cast, self.is_calm.clone());
            if cast != Cast::Remote || *calm.borrow() {
                let (random, _, ledger) = self.member("operator");
                workers.spawn(Operator { cast, engine: engine.clone(), ledger, random, calm }.run(stop.clone()));
            }
            if cast == Cast::InProcess {
                let (random, _, ledger) = self.member("caretaker");
                let store = Arc::clone(faulty) as _;
                workers.spawn(Caretaker { store, ledger, random }.run(stop.clone()));
            }
        }
        if stage.play.cast == Cast::InProcess {
            let (store, ledger) = (Arc::clone(&stage.underneath), Arc::clone(&self.ledger));
            workers.spawn(Watcher { store, ledger }.run(stop.clone()));
        }
    }
}
