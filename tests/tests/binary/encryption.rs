//! Signing secrets that are encrypted in the database: who starts, and what a server does that has no key yet.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use relais_testkit::{TestDatabase, free_port};
use relais_tests::{
    chaos::Api,
    instance::{self, Instance},
};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use crate::{PATIENCE, Said, sqlite, type_in};

const SIGNING: &str = "whsec_NWpEbLE3zv93+bOQoG97TlFRZnPp3v+l";
const VARIABLE: &str = "RELAIS_DATABASE_ENCRYPTION_KEYS";
const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const OTHER: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

/// Declares a client that signs with [`SIGNING`].
async fn declare(server: &Instance) -> Result<()> {
    let declaration = json!({"clients": [{"clientId": "shop", "clientSecret": "hush", "signingSecret": SIGNING}]});
    Api::admin(server.url())?.post("/admin/apply", &declaration).await?.data()?;
    shown(server).await
}

/// The client is shown its secret, in clear.
async fn shown(server: &Instance) -> Result<()> {
    let shop = Api::admin(server.url())?.with("shop", "hush");
    let said = shop.get("/v1/signing-secrets").await?.data()?;
    ensure!(said["secrets"][0]["secret"] == SIGNING, "{said}");
    Ok(())
}

async fn stop(mut server: Instance) -> Result<()> {
    server.process().terminate()?;
    let status = server.process().wait_exit(PATIENCE).await?;
    ensure!(status.success(), "{status}: {}", server.process().stderr()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_key_to_its_signing_secrets_does_not_start() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let postgres = TestDatabase::create().await?;
    for database in [sqlite(folder.path()), postgres.url().to_owned()] {
        let server = Instance::start(&database).await?;
        declare(&server).await?;
        stop(server).await?;
        // Whether or not it migrates, it encrypts what is there.
        let server = Instance::options(&database).env(VARIABLE, KEY).arg("--no-migrate").start().await?;
        shown(&server).await?;
        stop(server).await?;
        for (key, said) in [("", "this process has no key"), (OTHER, "this process has other keys")] {
            let listen = format!("127.0.0.1:{}", free_port()?);
            for line in
                [&["serve", "--listen", &listen][..], &["serve", "--no-migrate", "--listen", &listen], &["migrate"]]
            {
                let mut command = instance::command()?;
                command.args(line).args(["--database", &database]).env(VARIABLE, key).current_dir(folder.path());
                let refusal = Said::of(&command.output()?).refusal()?;
                ensure!(
                    refusal.contains(said) && refusal.contains("`database.encryption_keys`"),
                    "{line:?}: {refusal}"
                );
                ensure!(!refusal.contains("whsec_") && !refusal.contains("AgIC"), "{line:?}: {refusal}");
            }
        }
        let server = Instance::options(&database).env(VARIABLE, format!("{OTHER},{KEY}")).start().await?;
        shown(&server).await?;
        stop(server).await?;
        shown(&Instance::options(&database).env(VARIABLE, OTHER).start().await?)
            .await
            .context("the key was replaced")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_one_that_encrypts_a_server_without_a_key_goes_on_and_stores_no_secret() -> Result<()> {
    let postgres = TestDatabase::create().await?;
    let old = Instance::start(postgres.url()).await?;
    declare(&old).await?;
    let new = Instance::options(postgres.url()).env(VARIABLE, KEY).start().await?;
    shown(&new).await?;
    shown(&old).await.context("it has read it before it was encrypted")?;
    let refusal = type_in(&old, "client signing-secret shop --rotate")?.refusal()?;
    ensure!(refusal.contains("500"), "{refusal}");
    let mut connection = PgConnection::connect(postgres.url()).await?;
    let stored: Vec<String> =
        sqlx::query_scalar("SELECT secret FROM relais.signing_secret").fetch_all(&mut connection).await?;
    ensure!(stored.len() == 1 && stored[0].starts_with("enc:1:"), "{stored:?}");
    type_in(&new, "client signing-secret shop --rotate")?.data()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_warns_of_a_database_that_others_can_read_and_leaves_it_so() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("relais.db");
    let warned = async || -> Result<bool> {
        let mut server = Instance::start(sqlite(folder.path())).await?;
        let log = server.process().stderr()?;
        stop(server).await?;
        Ok(log.contains(&format!("chmod 600 {}", file.display())))
    };
    ensure!(!warned().await?, "one that the server has made is for its own user");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
    ensure!(warned().await?);
    ensure!(std::fs::metadata(&file)?.permissions().mode() & 0o777 == 0o644, "nobody changes it in silence");
    Ok(())
}
