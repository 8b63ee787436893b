//! Wake-ups, events and revocations.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use relais_core::{
    Change, Event, IdsChanged, Milestone, Revocation, ServiceKey, Status, Store, TaskChange, Wakeup, WakeupListener,
};
use tokio::sync::mpsc;

use super::{
    Harness,
    world::{DEADLINE, LONG, change, claim, find, name, new_task, one_of_each, record, submit},
};

/// Collects the wake-ups that it receives.
struct WakeupRecorder(mpsc::UnboundedSender<Wakeup>);

impl WakeupListener for WakeupRecorder {
    fn wake(&self, wakeup: &Wakeup) {
        // A listener that was dropped receives nothing.
        let _ = self.0.send(wakeup.clone());
    }
}

fn listen(store: &dyn Store) -> mpsc::UnboundedReceiver<Wakeup> {
    let (recorder, heard) = mpsc::unbounded_channel();
    store.listen(Arc::new(WakeupRecorder(recorder)));
    heard
}

async fn hear(heard: &mut mpsc::UnboundedReceiver<Wakeup>) -> Result<Wakeup> {
    tokio::time::timeout(DEADLINE, heard.recv()).await.context("nothing is heard")?.context("the store is gone")
}

/// A wake-up is sent when the change is visible, not before.
pub async fn wakeups_for_work_changes_and_declarations_come_after_the_commit(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let (mut one, mut two) = (listen(store), listen(store));
    let id = submit(store, new_task(service, client)?).await?.task_id;
    let heard = hear(&mut one).await?;
    ensure!(heard.work == [service] && !heard.declared, "{heard:?}");
    ensure!(hear(&mut two).await? == heard, "every listener hears it");

    let task = find(store, id).await?;
    let changed = |work: &[ServiceKey]| Wakeup {
        work: work.to_vec(),
        tasks: IdsChanged::These(vec![task.id]),
        ..Wakeup::default()
    };
    claim(store, service, 1).await?;
    ensure!(hear(&mut one).await? == changed(&[]));
    change(store, id, service, Event::Returned { attempt: Some(1) }).await?;
    ensure!(hear(&mut one).await? == changed(&[service]), "there is work again");
    change(store, id, service, Event::Cancelled).await?;
    ensure!(hear(&mut one).await? == changed(&[]));
    store.declare(vec![Change::PauseService { name: name("resize")?, paused: true }]).await?;
    ensure!(hear(&mut one).await?.declared);
    Ok(())
}

/// Covers refusals, heartbeats and late messages.
pub async fn an_event_that_changes_nothing_sends_no_wakeup(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let id = submit(store, new_task(service, client)?).await?.task_id;
    claim(store, service, 1).await?;
    let mut heard = listen(store);
    claim(store, service, 1).await?;
    store.fire_timers(10).await?;
    store.submit_many(vec![new_task(ServiceKey(99), client)?]).await?;
    record(store, id, service, Event::Returned { attempt: Some(9) }).await?;
    // A transaction that is rolled back sends nothing.
    ensure!(store.declare(vec![Change::PauseService { name: name("none")?, paused: true }]).await.is_err());
    record(store, id, service, Event::Renewed { attempt: Some(1), lease: LONG }).await?;
    let heard = heard.try_recv();
    ensure!(heard.is_err(), "{heard:?}");
    Ok(())
}

/// Covers drivers for several processes. With a driver for one process, relaying waits for ever and sends nothing.
pub async fn wakeups_reach_other_processes(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let other = Arc::clone(harness.handles.last().context("a handle")?);
    let mut heard = listen(&*other);
    let relay = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.relay_wakeups().await }
    });
    if !harness.features.many_processes {
        relay.abort();
        ensure!(heard.try_recv().is_err());
        return Ok(());
    }
    ensure!(hear(&mut heard).await? == Wakeup::anything(), "what was told before it listened was missed");
    let id = submit(store, new_task(service, client)?).await?.task_id;
    until(&mut heard, |wakeup| wakeup.work == [service]).await?;
    let task = find(&*other, id).await?;
    change(store, id, service, Event::Cancelled).await?;
    until(&mut heard, |wakeup| wakeup.tasks == IdsChanged::These(vec![task.id])).await?;
    store.declare(vec![Change::PauseService { name: name("resize")?, paused: true }]).await?;
    until(&mut heard, |wakeup| wakeup.declared).await?;
    relay.abort();
    Ok(())
}

/// Collects every change while it follows them, and every text.
#[derive(Default)]
struct Curious {
    wants: std::sync::atomic::AtomicBool,
    changes: std::sync::Mutex<Vec<TaskChange>>,
    texts: std::sync::Mutex<Vec<String>>,
    revoked: std::sync::Mutex<Vec<Revocation>>,
    bell: tokio::sync::Notify,
}

impl WakeupListener for Curious {
    fn wake(&self, _: &Wakeup) {}

    fn wants_changes(&self) -> bool {
        self.wants.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn changed(&self, changes: &[TaskChange]) {
        self.changes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(changes);
    }

    fn revoked(&self, tasks: &[Revocation]) {
        self.revoked.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(tasks);
    }

    fn told(&self, text: &str) {
        self.texts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(text.to_owned());
        self.bell.notify_one();
    }

    fn hears(&self, hears: Result<(), &str>) {
        if hears.is_ok() {
            self.bell.notify_one();
        }
    }
}

impl Curious {
    fn heard(&self) -> Vec<TaskChange> {
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn texts(&self) -> Vec<String> {
        self.texts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// Each change has its milestone, in commit order. A listener that does not follow receives none.
pub async fn every_committed_change_is_published_in_order_to_those_who_follow(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let recorder = Arc::new(Curious::default());
    store.listen(Arc::clone(&recorder) as _);
    submit(store, new_task(service, client)?).await?;
    ensure!(recorder.heard().is_empty(), "nobody wanted it");
    recorder.wants.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut task = new_task(service, client)?;
    task.correlation_id = Some("chain".to_owned());
    let id = submit(store, task).await?.task_id;
    claim(store, service, 2).await?;
    change(store, id, service, Event::Progressed { attempt: Some(1), progress: 40.0, lease: Some(LONG) }).await?;
    change(store, id, service, Event::Renewed { attempt: Some(1), lease: LONG }).await?;
    record(store, id, service, Event::Returned { attempt: Some(9) }).await?;
    change(store, id, service, Event::Returned { attempt: Some(1) }).await?;
    change(store, id, service, Event::Cancelled).await?;
    let heard: Vec<TaskChange> = recorder.heard().into_iter().filter(|change| change.task_id == id).collect();
    let milestones: Vec<Milestone> = heard.iter().map(|change| change.milestone).collect();
    ensure!(
        milestones
            == [
                Milestone::Submitted,
                Milestone::Started,
                Milestone::Progress,
                Milestone::Returned,
                Milestone::Cancelled
            ],
        "{milestones:?}"
    );
    ensure!(heard.iter().all(|change| change.service == service && change.client == client));
    ensure!(heard.iter().all(|change| change.correlation_id.as_deref() == Some("chain")));
    let stored = find(store, id).await?;
    let last = heard.last().context("there is a last one")?;
    ensure!(last.state == stored.state && last.submitted == Some(stored.submitted), "{last:?}");
    Ok(())
}

/// The revocation is sent once, after the commit, and again when a worker reports on a task that has ended.
pub async fn a_worker_with_a_cancelled_task_gets_a_revocation(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let recorder = Arc::new(Curious::default());
    store.listen(Arc::clone(&recorder) as _);
    let heard = || std::mem::take(&mut *recorder.revoked.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    let began = Event::Delivered { worker_host: Some("pod-1".to_owned()), again: false, delivery_limit: 20 };
    let progress = Event::Progressed { attempt: None, progress: 1.0, lease: None };

    let id = submit(store, new_task(service, client)?).await?.task_id;
    change(store, id, service, began.clone()).await?;
    change(store, id, service, progress.clone()).await?;
    ensure!(heard().is_empty(), "nobody took it from anybody");
    change(store, id, service, Event::Cancelled).await?;
    let told = Revocation { task_id: id, service, status: Status::Cancelled, revision: 3, fresh: true };
    ensure!(heard() == [told]);
    record(store, id, service, Event::Cancelled).await?;
    ensure!(heard().is_empty(), "it was given up before");
    for event in [progress, began.clone()] {
        record(store, id, service, event).await?;
        ensure!(heard() == [Revocation { fresh: false, ..told }], "it does not know");
    }
    record(store, id, service, Event::failed(None, "told to stop")).await?;
    ensure!(heard().is_empty(), "it is done with it");
    change(store, id, service, Event::Revived).await?;
    change(store, id, service, Event::Cancelled).await?;
    ensure!(heard() == [Revocation { revision: 5, ..told }], "once more");

    let mut task = new_task(service, client)?;
    task.terms.timeout = Some(Duration::ZERO);
    let late = submit(store, task).await?.task_id;
    change(store, late, service, Event::Claimed { worker_host: None, lease: Duration::ZERO }).await?;
    ensure!(heard().is_empty());
    store.fire_timers(10).await?;
    let told = Revocation { task_id: late, service, status: Status::Failure, revision: 2, fresh: true };
    ensure!(heard() == [told], "it took too long");
    Ok(())
}

/// Covers drivers for several processes. A driver for one process broadcasts to nobody.
pub async fn broadcast_texts_reach_every_process(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let other = Arc::clone(harness.handles.last().context("a handle")?);
    let recorder = Arc::new(Curious::default());
    other.listen(Arc::clone(&recorder) as _);
    let relay = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.relay_wakeups().await }
    });
    let said: Vec<String> = (0..300).map(|number| format!("{number} {}", "é".repeat(100))).collect();
    if !harness.features.many_processes {
        relay.abort();
        store.broadcast(said).await?;
        ensure!(recorder.texts().is_empty());
        return Ok(());
    }
    tokio::time::timeout(DEADLINE, recorder.bell.notified()).await.context("it never listens")?;
    store.broadcast(said.clone()).await?;
    while recorder.texts().len() < said.len() {
        tokio::time::timeout(DEADLINE, recorder.bell.notified()).await.context("not all is heard")?;
    }
    ensure!(recorder.texts() == said, "in their order");
    relay.abort();
    Ok(())
}

async fn until(heard: &mut mpsc::UnboundedReceiver<Wakeup>, wanted: impl Fn(&Wakeup) -> bool) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < DEADLINE + Duration::from_secs(1) {
        if wanted(&hear(heard).await?) {
            return Ok(());
        }
    }
    bail!("other things are heard, but not this")
}
