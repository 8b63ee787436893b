//! Promises of the private PostgreSQL and of the databases on it.

use std::time::Duration;

use anyhow::Result;
use relais_testkit::{PostgresServer, TcpProxy, TestDatabase};
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

const SOON: Duration = Duration::from_millis(300);

async fn count(url: &str) -> Result<i64> {
    let mut connection = PgConnection::connect(url).await?;
    Ok(sqlx::query_scalar("SELECT count(*) FROM notes").fetch_one(&mut connection).await?)
}

#[tokio::test]
async fn committed_rows_survive_kill_9_and_restart_on_the_same_port() -> Result<()> {
    let mut server = PostgresServer::options().fsync(true).start().await?;
    let url = server.url("postgres");
    let mut connection = PgConnection::connect(&url).await?;
    sqlx::raw_sql("CREATE TABLE notes (n int); INSERT INTO notes VALUES (1), (2)").execute(&mut connection).await?;

    server.kill9()?;
    assert!(PgConnection::connect(&url).await.is_err(), "a killed server lets nobody in");

    server.restart().await?;
    assert_eq!(url, server.url("postgres"));
    assert_eq!(count(&url).await?, 2);
    Ok(())
}

/// A process's state letter: `R` for running, `Z` for ended but not yet noticed by its parent.
fn state(pid: i32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.split(' ').nth(2).unwrap_or("gone").to_owned()
}

#[tokio::test]
async fn kill_9_ends_a_busy_backend_too() -> Result<()> {
    let mut server = PostgresServer::start().await?;
    let mut busy = PgConnection::connect(&server.url("postgres")).await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut busy).await?;
    let endless = tokio::spawn(async move {
        // Does not look up while it computes, so it would not notice that its parent is dead.
        sqlx::query("SELECT count(*) FROM generate_series(1, 1000000000)").execute(&mut busy).await
    });
    while state(pid) != "R" {
        tokio::task::yield_now().await;
    }
    server.kill9()?;
    assert!(["gone", "Z"].contains(&state(pid).as_str()), "{}", state(pid));
    assert!(endless.await?.is_err());
    server.restart().await
}

#[tokio::test]
async fn a_paused_server_keeps_its_connections_and_answers_after_resume() -> Result<()> {
    let mut server = PostgresServer::start().await?;
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    server.pause()?;
    let mut query = Box::pin(sqlx::query("SELECT 1").execute(&mut connection));
    assert!(timeout(SOON, &mut query).await.is_err(), "no answer while paused");
    server.resume()?;
    query.await?;
    Ok(())
}

#[tokio::test]
async fn a_stopped_server_starts_again_with_its_data() -> Result<()> {
    let mut server = PostgresServer::start().await?;
    let url = server.url("postgres");
    let mut connection = PgConnection::connect(&url).await?;
    sqlx::query("CREATE TABLE notes (n int)").execute(&mut connection).await?;
    server.stop().await?;
    server.restart().await?;
    assert_eq!(count(&url).await?, 0);
    Ok(())
}

#[tokio::test]
async fn two_databases_do_not_see_each_other_and_are_gone_when_dropped() -> Result<()> {
    let (one, two) = tokio::try_join!(TestDatabase::create(), TestDatabase::create())?;
    for (database, rows) in [(&one, "(1)"), (&two, "(1), (2), (3)")] {
        let mut connection = PgConnection::connect(database.url()).await?;
        let statements = format!("CREATE TABLE notes (n int); INSERT INTO notes VALUES {rows}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(statements)).execute(&mut connection).await?;
    }
    assert_eq!((count(one.url()).await?, count(two.url()).await?), (1, 3));

    let url = one.url().to_owned();
    one.drop_now().await?;
    assert!(PgConnection::connect(&url).await.is_err());

    let (name, url) = (two.name().to_owned(), two.url().to_owned());
    let _still_connected = PgConnection::connect(&url).await?;
    drop(two);
    assert!(PgConnection::connect(&url).await.is_err(), "{name} is gone");
    Ok(())
}

#[tokio::test]
async fn a_database_is_reached_through_a_proxy() -> Result<()> {
    let database = TestDatabase::create().await?;
    let proxy = TcpProxy::start(database.server_addr()?).await?;
    let url = database.url_via(proxy.addr())?;
    PgConnection::connect(&url).await?.ping().await?;
    proxy.cut().await?;
    assert!(PgConnection::connect(&url).await.is_err());
    Ok(())
}
