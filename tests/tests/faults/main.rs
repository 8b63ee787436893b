//! The whole engine on a store that fails on purpose: any call may be refused, done without an answer, or broken off.
//!
//! Each round has a seed of its own, a database of its own, consumers that repeat what was not answered, and workers that
//! die, are slow, give back and speak twice. Then the faults end, what is left is worked off, and the database is compared
//! with what everybody was told. Ends with `tasks N, faults N, lost N, doubled N, stuck N`, and fails unless the last
//! three are 0. `RELAIS_CHAOS_ROUNDS` makes it longer; a round that fails names the `RELAIS_SEED` that tries it again.

mod broker;
mod consumer;
mod judge;
mod ledger;
mod stage;
mod worker;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use relais_core::{Change, ClientId, Status, Store as _, StoreError};
use relais_testkit::{FaultPlan, Faulty, TestVhost};
use relais_tests::chaos::{Random, Verdict, rounds, seed};
use sqlx::{Connection, PgConnection};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use self::{
    broker::BrokerWorker,
    consumer::Consumer,
    ledger::Ledger,
    stage::{Backend, SERVICES, Stage},
    worker::{Voice, Worker},
};

/// Between two tries of something that did not work, and two looks at something that is waited for.
const PAUSE: Duration = Duration::from_millis(10);

/// How long anything may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(40);

/// How many tasks each consumer wants done.
const TASKS: usize = 14;

/// So many rounds at once: most of their time they wait for leases to run out.
const AT_ONCE: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_stuck_on_a_faulty_sqlite() -> Result<()> {
    run_rounds("faulty store, SQLite", Backend::Sqlite, 4).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_stuck_on_a_faulty_postgresql() -> Result<()> {
    run_rounds("faulty store, PostgreSQL", Backend::Postgres, 3).await
}

/// A row that is to be published may have to wait until nobody can have it in hand any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_stuck_on_a_faulty_store_with_a_broker() -> Result<()> {
    run_rounds("faulty store, PostgreSQL and RabbitMQ", Backend::Brokered, 1).await
}

#[expect(clippy::print_stdout, reason = "the result of a run, also when it is good")]
async fn run_rounds(name: &str, backend: Backend, usual: usize) -> Result<()> {
    let (first, rounds) = (seed(), rounds(usual) as u64);
    let mut verdicts = stream::iter(0..rounds)
        .map(async |number| {
            let seed = first.wrapping_add(number);
            let repeat = || format!("RELAIS_SEED={seed} RELAIS_CHAOS_ROUNDS=1 tries this round again");
            let (verdict, left) = Box::pin(round(backend, seed)).await.with_context(repeat)?;
            if !verdict.findings.is_empty() {
                verdict.report(&format!("round {seed}")).with_context(repeat)?;
                bail!("a verdict with findings is no good one");
            }
            Ok((verdict, left.stage.faults()))
        })
        .buffer_unordered(AT_ONCE);
    let (mut sum, mut by_verb) = (Verdict::default(), BTreeMap::<&str, u64>::new());
    while let Some((verdict, faults)) = verdicts.try_next().await? {
        sum.tasks += verdict.tasks;
        sum.faults += verdict.faults;
        for (verb, faults) in faults {
            *by_verb.entry(verb).or_default() += faults;
        }
    }
    println!("faults by verb: {by_verb:?}");
    sum.report(&format!("{name}, {rounds} rounds"))
}

/// What is left of a round, for whoever wants to look.
struct Left {
    stage: Stage,
    ledger: Arc<Ledger>,
}

/// One seed: a storm, then places, then calm, then the verdict.
async fn round(backend: Backend, seed: u64) -> Result<(Verdict, Left)> {
    let ledger = Arc::new(Ledger::default());
    let vhost = match backend {
        Backend::Brokered => Some(TestVhost::create().await?),
        Backend::Sqlite | Backend::Postgres => None,
    };
    let stage = Stage::set_up(backend, seed, &ledger, vhost.as_ref().map(TestVhost::url)).await?;
    let (calm, is_calm) = watch::channel(false);
    let mut troupe = Troupe { ledger: Arc::clone(&ledger), chances: seed, is_calm };

    stage.switch(true);
    let stop = CancellationToken::new();
    let workers = troupe.workers(&stage, vhost.as_ref(), &stop)?;
    let chances = troupe.random();
    let forgetting = async {
        if let Some(vhost) = &vhost {
            broker::forget(vhost, SERVICES[0], chances, stop.clone()).await;
        }
    };
    let mut consumers = troupe.consumers(&stage, &SERVICES, TASKS)?;
    let consuming = async {
        while let Some(done) = consumers.join_next().await {
            done??;
        }
        stop.cancel();
        anyhow::Ok(())
    };
    let ((), consumed) = tokio::join!(forgetting, consuming);
    consumed?;
    stage.switch(false);
    workers.join_all().await;
    let faults = stage.faults().values().sum();

    // Some more, so that there are places to be looked at; where there is room, since nobody works.
    let mut consumers = troupe.consumers(&stage, &SERVICES[..1], 4)?;
    while let Some(done) = consumers.join_next().await {
        done??;
    }
    let mut waiting = 0;
    for service in SERVICES {
        waiting += judge::places(&*stage.underneath, service, PATIENCE).await?;
    }
    ensure!(waiting > 0, "there were no places to be looked at");

    calm.send_replace(true);
    let stop = CancellationToken::new();
    let workers = troupe.workers(&stage, vhost.as_ref(), &stop)?;
    judge::drained(&*stage.underneath, PATIENCE).await?;
    judge::told(&*stage.underneath, PATIENCE).await?;
    judge::dispatched(&*stage.underneath, PATIENCE).await?;
    stop.cancel();
    workers.join_all().await;
    let verdict = judge::judge(&*stage.underneath, &ledger, faults).await?;
    Ok((verdict, Left { stage, ledger }))
}

/// All who take part, each with chances of their own.
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

    /// Two on each of these services, of each process.
    fn consumers(&mut self, stage: &Stage, services: &[&str], tasks: usize) -> Result<JoinSet<Result<()>>> {
        let mut consumers = JoinSet::new();
        for engine in stage.engines.iter().chain(&stage.engines) {
            for service in services {
                let consumer = Consumer {
                    engine: engine.clone(),
                    access: stage.consumer(engine, service)?,
                    random: self.random(),
                    name: format!("consumer{:x}", self.chances >> 32),
                    ledger: Arc::clone(&self.ledger),
                };
                consumers.spawn(consumer.run(tasks));
            }
        }
        Ok(consumers)
    }

    /// Two on each service of each process, or of the broker.
    fn workers(&mut self, stage: &Stage, vhost: Option<&TestVhost>, stop: &CancellationToken) -> Result<JoinSet<()>> {
        let mut workers = JoinSet::new();
        for engine in stage.engines.iter().chain(&stage.engines) {
            for service in SERVICES {
                let (random, calm, ledger) = (self.random(), self.is_calm.clone(), Arc::clone(&self.ledger));
                let name = format!("worker{:x}", self.chances >> 32);
                if let Some(vhost) = vhost {
                    let (url, queue) = (vhost.url().to_owned(), service.to_owned());
                    workers.spawn(BrokerWorker { url, queue, name, ledger, random, calm }.run(stop.clone()));
                    continue;
                }
                let voice = Voice {
                    engine: engine.clone(),
                    access: stage.worker(engine, service)?,
                    name,
                    ledger,
                    underneath: Arc::clone(&stage.underneath),
                };
                workers.spawn(Worker { voice, random, calm }.run(stop.clone()));
            }
        }
        Ok(workers)
    }
}

/// What the judge is there to find, it finds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_a_doubled_and_a_stuck_task_are_noticed() -> Result<()> {
    let (verdict, Left { stage, ledger }) = Box::pin(round(Backend::Postgres, seed())).await?;
    assert_eq!(verdict.findings, Vec::<String>::new(), "{verdict}");
    let stored = judge::list_all(&*stage.underneath).await?;
    // What others wait for, and what is in a batch, would be found more than once.
    let mut linked = std::collections::HashSet::new();
    for task in stored.iter().filter(|task| task.links.when.is_some() || task.links.batch.is_some()) {
        linked.insert(task.task_id);
        if let Some(task) = stage.underneath.find_task(task.task_id).await? {
            linked.extend(task.links.after.iter().map(|before| before.task_id));
        }
    }
    let ids: Vec<i64> = {
        let book = ledger.book();
        let good = stored.iter().filter(|task| task.state.status == Status::Success);
        let good = good.filter(|task| !linked.contains(&task.task_id));
        let known = good.filter(|task| book.accepted.contains_key(&task.task_id));
        known.filter(|task| !book.seen.contains_key(&task.task_id)).take(5).map(|task| task.id).collect()
    };
    let [gone, changed, stuck, one, other] = ids[..] else { anyhow::bail!("five tasks are needed") };
    let mut connection = PgConnection::connect(&stage.url).await?;
    for (statement, id) in [
        ("DELETE FROM relais.task WHERE id = $1 AND 0 < $2", gone),
        ("UPDATE relais.task SET response = '{}' WHERE id = $1 AND 0 < $2", changed),
        ("UPDATE relais.task SET status = 1 WHERE id = $1 AND 0 < $2", stuck),
        (
            "UPDATE relais.task SET correlation_id = (SELECT correlation_id FROM relais.task WHERE id = $2)
             WHERE id = $1",
            one,
        ),
    ] {
        sqlx::query(statement).bind(id).bind(other).execute(&mut connection).await.context(statement)?;
    }
    let verdict = judge::judge(&*stage.underneath, &ledger, 1).await?;
    // Of one that has another name now it can not be said that nobody was told of it.
    assert_eq!((verdict.lost, verdict.doubled, verdict.stuck), (2, 1, 1), "{:?}", verdict.findings);
    assert!(verdict.findings.iter().any(|finding| finding.contains("are counted as")), "{:?}", verdict.findings);
    Ok(())
}

/// The three kinds of faults are what they are called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_faulty_store_refuses_keeps_silent_and_breaks_off() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("relais.db").display());
    let underneath = relais_store::open(&url, &relais_store::Options::default()).await?;
    underneath.migrate().await?;
    let none = FaultPlan { seed: 0, refused: 0, unanswered: 0, broken_off: 0 };
    let faulty = |plan| {
        let faulty = Faulty::new(Arc::clone(&underneath), plan);
        faulty.switch(true);
        faulty
    };
    // Whether it was answered, and whether it was done.
    let declare = async |store: &Faulty, client: &str| {
        let change = Change::PutClient {
            client_id: ClientId::new(client)?,
            secret_hash: Some("hash".to_owned()),
            destinations: None,
        };
        let answered = match store.declare(vec![change]).await {
            Ok(()) => true,
            Err(StoreError::Unavailable(_)) => false,
            Err(other) => return Err(other.into()),
        };
        anyhow::Ok((answered, underneath.declared().await?.clients.contains_key(client)))
    };

    let refusing = faulty(FaultPlan { refused: 1000, ..none });
    assert_eq!(declare(&refusing, "one").await?, (false, false));
    let silent = faulty(FaultPlan { unanswered: 1000, ..none });
    assert_eq!(declare(&silent, "two").await?, (false, true), "done all the same");
    assert_eq!((refusing.total().faults(), silent.total().faults()), (1, 1));
    silent.switch(false);
    assert_eq!(declare(&silent, "three").await?, (true, true));

    let hasty = faulty(FaultPlan { broken_off: 1000, ..none });
    let mut answers = 0;
    for number in 0..50 {
        let (answered, done) = declare(&hasty, &format!("hasty-{number}")).await?;
        assert!(done || !answered, "whatever was answered is there");
        answers += u64::from(answered);
    }
    let count = hasty.counts()["declare"];
    assert_eq!((count.calls, count.broken_off), (50, 50 - answers));
    assert!(count.broken_off > 0, "{count:?}");
    Ok(())
}
