//! The declarations file that a server watches.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::Result;
use relais_tests::{chaos::Api, instance::Instance};
use serde_json::Value;

use crate::{sqlite, until};

fn declare(capacity: u32) -> String {
    format!("services:\n  - {{serviceName: resize, capacity: {capacity}}}\n")
}

async fn start(database: &Path, file: &Path) -> Result<Instance> {
    Instance::options(sqlite(database))
        .arg("--declarations")
        .arg(file.display().to_string())
        .env("RELAIS_DECLARATIONS_INTERVAL", "50ms")
        .start()
        .await
}

async fn capacity(server: &Instance) -> Result<Value> {
    let answer = Api::admin(server.url())?.get("/admin/services/resize").await?;
    Ok(answer.body["data"]["capacity"].clone())
}

async fn until_capacity(server: &Instance, expected: u32) -> Result<()> {
    until(&format!("the capacity is {expected}"), async || Ok(capacity(server).await? == expected)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_is_applied_without_a_restart_and_an_error_is_logged_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("services.yaml");
    fs::write(&file, declare(1))?;
    let mut server = start(folder.path(), &file).await?;
    until_capacity(&server, 1).await?;
    fs::write(&file, declare(2))?;
    until_capacity(&server, 2).await?;

    let said = |server: &mut Instance, text: &str| -> Result<usize> {
        Ok(server.process().stderr()?.lines().filter(|line| line.contains(text)).count())
    };
    fs::write(&file, "services:\n  - {serviceName: resize, capacty: 3}\n")?;
    until("the mistake is told", async || Ok(said(&mut server, "capacty")? > 0)).await?;
    assert!(server.process().stderr()?.contains("did you mean `capacity`?"));
    assert_eq!(capacity(&server).await?, 2, "what was declared stays");
    // By the time that two more edits were applied, the file was looked at again and again.
    fs::write(&file, "services:\n  - {serviceName: resize, lease: 0s}\n")?;
    until("the next mistake is told", async || Ok(said(&mut server, "are not valid")? > 1)).await?;
    assert_eq!(capacity(&server).await?, 2);
    assert_eq!(said(&mut server, "capacty")?, 1, "once is enough");
    fs::write(&file, declare(4))?;
    until_capacity(&server, 4).await?;

    // A file that is gone for a moment, as some editors do it.
    fs::remove_file(&file)?;
    until("it is told", async || Ok(said(&mut server, "can not be read")? == 1)).await?;
    assert_eq!(capacity(&server).await?, 4);
    fs::write(&file, declare(5))?;
    until_capacity(&server, 5).await
}

/// Kubernetes mounts a ConfigMap as links to a folder that is swapped as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_swapped_is_an_edit_too() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    for (version, capacity) in [("..v1", 1), ("..v2", 2)] {
        fs::create_dir(at(version))?;
        fs::write(at(version).join("services.yaml"), declare(capacity))?;
    }
    symlink("..v1", at("..data"))?;
    symlink("..data/services.yaml", at("services.yaml"))?;
    let server = start(folder.path(), &at("services.yaml")).await?;
    until_capacity(&server, 1).await?;
    symlink("..v2", at("..data_tmp"))?;
    fs::rename(at("..data_tmp"), at("..data"))?;
    until_capacity(&server, 2).await
}

/// Ready means that what the file says is in force: a server that could not apply it yet takes no traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_not_ready_before_its_file_was_applied_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("services.yaml");
    let server = Instance::options(sqlite(folder.path()))
        .arg("--declarations")
        .arg(file.display().to_string())
        .env("RELAIS_DECLARATIONS_INTERVAL", "50ms")
        .alive_is_enough()
        .start()
        .await?;
    let api = Api::admin(server.url())?;
    let says = async |why: &str| {
        let answer = api.get("/readyz").await?;
        assert_eq!(answer.number(), 503_006, "{}", answer.body);
        anyhow::Ok(answer.body.to_string().contains(why))
    };
    until("it is said that the file is not there", async || says("can not be read").await).await?;
    fs::write(&file, "services:\n  - {serviceName: resize, capacty: 3}\n")?;
    until("it is said that the file is wrong", async || says("are not valid").await).await?;
    assert_eq!(api.get("/admin/services").await?.status, 200, "requests are taken all the same");
    fs::write(&file, declare(3))?;
    until("it is ready", async || Ok(api.get("/readyz").await?.status == 200)).await?;
    assert_eq!(capacity(&server).await?, 3, "as soon as it is ready, what the file says is in force");
    // What goes wrong later is told, and changes nothing.
    fs::write(&file, "services: 3\n")?;
    assert_eq!(api.get("/readyz").await?.status, 200);
    Ok(())
}

/// However soon somebody asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_ready_has_applied_its_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("services.yaml");
    fs::write(&file, declare(1))?;
    let server = start(folder.path(), &file).await?;
    assert_eq!(capacity(&server).await?, 1, "without any waiting");
    Ok(())
}
