//! A process that leads a group of its own, and the end of that group.

use std::{io, process::ExitStatus, sync::Arc, time::Duration};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid};
use tokio::{
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, timeout_at},
};

use super::guardian::Guardian;

/// How often a group that is to end is looked at: the system does not announce its end.
const POLL: Duration = Duration::from_millis(10);

/// A process and whatever it starts. Dropped, all of it is killed.
#[derive(Debug)]
pub(super) struct Group {
    leader: Child,
    id: Pid,
    /// Some child of this process has ended.
    children: tokio::signal::unix::Signal,
    reaped: Option<ExitStatus>,
    over: bool,
    guardian: Arc<Guardian>,
}

impl Group {
    pub fn spawn(mut command: Command, guardian: Arc<Guardian>) -> io::Result<Self> {
        let children = signal(SignalKind::child())?;
        guardian.stand_by();
        let leader = command.process_group(0).spawn()?;
        let id = leader.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let Some(id) = id else { return Err(io::Error::other("the process has no number")) };
        guardian.begun(id);
        Ok(Self { leader, id, children, reaped: None, over: false, guardian })
    }

    pub fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        (self.leader.stdin.take(), self.leader.stdout.take(), self.leader.stderr.take())
    }

    /// Waits for the leader's end, and leaves its remains: while they are there, the group's number is nobody else's.
    pub async fn exited(&mut self) {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Ok(None) = waitid(WaitId::Pid(self.id), look) {
            self.children.recv().await;
        }
    }

    /// Asks the whole group to end, waits for it, and kills what is left when the time is up.
    pub async fn stop(&mut self, kill_after: Duration) {
        let deadline = Instant::now() + kill_after;
        self.signal(Signal::TERM);
        // The leader's remains count as a member: they have to go before the others can be waited for.
        let gone = async {
            let _ = self.reap().await;
            while test_kill_process_group(self.id).is_ok() {
                sleep(POLL).await;
            }
        };
        if timeout_at(deadline, gone).await.is_err() {
            tracing::warn!("the command did not end at SIGTERM and is killed");
        }
    }

    /// Kills what is left of the group, and gives the leader's exit status.
    pub async fn finish(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        let status = self.reap().await;
        self.over = true;
        self.guardian.ended(self.id);
        status
    }

    async fn reap(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.reaped {
            return Ok(status);
        }
        let status = self.leader.wait().await?;
        self.reaped = Some(status);
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        // If nobody is there, that is what was wanted.
        let _ = kill_process_group(self.id, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.over {
            self.signal(Signal::KILL);
            self.guardian.ended(self.id);
        }
    }
}

/// A signal, as people know it.
pub(super) fn signal_name(signal: i32) -> String {
    let name = match Signal::from_named_raw(signal) {
        Some(Signal::HUP) => "SIGHUP",
        Some(Signal::INT) => "SIGINT",
        Some(Signal::QUIT) => "SIGQUIT",
        Some(Signal::ILL) => "SIGILL",
        Some(Signal::ABORT) => "SIGABRT",
        Some(Signal::BUS) => "SIGBUS",
        Some(Signal::FPE) => "SIGFPE",
        Some(Signal::KILL) => "SIGKILL (out of memory?)",
        Some(Signal::SEGV) => "SIGSEGV",
        Some(Signal::PIPE) => "SIGPIPE",
        Some(Signal::TERM) => "SIGTERM",
        Some(Signal::XCPU) => "SIGXCPU",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
