//! The start of a server, and its error messages.

use std::{fs, net::TcpListener};

use anyhow::{Context, Result};
use relais_testkit::{ServerProcess, TestDatabase, free_port};
use relais_tests::{
    chaos::Api,
    instance::{self, Instance, READY},
};
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::{Said, sqlite};

/// Runs `relais serve` on a database, which should end by itself.
fn serve(database: &str, more: &[&str]) -> Result<Said> {
    let listen = format!("127.0.0.1:{}", free_port()?);
    let mut arguments = vec!["serve", "--listen", &listen, "--database", database, "--log-format", "human"];
    arguments.extend(more);
    Ok(Said::of(&instance::run(arguments)?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_migrated_apart_and_served_without_migrating() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let postgres = TestDatabase::create().await?;
    for database in [sqlite(folder.path()), postgres.url().to_owned()] {
        let migrate = || -> Result<String> { Said::of(&instance::run(["migrate", "--database", &database])?).data() };
        let first = migrate()?;
        assert!(first.contains("applied"), "{first}");
        assert_eq!(migrate()?, "the database is up to date\n");
        let server = Instance::options(&database).arg("--no-migrate").start().await?;
        assert_eq!(Api::admin(server.url())?.get("/admin/services").await?.status, 200);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_a_newer_version_is_refused() -> Result<()> {
    const NEWER: &str = "(version, description, success, checksum, execution_time) VALUES (99, 'later', true, '', 0)";
    let folder = tempfile::tempdir()?;
    let (file, postgres) = (sqlite(folder.path()), TestDatabase::create().await?);
    for database in [&file, postgres.url()] {
        Said::of(&instance::run(["migrate", "--database", database])?).data()?;
    }
    let mut connection = SqliteConnection::connect(&file).await?;
    let statement = format!("INSERT INTO relais_migration {NEWER}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await?;
    connection.close().await?;
    let mut connection = PgConnection::connect(postgres.url()).await?;
    let statement = format!("INSERT INTO relais.migration {NEWER}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await?;
    connection.close().await?;
    for database in [&file, postgres.url()] {
        let refusal = serve(database, &[])?.refusal()?;
        assert!(refusal.contains("made by a newer version of Relais (it has migration 99)"), "{refusal}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlite_file_is_locked_by_one_process() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let database = sqlite(folder.path());
    let mut server = Instance::start(&database).await?;
    let refusal = serve(&database, &[])?.refusal()?;
    assert!(refusal.contains("another process has the database") && refusal.contains("PostgreSQL"), "{refusal}");
    // A killed one leaves nothing behind that would keep the next one out.
    server.kill9()?;
    server.restart().await
}

#[test]
fn a_port_in_use_is_reported_with_what_to_do() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let listen = taken.local_addr()?.to_string();
    let refusal =
        Said::of(&instance::run(["serve", "--database", &sqlite(folder.path()), "--listen", &listen])?).refusal()?;
    assert!(refusal.contains(&format!("could not listen on {listen}")) && refusal.contains("--listen"), "{refusal}");
    assert!(refusal.contains("in use"), "{refusal}");
    Ok(())
}

#[test]
fn a_spool_that_can_not_be_written_is_refused_with_what_to_do() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (file, database) = (folder.path().join("a file"), sqlite(folder.path()));
    fs::write(&file, "")?;
    let mut command = instance::command()?;
    let serve = ["serve", "--database", &database, "--listen", "127.0.0.1:0"];
    let output = command.args(serve).env("RELAIS_RELAY_SPOOL_DIR", file.join("spool")).output()?;
    let refusal = Said::of(&output).refusal()?;
    assert!(refusal.contains("relay.spool_dir") && refusal.contains("must be able to write there"), "{refusal}");
    Ok(())
}

#[test]
fn a_typo_in_a_setting_gets_the_nearest_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("relais.toml");
    fs::write(&file, "[server]\nlisen = \"127.0.0.1:1\"\n")?;
    let file = file.display().to_string();
    let refusal = Said::of(&instance::run(["serve", "--config", &file])?).refusal()?;
    assert!(refusal.contains("unknown key `server.lisen`") && refusal.contains("did you mean `server.listen`?"));
    let mut command = instance::command()?;
    let output =
        command.args(["config", "check"]).env("RELAIS_SERVER_LISEN", "x").current_dir(folder.path()).output()?;
    // The file in the working folder is wrong as well, and is read first.
    assert!(Said::of(&output).refusal()?.contains("server.lisen"));
    fs::remove_file(folder.path().join("relais.toml"))?;
    let output = command.output()?;
    let refusal = Said::of(&output).refusal()?;
    assert!(refusal.contains("RELAIS_SERVER_LISEN: did you mean `RELAIS_SERVER_LISTEN`?"), "{refusal}");
    Ok(())
}

#[test]
fn a_wrong_command_line_ends_with_2() -> Result<()> {
    for line in ["serve --lissten x", "serve --listen nowhere", "task list --limit 0", "dance", "apply"] {
        let said = Said::of(&instance::run(line.split(' '))?);
        assert_eq!(said.code, 2, "{line}: {said:?}");
        assert!(
            said.stdout.is_empty() && said.stderr.starts_with("error: ") && said.stderr.contains("--help"),
            "{line}: {said:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flag_wins_over_the_environment_and_that_over_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (file, environment, flag) = (free_port()?, free_port()?, free_port()?);
    let text = format!("[server]\nlisten = \"127.0.0.1:{file}\"\n[database]\nurl = \"sqlite:from-file.db\"\n");
    fs::write(folder.path().join("relais.toml"), text)?;
    let start = async |variable: Option<u16>, flag: Option<u16>, expected: u16| -> Result<()> {
        let mut command = instance::command()?;
        command.arg("serve").current_dir(folder.path());
        if let Some(port) = variable {
            command.env("RELAIS_SERVER_LISTEN", format!("127.0.0.1:{port}"));
        }
        if let Some(port) = flag {
            command.args(["--listen", &format!("127.0.0.1:{port}")]);
        }
        let mut server = ServerProcess::spawn_command(command)?;
        server.wait_for_http(&format!("http://127.0.0.1:{expected}/readyz"), READY).await
    };
    start(None, None, file).await.context("the file in the working folder is read")?;
    assert!(folder.path().join("from-file.db").is_file());
    start(Some(environment), None, environment).await.context("the environment wins over the file")?;
    start(Some(environment), Some(flag), flag).await.context("the flag wins over both")
}
