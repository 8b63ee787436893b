//! Flow limits: how many tasks run, how fast they start, and whose are next.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use relais_core::{
    Change, ClientFlow, ClientId, ClientKey, Event, FlowLimits, NewTask, Priority, PurgeRule, QueueShare, RateLimit,
    RetryPolicy, Role, ServiceKey, ServiceLimits, Status, Store, Task, TaskFilter, Terms, Wakeup, WakeupListener,
};
use tokio::sync::mpsc;

use super::{
    Harness,
    random::Random,
    world::{
        DEADLINE, LONG, a_moment, at_once, change, claim, claim_for, client, filter, find, json, limits, list_all,
        name, new_task, new_tasks, put_service, record, request, says, service, submit, submit_all, until_after,
    },
};

pub(super) const FREE: FlowLimits = FlowLimits {
    max_running: None,
    max_running_per_client: None,
    rate: None,
    fair_share: false,
    dispatch_window: None,
};
const FAIR: FlowLimits = FlowLimits { fair_share: true, ..FREE };

pub(super) fn flow(flow: FlowLimits) -> ServiceLimits {
    ServiceLimits { flow, ..limits(None) }
}

pub(super) async fn clients<const N: usize>(store: &dyn Store, names: [&str; N]) -> Result<[ClientKey; N]> {
    let mut keys = Vec::new();
    for name in names {
        keys.push(client(store, name).await?);
    }
    keys.try_into().ok().context("as many as names")
}

pub(super) async fn put_flow(store: &dyn Store, client: &str, flow: ClientFlow) -> Result<()> {
    let (client_id, service, roles) = (ClientId::new(client)?, name("resize")?, vec![Role::Consume]);
    let put = Change::PutAuthorization { client_id, service, roles, capacity: None, flow };
    Ok(store.declare(vec![put]).await?)
}

async fn succeed(store: &dyn Store, service: ServiceKey, task: &Task) -> Result<()> {
    let event = Event::Succeeded { attempt: Some(task.state.attempt), response: json("{}")? };
    change(store, task.task_id, service, event).await
}

/// The client of each task.
fn of(tasks: &[Task], client: &str) -> usize {
    tasks.iter().filter(|task| task.client_id.as_str() == client).count()
}

async fn running(store: &dyn Store, service: ServiceKey) -> Result<u64> {
    Ok(store.queue_depths(vec![service]).await?.first().context("one queue")?.in_progress)
}

/// Runs tasks until this many have ended, and returns the most that ran at once as workers see it: from the answer of
/// the claim until just before the result is sent. `who` selects what is counted separately.
async fn work_together(
    harness: &Harness,
    service: ServiceKey,
    total: usize,
    who: fn(&Task) -> String,
) -> Result<HashMap<String, usize>> {
    type Counts = Arc<std::sync::Mutex<HashMap<String, (usize, usize)>>>;
    let (ended, counts) = (Arc::new(AtomicUsize::new(0)), Counts::default());
    at_once(harness, 16, |store, worker| {
        let (ended, counts) = (Arc::clone(&ended), Arc::clone(&counts));
        async move {
            let count = |task: &Task, step: isize| {
                let mut counts = counts.lock().expect("nobody panics with it");
                let (now, most) = counts.entry(who(task)).or_default();
                *now = now.checked_add_signed(step).expect("what ends has begun");
                *most = (*most).max(*now);
            };
            while ended.load(Ordering::Relaxed) < total {
                let tasks = claim(&*store, service, 1 + worker % 3).await?;
                tasks.iter().for_each(|task| count(task, 1));
                // Yields, so that other workers see these tasks running.
                tokio::task::yield_now().await;
                for task in tasks {
                    count(&task, -1);
                    if worker % 5 == 0 && task.state.attempt == 1 {
                        change(&*store, task.task_id, service, Event::Returned { attempt: Some(1) }).await?;
                    } else {
                        succeed(&*store, service, &task).await?;
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Ok(())
        }
    })
    .await?;
    let counts = counts.lock().expect("nobody panics with it");
    Ok(counts.iter().map(|(who, (_, most))| (who.clone(), *most)).collect())
}

/// Many concurrent claims, from two processes where the driver allows it.
pub async fn concurrent_claims_start_exactly_max_running_tasks(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", flow(FlowLimits { max_running: Some(7), ..FREE })).await?;
    let [alice, bob] = clients(store, ["alice", "bob"]).await?;
    for who in [alice, bob] {
        submit_all(store, new_tasks(service, who, 75)?).await?;
    }
    let most = work_together(harness, service, 150, |_| "all".to_owned()).await?;
    ensure!(most["all"] <= 7, "{most:?}");
    ensure!(running(store, service).await? == 0);
    submit_all(store, new_tasks(service, alice, 30)?).await?;
    ensure!(claim(store, service, 5).await?.len() == 5);
    let rest = claim(store, service, 30).await?;
    ensure!(rest.len() == 2, "{} more than 5 of 7", rest.len());
    ensure!(claim(store, service, 30).await?.is_empty());
    succeed(store, service, &rest[0]).await?;
    ensure!(claim(store, service, 30).await?.len() == 1);
    Ok(())
}

/// Of the tasks that may run, the oldest start first.
pub async fn max_running_per_client_holds_and_other_clients_use_the_room(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limits = FlowLimits { max_running: Some(8), max_running_per_client: Some(2), ..FREE };
    let service = service(store, "resize", flow(limits)).await?;
    let [alice, bob, carol] = clients(store, ["alice", "bob", "carol"]).await?;
    put_flow(store, "alice", ClientFlow { max_running: Some(4), share: 1 }).await?;
    for (who, number) in [(alice, 40), (bob, 40), (carol, 20)] {
        submit_all(store, new_tasks(service, who, number)?).await?;
    }
    let most = work_together(harness, service, 100, |task| task.client_id.to_string()).await?;
    let most_of = |who: &str| most.get(who).copied().unwrap_or(0);
    ensure!(most_of("alice") <= 4 && most_of("bob") <= 2 && most_of("carol") <= 2, "{most:?}");

    let mut names = Vec::new();
    for who in [alice, alice, bob, alice, bob, bob, carol] {
        names.extend(submit_all(store, new_tasks(service, who, 1)?).await?);
    }
    let claimed: Vec<_> = claim(store, service, 3).await?.iter().map(|task| task.task_id).collect();
    ensure!(claimed == names[..3], "the oldest first");
    let shares = store.queue_shares(service).await?;
    let share = |client, pending, in_progress| QueueShare { client, pending, in_progress };
    ensure!(shares == [share(alice, 1, 2), share(bob, 2, 1), share(carol, 1, 0)], "{shares:?}");
    let claimed = claim(store, service, 10).await?;
    ensure!(claimed.len() == 3 && of(&claimed, "alice") == 1 && of(&claimed, "carol") == 1, "bob has two already");

    // The limit of one client holds where the service has none.
    store.declare(vec![put_service("resize", flow(FREE))?]).await?;
    submit_all(store, new_tasks(service, alice, 10)?).await?;
    let claimed = claim(store, service, 20).await?;
    ensure!(of(&claimed, "alice") == 1 && of(&claimed, "bob") == 1, "{}", claimed.len());
    Ok(())
}

/// Covers lost workers, returns, late messages, cancellations and purges: the count of running tasks stays exact.
pub async fn max_running_frees_its_room_however_a_task_ends(harness: &Harness) -> Result<()> {
    const MOST: u64 = 6;
    let store = harness.store();
    let limits = FlowLimits { max_running: Some(MOST as u32), max_running_per_client: Some(4), ..FAIR };
    let retry = RetryPolicy { limit: 2, base: Duration::from_millis(1), ..RetryPolicy::classic() };
    let limits = ServiceLimits { delivery_limit: 2, retry, ..flow(limits) };
    let service = service(store, "resize", limits).await?;
    let [alice, bob, carol] = clients(store, ["alice", "bob", "carol"]).await?;
    let mut random = Random::new();
    let mut held: Vec<Task> = Vec::new();
    for step in 0..250 {
        let before = running(store, service).await?;
        match random.below(10) {
            0..2 => {
                let who = *random.pick(&[alice, bob, carol]);
                submit_all(store, new_tasks(service, who, random.below(5))?).await?;
            }
            2..5 => {
                let lease = if random.once_in(2) { Duration::ZERO } else { LONG };
                let handle = random.pick(&harness.handles);
                let claimed = claim_for(&**handle, service, random.below(8), lease).await?;
                let after = running(store, service).await?;
                ensure!(after <= MOST.max(before), "step {step}: {after} run, {before} before");
                held.extend(claimed);
            }
            5 => {
                a_moment(store).await?;
                store.fire_timers(random.below(4)).await?;
            }
            6 => {
                // A worker starts a pending task by a message without an attempt: it is counted, not stopped.
                let waiting = TaskFilter { statuses: vec![Status::Pending], ..filter(1) };
                if let Some(task) = store.list_tasks(waiting).await?.tasks.pop() {
                    let event = Event::Started { attempt: None, worker_host: None, lease: Some(LONG) };
                    record(store, task.task_id, service, event).await?;
                    held.push(find(store, task.task_id).await?);
                }
            }
            7 if random.once_in(6) => {
                let rule = PurgeRule {
                    service,
                    finished: LONG,
                    any: Duration::ZERO,
                    dry_run: false,
                    batch: 2,
                    cursor: Some((Status::InProgress, 0)),
                };
                a_moment(store).await?;
                store.purge_tasks(rule).await?;
            }
            _ if !held.is_empty() => {
                let task = held.swap_remove(random.below(held.len()));
                let attempt = Some(task.state.attempt);
                let event = match random.below(4) {
                    0 => Event::Returned { attempt },
                    1 => Event::Cancelled,
                    2 => Event::failed(attempt, "no"),
                    _ => Event::Succeeded { attempt, response: json("{}")? },
                };
                record(store, task.task_id, service, event).await?;
            }
            _ => {}
        }
        if step % 10 == 0 {
            let run = TaskFilter { statuses: vec![Status::InProgress], ..filter(50) };
            let listed = list_all(store, run).await?.len() as u64;
            ensure!(running(store, service).await? == listed, "step {step}: {listed} are running");
        }
    }
    // Runs all tasks to the end.
    for task in held {
        record(store, task.task_id, service, Event::Cancelled).await?;
    }
    submit_all(store, new_tasks(service, alice, 5)?).await?;
    submit_all(store, new_tasks(service, bob, 5)?).await?;
    let unfinished = TaskFilter { statuses: vec![Status::Pending, Status::InProgress, Status::Waiting], ..filter(1) };
    let begun = Instant::now();
    while !store.list_tasks(unfinished.clone()).await?.tasks.is_empty() {
        ensure!(begun.elapsed() < DEADLINE, "it takes too long");
        a_moment(store).await?;
        store.fire_timers(100).await?;
        for task in claim(store, service, 100).await? {
            succeed(store, service, &task).await?;
        }
    }
    ensure!(running(store, service).await? == 0);
    Ok(())
}

/// The start times of tasks are checked over every window.
pub async fn a_rate_limit_follows_the_clock_of_the_store(harness: &Harness) -> Result<()> {
    const INTERVAL: u64 = 10;
    const BURST: usize = 8;
    let store = harness.store();
    let slow = RateLimit { count: 1, per: Duration::from_secs(3600), burst: BURST as u32 };
    let service = service(store, "resize", flow(FlowLimits { rate: Some(slow), ..FREE })).await?;
    let [alice] = clients(store, ["alice"]).await?;
    submit_all(store, new_tasks(service, alice, 70)?).await?;
    ensure!(claim(store, service, 3).await?.len() == 3);
    let claimed = store.claim_tasks(vec![request(service, 40, None), request(service, 2, None)]).await?;
    ensure!(claimed.tasks[0].len() == BURST - 3 && claimed.tasks[1].is_empty(), "a burst, and no more");
    let again = claimed.again.context("there is a time to look again")?;
    ensure!(again <= slow.per && again > slow.per / 2, "{again:?}");
    ensure!(store.claim_tasks(vec![request(service, 0, None)]).await?.again.is_none(), "for those who want some");

    let rate = RateLimit { count: 100, per: Duration::from_millis(100 * INTERVAL), burst: BURST as u32 };
    store.declare(vec![put_service("resize", flow(FlowLimits { rate: Some(rate), ..FREE }))?]).await?;
    let taken = Arc::new(AtomicUsize::new(0));
    let started = at_once(harness, 8, |store, _| {
        let taken = Arc::clone(&taken);
        async move {
            let mut started = Vec::new();
            while taken.load(Ordering::Relaxed) < 70 - BURST {
                let claimed = store.claim_tasks(vec![request(service, 5, None)]).await?;
                let tasks = claimed.tasks.concat();
                taken.fetch_add(tasks.len(), Ordering::Relaxed);
                if let Some(again) = claimed.again {
                    ensure!(again <= Duration::from_millis(INTERVAL * BURST as u64), "{again:?}");
                    if tasks.is_empty() {
                        let now = store.ping().await?;
                        until_after(&*store, now.after(again)).await?;
                    }
                }
                started.extend(tasks.iter().filter_map(|task| task.state.started));
            }
            Ok(started)
        }
    })
    .await?;
    let mut started: Vec<i64> = started.concat().into_iter().map(|moment| moment.as_millis()).collect();
    started.sort_unstable();
    ensure!(started.len() == 70 - BURST, "{} have started", started.len());
    for (i, from) in started.iter().enumerate() {
        for (j, to) in started.iter().enumerate().skip(i) {
            // Times have a resolution of one millisecond.
            let most = BURST as u64 + ((to - from + 1) as u64) / INTERVAL;
            ensure!(((j - i) as u64) < most, "{} starts within {} ms", j - i + 1, to - from);
        }
    }
    Ok(())
}

/// Covers claims of one task each, and of many.
pub async fn fair_share_gives_clients_turns_whatever_their_backlog(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", flow(FAIR)).await?;
    let [alice, bob, carol] = clients(store, ["alice", "bob", "carol"]).await?;
    for (who, number) in [(alice, 300), (bob, 14), (carol, 14)] {
        submit_all(store, new_tasks(service, who, number)?).await?;
    }
    let mut first = Vec::new();
    for i in 0..12 {
        first.extend(claim(&*harness.handles[i % harness.handles.len()], service, 1).await?);
    }
    ensure!(["alice", "bob", "carol"].map(|who| of(&first, who)) == [4; 3], "{first:?}");
    let many = claim(store, service, 30).await?;
    ensure!(["alice", "bob", "carol"].map(|who| of(&many, who)) == [10; 3], "{many:?}");
    let ids: Vec<i64> = many.iter().filter(|task| task.client_id.as_str() == "bob").map(|task| task.id).collect();
    ensure!(ids.is_sorted(), "each one's in their order");
    let rest = claim(store, service, 50).await?;
    ensure!(of(&rest, "alice") == 50, "whoever is alone has all the room");
    Ok(())
}

/// A client submits one task after hundreds of another client.
pub async fn fair_share_gives_an_absent_client_no_credit(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", flow(FlowLimits { max_running: Some(100), ..FAIR })).await?;
    let [alice, bob] = clients(store, ["alice", "bob"]).await?;
    submit_all(store, new_tasks(service, bob, 1)?).await?;
    submit_all(store, new_tasks(service, alice, 300)?).await?;
    ensure!(claim(store, service, 41).await?.len() == 41);
    submit_all(store, new_tasks(service, bob, 1)?).await?;
    ensure!(of(&claim(store, service, 2).await?, "bob") == 1, "it waits for no more than one");
    submit_all(store, new_tasks(service, bob, 100)?).await?;
    let both = claim(store, service, 20).await?;
    ensure!((9..=11).contains(&of(&both, "bob")), "{} of 20", of(&both, "bob"));
    Ok(())
}

/// The shares are three to one.
pub async fn fair_share_starts_more_tasks_of_a_client_with_a_larger_share(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", flow(FAIR)).await?;
    let [alice, bob] = clients(store, ["alice", "bob"]).await?;
    put_flow(store, "alice", ClientFlow { max_running: None, share: 3 }).await?;
    for who in [alice, bob] {
        submit_all(store, new_tasks(service, who, 100)?).await?;
    }
    let mut tasks = Vec::new();
    for most in [1, 5, 2, 20, 12] {
        tasks.extend(claim(store, service, most).await?);
    }
    ensure!((29..=31).contains(&of(&tasks, "alice")), "{} of 40", of(&tasks, "alice"));
    Ok(())
}

/// Priority orders all tasks without fair share, and the tasks of each client with it.
pub async fn priority_order_holds_under_flow_limits(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", flow(FlowLimits { max_running_per_client: Some(2), ..FREE })).await?;
    let [alice, bob] = clients(store, ["alice", "bob"]).await?;
    let mut names = Vec::new();
    for (client, level) in [(alice, 4), (alice, 4), (alice, 9), (bob, 0), (bob, 7), (bob, 4)] {
        let priority = Priority::new(level).context("a priority")?;
        let terms = Terms { priority, head_start: priority.head_start(Duration::from_secs(60)), ..Terms::default() };
        names.push(submit(store, NewTask { terms, ..new_task(service, client)? }).await?.task_id);
    }
    let [first, second, urgent, late, soon, usual] = names[..] else { bail!("six tasks") };
    let ids = |tasks: Vec<Task>| tasks.into_iter().map(|task| task.task_id).collect::<Vec<_>>();
    let claimed = ids(claim(store, service, 3).await?);
    ensure!(claimed == [urgent, soon, first], "by rank, whosever they are");
    let claimed = ids(claim(store, service, 3).await?);
    ensure!(claimed == [usual], "alice has two already");
    store.declare(vec![put_service("resize", flow(FAIR))?]).await?;
    ensure!(ids(claim(store, service, 3).await?) == [second, late]);
    Ok(())
}

/// One call claims for several services.
pub async fn flow_limits_spare_unlimited_services_and_a_pause_stops_all_claims(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limited = service(store, "resize", flow(FlowLimits { max_running: Some(2), ..FREE })).await?;
    let free = service(store, "rotate", limits(None)).await?;
    let [alice] = clients(store, ["alice"]).await?;
    for service in [limited, free] {
        submit_all(store, new_tasks(service, alice, 10)?).await?;
    }
    store.declare(vec![Change::PauseService { name: name("resize")?, paused: true }]).await?;
    let requests = || vec![request(limited, 9, None), request(free, 4, None)];
    let claimed = store.claim_tasks(requests()).await?;
    ensure!(claimed.tasks[0].is_empty() && claimed.tasks[1].len() == 4 && claimed.again.is_none());
    store.declare(vec![Change::PauseService { name: name("resize")?, paused: false }]).await?;
    let claimed = store.claim_tasks(requests()).await?;
    ensure!(claimed.tasks[0].len() == 2 && claimed.tasks[1].len() == 4);
    Ok(())
}

/// Limits are raised, lowered and removed. Every process follows at once.
pub async fn flow_limits_can_change_while_tasks_run(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let other = &**harness.handles.last().context("a handle")?;
    let service = service(store, "resize", limits(None)).await?;
    let [alice] = clients(store, ["alice"]).await?;
    submit_all(store, new_tasks(service, alice, 40)?).await?;
    let mut held = claim(other, service, 2).await?;
    let put = async |most| -> Result<()> {
        let changed = vec![put_service("resize", flow(FlowLimits { max_running: most, ..FREE }))?];
        Ok(store.declare(changed).await?)
    };
    // Tasks that ran before the limit was set count too.
    for (most, more) in [(3, 1), (5, 2), (1, 0), (5, 0)] {
        put(Some(most)).await?;
        let claimed = claim(other, service, 40).await?;
        ensure!(claimed.len() == more, "{} instead of {more} at {most}", claimed.len());
        held.extend(claimed);
    }
    put(Some(1)).await?;
    for (i, task) in held.iter().enumerate() {
        succeed(store, service, task).await?;
        ensure!(
            claim(other, service, 40).await?.len() == usize::from(i == 4),
            "one at a time, when the others have ended"
        );
    }
    put(Some(0)).await?;
    ensure!(claim(other, service, 40).await?.is_empty(), "none at all");
    put(None).await?;
    ensure!(claim(other, service, 20).await?.len() == 20);
    Ok(())
}

/// Collects the wake-ups that it receives.
pub(super) struct WakeupRecorder(pub(super) mpsc::UnboundedSender<Wakeup>);

impl WakeupListener for WakeupRecorder {
    fn wake(&self, wakeup: &Wakeup) {
        // A listener that was dropped receives nothing.
        let _ = self.0.send(wakeup.clone());
    }
}

/// A wake-up is sent when a task ends in any way, and only where a worker may be waiting for room.
pub async fn a_worker_that_waits_for_flow_room_is_woken(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let limited = service(store, "resize", ServiceLimits { delivery_limit: 1, ..flow(FREE) }).await?;
    let free = service(store, "rotate", limits(None)).await?;
    let [alice] = clients(store, ["alice"]).await?;
    put_flow(store, "alice", ClientFlow { max_running: Some(1), share: 1 }).await?;
    store.declared().await?;
    for service in [limited, free] {
        submit_all(store, new_tasks(service, alice, 10)?).await?;
    }
    let (recorder, mut heard) = mpsc::unbounded_channel();
    store.listen(Arc::new(WakeupRecorder(recorder)));
    let mut woken = || -> Vec<ServiceKey> {
        let mut work = Vec::new();
        while let Ok(wakeup) = heard.try_recv() {
            work.extend(wakeup.work);
        }
        work
    };
    let response = json("{}")?;
    for event in [
        Event::Succeeded { attempt: Some(1), response: response.clone() },
        Event::failed(Some(1), "no"),
        Event::Cancelled,
    ] {
        let task = claim(store, limited, 5).await?.pop().context("a task")?;
        ensure!(woken().is_empty(), "a claim makes no room");
        store.record_events(vec![says(task.task_id, limited, event.clone())]).await?;
        ensure!(woken() == [limited], "{event:?}");
    }
    claim_for(store, limited, 5, Duration::ZERO).await?;
    a_moment(store).await?;
    store.fire_timers(5).await?;
    ensure!(woken() == [limited], "a lost worker's task has failed");
    let task = claim(store, limited, 5).await?.pop().context("a task")?;
    a_moment(store).await?;
    let cursor = Some((Status::InProgress, 0));
    let rule = PurgeRule { service: limited, finished: LONG, any: Duration::ZERO, dry_run: false, batch: 5, cursor };
    ensure!(store.purge_tasks(rule).await?.purged == 1 && store.find_task(task.task_id).await?.is_none());
    ensure!(woken() == [limited], "a task that ran was purged");

    let task = claim(store, free, 5).await?.pop().context("a task")?;
    change(store, task.task_id, free, Event::Succeeded { attempt: Some(1), response }).await?;
    ensure!(woken().is_empty(), "nobody waits for that");
    Ok(())
}
