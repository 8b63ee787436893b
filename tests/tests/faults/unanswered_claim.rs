//! Tasks of a claim by an instance that was not answered come with its next claim: at once, and without counting as a
//! loss.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use relais_core::{
    ClaimRequest, CrashPolicy, Event, Json, NewInstance, Registration, ServiceKey, Status, Store, Task, TaskEvent,
};
use relais_engine::Access;
use relais_testkit::break_off;
use relais_tests::chaos::seed;

use super::{
    judge,
    ledger::Ledger,
    stage::{Backend, Cast, Play, Stage},
    world::{FEW, FREE, MOST_OF_ONE},
};

/// Claims are broken off after up to so many chances to go on.
const MOST_POLLS: u64 = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_leased_without_an_answer_comes_with_the_next_claim() -> Result<()> {
    for backend in [Backend::Sqlite, Backend::Postgres] {
        let play = Play { backend, cast: Cast::InProcess };
        let stage = Stage::set_up(play, seed(), &Arc::new(Ledger::default()), None).await?;
        stage.switch(false);
        for schedule in stage.engines[0].schedule_states().await? {
            stage.engines[0].pause_schedule(&schedule.declaration.schedule_name, true).await?;
        }
        for service in [FREE, FEW] {
            let access = stage.consumer(&stage.engines[0], "alice", service)?;
            break_off_claims(&stage, &access).await.with_context(|| format!("{service}, {backend:?}"))?;
        }
    }
    Ok(())
}

async fn break_off_claims(stage: &Stage, access: &Access) -> Result<()> {
    let service = access.service.key;
    let store = &stage.underneath;
    let joined = store.register_instance(NewInstance {
        name: format!("hands of {}", access.service.name),
        host: None,
        version: String::new(),
        policy: CrashPolicy::Restart,
        silence: Duration::from_secs(600),
        services: vec![service],
    });
    let Registration::In { key, .. } = joined.await? else { anyhow::bail!("it may begin") };
    let request = ClaimRequest { service, max: 10, lease: None, worker_host: None, instance: Some(key) };
    // Schedules may have run meanwhile.
    loop {
        let before = store.claim_tasks(vec![request.clone()]).await?.tasks.concat();
        if before.is_empty() {
            break;
        }
        finish(&**store, service, &before).await?;
    }
    let mut broken_off = 0;
    // A claim is broken off only until it has its answer, which may be there already.
    for (tried, polls) in (1..).zip((0..MOST_POLLS).chain(std::iter::repeat_n(0, 500))) {
        for _ in 0..MOST_OF_ONE {
            let request = serde_json::from_str(r#"{"body": {}}"#)?;
            stage.engines[0].submit(access, request, None).await?;
        }
        let claimed = match break_off(store.claim_tasks(vec![request.clone()]), polls).await {
            Some(claimed) => claimed?,
            None => {
                broken_off += 1;
                store.claim_tasks(vec![request.clone()]).await?
            }
        };
        let tasks = claimed.tasks.concat();
        ensure!(tasks.len() == MOST_OF_ONE, "{} came back after {polls} polls", tasks.len());
        finish(&**store, service, &tasks).await?;
        if broken_off > 0 && tried >= MOST_POLLS {
            break;
        }
    }
    ensure!(broken_off > 0, "no claim was broken off");
    store.deregister_instance(key).await?;
    let stored = judge::list_all(&*stage.underneath).await?;
    // Schedules may have had time for tasks of other services.
    let own = stored.iter().filter(|task| task.service == access.service.name);
    let wrong = |task: &&Task| task.state.status != Status::Success || task.state.losses > 0;
    let wrong: Vec<_> = own.filter(wrong).map(|task| &task.state).collect();
    ensure!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

async fn finish(store: &dyn Store, service: ServiceKey, tasks: &[Task]) -> Result<()> {
    let response = Json::parse("{}".to_owned())?;
    let done = |task: &Task| {
        let event = Event::Succeeded { attempt: Some(task.state.attempt), response: response.clone() };
        TaskEvent { task_id: task.task_id, service, client: None, event }
    };
    store.record_events(tasks.iter().map(done).collect()).await?;
    Ok(())
}
