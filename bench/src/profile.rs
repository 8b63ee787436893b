//! Where the time goes (`--profile`): how large the server's batches were, how long its store took, and what each
//! statement cost PostgreSQL. To find out what to improve; measuring costs a little itself.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use sqlx::{Connection, PgConnection, Row};

use crate::{
    load::Connection as Http,
    world::{World, get_path},
};

/// The server's counters before.
pub struct Profile(BTreeMap<String, (f64, f64)>);

impl Profile {
    /// Begins to look.
    pub async fn begin(world: &World) -> Result<Self> {
        if let Some(url) = world.postgres_url() {
            reset_statements(&url).await?;
        }
        Ok(Self(scrape(world).await?))
    }

    /// What happened since, as text.
    pub async fn end(self, world: &World) -> Result<String> {
        let mut lines = Vec::new();
        for (name, (sum, count)) in scrape(world).await? {
            let (before_sum, before_count) = self.0.get(&name).copied().unwrap_or_default();
            let (sum, count) = (sum - before_sum, count - before_count);
            if count > 0.0 {
                let unit = if name.contains("_seconds") { 1000.0 } else { 1.0 };
                lines.push(format!("{:>10} times, {:>10.3} on average  {name}", count, unit * sum / count));
            }
        }
        if let Some(url) = world.postgres_url() {
            lines.extend(statements(&url).await?);
        }
        Ok(lines.join("\n"))
    }
}

/// Begins to look at what statements cost PostgreSQL.
pub async fn reset_statements(url: &str) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset(); SELECT pg_stat_reset_shared('wal')")
        .execute(&mut connection)
        .await?;
    Ok(connection.close().await?)
}

/// What statements cost PostgreSQL since.
pub async fn statements(url: &str) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut connection = PgConnection::connect(url).await?;
    let rows = sqlx::query(
        "SELECT calls, mean_exec_time, total_exec_time, wal_bytes::float8 / calls AS wal,
                left(regexp_replace(query, '\\s+', ' ', 'g'), 90) AS query
         FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 12",
    )
    .fetch_all(&mut connection)
    .await?;
    for row in rows {
        lines.push(format!(
            "{:>10} calls, {:>8.3} ms each, {:>8.0} ms in all, {:>7.0} bytes of WAL each  {}",
            row.get::<i64, _>("calls"),
            row.get::<f64, _>("mean_exec_time"),
            row.get::<f64, _>("total_exec_time"),
            row.get::<f64, _>("wal"),
            row.get::<String, _>("query"),
        ));
    }
    let wal =
        sqlx::query("SELECT wal_sync, wal_sync_time, wal_write_time, wal_bytes::float8 AS bytes FROM pg_stat_wal");
    let wal = wal.fetch_one(&mut connection).await?;
    lines.push(format!(
        "{:>10} syncs of the WAL, {:.0} ms in all; written in {:.0} ms; {:.1} MB",
        wal.get::<i64, _>("wal_sync"),
        wal.get::<f64, _>("wal_sync_time"),
        wal.get::<f64, _>("wal_write_time"),
        wal.get::<f64, _>("bytes") / 1e6,
    ));
    connection.close().await?;
    Ok(lines)
}

/// Sum and count of each histogram of the store and of batches.
async fn scrape(world: &World) -> Result<BTreeMap<String, (f64, f64)>> {
    let mut http = Http::open(world.address()).await?;
    let text = String::from_utf8_lossy(http.expect(&get_path("/metrics"), 200).await?).into_owned();
    let mut found: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for line in
        text.lines().filter(|line| line.starts_with("relais_store_seconds") || line.starts_with("relais_batch_size"))
    {
        let (name, value) = line.rsplit_once(' ').context("a metric has no value")?;
        if name.contains("_sum") {
            found.entry(name.replacen("_sum", "", 1)).or_default().0 = value.parse()?;
        } else if name.contains("_count") {
            found.entry(name.replacen("_count", "", 1)).or_default().1 = value.parse()?;
        }
    }
    Ok(found)
}
