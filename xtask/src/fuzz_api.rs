//! `cargo xtask fuzz-api`: does the API keep what its OpenAPI document promises?
//!
//! A server is started on throw-away data and schemathesis sends it requests made from the
//! document: valid, nearly valid and malformed ones. Any 5xx, any answer that the document does
//! not describe, and any invalid request that is let through is a failure. Python is only needed
//! here, in an environment of its own under the target directory.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    cargo::{self, cargo, root, run as execute},
    packages,
};

/// Pinned: a new release may find something new, and that is a change of its own.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// The document to fuzz from; committed, see `cargo xtask gen`.
const DOCUMENT: &str = "docs/openapi.json";

/// Answered with 2xx once the server is ready.
const READY_PATH: &str = "/health";

const READY: Duration = Duration::from_secs(30);

/// How to run a server that the fuzzer may ruin: it listens on 127.0.0.1:`port`, keeps its data
/// in `data`, and knows the client of [`fuzzer_identity`].
fn server_command(relais: &Path, port: u16, data: &Path) -> Command {
    let mut command = Command::new(relais);
    command.args(["demo", "--serve-only", "--listen", &format!("127.0.0.1:{port}")]);
    command.arg("--data").arg(data);
    command
}

/// Schemathesis's options for being let in: without them it would only ever see 401.
fn fuzzer_identity() -> [&'static str; 2] {
    ["--auth", "demo:demo"]
}

/// Builds the server, then fuzzes it.
pub fn run() -> Result<()> {
    execute(&mut cargo(["build", "-p", "relais-server", "--bin", "relais"]))?;
    run_built()
}

/// Fuzzes the server that has been built.
pub fn run_built() -> Result<()> {
    if !root().join(DOCUMENT).is_file() {
        println!("fuzz-api: NOT RUN, there is no {DOCUMENT} (`cargo xtask gen` writes it)");
        return Ok(());
    }
    let target = cargo::target_directory()?;
    let schemathesis = schemathesis(&target)?;
    let data = target.join("fuzz-api-data");
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| format!("cannot clear {}", data.display()))?;
    }
    fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))?;

    let port = free_port()?;
    let log = data.join("server.log");
    let mut server = server_command(&cargo::binary("debug", "relais")?, port, &data);
    let log_file = fs::File::create(&log).context("cannot create the server's log")?;
    server.stdin(Stdio::null()).stdout(log_file.try_clone()?).stderr(log_file);
    let mut server = Server(server.spawn().context("cannot start relais")?);
    server.wait_until_ready(port, &log)?;

    let mut fuzz = Command::new(schemathesis);
    fuzz.current_dir(&data) // where it leaves its notes
        .arg("run")
        .arg(root().join(DOCUMENT))
        .args(["--url", &format!("http://127.0.0.1:{port}")])
        .args(fuzzer_identity())
        .args(["--checks", "all", "--workers", "2", "--max-examples", "50"])
        // The same requests for the same document: a red run can be repeated.
        .args(["--generation-deterministic", "--no-color"])
        .args(["--request-timeout", "30"]);
    execute(&mut fuzz).with_context(|| format!("the server's log is {}", log.display()))?;

    if let Some(status) = server.0.try_wait()? {
        bail!("relais ended ({status}) while it was fuzzed, see {}", log.display());
    }
    println!("fuzz-api: passed");
    Ok(())
}

/// The `st` program, installed on first use.
fn schemathesis(target: &Path) -> Result<PathBuf> {
    let environment = target.join("fuzz-api-python");
    let program = environment.join("bin/st");
    let installed = environment.join("installed");
    if fs::read_to_string(&installed).is_ok_and(|version| version == SCHEMATHESIS) {
        return Ok(program);
    }
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(&environment);
    // Debian's python3 comes without the part that makes environments.
    if !can_make_environments() {
        packages::install("python3 with the module venv", "python3-venv")?;
    }
    execute(&mut create)?;
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check", SCHEMATHESIS]);
    execute(&mut install).context("cannot install schemathesis from PyPI")?;
    // Written last: an interrupted installation is done again.
    fs::write(&installed, SCHEMATHESIS).context("cannot note the installation")?;
    Ok(program)
}

fn can_make_environments() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import venv, ensurepip"]).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Killed when dropped, so also when the fuzzing fails.
struct Server(Child);

impl Server {
    fn wait_until_ready(&mut self, port: u16, log: &Path) -> Result<()> {
        let start = Instant::now();
        while !answers(port) {
            let ended = self.0.try_wait()?;
            if ended.is_some() || start.elapsed() > READY {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!("relais is not ready: GET {READY_PATH} is not answered (ended: {ended:?})\n{said}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(READY))?;
        write!(stream, "GET {READY_PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut head = [0; 10]; // "HTTP/1.1 2"
        stream.read_exact(&mut head)?;
        Ok(head.ends_with(b" 2"))
    };
    ask().unwrap_or(false)
}
