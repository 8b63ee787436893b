//! The RabbitMQ node that a test run shares.
//!
//! Starting one is the testkit's business, and takes several seconds, so it is begun before the
//! tests are compiled and waited for afterwards. The helper program lives as long as the pipe that
//! is held here: when this process ends, in whatever way, the pipe closes and the node goes, and
//! Erlang's port mapper with it.

use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{cargo, packages};

/// What the tests read; also honoured when set by the user.
pub const VARIABLE: &str = "RELAIS_TEST_RABBITMQ";

/// A node for the tests, there as long as this value is.
pub struct Server {
    /// Known from the environment.
    url: Option<String>,
    helper: Option<Child>,
}

impl Server {
    /// The node that the environment names, or a private one, which is not waited for. Needs the
    /// testkit's helper to be built.
    pub fn begin() -> Result<Self> {
        if let Ok(url) = env::var(VARIABLE) {
            eprintln!("RabbitMQ: {VARIABLE} is set, using that node");
            return Ok(Self { url: Some(url), helper: None });
        }
        let helper = Command::new(cargo::binary("debug", "relais-testkit-rabbitmq")?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the testkit's RabbitMQ helper")?;
        Ok(Self { url: None, helper: Some(helper) })
    }

    /// Waits until it is ready, and returns its URL.
    pub fn url(&mut self) -> Result<String> {
        if let Some(url) = &self.url {
            return Ok(url.clone());
        }
        let helper = self.helper.as_mut().context("there is no helper")?;
        let stdout = helper.stdout.take().context("the helper has no output")?;
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).context("cannot read the node's URL")?;
        if url.is_empty() {
            let status = helper.wait().context("cannot wait for the helper")?;
            bail!("RabbitMQ did not start ({status}), see above");
        }
        let url = url.trim().to_owned();
        eprintln!("RabbitMQ: a private node at {url}");
        self.url = Some(url.clone());
        Ok(url)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(helper) = &mut self.helper {
            drop(helper.stdin.take());
            let _ = helper.wait();
        }
    }
}

/// Makes sure that there is a RabbitMQ to start, before minutes are spent on building.
pub fn ensure_installed() -> Result<()> {
    if env::var_os(VARIABLE).is_some() || env::var_os("RELAIS_TEST_RABBITMQ_BIN").is_some() || is_installed() {
        return Ok(());
    }
    packages::install("RabbitMQ", "rabbitmq-server")
}

/// The same places as the testkit's.
fn is_installed() -> bool {
    let complete = |directory: &Path| directory.join("rabbitmq-server").is_file();
    let path = env::var_os("PATH").unwrap_or_default();
    complete(Path::new("/usr/lib/rabbitmq/bin")) || env::split_paths(&path).any(|directory| complete(&directory))
}
