//! Dispatch windows: how many tasks of a service are published and unfinished, and which.

use std::{collections::HashSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use relais_core::{
    DispatchName, Dispatched, Event, FlowLimits, NewTask, Priority, RetryPolicy, ServiceKey, ServiceLimits, Store,
    TaskId, Terms, When,
};
use tokio::sync::mpsc;

use super::{
    Harness,
    flow::{FREE, WakeupRecorder, clients, flow},
    random::Random,
    world::{
        DEADLINE, LONG, a_moment, at_once, change, json, new_task, new_tasks, put_brokered, service_key, submit,
        submit_all,
    },
};

/// Concurrent publishers, workers that end, cancel and lose tasks, and a broker that loses all of them.
pub async fn a_dispatch_window_bounds_published_tasks_and_loses_none(harness: &Harness) -> Result<()> {
    const WINDOW: usize = 6;
    let store = harness.store();
    store.declare(vec![put_brokered("resize", flow_of(WINDOW))?]).await?;
    let service = service_key(store, "resize").await?;
    let [alice] = clients(store, ["alice"]).await?;
    for handle in &harness.handles {
        handle.declared().await?;
    }
    let all = submit_all(store, new_tasks(service, alice, 60)?).await?;
    let take = async |most| -> Result<Vec<DispatchName>> {
        let due = store.claim_dispatches(vec![service], most, LONG).await?.tasks;
        Ok(due.into_iter().map(|due| due.name).collect())
    };
    let taken =
        at_once(harness, 8, |store, _| async move { Ok(store.claim_dispatches(vec![service], 2, LONG).await?.tasks) })
            .await?
            .concat();
    let mut out: Vec<DispatchName> = taken.into_iter().map(|due| due.name).collect();
    out.sort_unstable();
    ensure!(
        out.iter().map(|name| name.task_id).eq(all[..WINDOW].iter().copied()),
        "the oldest, as many as fit: {out:?}"
    );
    ensure!(take(10).await?.is_empty(), "a publisher has taken those");
    store.complete_dispatches(out[..4].to_vec(), Dispatched::Done).await?;
    ensure!(take(10).await?.is_empty(), "and those at the broker");
    store.complete_dispatches(out[4..].to_vec(), Dispatched::Again).await?;
    ensure!(take(10).await? == out[4..], "what could not be published leaves its room");
    store.complete_dispatches(out[4..].to_vec(), Dispatched::Done).await?;

    let (recorder, mut heard) = mpsc::unbounded_channel();
    store.listen(Arc::new(WakeupRecorder(recorder)));
    let starts = Event::Delivered { worker_host: None, again: false, delivery_limit: 9 };
    change(store, all[0], service, starts.clone()).await?;
    ensure!(take(10).await?.is_empty(), "with a worker it is out as well");
    ensure!(heard.try_recv().is_ok_and(|wakeup| wakeup.dispatch.is_empty()));
    let ends = Event::Succeeded { attempt: None, response: json("{}")? };
    change(store, all[0], service, ends.clone()).await?;
    ensure!(heard.try_recv().is_ok_and(|wakeup| wakeup.dispatch == [service]), "whoever publishes is woken");
    change(store, all[1], service, Event::Cancelled).await?;
    // A task that was never published frees no place when it ends.
    change(store, all[50], service, Event::Cancelled).await?;
    let more = take(10).await?;
    ensure!(more.iter().map(|name| name.task_id).eq(all[WINDOW..WINDOW + 2].iter().copied()), "{more:?}");
    store.complete_dispatches(more, Dispatched::Done).await?;
    ensure!(take(10).await?.is_empty());

    // The broker lost all of them, one of which was running.
    change(store, all[2], service, starts).await?;
    store.redispatch_service(service).await?;
    while store.refill_dispatches(7).await? {}
    let again = take(10).await?;
    ensure!(again.iter().map(|name| name.task_id).eq(all[2..WINDOW + 2].iter().copied()), "{again:?}");
    ensure!(take(10).await?.is_empty());
    store.complete_dispatches(again, Dispatched::Done).await?;

    // A smaller window publishes nothing until there is room. Without a window, everything is published.
    let out = &all[2..WINDOW + 2];
    let windows = async |window: Option<u32>| -> Result<()> {
        let limits = flow(FlowLimits { dispatch_window: window, ..FREE });
        store.declare(vec![put_brokered("resize", limits)?]).await?;
        Ok(store.declared().await.map(drop)?)
    };
    windows(Some(3)).await?;
    for (ended, id) in out[..4].iter().enumerate() {
        ensure!(take(10).await?.is_empty(), "{ended} of {WINDOW} have ended");
        change(store, *id, service, ends.clone()).await?;
    }
    let next = take(10).await?;
    ensure!(next.iter().map(|name| name.task_id).eq([all[WINDOW + 2]]), "{next:?}");
    windows(None).await?;
    let rest = take(100).await?;
    ensure!(rest.iter().map(|name| name.task_id).eq(all[WINDOW + 3..].iter().copied()), "{}", rest.len());
    Ok(())
}

fn flow_of(window: usize) -> ServiceLimits {
    flow(FlowLimits { dispatch_window: Some(window as u32), ..FREE })
}

/// Takes what can be published, and returns the task ids.
async fn take(store: &dyn Store, service: ServiceKey, most: usize) -> Result<Vec<DispatchName>> {
    let due = store.claim_dispatches(vec![service], most, LONG).await?.tasks;
    Ok(due.into_iter().map(|due| due.name).collect())
}

fn ids(names: &[DispatchName]) -> Vec<TaskId> {
    names.iter().map(|name| name.task_id).collect()
}

/// More older tasks than the window has places come back at once: they were delayed, or are retried.
pub async fn a_dispatch_window_holds_when_many_older_tasks_come_back(harness: &Harness) -> Result<()> {
    const WINDOW: usize = 4;
    let store = harness.store();
    let retry = RetryPolicy { limit: 3, base: Duration::from_millis(1), ..RetryPolicy::none() };
    store.declare(vec![put_brokered("resize", ServiceLimits { retry, ..flow_of(WINDOW) })?]).await?;
    let service = service_key(store, "resize").await?;
    let [alice] = clients(store, ["alice"]).await?;
    for handle in &harness.handles {
        handle.declared().await?;
    }
    let later = Terms { due: Some(When::After(Duration::from_millis(300))), ..Terms::default() };
    let scheduled: Vec<NewTask> =
        new_tasks(service, alice, 30)?.into_iter().map(|task| NewTask { terms: later.clone(), ..task }).collect();
    let mut left: HashSet<TaskId> = submit_all(store, scheduled).await?.into_iter().collect();
    left.extend(submit_all(store, new_tasks(service, alice, 30)?).await?);
    let mut random = Random::new();
    let mut out: Vec<DispatchName> = Vec::new();
    let begin = std::time::Instant::now();
    while !left.is_empty() {
        ensure!(begin.elapsed() < DEADLINE, "{} of 60 are left", left.len());
        store.fire_timers(100).await?;
        let taken = at_once(harness, 6, |store, _| async move { take(&*store, service, 3).await }).await?.concat();
        for name in taken {
            // A failed task that comes back keeps its place if no publisher has looked since.
            out.retain(|other| other.task_id != name.task_id);
            out.push(name);
        }
        ensure!(out.len() <= WINDOW, "{} are out", out.len());
        if out.is_empty() {
            a_moment(store).await?;
            continue;
        }
        let name = out.remove(random.below(out.len()));
        // A publication may be acknowledged before the end of its task, or after.
        let first = random.once_in(2);
        if first {
            store.complete_dispatches(vec![name.clone()], Dispatched::Done).await?;
        }
        let event = match random.below(4) {
            0 => Event::failed(None, "no"),
            1 => Event::Cancelled,
            _ => Event::Succeeded { attempt: None, response: json("{}")? },
        };
        change(store, name.task_id, service, event).await?;
        if !first {
            store.complete_dispatches(vec![name.clone()], Dispatched::Done).await?;
        }
        if store.find_task(name.task_id).await?.is_some_and(|task| task.state.status.is_final()) {
            left.remove(&name.task_id);
        }
    }
    Ok(())
}

/// The highest priority is published first, as claims do without a broker.
pub async fn tasks_that_wait_for_a_dispatch_window_are_published_in_rank_order(harness: &Harness) -> Result<()> {
    let store = harness.store();
    store.declare(vec![put_brokered("resize", flow_of(2))?]).await?;
    let service = service_key(store, "resize").await?;
    let [alice] = clients(store, ["alice"]).await?;
    store.declared().await?;
    let mut names = Vec::new();
    for level in [4, 4, 0, 4, 9, 7] {
        let priority = Priority::new(level).context("a priority")?;
        let terms = Terms { priority, head_start: priority.head_start(Duration::from_secs(60)), ..Terms::default() };
        names.push(submit(store, NewTask { terms, ..new_task(service, alice)? }).await?.task_id);
    }
    let mut order = Vec::new();
    while order.len() < names.len() {
        let next = take(store, service, 10).await?;
        ensure!(!next.is_empty() && next.len() <= 2, "{next:?}");
        store.complete_dispatches(next.clone(), Dispatched::Done).await?;
        for name in next {
            order.push(name.task_id);
            change(store, name.task_id, service, Event::Cancelled).await?;
        }
    }
    let expected = [4, 5, 0, 1, 3, 2].map(|place: usize| names[place]);
    ensure!(order == expected, "{order:?}, not {expected:?}");
    Ok(())
}

/// A published task has a place in a new window, whether a publisher has taken it or the broker has confirmed it.
pub async fn a_new_dispatch_window_counts_tasks_already_published(harness: &Harness) -> Result<()> {
    let store = harness.store();
    store.declare(vec![put_brokered("resize", flow(FREE))?]).await?;
    let service = service_key(store, "resize").await?;
    let [alice] = clients(store, ["alice"]).await?;
    store.declared().await?;
    let all = submit_all(store, new_tasks(service, alice, 12)?).await?;
    let out = take(store, service, 6).await?;
    store.complete_dispatches(out[..4].to_vec(), Dispatched::Done).await?;
    let starts = Event::Delivered { worker_host: None, again: false, delivery_limit: 9 };
    change(store, all[0], service, starts).await?;
    store.declare(vec![put_brokered("resize", flow_of(7))?]).await?;
    store.declared().await?;
    ensure!(take(store, service, 10).await?.is_empty(), "it is not known yet how many are out");
    while store.refill_dispatches(2).await? {}
    ensure!(ids(&take(store, service, 10).await?) == all[6..7], "six were out");
    store.complete_dispatches(out[4..].to_vec(), Dispatched::Done).await?;
    ensure!(take(store, service, 10).await?.is_empty());
    change(store, all[0], service, Event::Cancelled).await?;
    change(store, all[5], service, Event::Cancelled).await?;
    ensure!(ids(&take(store, service, 10).await?) == all[7..9], "two have ended");
    Ok(())
}
