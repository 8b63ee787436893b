//! Flow limits of broker services: how many tasks are published and unfinished, how fast, and whose.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_core::{
    ClientFlow, ClientKey, DispatchName, Dispatched, Event, FlowLimits, NewTask, Priority, PurgeRule, RateLimit,
    RetryPolicy, ServiceKey, ServiceLimits, Status, Store, TaskFilter, TaskId, Terms,
};
use tokio::sync::mpsc;

use super::{
    Harness,
    flow::{FREE, WakeupRecorder, clients, flow, put_flow},
    random::Random,
    world::{
        DEADLINE, LONG, a_moment, at_once, change, filter, json, list_all, new_task, new_tasks, put_brokered, record,
        service_key, submit, submit_all, until_after,
    },
};

const WINDOWED: FlowLimits = FlowLimits { dispatch_window: Some(10), ..FREE };

fn starts() -> Event {
    Event::Delivered { worker_host: None, again: false, delivery_limit: 9 }
}

fn succeeds() -> Result<Event> {
    Ok(Event::Succeeded { attempt: None, response: json("{}")? })
}

/// Declares a service with a window on all handles.
async fn windowed(harness: &Harness, limits: ServiceLimits) -> Result<ServiceKey> {
    harness.store().declare(vec![put_brokered("resize", limits)?]).await?;
    let service = service_key(harness.store(), "resize").await?;
    for handle in &harness.handles {
        handle.declared().await?;
    }
    Ok(service)
}

async fn take(store: &dyn Store, service: ServiceKey, most: usize) -> Result<Vec<DispatchName>> {
    let claimed = store.claim_dispatches(vec![service], most, LONG).await?;
    Ok(claimed.tasks.into_iter().map(|due| due.name).collect())
}

/// Takes dispatches and acknowledges their publication.
async fn publish(store: &dyn Store, service: ServiceKey, most: usize) -> Result<Vec<TaskId>> {
    let names = take(store, service, most).await?;
    store.complete_dispatches(names.clone(), Dispatched::Done).await?;
    Ok(names.into_iter().map(|name| name.task_id).collect())
}

/// The client of each task.
async fn owners(store: &dyn Store, tasks: &[TaskId]) -> Result<Vec<String>> {
    let mut owners = Vec::new();
    for task in tasks {
        owners.push(store.find_task(*task).await?.context("a task")?.client_id.to_string());
    }
    Ok(owners)
}

/// Concurrent publishers and workers, from two processes where the driver allows it.
pub async fn concurrent_publishers_hold_every_flow_limit_and_finish_all_tasks(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limits = FlowLimits { max_running: Some(6), max_running_per_client: Some(2), ..WINDOWED };
    let service = windowed(harness, flow(limits)).await?;
    let [alice, bob, carol] = clients(store, ["alice", "bob", "carol"]).await?;
    put_flow(store, "alice", ClientFlow { max_running: Some(3), share: 1 }).await?;
    let mut owner: HashMap<TaskId, ClientKey> = HashMap::new();
    for (who, number) in [(alice, 50), (bob, 40), (carol, 30)] {
        owner.extend(submit_all(store, new_tasks(service, who, number)?).await?.into_iter().map(|task| (task, who)));
    }
    let (total, ended, owner) = (owner.len(), Arc::new(AtomicUsize::new(0)), Arc::new(owner));
    let out: Arc<Mutex<BTreeMap<TaskId, ClientKey>>> = Arc::default();
    at_once(harness, 12, |store, publisher| {
        let (ended, out, owner) = (Arc::clone(&ended), Arc::clone(&out), Arc::clone(&owner));
        async move {
            while ended.load(Ordering::Relaxed) < total {
                let names = take(&*store, service, 1 + publisher % 4).await?;
                {
                    let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                    out.extend(names.iter().map(|name| (name.task_id, owner[&name.task_id])));
                    let of = |client| out.values().filter(|owner| **owner == client).count();
                    let (all, each) = (out.len(), [alice, bob, carol].map(of));
                    ensure!(all <= 6 && each[0] <= 3 && each[1] <= 2 && each[2] <= 2, "{all} are out: {each:?}");
                }
                // Yields, so that other publishers see these tasks as published.
                tokio::task::yield_now().await;
                for name in names {
                    if publisher % 3 > 0 {
                        store.complete_dispatches(vec![name.clone()], Dispatched::Done).await?;
                    }
                    // Counted before the message is recorded: the task has ended at the latest then.
                    out.lock().unwrap_or_else(PoisonError::into_inner).remove(&name.task_id);
                    change(&*store, name.task_id, service, succeeds()?).await?;
                    ended.fetch_add(1, Ordering::Relaxed);
                    if publisher % 3 == 0 {
                        store.complete_dispatches(vec![name], Dispatched::Done).await?;
                    }
                }
            }
            Ok(())
        }
    })
    .await?;
    ensure!(take(store, service, 10).await?.is_empty());

    // Of the tasks that may be published, the oldest come first.
    let mut names = Vec::new();
    for who in [alice, bob, bob, bob, alice, carol, bob, alice, alice] {
        names.push(submit(store, new_task(service, who)?).await?.task_id);
    }
    let first = publish(store, service, 10).await?;
    ensure!(first == [0, 1, 2, 4, 5, 7].map(|at: usize| names[at]), "{first:?} of {names:?}");
    let (recorder, mut heard) = mpsc::unbounded_channel();
    store.listen(Arc::new(WakeupRecorder(recorder)));
    change(store, names[1], service, Event::Cancelled).await?;
    let wakeup = heard.try_recv().context("somebody is woken")?;
    ensure!(wakeup.dispatch == [service] && wakeup.work.is_empty(), "whoever publishes is: {wakeup:?}");
    ensure!(publish(store, service, 10).await? == [names[3]], "bob's room is bob's, and the service has no other");
    Ok(())
}

/// Random actions of the broker, workers, consumers and operators: the limits hold, and no room stays unused.
pub async fn flow_room_of_a_published_task_is_freed_however_it_ends(harness: &Harness) -> Result<()> {
    const MOST: usize = 6;
    const EACH: usize = 3;
    let mut random = Random::new();
    let fair_share = random.once_in(2);
    let limits = FlowLimits {
        max_running: Some(MOST as u32),
        max_running_per_client: Some(EACH as u32),
        fair_share,
        ..WINDOWED
    };
    let retry = RetryPolicy { limit: 3, base: Duration::from_millis(1), ..RetryPolicy::classic() };
    let service = windowed(harness, ServiceLimits { retry, ..flow(limits) }).await?;
    let store = harness.store();
    let who = clients(store, ["alice", "bob", "carol"]).await?;
    // Tasks that were taken, and have neither ended nor come back since.
    let mut out: BTreeMap<TaskId, (ClientKey, DispatchName)> = BTreeMap::new();
    let unfinished = |statuses: &[Status]| TaskFilter { statuses: statuses.to_vec(), ..filter(200) };
    let mut step = 0;
    let begun = Instant::now();
    loop {
        step += 1;
        ensure!(begun.elapsed() < DEADLINE, "{} are out in step {step}", out.len());
        let names: Vec<TaskId> = out.keys().copied().collect();
        match random.below(12) {
            0..2 if step < 200 => {
                submit_all(store, new_tasks(service, *random.pick(&who), random.below(6))?).await?;
            }
            2..6 => {
                let (handle, most) = (random.pick(&harness.handles), 1 + random.below(12));
                let lease = if random.once_in(3) { Duration::ZERO } else { LONG };
                let claimed = handle.claim_dispatches(vec![service], most, lease).await?;
                let got = claimed.tasks.len();
                for due in claimed.tasks {
                    let task = store.find_task(due.name.task_id).await?.context("a task that is not over")?;
                    ensure!(!task.state.status.is_final(), "step {step}: it has ended");
                    let client = *who
                        .get(
                            ["alice", "bob", "carol"]
                                .iter()
                                .position(|name| *name == task.client_id.as_str())
                                .context("a client")?,
                        )
                        .context("one of them")?;
                    out.insert(due.name.task_id, (client, due.name));
                }
                let of = |client: ClientKey| out.values().filter(|(owner, _)| *owner == client).count();
                ensure!(out.len() <= MOST && who.iter().all(|client| of(*client) <= EACH), "step {step}: {out:?}");
                if got < most && out.len() < MOST {
                    for &client in who.iter().filter(|client| of(**client) < EACH) {
                        let waiting = TaskFilter { client: Some(client), ..unfinished(&[Status::Pending]) };
                        let waits =
                            list_all(store, waiting).await?.into_iter().find(|task| !out.contains_key(&task.task_id));
                        ensure!(waits.is_none(), "step {step}: there is room for {waits:?}");
                    }
                }
            }
            6 => {
                a_moment(store).await?;
                store.fire_timers(100).await?;
            }
            7 if !names.is_empty() => {
                let outcome = if random.once_in(2) { Dispatched::Done } else { Dispatched::Again };
                let some = names.iter().filter(|_| random.once_in(2)).map(|name| out[name].1.clone()).collect();
                store.complete_dispatches(some, outcome).await?;
            }
            8 if random.once_in(4) => {
                store.redispatch_service(service).await?;
                while store.refill_dispatches(4).await? {}
            }
            9 if random.once_in(8) => {
                a_moment(store).await?;
                let cursor = Some((*random.pick(&[Status::InProgress, Status::Pending]), 0));
                let rule = PurgeRule { service, finished: LONG, any: Duration::ZERO, dry_run: false, batch: 2, cursor };
                store.purge_tasks(rule).await?;
                let left: BTreeSet<TaskId> = list_all(store, unfinished(&[Status::Pending, Status::InProgress]))
                    .await?
                    .iter()
                    .map(|task| task.task_id)
                    .collect();
                out.retain(|task, _| left.contains(task));
            }
            _ if !names.is_empty() => {
                let task = *random.pick(&names);
                match random.below(6) {
                    0 => drop(record(store, task, service, starts()).await?),
                    1 => drop(record(store, task, service, Event::GivenBack { worker_host: None }).await?),
                    chance => {
                        let event = match chance {
                            2 => Event::Cancelled,
                            3 => Event::failed(None, "no"),
                            _ => succeeds()?,
                        };
                        change(store, task, service, event).await?;
                        if chance == 2 && random.once_in(2) {
                            change(store, task, service, Event::Revived).await?;
                        }
                        out.remove(&task);
                    }
                }
            }
            _ => {}
        }
        if step > 200
            && store
                .list_tasks(unfinished(&[Status::Pending, Status::InProgress, Status::Waiting]))
                .await?
                .tasks
                .is_empty()
        {
            return Ok(());
        }
    }
}

/// Covers the burst and what the clock adds.
pub async fn a_rate_limit_bounds_published_tasks(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let hour = Duration::from_secs(3600);
    let slow = RateLimit { count: 1, per: hour, burst: 6 };
    let retry = RetryPolicy { limit: 3, base: Duration::from_millis(1), ..RetryPolicy::none() };
    let limits = |rate| ServiceLimits { retry: retry.clone(), ..flow(FlowLimits { rate: Some(rate), ..WINDOWED }) };
    let service = windowed(harness, limits(slow)).await?;
    let [alice] = clients(store, ["alice"]).await?;
    let all = submit_all(store, new_tasks(service, alice, 30)?).await?;
    ensure!(publish(store, service, 4).await? == all[..4]);
    let claimed = store.claim_dispatches(vec![service], 20, LONG).await?;
    ensure!(claimed.tasks.len() == 2, "a burst, and no more: {}", claimed.tasks.len());
    let again = claimed.again.context("there is a time to look again")?;
    ensure!(again <= hour && again > hour / 2, "{again:?}");
    store.complete_dispatches(claimed.tasks.into_iter().map(|due| due.name).collect(), Dispatched::Done).await?;

    // An end frees a place, not the rate. A task that the broker lost is published again for free; a retry is not.
    change(store, all[0], service, succeeds()?).await?;
    change(store, all[1], service, Event::failed(None, "no")).await?;
    ensure!(take(store, service, 20).await?.is_empty());
    store.redispatch_service(service).await?;
    while store.refill_dispatches(10).await? {}
    ensure!(publish(store, service, 20).await? == all[2..6], "those that were out");
    a_moment(store).await?;
    store.fire_timers(10).await?;
    ensure!(take(store, service, 20).await?.is_empty(), "it waits for the rate like the others");

    let fast = RateLimit { count: 100, per: Duration::from_secs(1), burst: 1 };
    store.declare(vec![put_brokered("resize", limits(fast))?]).await?;
    let begun = store.ping().await?;
    let mut next = Vec::new();
    while next.len() < 4 {
        let claimed = store.claim_dispatches(vec![service], 20, LONG).await?;
        ensure!(claimed.tasks.len() <= 1, "one at a time");
        next.extend(claimed.tasks.iter().map(|due| due.name.task_id));
        if let Some(again) = claimed.again {
            ensure!(again <= Duration::from_millis(10), "{again:?}");
            until_after(store, store.ping().await?.after(again)).await?;
        }
    }
    ensure!(next == [1, 6, 7, 8].map(|at: usize| all[at]), "the oldest first");
    let took = store.ping().await?.since(begun);
    ensure!(took >= Duration::from_millis(20), "four of them in {took:?}");
    Ok(())
}

/// Fair share orders the publications, and the rank orders the tasks of one client.
pub async fn fair_share_orders_published_tasks(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limits = FlowLimits { fair_share: true, dispatch_window: Some(9), ..FREE };
    let service = windowed(harness, flow(limits)).await?;
    let [alice, bob, carol] = clients(store, ["alice", "bob", "carol"]).await?;
    put_flow(store, "carol", ClientFlow { max_running: None, share: 2 }).await?;
    submit_all(store, new_tasks(service, alice, 60)?).await?;
    let urgent = |level| -> Result<NewTask> {
        let priority = Priority::new(level).context("a priority")?;
        let terms = Terms { priority, head_start: priority.head_start(Duration::from_secs(60)), ..Terms::default() };
        Ok(NewTask { terms, ..new_task(service, bob)? })
    };
    let (low, high) = (submit(store, urgent(0)?).await?.task_id, submit(store, urgent(9)?).await?.task_id);
    submit_all(store, new_tasks(service, bob, 10)?).await?;
    submit_all(store, new_tasks(service, carol, 30)?).await?;
    let first = publish(store, service, 20).await?;
    let whose = owners(store, &first).await?;
    let count = |whose: &[String], who: &str| whose.iter().filter(|owner| *owner == who).count();
    for part in 1..=whose.len() {
        let of = |who| count(&whose[..part], who);
        ensure!(of("alice").abs_diff(of("bob")) <= 1 && of("carol") <= 2 * of("bob") + 2, "{whose:?}");
    }
    ensure!(whose.len() == 9 && count(&whose, "carol") >= 4, "{whose:?}");
    let bobs: Vec<TaskId> = first.iter().zip(&whose).filter(|(_, who)| *who == "bob").map(|(task, _)| *task).collect();
    ensure!(bobs[0] == high && !bobs.contains(&low), "the most urgent of a client is its first");

    // The order is the same one task at a time, whichever task ends first.
    let (mut out, mut more) = (first, Vec::new());
    for _ in 0..16 {
        change(store, out.remove(0), service, succeeds()?).await?;
        let next = publish(store, service, 20).await?;
        ensure!(next.len() == 1, "one place is free: {}", next.len());
        more.extend(owners(store, &next).await?);
        out.extend(next);
    }
    let of = |who| count(&more, who);
    ensure!(of("carol") >= 7 && of("bob") >= 3 && of("alice") <= 5, "{more:?}");
    Ok(())
}

/// A change takes effect with the next call, whatever is already published.
pub async fn flow_limits_can_change_while_tasks_are_published(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = windowed(harness, flow(WINDOWED)).await?;
    let [alice, bob] = clients(store, ["alice", "bob"]).await?;
    let mut all = submit_all(store, new_tasks(service, alice, 12)?).await?;
    all.extend(submit_all(store, new_tasks(service, bob, 12)?).await?);
    let declare = async |limits: FlowLimits| -> Result<()> {
        store.declare(vec![put_brokered("resize", flow(limits))?]).await?;
        Ok(store.declared().await.map(drop)?)
    };
    ensure!(publish(store, service, 6).await? == all[..6]);
    declare(FlowLimits { max_running: Some(3), ..WINDOWED }).await?;
    for task in &all[..3] {
        ensure!(publish(store, service, 9).await?.is_empty());
        change(store, *task, service, Event::Cancelled).await?;
    }
    ensure!(publish(store, service, 9).await?.is_empty(), "three are out");
    // The limit of running tasks may be larger than the window.
    declare(FlowLimits { max_running: Some(50), ..WINDOWED }).await?;
    ensure!(publish(store, service, 3).await? == all[6..9]);
    declare(FlowLimits { max_running_per_client: Some(4), ..WINDOWED }).await?;
    ensure!(publish(store, service, 20).await? == all[12..16], "alice has six, bob gets four");
    declare(FlowLimits { fair_share: true, ..WINDOWED }).await?;
    ensure!(publish(store, service, 20).await?.is_empty(), "the window is full");
    for task in &all[3..9] {
        change(store, *task, service, Event::Cancelled).await?;
    }
    let next = publish(store, service, 20).await?;
    let whose = owners(store, &next).await?;
    ensure!(next.len() == 6 && whose.iter().filter(|who| *who == "bob").count() == 3, "{whose:?}");
    declare(FREE).await?;
    ensure!(take(store, service, 20).await?.len() == 5, "without a window, all of them go");
    Ok(())
}
