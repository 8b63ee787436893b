//! Tests of the judge: it finds lost, duplicate and stuck tasks.

use std::time::Duration;

use anyhow::{Context, Result};
use relais_testkit::TestDatabase;
use relais_tests::{
    chaos::{Load, LoadOptions, declare, judge, wait_until_drained},
    instance::Instance,
};
use sqlx::{Connection, PgConnection};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_judge_notices_lost_duplicate_and_stuck_tasks() -> Result<()> {
    let database = TestDatabase::create().await?;
    let server = Instance::start(database.url()).await?;
    declare(&server.url(), "60s").await?;
    let mut load = Load::start(&[server.url()], LoadOptions::default())?;
    load.ledger().more(50, Duration::from_secs(30)).await?;
    load.stop_consumers().await?;
    wait_until_drained(&server.url(), Duration::from_secs(20)).await?;
    let ledger = load.stop().await?;
    let verdict = judge(&server.url(), &ledger, 0).await?;
    assert_eq!(verdict.findings, Vec::<String>::new(), "{verdict}");

    let mut connection = PgConnection::connect(database.url()).await?;
    let ids: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM relais.task ORDER BY id LIMIT 5").fetch_all(&mut connection).await?;
    let [gone, changed, stuck, one, other] = ids[..] else { anyhow::bail!("five tasks are needed") };
    for (statement, id) in [
        ("DELETE FROM relais.task WHERE id = $1", gone),
        ("UPDATE relais.task SET response = NULL, error_message = NULL WHERE id = $1", changed),
        ("UPDATE relais.task SET status = 1 WHERE id = $1", stuck),
    ] {
        sqlx::query(statement).bind(id).execute(&mut connection).await.context(statement)?;
    }
    sqlx::query(
        "UPDATE relais.task SET correlation_id = (SELECT correlation_id FROM relais.task WHERE id = $1) WHERE id = $2",
    )
    .bind(one)
    .bind(other)
    .execute(&mut connection)
    .await?;
    let verdict = judge(&server.url(), &ledger, 0).await?;
    assert_eq!((verdict.lost, verdict.doubled, verdict.stuck), (2, 1, 1), "{:?}", verdict.findings);
    assert!(verdict.findings.iter().any(|finding| finding.starts_with("the counter of")), "{:?}", verdict.findings);
    assert!(verdict.report("tampered with").is_err());
    Ok(())
}
