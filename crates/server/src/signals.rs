//! SIGTERM and SIGINT: the first one asks for an orderly end, the second one ends at once.

use tokio_util::sync::CancellationToken;

use crate::output;

/// Cancelled by the first signal.
pub fn first() -> CancellationToken {
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        next().await;
        cancel.cancel();
    });
    token
}

/// From now on the next signal ends the process. What was not answered was not promised.
pub fn exit_on_second() {
    tokio::spawn(async {
        next().await;
        output::note("stopped at once");
        std::process::exit(1);
    });
}

async fn next() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
