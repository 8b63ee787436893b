//! What a long load leaves behind: tasks come, are done and are purged, and the database must not grow.

use std::time::{Duration, Instant};

use anyhow::Result;
use relais_engine::Options;
use sqlx::{Connection, PgConnection};

use crate::{
    Plan,
    engine::relais::{CONCURRENCY, Relais},
    report::Section,
    sample::number,
    tell,
    world::{Kind, create_database, postgres},
};

/// The load is looked at so many times.
const LOOKS: u32 = 6;

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = ["database", "minutes", "tasks so far", "MB of tables and indexes"];
    let mut section = Section::new("wear", "tasks come, are done in process and are purged, for minutes", &header);
    for &kind in &plan.databases {
        match kind {
            Kind::Sqlite => {
                let folder = tempfile::tempdir()?;
                let file = folder.path().join("wear.db");
                let size = async || Ok(std::fs::metadata(&file)?.len());
                load(plan, &mut section, kind, &format!("sqlite:{}", file.display()), size).await?;
            }
            Kind::Postgres => {
                let (server, _) = postgres(plan).await?;
                let url = create_database(&server, "relais").await?;
                let before = written_ahead(&url).await?;
                let size = async || {
                    let mut connection = PgConnection::connect(&url).await?;
                    let bytes: i64 = sqlx::query_scalar(
                        "SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables",
                    )
                    .fetch_one(&mut connection)
                    .await?;
                    Ok(bytes.cast_unsigned())
                };
                let tasks = load(plan, &mut section, kind, &url, size).await?;
                tell_of_rows(&mut section, &url, before, tasks).await?;
            }
        }
    }
    section.note(format!(
        "Tasks by the {}; purged as soon as they have ended. PostgreSQL's autovacuum has its own settings, and those of the tables.",
        number(plan.wear_tasks as f64)
    ));
    Ok(section)
}

/// The load: how many tasks it was in the end.
async fn load(
    plan: &Plan,
    section: &mut Section,
    kind: Kind,
    url: &str,
    size: impl AsyncFn() -> Result<u64>,
) -> Result<u64> {
    let mut options = Options::default();
    options.purge.finished = Duration::ZERO;
    let relais = Relais::open(url, options).await?;
    let (begin, mut tasks, mut sizes) = (Instant::now(), 0, Vec::new());
    for look in 1..=LOOKS {
        while begin.elapsed() < plan.wear / LOOKS * look {
            relais.submit_many(plan.wear_tasks).await?;
            relais.drain(plan.wear_tasks, CONCURRENCY).await?;
            relais.engine.purge(false).await?;
            tasks += plan.wear_tasks;
        }
        let megabytes = size().await? as f64 / 1024.0 / 1024.0;
        let minutes = format!("{:.1}", begin.elapsed().as_secs_f64() / 60.0);
        tell(&format!("wear: {}, {minutes} min, {tasks} tasks: {megabytes:.1} MB", kind.name()));
        section.row([kind.name().to_owned(), minutes, number(tasks as f64), format!("{megabytes:.1}")]);
        sizes.push(megabytes);
    }
    relais.engine.stop().await;
    // It grows until what is purged is used again.
    let (early, late) = sizes.split_at(sizes.len() / 2);
    let most = |sizes: &[f64]| sizes.iter().copied().fold(0.0, f64::max);
    let what = format!("the most space of the first half, in the second: {}", kind.name());
    section.below(&what, most(late) / most(early), 1.2, " ×");
    Ok(tasks)
}

async fn written_ahead(url: &str) -> Result<f64> {
    let mut connection = PgConnection::connect(url).await?;
    let bytes = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::double precision");
    Ok(bytes.fetch_one(&mut connection).await?)
}

/// Dead rows and what was written ahead, for one task from its submission to its purge.
async fn tell_of_rows(section: &mut Section, url: &str, before: f64, tasks: u64) -> Result<()> {
    let wal = (written_ahead(url).await? - before) / tasks as f64;
    let mut connection = PgConnection::connect(url).await?;
    // Those who counted are gone, so all is counted.
    let (dead, in_place): (f64, f64) = sqlx::query_as(
        "SELECT sum(n_tup_upd + n_tup_del)::double precision, sum(n_tup_hot_upd)::double precision FROM pg_stat_user_tables",
    )
    .fetch_one(&mut connection)
    .await?;
    let each = |rows: f64| rows / tasks as f64;
    section.note(format!(
        "A task on PostgreSQL, from its submission to its purge: {} bytes of WAL, {:.2} dead rows, of which {:.2} updated in place.",
        number(wal),
        each(dead),
        each(in_place)
    ));
    Ok(())
}
