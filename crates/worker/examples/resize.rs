//! A worker for the service `resize`: one handler, over HTTP or RabbitMQ. See docs/guides/workers.md.

use relais_worker::{Context, HandlerError, Worker};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a task is about.
#[derive(Deserialize)]
pub struct Image {
    width: u32,
    height: u32,
    percent: u32,
}

/// What comes of it.
#[derive(Serialize)]
pub struct Resized {
    width: u32,
    height: u32,
}

/// Does one task.
pub async fn resize(image: Image, context: Context) -> Result<Resized, HandlerError> {
    if image.percent == 0 {
        // No other try would help.
        return Err(HandlerError::permanent("percent must be more than 0").kind("percent"));
    }
    for row in 0..image.height {
        if context.is_cancelled() {
            return Err(HandlerError::new("stopped")); // Nobody reads it: the task is no longer ours.
        }
        context.progress(100.0 * f64::from(row) / f64::from(image.height));
        tokio::task::yield_now().await; // What takes long and never awaits belongs in spawn_blocking.
    }
    Ok(Resized { width: image.width * image.percent / 100, height: image.height * image.percent / 100 })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let worker = match std::env::var("RELAIS_BROKER_URL") {
        Ok(broker) => Worker::rabbitmq(broker, "resize"),
        Err(_) => Worker::builder("http://127.0.0.1:8080", "me", std::env::var("RELAIS_SECRET")?, "resize"),
    };
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        stop.cancel();
    });
    worker.concurrency(4).build()?.run(resize, shutdown).await?;
    Ok(())
}
