//! Any command is a worker: one process for each task.
//!
//! | | |
//! |---|---|
//! | stdin | the body, JSON |
//! | stdout | the response: all of it if it is one JSON value, else the last line that is JSON, else null |
//! | stderr | a line `progress 42` is progress; every other line goes to the log |
//! | exit code 0 | success |
//! | exit code 75 | try again: the task is given back (`EX_TEMPFAIL` of sysexits.h) |
//! | any other, or a signal | failure, with the end of stderr as its message |
//!
//! The environment has `RELAIS_TASK_ID`, `RELAIS_ATTEMPT` (where it is known), `RELAIS_SERVICE` and
//! `RELAIS_CORRELATION_ID` (where there is one), and `TRACEPARENT` and `TRACESTATE` likewise. The process leads a group
//! of its own, and the whole group ends with it: at the time limit, when the task is lost or cancelled, and when the
//! process itself has ended and left something behind. If the worker is killed, a guardian kills the groups. Only what
//! leaves its group (`setsid`) gets away.

mod guardian;
mod output;
mod process;

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use relais_protocol::HumanDuration;
use serde_json::value::RawValue;
use tokio::{
    io::AsyncWriteExt,
    process::{ChildStdin, Command},
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::Instrument;

use self::{guardian::Guardian, output::Said, process::Group};
use crate::{Context, HandlerError};

/// "Temporary failure, the user is invited to retry": the one exit code that has a meaning of its own.
const TEMPORARY_FAILURE: i32 = 75;

/// How long what a process wrote last may take to arrive when its group is gone. Only what left the group can be
/// slower.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs a program for each task: a handler for [`Worker::run`](crate::Worker::run).
#[derive(Debug, Clone)]
pub struct CommandRunner {
    program: OsString,
    arguments: Vec<OsString>,
    service: String,
    time_limit: Option<Duration>,
    kill_after: Duration,
    stdout_limit: usize,
    hidden: Vec<OsString>,
    guardian: Arc<Guardian>,
}

impl CommandRunner {
    /// Runs `program` with `arguments` for each task of `service`. There is no shell in between.
    pub fn new<A: Into<OsString>>(
        service: impl Into<String>,
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            service: service.into(),
            time_limit: None,
            kill_after: Duration::from_secs(10),
            stdout_limit: 1 << 20,
            hidden: Vec::new(),
            guardian: Arc::default(),
        }
    }

    /// How long a process may run before it is stopped and its task failed; for ever unless set.
    #[must_use]
    pub fn time_limit(mut self, limit: Option<Duration>) -> Self {
        self.time_limit = limit;
        self
    }

    /// How long a process that is to stop has between SIGTERM and SIGKILL; 10 s unless set.
    #[must_use]
    pub fn kill_after(mut self, time: Duration) -> Self {
        self.kill_after = time;
        self
    }

    /// How many bytes a process may write to stdout; 1 MiB unless set, which is what a server takes by default.
    #[must_use]
    pub fn stdout_limit(mut self, bytes: usize) -> Self {
        self.stdout_limit = bytes;
        self
    }

    /// Variables of this process's environment that are none of the command's business.
    #[must_use]
    pub fn hide(mut self, variables: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.hidden.extend(variables.into_iter().map(Into::into));
        self
    }

    /// Whether the program is there. Better known before the first task.
    ///
    /// # Errors
    ///
    /// If there is no such file, or none of that name in `PATH`, or it can not be executed.
    pub fn check(&self) -> io::Result<()> {
        find(&self.program, std::env::var_os("PATH").as_deref()).map(drop)
    }

    /// The handler.
    pub fn handler(
        self,
    ) -> impl Fn(Box<RawValue>, Context) -> BoxFuture<'static, Result<Box<RawValue>, HandlerError>> + Send + Sync + 'static
    {
        let runner = Arc::new(self);
        move |body, context| {
            let runner = Arc::clone(&runner);
            Box::pin(async move { runner.run(body, context).await })
        }
    }

    /// Does one task.
    async fn run(&self, body: Box<RawValue>, context: Context) -> Result<Box<RawValue>, HandlerError> {
        // Out of processes, or the program is being replaced: nothing that the task could help.
        let mut group = Group::spawn(self.command(&context), Arc::clone(&self.guardian))
            .map_err(|error| HandlerError::again(format!("failed to start the command: {error}")))?;
        let mut pipes = Pipes::new(&mut group, body, self.stdout_limit, &context);
        let end = tokio::select! {
            () = group.exited() => End::Exited,
            () = pipes.too_much() => End::TooMuch,
            () = context.cancelled() => End::Cancelled,
            limit = elapsed(self.time_limit) => End::Late(limit),
        };
        if !matches!(end, End::Exited) {
            group.stop(self.kill_after).await;
        }
        let status = group.finish().await.map_err(|error| HandlerError::new(format!("lost the command: {error}")))?;
        pipes.drain().await;
        let (heard, tail) = (&pipes.said, pipes.said.take_tail());
        let said = |what: String| if tail.is_empty() { what } else { format!("{what}: {tail}") };
        match end {
            End::Cancelled => Err(HandlerError::new("stopped")), // Nobody reads it.
            End::Late(limit) => {
                let what = format!("the command was stopped after {}, its time limit", HumanDuration(limit));
                Err(HandlerError::new(said(what)).kind("timeout"))
            }
            // Both may be true at the same moment.
            End::TooMuch | End::Exited if heard.too_much() => {
                let what = format!("the command wrote more than {} bytes to stdout", self.stdout_limit);
                Err(HandlerError::new(what).kind("output"))
            }
            End::TooMuch | End::Exited => judge(status, &heard.take_stdout(), tail),
        }
    }

    fn command(&self, context: &Context) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in &self.hidden {
            command.env_remove(name);
        }
        // What is not known must not be what this process was told by its own starter.
        for name in ["RELAIS_ATTEMPT", "RELAIS_CORRELATION_ID", "TRACEPARENT", "TRACESTATE"] {
            command.env_remove(name);
        }
        command.env("RELAIS_TASK_ID", context.task_id()).env("RELAIS_SERVICE", &self.service);
        if let Some(attempt) = context.attempt() {
            command.env("RELAIS_ATTEMPT", attempt.to_string());
        }
        if let Some(id) = context.correlation_id() {
            // The environment has no NUL.
            command.env("RELAIS_CORRELATION_ID", id.replace('\0', "\u{fffd}"));
        }
        for (name, value) in [("TRACEPARENT", context.traceparent()), ("TRACESTATE", context.tracestate())] {
            if let Some(value) = value {
                command.env(name, value.replace('\0', "\u{fffd}"));
            }
        }
        command
    }
}

/// Why a process is no longer waited for.
enum End {
    Exited,
    TooMuch,
    Cancelled,
    Late(Duration),
}

async fn elapsed(limit: Option<Duration>) -> Duration {
    match limit {
        Some(limit) => {
            sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// What an exit status means.
fn judge(status: ExitStatus, stdout: &[u8], tail: String) -> Result<Box<RawValue>, HandlerError> {
    let or = |what: String| if tail.is_empty() { what } else { tail.clone() };
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(output::response(stdout)),
        (Some(TEMPORARY_FAILURE), _) => {
            Err(HandlerError::again(or(format!("the command ended with exit code {TEMPORARY_FAILURE}"))))
        }
        (Some(code), _) => {
            let what = or(format!("the command ended with exit code {code}"));
            Err(HandlerError::new(what).kind(format!("exit-{code}")))
        }
        (None, signal) => {
            let signal = signal.map_or_else(|| "a signal".to_owned(), process::signal_name);
            let rest = if tail.is_empty() { String::new() } else { format!(": {tail}") };
            Err(HandlerError::new(format!("the command was killed by {signal}{rest}")).kind("signal"))
        }
    }
}

/// The three pipes of a process, served beside it: whatever it does with one of them, the others go on.
struct Pipes {
    tasks: JoinSet<()>,
    said: Said,
}

impl Pipes {
    fn new(group: &mut Group, body: Box<RawValue>, stdout_limit: usize, context: &Context) -> Self {
        let (mut tasks, said) = (JoinSet::new(), Said::default());
        let (stdin, stdout, stderr) = group.pipes();
        if let Some(stdin) = stdin {
            tasks.spawn(feed(stdin, body));
        }
        if let Some(stdout) = stdout {
            let said = said.clone();
            tasks.spawn(async move { said.read_stdout(stdout, stdout_limit).await });
        }
        if let Some(stderr) = stderr {
            let (said, context) = (said.clone(), context.clone());
            let read = async move { said.read_stderr(stderr, &context).await };
            // So that its lines name the task.
            tasks.spawn(read.in_current_span());
        }
        Self { tasks, said }
    }

    /// Returns when there is too much on stdout, and only then.
    async fn too_much(&mut self) {
        while self.tasks.join_next().await.is_some() {
            if self.said.too_much() {
                return;
            }
        }
        std::future::pending().await
    }

    /// Hears the rest. The group is gone, so this is a matter of moments; what has arrived by then counts.
    async fn drain(&mut self) {
        let rest = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(LAST_WORDS, rest).await.is_err() {
            tracing::warn!("something that the command started left its process group and holds its output open");
            self.tasks.shutdown().await;
        }
    }
}

/// A process that does not read its input, or not all of it, is free to do so.
async fn feed(mut stdin: ChildStdin, body: Box<RawValue>) {
    let _ = stdin.write_all(body.get().as_bytes()).await;
    let _ = stdin.write_all(b"\n").await;
}

/// Where a program is: as given if that is a path, else the first of that name in `PATH`.
fn find(program: &OsStr, path: Option<&OsStr>) -> io::Result<PathBuf> {
    let named = Path::new(program);
    let places: Vec<PathBuf> = if named.components().count() > 1 {
        vec![named.to_owned()]
    } else {
        std::env::split_paths(path.unwrap_or_default()).map(|folder| folder.join(named)).collect()
    };
    let mut wrong = io::Error::new(io::ErrorKind::NotFound, "there is no such program");
    for place in places {
        match rustix::fs::access(&place, rustix::fs::Access::EXEC_OK) {
            Ok(()) if place.is_file() => return Ok(place),
            Err(error) if place.is_file() => wrong = error.into(),
            _ => {}
        }
    }
    Err(wrong)
}

#[cfg(test)]
mod tests;
