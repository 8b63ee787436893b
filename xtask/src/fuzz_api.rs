//! `cargo xtask fuzz-api`: does the API keep what its OpenAPI document promises?
//!
//! A server is started on throw-away data and schemathesis sends it requests made from the
//! document: valid, nearly valid and malformed ones. Any 5xx and any answer that the document does
//! not describe is a failure. Python is only needed here, in an environment of its own under the
//! target directory.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    cargo::{self, cargo, root, run as execute},
    python,
};

/// Pinned: a new release may find something new, and that is a change of its own.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// The document to fuzz from; committed, see `cargo xtask gen`.
const DOCUMENT: &str = "docs/openapi.json";

/// Answered with 2xx once the server is ready.
const READY_PATH: &str = "/readyz";

const READY: Duration = Duration::from_secs(30);

/// A fault of ours is any 5xx, and any answer that the document does not describe: its status, its type or its shape.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// What is declared on the server: a service like the demo's, and a client that may do everything on it.
const DECLARATIONS: &str = r#"
services:
  - serviceName: example
    capacity: 1000
    lease: 1s
    jsonSchema:
      $schema: https://json-schema.org/draft/2020-12/schema
      type: object
      properties:
        sleep: {type: number, minimum: 0, maximum: 3600}
        mustSucceed: {type: boolean}
      required: [sleep]
      additionalProperties: false
clients:
  - {clientId: fuzz, clientSecret: "fuzz-secret"}
authorizations:
  - {clientId: fuzz, serviceName: example, roles: [consume, work]}
"#;

/// The operators' part, but for the stream of events: that has no end for a request to wait for.
const OPERATORS: &str = "^/admin(?!/events$)";

/// Credentials of the client above, for schemathesis and for a header.
const IDENTITY: &str = "fuzz:fuzz-secret";
const IDENTITY_ENCODED: &str = "ZnV6ejpmdXp6LXNlY3JldA==";

/// Builds the server, then fuzzes it.
pub fn run() -> Result<()> {
    execute(&mut cargo(["build", "-p", "relais-server", "--bin", "relais"]))?;
    run_built()
}

/// Fuzzes the server that has been built.
pub fn run_built() -> Result<()> {
    let start = Instant::now();
    if !root().join(DOCUMENT).is_file() {
        bail!("there is no {DOCUMENT}; `cargo xtask gen` writes it");
    }
    let target = cargo::target_directory()?;
    let schemathesis = python::environment(&target.join("fuzz-api-python"), SCHEMATHESIS)?.join("st");
    let data = target.join("fuzz-api-data");
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| format!("cannot clear {}", data.display()))?;
    }
    fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))?;

    let port = free_port()?;
    let log = data.join("server.log");
    let mut server = server_command(&cargo::binary("debug", "relais")?, port, &data)?;
    let log_file = fs::File::create(&log).context("cannot create the server's log")?;
    server.stdin(Stdio::null()).stdout(log_file.try_clone()?).stderr(log_file);
    let mut server = Server(server.spawn().context("cannot start relais")?);
    server.wait_until_ready(port, &log)?;
    let task_id = ended_task(port).context("cannot prepare a task")?;
    // Names that are there: made-up ones would only ever be answered 404.
    let names = format!(
        "[parameters]\n\"path.service\" = \"example\"\n\"path.clientId\" = \"fuzz\"\n\"path.taskId\" = \"{task_id}\"\n"
    );
    fs::write(data.join("schemathesis.toml"), names).context("cannot write schemathesis's configuration")?;

    // The operator's part last: it takes away what the others need. A task that is done once more would not have ended,
    // and whoever follows it would wait for ever.
    for (part, paths) in [("--exclude-path-regex", "^/admin|/retry$"), ("--include-path-regex", OPERATORS)] {
        let mut fuzz = Command::new(&schemathesis);
        fuzz.current_dir(&data) // where it finds its configuration and leaves its notes
            .arg("run")
            .arg(root().join(DOCUMENT))
            .args(["--url", &format!("http://127.0.0.1:{port}"), "--auth", IDENTITY, part, paths])
            .args(["--checks", CHECKS, "--max-examples", "100"])
            // The same requests for the same document: a red run can be repeated.
            .args(["--generation-deterministic", "--workers", "1", "--no-color", "--warnings", "off"])
            .args(["--request-timeout", "30"]);
        execute(&mut fuzz).with_context(|| format!("the server's log is {}", log.display()))?;
    }

    if let Some(status) = server.0.try_wait()? {
        bail!("relais ended ({status}) while it was fuzzed, see {}", log.display());
    }
    println!("fuzz-api: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// How to run a server that the fuzzer may ruin: it listens on 127.0.0.1:`port`, and keeps its data in `data`.
pub(crate) fn server_command(relais: &Path, port: u16, data: &Path) -> Result<Command> {
    let declarations = data.join("declarations.yaml");
    fs::write(&declarations, DECLARATIONS).context("cannot write the declarations")?;
    let mut command = Command::new(relais);
    command
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--database", "sqlite:fuzz.db", "--declarations"])
        .arg(declarations)
        .current_dir(data)
        // Long waits are refused instead of waited for; the only thing that is not fuzzed.
        .env("RELAIS_TASKS_MAX_WAIT", "1s")
        .env("RELAIS_AUTH_BCRYPT_COST", "4");
    Ok(command)
}

/// A task that is there and has ended: what is streamed of it comes to an end.
pub(crate) fn ended_task(port: u16) -> Result<String> {
    let start = Instant::now();
    // The declarations are applied a moment after the server is ready.
    let answer = loop {
        let answer = call(port, "POST", "/v1/services/example/tasks", r#"{"body": {"sleep": 0}}"#)?;
        if answer.starts_with("HTTP/1.1 201") {
            break answer;
        }
        if start.elapsed() > READY {
            bail!("a task is not taken: {answer}");
        }
        thread::sleep(Duration::from_millis(50));
    };
    let marker = "\"taskId\":\"";
    let task_id = answer.split(marker).nth(1).and_then(|rest| rest.split('"').next()).context("there is no task id")?;
    let answer = call(port, "DELETE", &format!("/v1/services/example/tasks/{task_id}"), "")?;
    if !answer.starts_with("HTTP/1.1 200") {
        bail!("the task is not cancelled: {answer}");
    }
    Ok(task_id.to_owned())
}

/// One request, by hand: an HTTP client would be the heaviest dependency here.
pub(crate) fn call(port: u16, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("cannot connect")?;
    stream.set_read_timeout(Some(READY))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {IDENTITY_ENCODED}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("no answer")?;
    Ok(answer)
}

pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Killed when dropped, so also when the fuzzing fails.
pub(crate) struct Server(pub(crate) Child);

impl Server {
    pub(crate) fn wait_until_ready(&mut self, port: u16, log: &Path) -> Result<()> {
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
    call(port, "GET", READY_PATH, "").is_ok_and(|answer| answer.starts_with("HTTP/1.1 2"))
}
