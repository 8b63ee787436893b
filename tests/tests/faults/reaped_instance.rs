//! An instance that was reaped, and whose new registration was not answered, does not mistake itself for another one.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use relais_core::Status;
use relais_engine::{Context, Engine, HandlerError, Handlers, InstanceOptions, Options};
use relais_testkit::{FaultPlan, Faulty};
use relais_tests::chaos::seed;
use serde_json::Value;

use super::{
    PATIENCE, judge,
    ledger::Ledger,
    stage::{Backend, Cast, Play, Stage},
    world::FREE,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_whose_return_was_not_answered_leases_tasks_again() -> Result<()> {
    let play = Play { backend: Backend::Postgres, cast: Cast::InProcess };
    let stage = Stage::set_up(play, seed(), &Arc::new(Ledger::default()), None).await?;
    stage.switch(false);
    let plan = FaultPlan { seed: 0, refused: 0, unanswered: 1000, broken_off: 0, only: Some("register_instance") };
    let store = Faulty::new(relais_store::open(&stage.url, &relais_store::Options::default()).await?, plan);
    let engine = Engine::start(Arc::clone(&store) as _, Options::default())?;
    engine.refresh().await?;
    let handler = async |_: Value, _: Context| Ok::<_, HandlerError>(());
    let (name, silence) = (Some("ghost".to_owned()), Duration::from_secs(1));
    let options = InstanceOptions { name, silence, ..InstanceOptions::default() };
    let instance = engine.work(Handlers::new().options(options).on(FREE, handler)).await?;

    store.switch(true);
    let given_up = async || {
        if store.counts().get("register_instance").is_some_and(|count| count.unanswered > 0) {
            return Ok(true);
        }
        // It may give a sign of life in between.
        stage.underneath.advance(Duration::from_secs(60)).await?;
        stage.underneath.reap_instances().await?;
        Ok(false)
    };
    ensure!(judge::until(PATIENCE, given_up).await?, "it did not try to begin anew");
    store.switch(false);
    let access = stage.consumer(&engine, "alice", FREE)?;
    let task_id = engine.submit(&access, serde_json::from_str(r#"{"body": {}}"#)?, None).await?.submitted.task_id;
    let task = engine.wait(&access, task_id, PATIENCE).await?;
    ensure!(task.state.status == Status::Success, "it takes no more tasks: {:?}", task.state);
    instance.stop().await;
    Ok(())
}
