//! Finding RabbitMQ's programs, and the user to run them as.
//!
//! Does not install anything: a library that is called by tests must not change the machine.

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// Where to look first: a directory that contains `rabbitmq-server` and `rabbitmqctl`.
const DIRECTORY_VARIABLE: &str = "RELAIS_TEST_RABBITMQ_BIN";

/// Where Debian and its relatives keep the programs themselves. Those in PATH are wrappers there,
/// which switch to a user of their own.
const DEBIAN: &str = "/usr/lib/rabbitmq/bin";

/// "nobody": a server needs no rights on the machine that runs its tests.
const NOBODY: u32 = 65534;

/// One installation.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    directory: PathBuf,
    epmd: PathBuf,
}

impl Programs {
    /// The one that the environment names, else Debian's, else the one in PATH.
    pub(super) fn find() -> Result<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let directory = match env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from) {
            Some(directory) if !is_complete(&directory) => {
                bail!("{DIRECTORY_VARIABLE} is {}, which contains no `rabbitmq-server`", directory.display())
            }
            Some(directory) => directory,
            None => std::iter::once(PathBuf::from(DEBIAN))
                .chain(env::split_paths(&path))
                .find(|directory| is_complete(directory))
                .with_context(|| {
                    format!(
                        "RabbitMQ is missing: no `rabbitmq-server` in {DEBIAN} or PATH. Install it (Debian, Ubuntu: \
                         apt-get install rabbitmq-server), name its directory in {DIRECTORY_VARIABLE}, or name a \
                         running node in {}",
                        crate::RABBITMQ_VARIABLE
                    )
                })?,
        };
        let epmd = env::split_paths(&path)
            .map(|directory| directory.join("epmd"))
            .find(|program| program.is_file())
            .context("Erlang's `epmd` is missing from PATH; it comes with Erlang, which RabbitMQ needs")?;
        Ok(Self { directory, epmd })
    }

    pub(super) fn server(&self) -> PathBuf {
        self.directory.join("rabbitmq-server")
    }

    pub(super) fn control(&self) -> PathBuf {
        self.directory.join("rabbitmqctl")
    }

    pub(super) fn epmd(&self) -> &Path {
        &self.epmd
    }
}

fn is_complete(directory: &Path) -> bool {
    ["rabbitmq-server", "rabbitmqctl"].iter().all(|program| directory.join(program).is_file())
}

/// The user that a node runs as when this process is root.
pub(super) fn server_user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

/// Lets `command` run as that user.
pub(super) fn as_server_user(command: &mut Command) {
    if let Some(user) = server_user() {
        command.uid(user).gid(user);
    }
}
