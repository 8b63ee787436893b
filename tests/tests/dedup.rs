//! Deduplication in three languages: programs in Rust, Python and JavaScript share a window, in Redis and in the transactions of a
//! PostgreSQL. The latter two run the examples of their libraries.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use relais_dedup::{Claiming, Dedup, Outcome, RedisDedup, TransactionDedup};
use relais_testkit::{RedisServer, TestDatabase};
use relais_tests::prepared::{javascript, python};
use sqlx::{PgConnection, PgPool};
use tokio::{process::Command, time::timeout};

const DEADLINE: Duration = Duration::from_secs(60);

/// Code that knows nothing of Relais: it claims a message before it processes it.
const FOREIGN: &str = "
    import { Redis } from 'ioredis';
    const redis = new Redis(process.argv[1]);
    const first = await redis.set(process.argv[2], String(Date.now()), 'EX', 3600, 'NX');
    console.log(first === 'OK' ? 'done' : 'already done');
    await redis.quit();";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    Python,
    JavaScript,
}

const ALL: [Language; 3] = [Language::Rust, Language::Python, Language::JavaScript];

/// What a program says that is asked to process a message.
async fn run(command: &mut Command) -> Result<String> {
    let output = timeout(DEADLINE, command.stdin(Stdio::null()).kill_on_drop(true).output()).await??;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

impl Language {
    async fn once(self, url: &str, id: &str) -> Result<String> {
        match self {
            Self::Rust if url.starts_with("redis") => {
                let dedup = Dedup::new(RedisDedup::connect(url).await?).for_consumer("billing")?;
                Ok(said(&dedup.once(id, || async { Ok::<_, String>(()) }).await?))
            }
            Self::Rust => {
                let (dedup, pool) = (TransactionDedup::new("billing")?, PgPool::connect(url).await?);
                dedup.create(&mut *pool.acquire().await?).await?;
                sqlx::raw_sql("CREATE TABLE IF NOT EXISTS bill (message text)").execute(&pool).await?;
                let bill = async |transaction: &mut PgConnection| {
                    sqlx::query("INSERT INTO bill VALUES ($1)").bind(id).execute(transaction).await.map(drop)
                };
                Ok(said(&dedup.once(&pool, id, bill).await?))
            }
            Self::Python => {
                let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/python");
                let mut command = Command::new(python()?);
                command.arg(sdk.join("examples/once.py")).args([url, id]);
                run(command.env("PYTHONPATH", sdk.join("src")).env("PYTHONDONTWRITEBYTECODE", "1")).await
            }
            Self::JavaScript => {
                let mut command = Command::new("node");
                run(command.args(["examples/once.js", url, id]).current_dir(javascript()?)).await
            }
        }
    }
}

fn said<T, E>(outcome: &Outcome<T, E>) -> String {
    match outcome {
        Outcome::Done(_) => "done",
        Outcome::AlreadyDone => "already done",
        Outcome::Busy { .. } => "busy",
        Outcome::Failed(_) => "failed",
    }
    .to_owned()
}

async fn share_a_window(url: &str) -> Result<()> {
    for first in ALL {
        let id = format!("order of {first:?}");
        let done = first.once(url, &id).await.with_context(|| format!("{first:?} is the first"))?;
        ensure!(done == "done", "{first:?}: {done}");
        for again in ALL {
            let repeated = again.once(url, &id).await.with_context(|| format!("{again:?} after {first:?}"))?;
            ensure!(repeated == "already done", "{again:?} after {first:?}: {repeated}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn programs_in_three_languages_share_a_window_in_redis() -> Result<()> {
    let server = RedisServer::start().await?;
    share_a_window(&server.url()).await?;
    let dedup = Dedup::new(RedisDedup::connect(&server.url()).await?).for_consumer("billing")?;
    let Claiming::Claimed(claim) = dedup.claim("held").await? else { bail!("it is free") };
    for language in ALL {
        let busy = language.once(&server.url(), "held").await?;
        ensure!(busy == "busy", "{language:?} while Rust has it: {busy}");
    }
    claim.release().await?;
    ensure!(Language::Python.once(&server.url(), "held").await? == "done");
    Ok(())
}

#[tokio::test]
async fn programs_in_three_languages_share_a_window_in_transactions() -> Result<()> {
    let database = TestDatabase::create().await?;
    share_a_window(database.url()).await?;
    let pool = PgPool::connect(database.url()).await?;
    let dedup = TransactionDedup::new("billing")?;
    let mut transaction = pool.begin().await?;
    ensure!(dedup.mark(&mut *transaction, "held").await? == relais_dedup::Mark::Written);
    for language in ALL {
        let busy = language.once(database.url(), "held").await?;
        ensure!(busy == "busy", "{language:?} while the transaction of Rust is open: {busy}");
    }
    transaction.rollback().await?;
    ensure!(Language::JavaScript.once(database.url(), "held").await? == "done");
    let bills: Vec<(String, i64)> =
        sqlx::query_as("SELECT message, count(*) FROM bill GROUP BY 1").fetch_all(&pool).await?;
    ensure!(bills.len() == 4 && bills.iter().all(|(_, count)| *count == 1), "{bills:?}");
    Ok(())
}

#[tokio::test]
async fn code_that_claims_by_set_nx_ex_shares_the_window_with_all_of_them() -> Result<()> {
    let (server, folder) = (RedisServer::start().await?, javascript()?);
    let (url, folder) = (&server.url(), &folder);
    let foreign = async |id: &str| {
        let key = format!("dedup:processed:billing:{id}");
        let mut node = Command::new("node");
        run(node.args(["--input-type=module", "--eval", FOREIGN, url, &key]).current_dir(folder)).await
    };
    ensure!(foreign("theirs").await? == "done");
    for language in ALL {
        let repeated = language.once(url, "theirs").await?;
        ensure!(repeated == "already done", "{language:?}: {repeated}");
        let ours = format!("{language:?}");
        ensure!(language.once(url, &ours).await? == "done");
        ensure!(foreign(&ours).await? == "already done", "after {language:?}");
    }
    Ok(())
}
