//! Schedules: each run is made once, and a run that fails does not stop the schedule.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use relais_core::{
    Change, ClientId, ClientKey, Event, FiredSchedules, Missed, NewTask, Overlap, Priority, Refusal, RetryPolicy,
    RunByHand, RunOutcome, RunTerms, Schedule, ScheduleChange, ScheduleName, ScheduleRecord, ScheduleValidator,
    ServiceKey, Store, StoreError, TaskId, Timestamp, run_id,
};

use super::{
    Harness,
    world::{
        LONG, at_once, change, claim, filter, find, json, limits, list_all, name, new_task, one_of_each, put_brokered,
        put_service, service_key, submit, until_after,
    },
};

/// A schedule that runs every second.
const SECONDS: &str = "* * * * * *";

fn named(schedule: &str) -> Result<ScheduleName> {
    Ok(ScheduleName::new(schedule)?)
}

fn declared(schedule: &str, cron: &str) -> Result<Schedule> {
    Ok(Schedule {
        name: named(schedule)?,
        service: name("resize")?,
        client: ClientId::new("alice")?,
        cron: cron.to_owned(),
        time_zone: "UTC".to_owned(),
        body: json(r#"{"z": 1e400, "a": "é"}"#)?,
        callback: None,
        correlation_id: None,
        terms: RunTerms::default(),
        missed: Missed::All,
        overlap: Overlap::Allow,
        paused: false,
    })
}

async fn put(store: &dyn Store, schedule: Schedule) -> Result<ScheduleRecord> {
    let name = schedule.name.clone();
    store.declare(vec![Change::Schedule(ScheduleChange::Put { schedule: Box::new(schedule), paused: None })]).await?;
    record(store, name.as_str()).await
}

async fn pause(store: &dyn Store, schedule: &str, paused: bool) -> Result<ScheduleRecord> {
    store.declare(vec![Change::Schedule(ScheduleChange::Pause { name: named(schedule)?, paused })]).await?;
    record(store, schedule).await
}

async fn record(store: &dyn Store, schedule: &str) -> Result<ScheduleRecord> {
    let mut found = store.list_schedules(vec![named(schedule)?]).await?;
    ensure!(found.len() <= 1);
    found.pop().context("the schedule is there")
}

/// A validator that knows the declaration, as the engine's does.
struct Judge {
    version: i64,
    service: ServiceKey,
    client: ClientKey,
    refuses: bool,
}

impl ScheduleValidator for Judge {
    fn version(&self) -> i64 {
        self.version
    }

    fn judge(&self, schedule: &Schedule, due: Timestamp) -> Result<NewTask, String> {
        if self.refuses {
            return Err(format!("{} is not\0 wanted{}", schedule.name, ".".repeat(1000)));
        }
        let task = new_task(self.service, self.client).map_err(|error| error.to_string())?;
        let correlation_id = Some(run_id(&schedule.name, due));
        Ok(NewTask { request: schedule.body.clone(), correlation_id, ..task })
    }
}

async fn judge(store: &dyn Store, (service, client): (ServiceKey, ClientKey)) -> Result<Judge> {
    Ok(Judge { version: store.declared_version().await?, service, client, refuses: false })
}

async fn fire(store: &dyn Store, of: (ServiceKey, ClientKey)) -> Result<FiredSchedules> {
    let fired = store.fire_schedules(100, Arc::new(judge(store, of).await?)).await?;
    ensure!(!fired.stale);
    Ok(fired)
}

/// Waits until this schedule has a due run, and returns its due time.
async fn until_due(store: &dyn Store, schedule: &str) -> Result<Timestamp> {
    let next = record(store, schedule).await?.progress.next.context("it runs")?;
    until_after(store, next).await?;
    ensure!(store.next_schedule_run().await?.is_some_and(|wait| wait.is_zero()));
    Ok(next)
}

/// The correlation ids of all tasks.
async fn runs(store: &dyn Store) -> Result<Vec<String>> {
    let tasks = list_all(store, filter(100)).await?;
    Ok(tasks.into_iter().filter_map(|task| task.correlation_id).collect())
}

fn seconds(from: Timestamp, number: i64) -> impl Iterator<Item = Timestamp> {
    (0..number).map(move |i| Timestamp::from_millis(from.as_millis() + 1000 * i))
}

/// Many processes fire a schedule that runs every second.
pub async fn concurrent_processes_make_each_schedule_run_once(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let of = one_of_each(store).await?;
    ensure!(store.next_schedule_run().await?.is_none());
    ensure!(fire(store, of).await?.schedules.is_empty());
    for schedule in ["one", "other"] {
        put(store, declared(schedule, SECONDS)?).await?;
    }
    let first = until_due(store, "other").await?;
    let fired: Vec<FiredSchedules> = at_once(harness, 8, |store: Arc<dyn Store>, _| async move {
        let mut all = FiredSchedules::default();
        while record(&*store, "one").await?.progress.runs < 3 {
            all.schedules.extend(fire(&*store, of).await?.schedules);
        }
        Ok(all)
    })
    .await?;
    let last = fire(store, of).await?;
    let told: Vec<_> = fired.iter().chain([&last]).flat_map(|fired| &fired.schedules).collect();
    ensure!(told.iter().all(|schedule| schedule.missed == 0 && schedule.service.as_str() == "resize"));
    let stored = runs(store).await?;
    for schedule in ["one", "other"] {
        let record = record(store, schedule).await?;
        let begin = if schedule == "other" { first } else { stored_begin(&stored, schedule)? };
        let number = i64::try_from(record.progress.runs)?;
        let expected: BTreeSet<String> = seconds(begin, number).map(|due| run_id(&record.schedule.name, due)).collect();
        let found: Vec<&String> = stored.iter().filter(|id| id.starts_with(&format!("{schedule}@"))).collect();
        ensure!(found.len() as i64 == number, "{} tasks, {number} runs", found.len());
        ensure!(found.into_iter().cloned().collect::<BTreeSet<_>>() == expected, "{stored:?}");
        let last = seconds(begin, number).last().context("it ran")?;
        ensure!(record.progress.last_run == Some(last) && record.progress.next > Some(last));
        let tasks: Vec<TaskId> = told
            .iter()
            .filter(|told| told.name == record.schedule.name)
            .flat_map(|told| &told.runs)
            .filter_map(|(_, outcome)| match outcome {
                RunOutcome::Submitted(task_id) => Some(*task_id),
                _ => None,
            })
            .collect();
        ensure!(tasks.len() as i64 == number, "each run was told once");
        ensure!(tasks.contains(&record.progress.last_task.context("it ran")?));
    }
    let task = find(store, told[0].runs.iter().find_map(submitted).context("it ran")?).await?;
    ensure!(task.request == declared("one", SECONDS)?.body && task.client_id.as_str() == "alice");
    Ok(())
}

fn submitted((_, outcome): &(Timestamp, RunOutcome)) -> Option<TaskId> {
    match outcome {
        RunOutcome::Submitted(task_id) => Some(*task_id),
        _ => None,
    }
}

/// The due time of the first run of a schedule, read from its task.
fn stored_begin(ids: &[String], schedule: &str) -> Result<Timestamp> {
    let prefix = format!("{schedule}@");
    let first = ids.iter().filter_map(|id| id.strip_prefix(&prefix)).min().context("it ran")?;
    Timestamp::parse(first).context("a date")
}

/// Every field is read back, and declaring a schedule again keeps its progress.
pub async fn a_declared_schedule_is_read_back_and_keeps_its_progress(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let of = one_of_each(store).await?;
    let before = store.declared_version().await?;
    let first = put(store, declared("nightly", SECONDS)?).await?;
    ensure!(store.declared_version().await? > before && first.schedule == declared("nightly", SECONDS)?);
    until_due(store, "nightly").await?;
    fire(store, of).await?;
    let ran = record(store, "nightly").await?.progress;
    ensure!(ran.runs > 0 && ran.last_task.is_some());

    let full = Schedule {
        service: name("rotate")?,
        client: ClientId::new("bob")?,
        body: json("{}")?,
        callback: Some(json(r#"{"type": "https", "url": "https://example.org"}"#)?),
        correlation_id: Some("all\0of them".to_owned()),
        terms: RunTerms {
            priority: Priority::new(9),
            retry: Some(RetryPolicy {
                limit: 3,
                jitter: 0.25,
                except_kinds: vec!["ink".to_owned()],
                never: false,
                ..RetryPolicy::none()
            }),
            timeout: Some(Duration::from_millis(1500)),
            expires: Some(Duration::from_secs(3 * 86_400)),
        },
        missed: Missed::Skip,
        overlap: Overlap::Skip,
        ..declared("nightly", SECONDS)?
    };
    let second = put(store, full.clone()).await?;
    let correlation_id = Some("all\u{fffd}of them".to_owned());
    ensure!(second.schedule == Schedule { correlation_id, ..full.clone() }, "{second:?}");
    ensure!(second.progress == ran, "the times are the same: it goes on where it was");

    let yearly = Schedule { cron: "@yearly".to_owned(), time_zone: "Asia/Kathmandu".to_owned(), ..full };
    let third = put(store, yearly).await?.progress;
    ensure!(third.next.context("it runs")?.to_string().ends_with("-12-31T18:15:00.000Z"), "{third:?}");
    ensure!(third.runs == ran.runs && third.last_task == ran.last_task);

    for bad in [
        Schedule { cron: "@never".to_owned(), ..declared("bad", SECONDS)? },
        Schedule { time_zone: "Mars/Olympus".to_owned(), ..declared("bad", SECONDS)? },
    ] {
        let refused = put(store, bad).await;
        ensure!(refused.is_err_and(|error| matches!(error.downcast_ref(), Some(StoreError::Conflict(_)))));
    }
    put(store, declared("early", SECONDS)?).await?;
    let names: Vec<String> =
        store.list_schedules(Vec::new()).await?.iter().map(|record| record.schedule.name.to_string()).collect();
    ensure!(names == ["early", "nightly"]);

    store.declare(vec![Change::Schedule(ScheduleChange::Delete(named("nightly")?))]).await?;
    ensure!(record(store, "nightly").await.is_err());
    let anew = put(store, declared("nightly", SECONDS)?).await?.progress;
    ensure!(anew.runs == 0 && anew.last_task.is_none(), "it comes back as new");
    Ok(())
}

/// A paused schedule makes no runs and misses none. A declaration without `paused` leaves it paused.
pub async fn a_paused_schedule_has_no_runs_and_misses_none(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let of = one_of_each(store).await?;
    put(store, declared("nightly", SECONDS)?).await?;
    until_due(store, "nightly").await?;
    let paused = pause(store, "nightly", true).await?;
    ensure!(paused.schedule.paused && paused.progress.next.is_none() && store.next_schedule_run().await?.is_none());
    ensure!(fire(store, of).await?.schedules.is_empty());
    let again = put(store, declared("nightly", "* * * * *")?).await?;
    ensure!(again.schedule.paused && again.progress.next.is_none());
    put(store, declared("nightly", SECONDS)?).await?;
    let now = store.ping().await?;
    let resumed = pause(store, "nightly", false).await?;
    ensure!(!resumed.schedule.paused && resumed.progress.next > Some(now) && resumed.progress.missed == 0);
    ensure!(pause(store, "nightly", false).await?.progress == resumed.progress, "again");
    let unknown = store.declare(vec![Change::Schedule(ScheduleChange::Pause { name: named("no")?, paused: true })]);
    ensure!(matches!(unknown.await, Err(StoreError::Conflict(_))));
    Ok(())
}

/// Whether the validator refuses, the queue is full, or the service is missing: the refusal is recorded.
pub async fn a_refused_run_is_recorded_and_the_schedule_continues(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    put(store, declared("nightly", SECONDS)?).await?;
    until_due(store, "nightly").await?;
    let refuses = Judge { refuses: true, ..judge(store, (service, client)).await? };
    store.fire_schedules(100, Arc::new(refuses)).await?;
    let judged = record(store, "nightly").await?.progress;
    ensure!(judged.refused > 0 && judged.runs == 0 && judged.last_run.is_none() && judged.next.is_some());
    let why = judged.last_error.context("it was refused")?;
    ensure!(why.starts_with("nightly is not\u{fffd} wanted...") && why.ends_with('…') && why.chars().count() == 501);
    ensure!(judged.last_error_at.is_some());

    store.declare(vec![put_service("resize", limits(Some(1)))?]).await?;
    submit(store, new_task(service, client)?).await?;
    until_due(store, "nightly").await?;
    let fired = fire(store, (service, client)).await?;
    ensure!(fired.schedules[0].runs[0].1 == RunOutcome::Refused(Refusal::ServiceFull.to_string()));
    let full = record(store, "nightly").await?.progress;
    ensure!(full.refused > judged.refused && full.next > judged.next && full.last_error_at > judged.last_error_at);
    ensure!(full.last_error == Some(Refusal::ServiceFull.to_string()));

    until_due(store, "nightly").await?;
    let fired = fire(store, (ServiceKey(4711), client)).await?;
    ensure!(fired.schedules[0].runs[0].1 == RunOutcome::Refused(Refusal::ServiceGone.to_string()));
    Ok(())
}

/// A run is skipped while the task of the last run is unfinished. Of several due runs, the first is made.
pub async fn schedule_runs_do_not_overlap_unless_allowed(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let of = one_of_each(store).await?;
    put(store, Schedule { overlap: Overlap::Skip, ..declared("nightly", SECONDS)? }).await?;
    let next = until_due(store, "nightly").await?;
    until_after(store, Timestamp::from_millis(next.as_millis() + 1000)).await?;
    let fired = fire(store, of).await?.schedules.pop().context("it ran")?;
    ensure!(fired.runs.len() >= 2 && fired.runs[1..].iter().all(|(_, outcome)| *outcome == RunOutcome::Skipped));
    let task_id = submitted(&fired.runs[0]).context("the first one ran")?;
    for round in 0..2 {
        until_due(store, "nightly").await?;
        let fired = fire(store, of).await?.schedules.pop().context("it was due")?;
        ensure!(fired.runs.iter().all(|(_, outcome)| *outcome == RunOutcome::Skipped), "{round}: {fired:?}");
        if round == 0 {
            claim(store, of.0, 1).await?;
        }
    }
    let progress = record(store, "nightly").await?.progress;
    ensure!(progress.runs == 1 && progress.skipped >= 3 && progress.last_task == Some(task_id));
    change(store, task_id, of.0, Event::Cancelled).await?;
    until_due(store, "nightly").await?;
    let fired = fire(store, of).await?.schedules.pop().context("it ran")?;
    ensure!(submitted(&fired.runs[0]).is_some());
    Ok(())
}

/// A process whose declaration is older than the store's does not fire schedules.
pub async fn a_process_with_an_old_declaration_fires_no_schedule(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let of = one_of_each(store).await?;
    put(store, declared("nightly", SECONDS)?).await?;
    until_due(store, "nightly").await?;
    let stale = judge(store, of).await?;
    store.declare(vec![put_service("rotate", limits(None))?]).await?;
    let fired = store.fire_schedules(100, Arc::new(stale)).await?;
    ensure!(fired.stale && fired.schedules.is_empty() && runs(store).await?.is_empty());
    ensure!(!fire(store, of).await?.schedules.is_empty());
    Ok(())
}

/// A paused schedule can be run too. The run is recorded as the last one, and the next run stays.
pub async fn a_manual_run_happens_now_and_keeps_the_next_run(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let schedule = Schedule { overlap: Overlap::Skip, ..declared("nightly", "@yearly")? };
    let next = put(store, schedule).await?.progress.next;
    let run = |task: NewTask| async { anyhow::Ok(store.run_schedule(named("nightly")?, task).await?) };
    let RunByHand::Answered(Ok(answer)) = run(new_task(service, client)?).await? else { anyhow::bail!("it runs") };
    let progress = record(store, "nightly").await?.progress;
    ensure!(progress.next == next && progress.runs == 1 && progress.last_task == Some(answer.task_id));
    ensure!(progress.last_run.is_some() && progress.last_run < progress.next);
    ensure!(run(new_task(service, client)?).await? == RunByHand::Busy(answer.task_id));
    change(store, answer.task_id, service, Event::Cancelled).await?;
    pause(store, "nightly", true).await?;
    ensure!(matches!(run(new_task(service, client)?).await?, RunByHand::Answered(Ok(_))));
    let unknown = store.run_schedule(named("no")?, new_task(service, client)?).await?;
    ensure!(unknown == RunByHand::NotFound);
    put(store, declared("nightly", "@yearly")?).await?;
    store.declare(vec![put_service("resize", limits(Some(1)))?]).await?;
    ensure!(run(new_task(service, client)?).await? == RunByHand::Answered(Err(Refusal::ServiceFull)));
    ensure!(record(store, "nightly").await?.progress.refused == 0, "whoever asked was told");
    Ok(())
}

/// The publisher gets the task at once.
pub async fn schedule_runs_of_a_broker_service_are_dispatched(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (_, client) = one_of_each(store).await?;
    store.declare(vec![put_brokered("resize", limits(None))?]).await?;
    let service = service_key(store, "resize").await?;
    put(store, declared("nightly", SECONDS)?).await?;
    until_due(store, "nightly").await?;
    let fired = fire(store, (service, client)).await?.schedules.pop().context("it ran")?;
    let due = store.claim_dispatches(vec![service], 100, LONG).await?.tasks;
    let found: Vec<TaskId> = due.iter().map(|due| due.name.task_id).collect();
    ensure!(found == fired.runs.iter().filter_map(submitted).collect::<Vec<_>>() && !found.is_empty());
    Ok(())
}
