//! A sink that needs no broker: tasks of the server itself.

use std::fs;

use anyhow::{Result, ensure};

use crate::stage::{Stage, done, typed, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_becomes_one_task() -> Result<()> {
    let stage = Stage::new().await?;
    stage.init()?;
    let server = stage.server(stage.own())?.start().await?;
    let file = stage.folder.path().join("tasks.yaml");
    fs::write(
        &file,
        format!(
            "services:\n  - serviceName: invoice\nclients:\n  - clientId: shop\n    clientSecret: \"a secret of the shop\"\n\
             authorizations:\n  - {{clientId: shop, serviceName: invoice, roles: [consume]}}\n\
             outboxes:\n  - outboxName: orders\n    databaseUrl: \"{}\"\n    destination: invoice\n    pollInterval: 50ms\n\
             \x20   sink:\n      task: {{clientId: shop}}\n",
            stage.orders_url()?
        ),
    )?;
    typed(&server, &format!("apply -f {}", file.display()))?;
    stage.insert("a", "placed", 0..20).await?;
    let tasks = async || {
        let listed = done(&server, "GET", "tasks?service=invoice&limit=100", None).await?;
        Ok::<_, anyhow::Error>(listed["tasks"].as_array().map_or(0, Vec::len))
    };
    until("all are tasks", async || Ok(tasks().await? >= 20)).await?;
    until("all are marked", async || Ok(done(&server, "GET", "outboxes/orders", None).await?["unpublished"] == 0))
        .await?;
    // Published once more, as after a crash: the tasks are there already.
    stage.sql("UPDATE outbox SET published_at = NULL").await?;
    typed(&server, "outbox pause orders")?;
    typed(&server, "outbox resume orders")?;
    until(
        "all are marked again",
        async || Ok(done(&server, "GET", "outboxes/orders", None).await?["unpublished"] == 0),
    )
    .await?;
    ensure!(tasks().await? == 20, "no second task of a message");
    Ok(())
}
