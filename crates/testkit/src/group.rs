//! A child process in a process group of its own, which never outlives this process.
//!
//! That is harder than `Child::kill`. A server's own children may leave the group (each PostgreSQL
//! backend calls `setsid`), so signals go to the descendants too; and what happens when this
//! process is killed itself is the business of the [`Guardian`](crate::guardian).
//!
//! Does not know what the child is, nor when it is ready.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::guardian::{Guardian, Scratch};

/// How often a state that Linux does not announce (a child's end, a server's readiness) is looked at.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// A running (or ended, not yet forgotten) process group led by our child.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Child,
    guardian: Arc<Guardian>,
    /// The leader was reaped: its number may belong to someone else by now and gets no signals.
    ended: Option<ExitStatus>,
}

impl Group {
    /// Starts `command` as the leader of a new group, one at a time in a `scratch`. When this
    /// process ends before the group does, the group is killed and the directory deleted.
    pub(crate) fn spawn(mut command: Command, scratch: &Scratch) -> Result<Self> {
        let leader =
            command.process_group(0).spawn().with_context(|| format!("start {}", command.get_program().display()))?;
        scratch.guardian().tell(&format!("leader {}", leader.id()));
        Ok(Self { leader, guardian: Arc::clone(scratch.guardian()), ended: None })
    }

    pub(crate) fn id(&self) -> u32 {
        self.leader.id()
    }

    /// The leader's exit status, if it has ended.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.leader.try_wait().context("look at a child process")?;
            if self.ended.is_some() {
                self.guardian.tell("ended");
            }
        }
        Ok(self.ended)
    }

    /// Waits for the leader's end.
    pub(crate) async fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > deadline {
                bail!("process {} still runs after {deadline:?}", self.id());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Signals the leader alone: what an operator or a supervisor does.
    pub(crate) fn signal_leader(&mut self, signal: Signal) -> Result<()> {
        if self.try_wait()?.is_some() {
            bail!("process {} has already ended", self.id());
        }
        kill_process(Pid::from_child(&self.leader), signal).with_context(|| format!("signal process {}", self.id()))
    }

    /// Signals the leader, its group and its descendants, and returns the latter.
    pub(crate) fn signal_all(&mut self, signal: Signal) -> Result<Vec<Pid>> {
        // The leader first: stopped, it starts no child that the list below would miss. It is not
        // reaped, so its number cannot have been given to another process.
        if signal != Signal::CONT {
            self.signal_leader(Signal::STOP)?;
        }
        let descendants = descendants(self.id());
        for pid in &descendants {
            // One that has just ended needs no signal.
            let _ = kill_process(*pid, signal);
        }
        kill_process_group(Pid::from_child(&self.leader), signal)
            .with_context(|| format!("signal process group {}", self.id()))?;
        Ok(descendants)
    }

    /// Kills everything, as a lost machine would, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if self.try_wait()?.is_some() {
            return Ok(());
        }
        let descendants = self.signal_all(Signal::KILL)?;
        self.ended = Some(self.leader.wait().context("wait for a killed process")?);
        self.guardian.tell("ended");
        // PostgreSQL refuses to start while a process of the killed server still holds its shared
        // memory, so "killed" means that they are gone too. SIGKILL takes microseconds.
        let start = Instant::now();
        while descendants.iter().any(|pid| is_alive(*pid)) {
            if start.elapsed() > Duration::from_secs(10) {
                bail!("children of process {} survive SIGKILL", self.id());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Nobody to tell, should it fail; the guardian then tries again.
        let _ = self.kill();
    }
}

/// Children, grandchildren and so on, from one look at `/proc`.
fn descendants(root: u32) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Processes come and go while we look; one that is gone has no parent to note.
        if let Ok(parent) = stat_field(pid, 4).map(|field| field.parse().unwrap_or(0)) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![root.cast_signed()];
    while let Some(parent) = next.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            found.extend(Pid::from_raw(pid));
            next.push(pid);
        }
    }
    found
}

/// A zombie has let go of everything but its number.
fn is_alive(pid: Pid) -> bool {
    stat_field(pid.as_raw_pid(), 3).is_ok_and(|state| state != "Z" && state != "X")
}

/// Field `number` of `/proc/PID/stat`, counted from 1 as in proc(5); from the third on.
pub(crate) fn stat_field(pid: i32, number: usize) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may contain both spaces and them.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name
        .split_ascii_whitespace()
        .nth(number - 3)
        .map(str::to_owned)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "short /proc/PID/stat"))
}
