//! Promises of programs run as processes; the programs are `sh` and our own PostgreSQL helper.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use relais_testkit::{ServerProcess, free_port};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const DEADLINE: Duration = Duration::from_secs(20);
const NOTHING: [(&str, &str); 0] = [];

fn shell(script: &str) -> Result<ServerProcess> {
    ServerProcess::spawn("/bin/sh", ["-c", script], NOTHING)
}

/// Waits for a condition that nothing announces.
async fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        assert!(start.elapsed() < DEADLINE, "{what}, within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[tokio::test]
async fn output_status_and_environment_are_the_programs_own() -> Result<()> {
    let script = "echo out $WORD; echo err >&2; exit 3";
    let mut process = ServerProcess::spawn("/bin/sh", ["-c", script], [("WORD", "put")])?;
    assert_eq!(process.wait_exit(DEADLINE).await?.code(), Some(3));
    assert_eq!(process.stdout()?, "out put\n");
    assert_eq!(process.stderr()?, "err\n");
    Ok(())
}

#[tokio::test]
async fn terminate_asks_and_kill_9_does_not() -> Result<()> {
    let mut polite = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done")?;
    until("it traps the signal", || Ok(polite.stdout()?.contains("ready"))).await?;
    polite.terminate()?;
    assert_eq!(polite.wait_exit(DEADLINE).await?.code(), Some(7));

    let mut deaf = shell("trap '' TERM; sleep 1000")?;
    deaf.kill9()?;
    assert_eq!(deaf.wait_exit(DEADLINE).await?.signal(), Some(9));
    Ok(())
}

#[tokio::test]
async fn children_of_the_program_die_with_it() -> Result<()> {
    let process = shell("sleep 1000 & echo $!; wait")?;
    until("the child starts", || Ok(process.stdout()?.ends_with('\n'))).await?;
    let child = format!("/proc/{}/exe", process.stdout()?.trim());
    assert!(Path::new(&child).exists());
    drop(process);
    until("the child is gone", || Ok(!Path::new(&child).exists())).await
}

#[tokio::test]
async fn memory_and_processor_time_are_read() -> Result<()> {
    let process = shell("while :; do :; done")?;
    until("it has used 50 ms", || Ok(process.cpu_time()? >= Duration::from_millis(50))).await?;
    let memory = process.rss_bytes()?;
    assert!((100_000..100_000_000).contains(&memory), "{memory} bytes");
    Ok(())
}

#[tokio::test]
async fn waiting_for_http_ends_with_the_answer_or_the_programs_end() -> Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let url = format!("http://{address}/health?x=1");

    let mut dead = shell("echo no such setting >&2; exit 1")?;
    let error = dead.wait_for_http(&url, DEADLINE).await.expect_err("nobody listens");
    assert!(error.to_string().contains("no such setting"), "{error}");

    // The program runs; that it is this test which answers makes no difference.
    let mut alive = shell("sleep 1000")?;
    let listener = TcpListener::bind(&address).await?;
    let server = tokio::spawn(async move {
        for status in ["503 Service Unavailable", "200 OK"] {
            let (mut stream, _) = listener.accept().await?;
            let mut request = [0; 1024];
            let count = stream.read(&mut request).await?;
            assert!(request[..count].starts_with(b"GET /health?x=1 HTTP/1.1\r\n"));
            stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await?;
        }
        anyhow::Ok(())
    });
    alive.wait_for_http(&url, DEADLINE).await?;
    server.await?
}

#[tokio::test]
async fn a_killed_owner_leaves_no_server_behind() -> Result<()> {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_relais-testkit-postgres"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(owner.stdout.take().context("piped")?).read_line(&mut line)?;
    let address = line.trim().rsplit('@').next().context("a URL")?.to_owned();
    std::net::TcpStream::connect(&address)?;

    owner.kill()?; // SIGKILL: it runs no destructor
    owner.wait()?;
    until("the server is gone", || Ok(std::net::TcpStream::connect(&address).is_err())).await
}

#[tokio::test]
async fn the_postgres_helper_ends_when_its_input_is_closed() -> Result<()> {
    let mut helper = Command::new(env!("CARGO_BIN_EXE_relais-testkit-postgres"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(helper.stdout.take().context("piped")?).read_line(&mut line)?;
    assert!(line.starts_with("postgres://postgres@127.0.0.1:"), "{line}");
    drop(helper.stdin.take());
    until("it ends", || Ok(helper.try_wait()?.is_some())).await?;
    assert!(helper.wait()?.success());
    Ok(())
}
