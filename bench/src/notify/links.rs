//! Links of web pages, opened from many loopback addresses, and what their readers count.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

/// So many addresses of this machine open links: one address has 28,000 ports at most.
const ADDRESSES: u8 = 8;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What readers have seen.
#[derive(Default)]
pub struct Seen {
    events: AtomicUsize,
    bell: Notify,
    /// What a link said that was not opened.
    refused: OnceLock<String>,
}

impl Seen {
    fn add(&self, events: usize) {
        self.events.fetch_add(events, Ordering::Relaxed);
    }

    /// Waits until there are so many.
    pub async fn until(&self, events: usize) -> Result<()> {
        let reached = async {
            loop {
                let bell = self.bell.notified();
                if self.events.load(Ordering::Relaxed) >= events {
                    return Ok(());
                }
                if let Some(refusal) = self.refused.get() {
                    bail!("a link was not opened: {refusal}");
                }
                // Readers ring seldom: looking now and then costs less than ringing for each event.
                let _ = tokio::time::timeout(Duration::from_millis(2), bell).await;
            }
        };
        let seen = || format!("{} of {events} events came", self.events.load(Ordering::Relaxed));
        tokio::time::timeout(PATIENCE, reached).await.with_context(seen)?
    }
}

/// What a server's streams look like.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// The first thing that a stream says.
    pub hello: &'static [u8],
    /// What is in each event once.
    pub event: &'static [u8],
}

/// Links that are open. Dropped, they are closed.
pub struct Links(Vec<JoinHandle<()>>);

impl Links {
    /// None yet.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Opens a link for each request, and waits until all have said hello; their events are counted.
    pub async fn open(
        &mut self,
        to: SocketAddr,
        requests: impl IntoIterator<Item = String>,
        dialect: Dialect,
        seen: &Arc<Seen>,
    ) -> Result<()> {
        let opened = Arc::new(Seen::default());
        let links = stream::iter(requests.into_iter().enumerate())
            .map(|(number, request)| async move { open(number, to, &request).await })
            .buffered(64)
            .try_collect::<Vec<_>>()
            .await?;
        let wanted = links.len();
        self.0.extend(links.into_iter().map(|link| count(link, dialect, Arc::clone(seen), Arc::clone(&opened))));
        opened.until(wanted).await
    }

    /// Counts what is written to sockets.
    pub fn count(&mut self, sockets: Vec<TcpStream>, dialect: Dialect, seen: &Arc<Seen>) {
        let opened = Arc::new(Seen::default());
        let readers = sockets.into_iter().map(|socket| count(socket, dialect, Arc::clone(seen), Arc::clone(&opened)));
        self.0.extend(readers);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Opens a connection from one of the addresses.
pub async fn connect(number: usize, to: SocketAddr) -> Result<TcpStream> {
    let from = Ipv4Addr::new(127, 0, 1, 1 + (number % usize::from(ADDRESSES)) as u8);
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((from, 0)))?;
    Ok(socket.connect(to).await?)
}

/// Opens a connection and sends a request.
pub async fn open(number: usize, to: SocketAddr, request: &str) -> Result<TcpStream> {
    let mut stream = connect(number, to).await?;
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// Counts the events that a connection brings, until it ends.
fn count(mut stream: TcpStream, dialect: Dialect, seen: Arc<Seen>, opened: Arc<Seen>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let (mut buffer, mut kept, mut is_open) = (vec![0; 2048], 0, false);
        let longest = dialect.event.len().max(dialect.hello.len()) - 1;
        while let Ok(read @ 1..) = stream.read(&mut buffer[kept..]).await {
            let text = &buffer[..kept + read];
            if !is_open && find(text, dialect.hello).is_some() {
                is_open = true;
                opened.add(1);
            }
            let is_refused = text.starts_with(b"HTTP/1.1 ") && !text.starts_with(b"HTTP/1.1 200");
            let (mut found, mut from) = (0, 0);
            while let Some(at) = find(&text[from..], dialect.event) {
                found += 1;
                from += at + dialect.event.len();
            }
            if found > 0 {
                seen.add(found);
            }
            // What may be the beginning of the next one.
            let keep = (kept + read - from).min(longest);
            buffer.copy_within(kept + read - keep..kept + read, 0);
            kept = keep;
            if is_refused {
                break;
            }
        }
        if !is_open {
            let said = String::from_utf8_lossy(&buffer[..kept.max(512)]);
            let _ = opened.refused.set(said.trim_end_matches('\0').to_owned());
        }
    })
}

/// Where a text is in another.
pub fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}
