//! Watches the declarations file: what it says is applied at the start and whenever it changes.
//!
//! The file is read at an interval and compared by content, not by notifications: that is the one way that works for
//! editors that replace files, for mounted ConfigMaps (a link that is swapped) and for network file systems alike.

use std::path::Path;

use relais_engine::{Actor, ApplyOptions, Engine, EngineError, NotReady, OperatorRole, RelayCheck, chain};
use relais_protocol::admin::AppliedAction;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{config::DeclarationsConfig, declarations};

/// Begins to watch. Until the file was applied once the server is not ready: ready means that what it says is in force.
/// So a new version whose file can not be applied takes no traffic, and the old one goes on.
pub fn start(config: DeclarationsConfig, engine: Engine, stop: CancellationToken) -> JoinHandle<()> {
    // Here and not in the task, which may begin after somebody has asked.
    let not_ready = engine.not_ready(format!("the declarations in {} are not applied yet", config.file));
    tokio::spawn(watch(config, engine, stop, not_ready))
}

/// Applies the file whenever its content changes, until `stop`.
async fn watch(config: DeclarationsConfig, engine: Engine, stop: CancellationToken, not_ready: NotReady) {
    let mut not_ready = Some(not_ready);
    let path = Path::new(&config.file);
    let mut applied: Option<Vec<u8>> = None;
    // A refused file is not tried again until it changes, and is logged once.
    let mut refused: Option<Vec<u8>> = None;
    // A file that could not be applied yet is tried again, and logged once.
    let mut tried: Option<Vec<u8>> = None;
    let mut unreadable = false;
    loop {
        match tokio::fs::read(path).await {
            Ok(content) => {
                unreadable = false;
                if applied.as_ref() != Some(&content) && refused.as_ref() != Some(&content) {
                    let first_time = tried.as_ref() != Some(&content);
                    match apply(path, &content, config.prune, &engine, first_time).await {
                        ApplyOutcome::Applied => {
                            (applied, refused) = (Some(content), None);
                            not_ready = None;
                        }
                        ApplyOutcome::Refused => {
                            refused = Some(content);
                            because(not_ready.as_ref(), &config.file, "are not valid");
                        }
                        ApplyOutcome::Later => tried = Some(content),
                    }
                }
            }
            Err(error) if !unreadable => {
                unreadable = true;
                because(not_ready.as_ref(), &config.file, "can not be read");
                tracing::error!(file = %path.display(), error = %error, "the declarations can not be read; what was declared stays");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(config.interval.0) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Says better why the server is not ready, if it is not; the log has the details.
fn because(not_ready: Option<&NotReady>, file: &str, why: &str) {
    if let Some(not_ready) = not_ready {
        not_ready.because(format!("the declarations in {file} {why}"));
    }
}

enum ApplyOutcome {
    Applied,
    Refused,
    Later,
}

async fn apply(path: &Path, content: &[u8], prune: bool, engine: &Engine, first_time: bool) -> ApplyOutcome {
    let file = path.display();
    let text = String::from_utf8_lossy(content);
    let declaration = match declarations::parse(&text, &file.to_string()) {
        Ok(declaration) => declaration,
        Err(error) => {
            tracing::error!(%file, error = format!("{error:#}"), "the declarations are not valid; what was declared stays");
            return ApplyOutcome::Refused;
        }
    };
    let reader = engine.operator(Actor::new(file.to_string(), OperatorRole::Admin, "file"));
    // A database of an outbox that is away must not keep back what else is declared.
    let options = ApplyOptions { prune, check: RelayCheck::IfThere, ..ApplyOptions::default() };
    match reader.apply_with(declaration, options).await {
        Ok(report) => {
            let changed = report.applied.iter().filter(|entry| entry.action != AppliedAction::Unchanged).count();
            tracing::info!(%file, changed, declared = report.applied.len(), "applied the declarations");
            for entry in report.applied.iter().filter(|entry| entry.client_secret.is_some()) {
                // A secret has no place in a log; nobody knows this one.
                tracing::warn!(
                    client = entry.name,
                    "a client without a secret was created; `relais client rotate` gives it one"
                );
            }
            ApplyOutcome::Applied
        }
        Err(error @ (EngineError::Store(_) | EngineError::Overloaded | EngineError::Stopping)) => {
            tracing::debug!(%file, error = %chain(&error), "the declarations are applied when the store is there");
            ApplyOutcome::Later
        }
        Err(EngineError::InvalidDeclaration(problems)) => {
            for problem in problems {
                tracing::error!(%file, at = problem.path, error = problem.message, "the declarations are not valid; what was declared stays");
            }
            ApplyOutcome::Refused
        }
        Err(error) => {
            // Such as a service that is to go and still has tasks: that may pass.
            if first_time {
                tracing::error!(%file, error = %chain(&error), "the declarations are refused for now; what was declared stays");
            }
            ApplyOutcome::Later
        }
    }
}
