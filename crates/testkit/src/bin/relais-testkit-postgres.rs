//! A private PostgreSQL for programs that are not tests: `cargo xtask`, a shell, a bench.
//!
//! Prints the server's URL on one line when it is ready, and runs until its standard input is
//! closed (or SIGINT, SIGTERM): whoever started it need not remember to stop it, not even when
//! killed. `--fsync` makes commits wait for the disk. No other option: tests use the library.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use relais_testkit::PostgresServer;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut options = PostgresServer::options();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--fsync" => options = options.fsync(true),
            other => bail!("unknown argument {other:?}; the only one is --fsync"),
        }
    }
    let mut interrupted = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminated = signal(SignalKind::terminate()).context("listen for SIGTERM")?;

    let mut server = options.start().await?;
    let url = server.url("");
    writeln!(std::io::stdout(), "{}", url.trim_end_matches('/')).context("print the URL")?;

    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
        _ = input_closed() => {}
    }
    server.kill9()
}

/// Reads in a plain thread: a runtime would wait for its pending read before it ends.
async fn input_closed() {
    let (closed, wait) = oneshot::channel();
    std::thread::spawn(move || {
        let mut ignored = [0; 256];
        while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
        let _ = closed.send(());
    });
    let _ = wait.await;
}
