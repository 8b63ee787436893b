//! Whose processor time it was: the server's, PostgreSQL's, or the load's own.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// Processor times of the three, since their start or for one thing done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Split {
    /// Relais.
    pub server: Duration,
    /// PostgreSQL, all its processes. Nothing with SQLite, which is within the server.
    pub database: Duration,
    /// This process.
    pub load: Duration,
}

impl Split {
    /// What was spent since `before`, for one of the `done` things.
    pub fn since(self, before: Self, done: f64) -> Self {
        let each = |now: Duration, then: Duration| now.saturating_sub(then).div_f64(done.max(1.0));
        Self {
            server: each(self.server, before.server),
            database: each(self.database, before.database),
            load: each(self.load, before.load),
        }
    }

    /// As it is printed, in microseconds.
    pub fn columns(split: Option<Self>) -> [String; 3] {
        let Some(split) = split else { return Default::default() };
        [split.server, split.database, split.load].map(|time| format!("{:.0}", time.as_secs_f64() * 1e6))
    }
}

/// The time that a process used, and those of its children that have ended.
pub fn of_process(pid: u32) -> Result<Duration> {
    let stat = stat(pid)?;
    let ticks: u64 =
        stat.get(11..15).context("short /proc/PID/stat")?.iter().filter_map(|f| f.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The time that a process and all its children used. A child that ends while we look would count twice or not at all,
/// so it is looked at until none does.
pub fn of_family(parent: u32) -> Result<Duration> {
    loop {
        let (before, pids) = (of_process(parent)?, children(parent)?);
        let total = pids.iter().map(|&pid| of_process(pid)).sum::<Result<Duration>>();
        if let Ok(total) = total
            && pids == children(parent)?
            && before == of_process(parent)?
        {
            return Ok(before + total);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn children(parent: u32) -> Result<Vec<u32>> {
    let pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids.filter(|&pid| parent_of(pid).is_ok_and(|its| its == parent)).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// A process's parent.
pub fn parent_of(pid: u32) -> Result<u32> {
    stat(pid)?.get(1).context("short /proc/PID/stat")?.parse().context("read a parent's number")
}

/// The fields of `/proc/PID/stat` from the third on: the second is a name and may contain anything.
fn stat(pid: u32) -> Result<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("read a process's state")?;
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    Ok(fields.split_ascii_whitespace().map(str::to_owned).collect())
}

/// The most memory that a process ever had resident, in MB.
pub fn peak_megabytes(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("read a process's state")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().context("read a size")?;
    Ok(kilobytes / 1024.0)
}
