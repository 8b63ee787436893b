//! The whole engine on a store that fails on purpose: any call may be refused, done without an answer, or broken off.
//!
//! Each round has its own seed and database, consumers that repeat unanswered calls, and workers that die, are slow,
//! return tasks and send duplicates; or instances that die, with schedules, limits, retries, transactional submissions
//! and operators. Then the faults end, the remaining tasks run, and the database is compared with all answers. It ends
//! with `tasks N, faults N, lost N, doubled N, stuck N`, and fails unless the last three are 0, or if a verb of the
//! store was never called while it was to fail. `RELAIS_CHAOS_ROUNDS` makes it longer; a round that fails names the
//! `RELAIS_SEED` that repeats it.

mod broker;
mod consumer;
mod inbox;
mod instances;
mod judge;
mod ledger;
mod operator;
mod reaped_instance;
mod stage;
mod troupe;
mod unanswered_claim;
mod worker;
mod world;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use relais_core::{Change, ClientId, DeclarationStore as _, Status, StoreError};
use relais_testkit::{FaultCount, FaultPlan, Faulty};
use relais_tests::chaos::{Verdict, rounds, seed};
use sqlx::{Connection, PgConnection};

use self::{
    stage::{Backend, Cast, Play},
    troupe::{Left, round},
};

/// Between two tries of something that did not work, and two looks at something that is waited for.
const PAUSE: Duration = Duration::from_millis(10);

/// How long anything may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(40);

/// So many rounds at once: most of their time they wait for leases to run out.
const AT_ONCE: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_duplicate_or_stuck_on_a_faulty_sqlite() -> Result<()> {
    run_rounds("faulty store, SQLite", Play { backend: Backend::Sqlite, cast: Cast::Remote }, 4).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_duplicate_or_stuck_on_a_faulty_postgresql() -> Result<()> {
    run_rounds("faulty store, PostgreSQL", Play { backend: Backend::Postgres, cast: Cast::Remote }, 3).await
}

/// A dispatch may have to wait until its lease has expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_duplicate_or_stuck_on_a_faulty_store_with_a_broker() -> Result<()> {
    let play = Play { backend: Backend::Postgres, cast: Cast::Brokered };
    run_rounds("faulty store, PostgreSQL and RabbitMQ", play, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_duplicate_or_stuck_in_instances_on_a_faulty_sqlite() -> Result<()> {
    let play = Play { backend: Backend::Sqlite, cast: Cast::InProcess };
    run_rounds("faulty store, in process, SQLite", play, 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_duplicate_or_stuck_in_instances_on_a_faulty_postgresql() -> Result<()> {
    let play = Play { backend: Backend::Postgres, cast: Cast::InProcess };
    run_rounds("faulty store, in process, PostgreSQL", play, 2).await
}

#[expect(clippy::print_stdout, reason = "the result of a run, also when it is good")]
async fn run_rounds(name: &str, play: Play, usual: usize) -> Result<()> {
    let (first, rounds) = (seed(), rounds(usual) as u64);
    let mut verdicts = stream::iter(0..rounds)
        .map(async |number| {
            let seed = first.wrapping_add(number);
            let repeat = || format!("RELAIS_SEED={seed} RELAIS_CHAOS_ROUNDS=1 tries this round again");
            let (verdict, left) = Box::pin(round(play, seed)).await.with_context(repeat)?;
            if !verdict.findings.is_empty() {
                verdict.report(&format!("round {seed}")).with_context(repeat)?;
                bail!("a verdict with findings is no good one");
            }
            println!("{name}, round {seed}: {verdict}");
            let calls = left.stage.calls();
            left.stage.close().await;
            Ok((verdict, calls))
        })
        .buffer_unordered(AT_ONCE);
    let (mut sum, mut by_verb) = (Verdict::default(), BTreeMap::<&str, FaultCount>::new());
    while let Some((verdict, calls)) = verdicts.try_next().await? {
        sum.tasks += verdict.tasks;
        sum.faults += verdict.faults;
        for (verb, count) in calls {
            *by_verb.entry(verb).or_default() += count;
        }
    }
    let faults: BTreeMap<&str, u64> = by_verb.iter().map(|(verb, count)| (*verb, count.faults())).collect();
    println!("faults by verb: {faults:?}");
    let untried: Vec<&str> = world::verbs(play.cast).filter(|verb| !by_verb.contains_key(verb)).collect();
    ensure!(untried.is_empty(), "{name}: these were never called while calls failed: {untried:?}");
    sum.report(&format!("{name}, {rounds} rounds"))
}

/// What the judge is there to find, it finds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_judge_notices_lost_duplicate_and_stuck_tasks() -> Result<()> {
    let play = Play { backend: Backend::Postgres, cast: Cast::Remote };
    let (verdict, Left { stage, ledger }) = Box::pin(round(play, seed())).await?;
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
    let verdict = judge::judge(&*stage.underneath, play.cast, &ledger, 1).await?;
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
    let none = FaultPlan { seed: 0, refused: 0, unanswered: 0, broken_off: 0, only: None };
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
            notifications: None,
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
