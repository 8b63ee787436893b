//! A private RabbitMQ node for programs that are not tests: `cargo xtask`, a shell, a bench.
//!
//! Prints the node's URL on one line when it is ready, as the tests want it in
//! `RELAIS_TEST_RABBITMQ`, and runs until its standard input is closed (or SIGINT, SIGTERM):
//! whoever started it need not remember to stop it, not even when killed.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use relais_testkit::RabbitMqServer;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    if let Some(argument) = std::env::args().nth(1) {
        bail!("unknown argument {argument:?}; there are none");
    }
    let mut interrupted = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminated = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    // From the start, which takes seconds: whoever began this may be gone before it is done.
    let closed = input_closed();
    tokio::pin!(closed);

    let start = RabbitMqServer::start();
    let mut server = tokio::select! {
        started = start => started?,
        _ = interrupted.recv() => return Ok(()),
        _ = terminated.recv() => return Ok(()),
        () = &mut closed => return Ok(()),
    };
    writeln!(std::io::stdout(), "{}", server.shared_url()).context("print the URL")?;

    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
        () = &mut closed => {}
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
