//! A small process that outlives this one by a moment, and kills what this one left behind.
//!
//! A worker that is killed can not end its commands; on a machine of one's own they would run on, beside those that the
//! next worker starts for the same tasks. So the groups are told to a shell, through a pipe that is closed with this
//! process, however that ends. Without a shell on the machine there is no guardian, which is said once; in a container
//! everything ends with the first process anyway.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::process::Pid;

/// Reads `+ GROUP` and `- GROUP` until the pipe is closed, then kills what is left.
const SCRIPT: &str = r#"
    trap '' TERM INT HUP
    groups=' '
    while read -r verb group; do
        case $verb in
            +) groups="$groups$group " ;;
            -) groups="${groups%% $group *} ${groups#* $group }" ;;
        esac
    done
    for group in $groups; do kill -s KILL -- "-$group"; done 2>/dev/null
"#;

/// Started with the first group.
#[derive(Debug, Default)]
pub(super) struct Guardian(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    NotStarted,
    Running(Child),
    /// There is none, and never will be.
    None,
}

impl Guardian {
    /// Is there before the first command is, so that hardly a moment is left in which that has no guardian.
    pub fn stand_by(&self) {
        let mut state = self.lock();
        if let State::NotStarted = *state {
            *state = start();
        }
    }

    /// A group has begun.
    pub fn begun(&self, group: Pid) {
        tell(&mut self.lock(), '+', group);
    }

    /// A group has ended: its number may be another's from now on.
    pub fn ended(&self, group: Pid) {
        tell(&mut self.lock(), '-', group);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        if let State::Running(child) = &mut *self.lock() {
            // It has nothing to do but to notice, which it does at once.
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

fn start() -> State {
    let shell = Command::new("/bin/sh")
        .args(["-c", SCRIPT, "relais-worker-guardian"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Not in the way of a Ctrl-C in the terminal.
        .process_group(0)
        .spawn();
    match shell {
        Ok(child) => State::Running(child),
        Err(error) => {
            tracing::warn!(%error, "no shell to guard the commands: if this process is killed, they are left behind");
            State::None
        }
    }
}

fn tell(state: &mut State, verb: char, group: Pid) {
    let State::Running(child) = state else { return };
    // A line of a few bytes into a pipe that is read all the time: this does not wait.
    let told = child.stdin.as_mut().map(|pipe| writeln!(pipe, "{verb} {}", group.as_raw_pid()));
    if let Some(Err(error)) = told {
        tracing::warn!(%error, "the guardian of the commands is gone: if this process is killed, they are left behind");
        let _ = child.wait();
        *state = State::None;
    }
}
