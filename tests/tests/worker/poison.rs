//! Tasks that crash their workers before they can report a start: real workers, really killed.

use std::os::unix::process::ExitStatusExt;

use anyhow::Result;
use relais_testkit::ServerProcess;
use relais_tests::{app::DEADLINE, instance::command};
use serde_json::json;

use crate::{SERVICE, Way, World, control::url_of_who_may_not_listen};

/// A worker that runs a script for each task.
fn runs(broker: &str, flags: &[&str], script: &str) -> Result<ServerProcess> {
    let mut worker = command()?;
    worker.args(["worker", "--service", SERVICE]).args(flags).args(["--", "sh", "-c", script]);
    worker.env("RELAIS_BROKER_URL", broker);
    ServerProcess::spawn_command(worker)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_crashes_its_workers_fails_at_its_delivery_limit() -> Result<()> {
    let service = json!({"serviceName": SERVICE, "transport": "rabbitmq", "deliveryLimit": 2});
    let world = World::start(Way::RabbitMq, service).await?;
    // They do not hear that the task has failed, which could reach one of them sooner than it dies.
    let broker = url_of_who_may_not_listen(&world).await?;
    let task = world.submit(json!({})).await;
    // The first may die before anybody knows of it. From the second on it is known who has begun: the third tells that
    // the second was lost, the fourth that the third was.
    for _ in 0..4 {
        let mut worker = runs(&broker, &[], "kill -9 $PPID")?;
        let status = worker.wait_exit(DEADLINE).await?;
        assert_eq!(status.signal(), Some(9), "{}", worker.stderr()?);
    }
    assert_eq!(world.ended(&task).await["status"], "FAILURE");
    assert_eq!(world.seen(&task).await["losses"], 2);
    // A classic queue counts nothing: as the guide says, the message is still there, for somebody who survives it.
    let mut worker = runs(&broker, &["--once"], "true")?;
    assert!(worker.wait_exit(DEADLINE).await?.success(), "{}", worker.stderr()?);
    assert_eq!(world.ended(&task).await["status"], "FAILURE");
    Ok(())
}
