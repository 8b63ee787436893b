//! Tasks in a program of your own, without any server: `cargo run -p relais-engine --example tasks`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use relais_engine::{Context, HandlerError, Handlers, Tasks};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Greeting {
    name: String,
}

async fn greet(greeting: Greeting, context: Context) -> Result<String, HandlerError> {
    if greeting.name.is_empty() {
        return Err(HandlerError::permanent("there is nobody to greet"));
    }
    context.progress(50.0);
    Ok(format!("Hello, {}!", greeting.name))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("tasks.db").display());
    let store = relais_store::open(&url, &relais_store::Options::default()).await?;
    let tasks = Tasks::builder(store).handlers(Handlers::new().on("greet", greet)).start().await?;

    let task_id = tasks.submit("greet", &Greeting { name: "Ann".to_owned() }).await?;
    let task = tasks.wait(task_id, Duration::from_secs(10)).await?;
    println!("{:?}: {}", task.state.status, task.response.as_ref().map_or("", |response| response.get()));

    let report = tasks.stop().await;
    println!("{report:?}");
    Ok(())
}
