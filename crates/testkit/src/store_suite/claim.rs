//! Claims of tasks.

use std::{collections::HashSet, time::Duration};

use anyhow::{Result, ensure};
use relais_core::{Change, Event, IdempotencyKey, NewTask, Outcome, PurgeRule, ServiceLimits, Status, TaskId};

use super::{
    Harness,
    world::{at_once, claim, client, find, limits, name, new_tasks, one_of_each, record, request, service, submit_all},
};

/// Many concurrent claims, from two processes where the driver allows it.
pub async fn concurrent_claims_never_get_the_same_task(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 200)?).await?;
    let claimed = at_once(harness, 40, |store, _| async move {
        let mut claimed = Vec::new();
        loop {
            let some = claim(&*store, service, 3).await?;
            if some.is_empty() {
                return Ok(claimed);
            }
            claimed.extend(some.into_iter().map(|task| task.task_id));
        }
    })
    .await?
    .concat();
    // A claim skips rows that others have locked, so it may find nothing. The skipped tasks are still in the queue.
    let rest = claim(store, service, 200).await?.into_iter().map(|task| task.task_id);
    let all: Vec<TaskId> = claimed.into_iter().chain(rest).collect();
    let different: HashSet<TaskId> = all.iter().copied().collect();
    ensure!(different.len() == all.len(), "{} tasks were handed out twice", all.len() - different.len());
    ensure!(different == names.into_iter().collect(), "all were handed out");
    Ok(())
}

/// A task that is submitted while a worker waits is leased to that worker, as if claimed right afterwards.
pub async fn a_submission_for_a_waiting_worker_is_claimed_in_the_same_transaction(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let (answers, claimed) = store.submit_and_claim(new_tasks(service, client, 2)?, request(service, 5, None)).await?;
    let names: Vec<TaskId> = answers.into_iter().map(|answer| Ok(answer?.task_id)).collect::<Result<_>>()?;
    ensure!(claimed.iter().map(|task| task.task_id).eq(names.iter().copied()), "{} were claimed", claimed.len());
    for task in &claimed {
        let stored = find(store, task.task_id).await?;
        ensure!(stored.state == task.state && stored.state.status == Status::InProgress, "{:?}", stored.state);
        ensure!(stored.state.attempt == 1 && stored.state.lease_until > stored.state.started);
    }
    ensure!(claim(store, service, 5).await?.is_empty(), "nobody else has them");
    let depth = store.queue_depths(vec![service]).await?[0];
    ensure!((depth.pending, depth.in_progress) == (0, 2), "{depth:?}");

    let mut names = submit_all(store, new_tasks(service, client, 2)?).await?;
    let key = Some(IdempotencyKey { key: "once".to_owned(), fingerprint: vec![1] });
    let keyed = new_tasks(service, client, 1)?.into_iter().map(|task| NewTask { idempotency: key.clone(), ..task });
    let keyed: Vec<NewTask> = keyed.collect();
    let (answers, mut claimed) = store.submit_and_claim(keyed.clone(), request(service, 1, None)).await?;
    names.push(answers[0]?.task_id);
    let (again, none) = store.submit_and_claim(keyed, request(service, 1, None)).await?;
    ensure!(again[0].is_ok_and(|again| again.replayed && again.task_id == names[2]), "{again:?}");
    ensure!(none.is_empty(), "nothing came in");
    claimed.extend(claim(store, service, 5).await?);
    ensure!(claimed.iter().map(|task| task.task_id).eq(names), "nobody was passed over");

    store.declare(vec![Change::PauseService { name: name("resize")?, paused: true }]).await?;
    let (_, none) = store.submit_and_claim(new_tasks(service, client, 1)?, request(service, 5, None)).await?;
    ensure!(none.is_empty(), "a paused service hands out nothing");
    Ok(())
}

/// Many processes submit and claim concurrently, and each task goes to one worker.
pub async fn concurrent_submissions_for_waiting_workers_go_to_one_worker_each(harness: &Harness) -> Result<()> {
    const ROUNDS: usize = 20;
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let claimed = at_once(harness, 8, |store, number| async move {
        let mut claimed = Vec::new();
        for _ in 0..ROUNDS {
            let some = match number % 2 {
                0 => claim(&*store, service, 1).await?,
                _ => store.submit_and_claim(new_tasks(service, client, 2)?, request(service, 1, None)).await?.1,
            };
            claimed.extend(some.iter().map(|task| task.task_id));
            // Some tasks are returned, and can be claimed once more.
            if let Some(task) = some.first().filter(|task| task.state.attempt == 1 && number % 4 == 1) {
                record(&*store, task.task_id, service, Event::Returned { attempt: Some(1) }).await?;
                claimed.pop();
            }
        }
        Ok(claimed)
    })
    .await?
    .concat();
    let rest = claim(store, service, 1000).await?.into_iter().map(|task| task.task_id);
    let all: Vec<TaskId> = claimed.into_iter().chain(rest).collect();
    let different: HashSet<TaskId> = all.iter().copied().collect();
    ensure!(different.len() == all.len(), "{} tasks were handed out twice", all.len() - different.len());
    ensure!(all.len() == 4 * ROUNDS * 2, "{} were handed out", all.len());
    Ok(())
}

/// The order holds across calls, and among the requests of one call.
pub async fn claims_get_the_oldest_tasks_first_in_queue_order(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let (rotate, bob) = (service(store, "rotate", limits(None)).await?, client(store, "bob").await?);
    let mut names = Vec::new();
    for who in [alice, bob, alice] {
        names.extend(submit_all(store, new_tasks(resize, who, 2)?).await?);
    }
    let other = submit_all(store, new_tasks(rotate, bob, 1)?).await?;

    let answers = store
        .claim_tasks(vec![
            request(resize, 1, None),
            request(rotate, 5, None),
            request(resize, 0, None),
            request(resize, 3, None),
        ])
        .await?
        .tasks;
    let claimed: Vec<Vec<TaskId>> =
        answers.iter().map(|tasks| tasks.iter().map(|task| task.task_id).collect()).collect();
    ensure!(claimed == [names[..1].to_vec(), other, Vec::new(), names[1..4].to_vec()], "{claimed:?}");
    let first = &answers[0][0];
    ensure!(first.state.status == Status::InProgress && first.state.attempt == 1);
    ensure!(first.state.worker_host.as_deref() == Some("host") && first.state.started.is_some());
    ensure!(find(store, names[0]).await?.state == first.state, "what was told is what is stored");

    let rest: Vec<TaskId> = claim(store, resize, 100).await?.into_iter().map(|task| task.task_id).collect();
    ensure!(rest == names[4..]);
    ensure!(claim(store, resize, 100).await?.is_empty());
    ensure!(store.claim_tasks(Vec::new()).await?.tasks.is_empty());
    Ok(())
}

/// The task was read or counted before, and not changed.
pub async fn a_task_that_an_event_did_not_change_can_be_claimed_at_once(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 20)?).await?;
    for &id in &names {
        let late = Event::Returned { attempt: Some(7) };
        ensure!(matches!(record(store, id, service, late).await?, Outcome::Ignored(_)));
        let rule = PurgeRule {
            service,
            finished: Duration::ZERO,
            any: Duration::ZERO,
            dry_run: true,
            batch: 100,
            cursor: Some((Status::Pending, 0)),
        };
        store.purge_tasks(rule).await?;
        let claimed = claim(store, service, 1).await?;
        ensure!(claimed.iter().map(|task| task.task_id).eq([id]), "{claimed:?}");
    }
    Ok(())
}

/// A paused service accepts submissions and gives no task to claims.
pub async fn a_paused_service_gives_no_task_to_claims_until_it_is_resumed(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let pause = |paused| -> Result<Vec<Change>> { Ok(vec![Change::PauseService { name: name("resize")?, paused }]) };
    store.declare(pause(true)?).await?;
    submit_all(store, new_tasks(service, client, 2)?).await?;
    ensure!(claim(store, service, 10).await?.is_empty());
    store.declare(pause(false)?).await?;
    ensure!(claim(store, service, 10).await?.len() == 2);
    Ok(())
}

/// The lease is measured as the difference between the start and the end of the lease.
pub async fn the_lease_of_a_claim_comes_from_the_request_or_else_the_service(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let of_service = Duration::from_millis(90_500);
    let service = service(store, "resize", ServiceLimits { lease: of_service, ..limits(None) }).await?;
    let client = client(store, "alice").await?;
    submit_all(store, new_tasks(service, client, 2)?).await?;
    let of_request = Duration::from_millis(7_250);
    let answers =
        store.claim_tasks(vec![request(service, 1, None), request(service, 1, Some(of_request))]).await?.tasks;
    for (tasks, lease) in answers.iter().zip([of_service, of_request]) {
        let state = find(store, tasks[0].task_id).await?.state;
        let (started, until) = (state.started.expect("started"), state.lease_until.expect("a lease"));
        ensure!(until.since(started) == lease, "{:?} instead of {lease:?}", until.since(started));
    }
    Ok(())
}
