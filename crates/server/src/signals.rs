//! SIGTERM and SIGINT: the first one asks for an orderly end, the second one ends at once.

use tokio_util::sync::CancellationToken;

use crate::output;

/// Cancelled by the first signal. Once it is cancelled, by whomever, the next signal ends the process: what was not
/// answered was not promised. Listens without a gap: a second signal right behind the first is not missed.
pub fn stop() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut signals = Signals::listen()?;
    let cancel = token.clone();
    tokio::spawn(async move {
        loop {
            signals.next().await;
            if cancel.is_cancelled() {
                output::note("stopped at once");
                std::process::exit(1);
            }
            cancel.cancel();
        }
    });
    Ok(token)
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
