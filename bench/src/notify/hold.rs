//! Links that a process of their own holds (`--hold`). It reads the requests of streams, a JSON text in a line, and says
//! `open`.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Result, ensure};

use super::{
    RELAIS,
    links::{Links, Seen},
    process::{Process, told},
};
use crate::show;

/// Starts a process that holds links, and waits until they are open. They are closed with it.
pub async fn start(to: SocketAddr, requests: &[String]) -> Result<Process> {
    let mut holder = Process::start(&["--hold", &to.to_string()])?;
    holder.tell(&serde_json::to_string(requests)?).await?;
    let line = holder.said().await?;
    ensure!(line == "open", "links were not opened: {line}");
    Ok(holder)
}

/// Holds links to this server.
pub async fn run(to: &str) -> Result<()> {
    let requests: Vec<String> = serde_json::from_str(&told().await?)?;
    let mut links = Links::none();
    links.open(to.parse()?, requests, RELAIS, &Arc::new(Seen::default())).await?;
    show("open");
    told().await?;
    Ok(())
}
