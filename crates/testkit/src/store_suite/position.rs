//! The position of a task in its queue.

use std::time::Duration;

use anyhow::{Result, ensure};
use relais_core::{Event, ServiceKey, Store, TaskId};

use super::{
    Harness,
    random::Random,
    world::{change, claim, claim_for, new_tasks, one_of_each, place, says, submit_all},
};

/// Small enough to compare every position after every step, and larger than one node of the tree.
pub async fn the_position_is_exact_after_claims_cancellations_and_returns(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut queue = submit_all(store, new_tasks(service, client, 10)?).await?;
    let cancel = |id| change(store, id, service, Event::Cancelled);

    cancel(queue.remove(4)).await?;
    cancel(queue.remove(8)).await?;
    places(store, &queue).await?;
    let held = claim(store, service, 3).await?;
    let rest = queue.split_off(3);
    places(store, &rest).await?;
    ensure!(place(store, queue[0]).await?.is_none(), "who is being served has no place");

    // A returned task has its old position, and a later submission is behind all.
    change(store, held[1].task_id, service, Event::Returned { attempt: Some(1) }).await?;
    queue = [vec![held[1].task_id], rest].concat();
    places(store, &queue).await?;
    for _ in 0..70 {
        let again = claim_for(store, service, 1, Duration::ZERO).await?;
        ensure!(again[0].task_id == queue[0]);
        let event = Event::Returned { attempt: Some(again[0].state.attempt) };
        change(store, queue[0], service, event).await?;
    }
    queue.extend(submit_all(store, new_tasks(service, client, 150)?).await?);
    places(store, &queue).await?;
    claim_for(store, service, 1, Duration::ZERO).await?;
    ensure!(store.fire_timers(1).await?.lost == 1);
    places(store, &queue).await
}

async fn places(store: &dyn Store, queue: &[TaskId]) -> Result<()> {
    for (i, &id) in queue.iter().enumerate() {
        let place = place(store, id).await?;
        ensure!(place == Some(i as u64 + 1), "{place:?} instead of {}", i + 1);
    }
    Ok(())
}

/// Enough tasks to use all levels of the tree but the last.
pub async fn the_position_is_exact_among_twenty_thousand_tasks(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut random = Random::new();
    let mut queue = Vec::new();
    for _ in 0..20 {
        queue.extend(submit_all(store, new_tasks(service, client, 1000)?).await?);
    }
    probe(store, &queue, &mut random).await?;

    // Claims at the head of the queue, and cancellations anywhere.
    queue.drain(..claim(store, service, 700).await?.len());
    for _ in 0..4 {
        let gone: Vec<TaskId> = (0..300).map(|_| queue.remove(random.below(queue.len()))).collect();
        cancel(store, service, &gone).await?;
        probe(store, &queue, &mut random).await?;
    }
    while queue.len() > 3000 {
        let claimed = claim(store, service, 1500).await?;
        ensure!(claimed.iter().map(|task| task.task_id).eq(queue.drain(..claimed.len())), "the oldest first");
    }
    store.purge_keys(Duration::from_secs(3600)).await?;
    probe(store, &queue, &mut random).await?;
    queue.extend(submit_all(store, new_tasks(service, client, 100)?).await?);
    probe(store, &queue, &mut random).await
}

async fn cancel(store: &dyn Store, service: ServiceKey, ids: &[TaskId]) -> Result<()> {
    store.record_events(ids.iter().map(|&id| says(id, service, Event::Cancelled)).collect()).await?;
    Ok(())
}

async fn probe(store: &dyn Store, queue: &[TaskId], random: &mut Random) -> Result<()> {
    let some = (0..40).map(|_| random.below(queue.len())).chain([0, queue.len() - 1]);
    for i in some {
        let place = place(store, queue[i]).await?;
        ensure!(place == Some(i as u64 + 1), "{place:?} instead of {}", i + 1);
    }
    Ok(())
}
