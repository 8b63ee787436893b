//! Where it was measured, in one line.

use std::{fs, process::Command};

use sqlx::{Connection, PgConnection};

/// Processors, memory, PostgreSQL and commit.
pub async fn line() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let memory = field("/proc/meminfo", "MemTotal").and_then(|total| total.split(' ').next()?.parse::<f64>().ok());
    let memory = memory.map_or("?".to_owned(), |kilobytes| format!("{:.0}", kilobytes / 1024.0 / 1024.0));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let commit = output("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changed =
        output("git", &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    let changed = if changed { " with changes" } else { "" };
    let postgres = postgres().await.unwrap_or_else(|| "none".to_owned());
    format!(
        "{cores} cores ({model}), {memory} GB, PostgreSQL {postgres}, commit {commit}{changed}; load average before: {load}."
    )
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

async fn postgres() -> Option<String> {
    let server = relais_testkit::PostgresServer::start().await.ok()?;
    let mut connection = PgConnection::connect(&server.url("postgres")).await.ok()?;
    let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await.ok()?;
    version.split(' ').next().map(str::to_owned)
}
