//! Purge: removes old tasks, keys and nodes of the position tree.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use relais_core::{Event, IdempotencyKey, NewTask, PurgeRule, ServiceKey, Status, Store, TaskId};

use super::{
    Harness,
    world::{
        LONG, a_moment, change, claim, client, filter, find, json, limits, list_all, new_task, new_tasks, one_of_each,
        place, service, submit, submit_all, until_after,
    },
};

const NOW: Duration = Duration::ZERO;

fn rule(service: ServiceKey, finished: Duration, any: Duration) -> PurgeRule {
    PurgeRule { service, finished, any, dry_run: false, batch: 100, cursor: None }
}

/// Purges until the service is done, and returns how many tasks were removed.
async fn purge(store: &dyn Store, mut rule: PurgeRule) -> Result<u64> {
    let mut purged = 0;
    for _ in 0..10_000 {
        let report = store.purge_tasks(rule).await?;
        purged += report.purged;
        if report.cursor.is_none() {
            return Ok(purged);
        }
        rule.cursor = report.cursor;
    }
    anyhow::bail!("a purge never ends")
}

/// Creates one task in each status, in the order of [`Status::ALL`].
async fn one_in_each(store: &dyn Store, service: ServiceKey, client: relais_core::ClientKey) -> Result<Vec<TaskId>> {
    let names = submit_all(store, new_tasks(service, client, 4)?).await?;
    claim(store, service, 4).await?;
    change(store, names[1], service, Event::Succeeded { attempt: None, response: json("1")? }).await?;
    change(store, names[2], service, Event::failed(None, "no")).await?;
    change(store, names[3], service, Event::Cancelled).await?;
    let pending = submit(store, new_task(service, client)?).await?.task_id;
    a_moment(store).await?;
    Ok([vec![pending], names].concat())
}

/// Finished tasks are selected by their end, and any task by its submission.
pub async fn a_purge_removes_only_tasks_past_their_retention(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let rotate = service(store, "rotate", limits(None)).await?;
    let names = one_in_each(store, resize, alice).await?;
    let others = one_in_each(store, rotate, alice).await?;

    ensure!(purge(store, rule(resize, LONG, LONG)).await? == 0);
    ensure!(purge(store, rule(resize, NOW, LONG)).await? == 3, "what is finished");
    for (i, &id) in names.iter().enumerate() {
        ensure!(store.find_task(id).await?.is_some() == (i < 2), "{:?}", Status::ALL[i]);
    }
    ensure!(purge(store, rule(resize, LONG, NOW)).await? == 2, "whatever the status");
    ensure!(purge(store, rule(resize, NOW, NOW)).await? == 0);
    for id in others {
        ensure!(store.find_task(id).await?.is_some(), "another service's tasks stay");
    }
    ensure!(list_all(store, filter(100)).await?.len() == 5);
    let counters = store.backlog().await?.counters;
    let current = |status| {
        counters
            .iter()
            .find(|t| t.service == resize && t.status == status)
            .map_or(0, relais_core::StatusCounter::current)
    };
    ensure!(current(Status::Pending) == 0 && current(Status::InProgress) == 0, "{counters:?}");
    ensure!(current(Status::Success) == 1, "how many there were, ever, is still known");
    Ok(())
}

/// An age between two submissions removes the first task and keeps the second.
pub async fn a_purge_selects_by_age_to_the_millisecond(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut gap = Duration::from_millis(100);
    while gap < Duration::from_secs(10) {
        let old = submit(store, new_task(service, client)?).await?.task_id;
        let older = find(store, old).await?.submitted;
        until_after(store, older.after(gap)).await?;
        let young = submit(store, new_task(service, client)?).await?.task_id;
        let now = store.ping().await?;
        let age = now.since(older.after(gap / 2));
        let purged = purge(store, rule(service, age, age)).await?;
        // If the purge took longer than half the gap, the result proves nothing: try again with a longer gap.
        if store.ping().await?.since(now) < gap / 2 {
            ensure!(purged == 1, "{purged} were purged");
            ensure!(store.find_task(old).await?.is_none() && store.find_task(young).await?.is_some());
            return Ok(());
        }
        purge(store, rule(service, NOW, NOW)).await?;
        gap *= 2;
    }
    anyhow::bail!("the machine is too slow to tell")
}

/// A dry run uses the same cursor, batch by batch.
pub async fn a_dry_run_purge_counts_the_same_and_removes_nothing(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    for _ in 0..5 {
        one_in_each(store, service, client).await?;
    }
    let before = list_all(store, filter(100)).await?.len();
    for (finished, any) in [(NOW, LONG), (NOW, NOW), (LONG, LONG)] {
        for batch in [1, 3, 100] {
            let dry = purge(store, PurgeRule { dry_run: true, batch, ..rule(service, finished, any) }).await?;
            let wet = if finished == LONG {
                0
            } else if any == LONG {
                15
            } else {
                25
            };
            ensure!(dry == wet, "{dry} instead of {wet} in batches of {batch}");
        }
    }
    ensure!(list_all(store, filter(100)).await?.len() == before);
    ensure!(purge(store, PurgeRule { batch: 3, ..rule(service, NOW, NOW) }).await? == 25);
    Ok(())
}

/// A purged pending task leaves the queue, and frees its place in the capacity.
pub async fn purging_pending_tasks_keeps_positions_and_capacity_exact(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", limits(Some(200))).await?;
    let client = client(store, "alice").await?;
    submit_all(store, new_tasks(service, client, 200)?).await?;
    claim(store, service, 10).await?;
    a_moment(store).await?;
    let cut = PurgeRule { batch: 50, cursor: Some((Status::Pending, 0)), ..rule(service, NOW, NOW) };
    ensure!(store.purge_tasks(cut).await?.purged == 50);
    let left: Vec<TaskId> =
        list_all(store, relais_core::TaskFilter { statuses: vec![Status::Pending], ..filter(1000) })
            .await?
            .into_iter()
            .rev()
            .map(|task| task.task_id)
            .collect();
    ensure!(left.len() == 140);
    for (i, &id) in left.iter().enumerate() {
        let place = place(store, id).await?;
        ensure!(place == Some(i as u64 + 1), "{place:?} instead of {}", i + 1);
    }
    let answers = store.submit_many(new_tasks(service, client, 100)?).await?;
    ensure!(answers.iter().filter(|answer| answer.is_ok()).count() == 60, "the room is free again");
    ensure!(answers[0]?.position == 141);
    ensure!(place(store, answers[0]?.task_id).await? == Some(141));
    Ok(())
}

/// Covers a batch with no task that is old enough, and a batch that ends exactly with a status.
pub async fn a_purge_in_small_batches_removes_everything(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 40)?).await?;
    for &id in &names[..20] {
        change(store, id, service, Event::Cancelled).await?;
    }
    a_moment(store).await?;
    for batch in [1, 10, 20, 40] {
        ensure!(purge(store, PurgeRule { batch, ..rule(service, LONG, LONG) }).await? == 0);
    }
    let first = store.purge_tasks(PurgeRule { batch: 10, ..rule(service, NOW, LONG) }).await?;
    ensure!(first.purged == 0 && first.cursor.is_some(), "there is no success to purge, and more to look at");
    ensure!(purge(store, PurgeRule { batch: 10, ..rule(service, NOW, LONG) }).await? == 20);
    ensure!(purge(store, PurgeRule { batch: 1, ..rule(service, NOW, NOW) }).await? == 20);
    Ok(())
}

/// Removing nodes of the tree keeps positions exact, also with an old task that is still running.
pub async fn compacting_the_position_tree_keeps_positions_exact(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut queue = submit_all(store, new_tasks(service, client, 400)?).await?;
    let held = claim(store, service, 1).await?.pop().context("a task")?;
    for task in claim(store, service, 299).await? {
        change(store, task.task_id, service, Event::Cancelled).await?;
    }
    queue.drain(..300);
    for round in 0..3 {
        store.purge_keys(LONG).await?;
        for (i, &id) in queue.iter().enumerate().step_by(9) {
            let place = place(store, id).await?;
            ensure!(place == Some(i as u64 + 1), "{place:?} instead of {} in round {round}", i + 1);
        }
        match round {
            0 => {
                change(store, held.task_id, service, Event::Returned { attempt: Some(1) }).await?;
                queue.insert(0, held.task_id);
            }
            _ => {
                let claimed = claim(store, service, 90).await?;
                for task in &claimed {
                    change(store, task.task_id, service, Event::Cancelled).await?;
                }
                queue.drain(..claimed.len());
                queue.extend(submit_all(store, new_tasks(service, client, 50)?).await?);
            }
        }
    }
    Ok(())
}

/// An idempotency key that was purged can be used again.
pub async fn only_old_idempotency_keys_are_purged(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let keyed = |fingerprint: &[u8]| -> Result<NewTask> {
        let idempotency = Some(IdempotencyKey { key: "k".to_owned(), fingerprint: fingerprint.to_vec() });
        Ok(NewTask { idempotency, ..new_task(service, client)? })
    };
    submit(store, keyed(b"1")?).await?;
    a_moment(store).await?;
    ensure!(store.purge_keys(LONG).await? == 0);
    ensure!(submit(store, keyed(b"1")?).await?.replayed);
    ensure!(store.purge_keys(NOW).await? == 1);
    ensure!(!submit(store, keyed(b"2")?).await?.replayed);
    Ok(())
}
