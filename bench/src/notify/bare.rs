//! The limit of the fan-out: a process (`--write`) that has nothing to do but to write the same bytes to as many sockets.
//!
//! It says where it listens, accepts the links, and writes when it is told how long an event is.

use std::{sync::Arc, time::Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use super::{
    MESSAGES, RELAIS,
    links::{Links, Seen, connect},
    process::{Process, told},
};
use crate::show;

/// How many events a second arrive at so many links.
pub async fn fan_out(links: usize, length: usize) -> Result<f64> {
    let mut writer = Process::start(&["--write", &links.to_string()])?;
    let address = writer.said().await?.parse()?;
    let sockets = stream::iter(0..links).map(|number| connect(number, address)).buffered(64);
    let sockets = sockets.try_collect::<Vec<_>>().await?;
    let (seen, mut readers) = (Arc::new(Seen::default()), Links::none());
    readers.count(sockets, RELAIS, &seen);
    writer.said().await?;
    let begin = Instant::now();
    writer.tell(&length.to_string()).await?;
    seen.until(MESSAGES * links).await?;
    let rate = (MESSAGES * links) as f64 / begin.elapsed().as_secs_f64();
    writer.stop().await?;
    Ok(rate)
}

/// Writes to so many links.
pub async fn run(links: &str) -> Result<()> {
    let links = links.parse()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    show(&listener.local_addr()?.to_string());
    let mut sockets = Vec::with_capacity(links);
    while sockets.len() < links {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
    }
    show("open");
    let mut event = [b"event: notification\ndata: ".as_slice()].concat();
    event.resize(told().await?.trim().parse().context("a length")?, b'x');
    for _ in 0..MESSAGES {
        for socket in &mut sockets {
            socket.write_all(&event).await?;
        }
    }
    told().await?;
    Ok(())
}
