//! The examples of docs/guides/workers.md: they are what the guide shows, and they do what it says.

use std::{fs, path::Path};

use anyhow::Result;
use relais_engine::Handlers;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::World;

#[path = "../../../crates/worker/examples/resize.rs"]
#[expect(dead_code, reason = "its main is for those who run it")]
mod example;

#[test]
fn the_guide_shows_the_examples_as_they_are() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guide = fs::read_to_string(root.join("docs/guides/workers.md"))?;
    for (file, language) in [("examples/worker/resize.sh", "sh"), ("crates/worker/examples/resize.rs", "rust")] {
        let code = fs::read_to_string(root.join(file))?;
        let shown = format!("```{language}\n{code}```\n");
        assert!(guide.contains(&shown), "copy {file} into docs/guides/workers.md, or the other way round");
    }
    Ok(())
}

#[test]
fn the_guide_shows_how_a_process_of_its_own_does_it() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guide = fs::read_to_string(root.join("docs/guides/workers.md"))?;
    let here = fs::read_to_string(root.join("tests/tests/worker/guide.rs"))?;
    let (_, shown) = guide.split_once("### In the engine's own process").expect("there is such a part");
    let (_, shown) = shown.split_once("```rust\n").expect("it shows code");
    let (shown, _) = shown.split_once("```").expect("the code ends");
    for line in shown.lines() {
        assert!(here.lines().any(|ours| ours.trim() == line), "no test runs this line of the guide: {line}");
    }
    Ok(())
}

/// Submits what the example can do and what it can not.
async fn tried(world: &World) {
    let task = world.submit(json!({"width": 640, "height": 480, "percent": 50})).await;
    assert_eq!(world.ended(&task).await["response"], json!({"width": 320, "height": 240}));
    let task = world.submit(json!({"width": 640, "height": 480, "percent": 0})).await;
    assert_eq!(world.ended(&task).await["errorMessage"], "percent must be more than 0");
}

async fn does(world: &World) -> Result<()> {
    let shutdown = CancellationToken::new();
    let worker = tokio::spawn(world.remote_worker().build()?.run(example::resize, shutdown.clone()));
    tried(world).await;
    shutdown.cancel();
    let report = worker.await??;
    assert_eq!((report.done, report.failed), (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handler_in_rust_does_what_the_guide_says_over_http() -> Result<()> {
    does(&World::http().await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handler_in_rust_does_what_the_guide_says_over_rabbitmq() -> Result<()> {
    does(&World::rabbitmq_classic().await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handler_in_rust_does_what_the_guide_says_in_one_process() -> Result<()> {
    use example::resize;
    let world = World::in_process().await?;
    let engine = &world.app.engine;
    let instance = engine.work(Handlers::new().on_up_to(4, "resize", resize)).await?;
    tried(&world).await;
    let report = instance.stop().await;
    assert_eq!((report.done, report.failed), (1, 1));
    Ok(())
}
