//! The load: HTTP/1.1 over kept connections, each in a closed loop, written by hand.
//!
//! It shares the machine's cores with what it measures, so it does as little as can be done: requests are prepared
//! bytes, of an answer only the status and the length are read, and all connections live on one thread.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::sample::Sample;

/// One kept connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.context("connect to the server")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(64 * 1024) })
    }

    /// Sends prepared bytes, and reads the answer: its status and its body.
    pub async fn call(&mut self, request: &[u8]) -> Result<(u16, &[u8])> {
        self.stream.write_all(request).await.context("send a request")?;
        self.buffer.clear();
        let (status, from, to) = loop {
            if let Some(answer) = answer(&self.buffer)? {
                break answer;
            }
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server hung up");
        };
        while self.buffer.len() < to {
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server hung up within an answer");
        }
        Ok((status, &self.buffer[from..to]))
    }

    /// The same, where any status but `wanted` is a failure.
    pub async fn expect(&mut self, request: &[u8], wanted: u16) -> Result<&[u8]> {
        let (status, body) = self.call(request).await?;
        if status != wanted {
            bail!("answered {status} instead of {wanted}: {}", String::from_utf8_lossy(body));
        }
        Ok(body)
    }
}

/// Status, begin and end of the body, once the head is complete.
fn answer(bytes: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    const LENGTH: &[u8] = b"\r\ncontent-length: ";
    let Some(head) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else { return Ok(None) };
    let status = std::str::from_utf8(bytes.get(9..12).unwrap_or_default())?.parse().context("read a status")?;
    let length = bytes[..head]
        .windows(LENGTH.len())
        .position(|at| at.eq_ignore_ascii_case(LENGTH))
        .context("an answer has no length")?;
    let digits = bytes[length + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    Ok(Some((status, head + 4, head + 4 + length)))
}

/// A closed loop over `connections`: each sends its next request when the last one was answered. Connection `c` sends
/// `requests[c]`, `requests[c + connections]` and so on, round and round. Any other status than `wanted` ends it all.
pub async fn closed_loop(
    address: SocketAddr,
    requests: Arc<Vec<Vec<u8>>>,
    connections: usize,
    time: Duration,
    wanted: u16,
) -> Result<Sample> {
    on_one_thread(move || async move {
        let opened: Vec<Connection> = try_join_all((0..connections).map(|_| Connection::open(address))).await?;
        let (begin, requests) = (Instant::now(), &requests);
        let loops = opened.into_iter().enumerate().map(|(number, mut connection)| async move {
            let mut latencies = Vec::new();
            let mut next = number;
            loop {
                let sent = Instant::now();
                if sent - begin >= time {
                    return anyhow::Ok(latencies);
                }
                connection.expect(&requests[next % requests.len()], wanted).await?;
                latencies.push(sent.elapsed());
                next += connections;
            }
        });
        let latencies = try_join_all(loops).await?.concat();
        Ok(Sample::new(latencies.len(), begin.elapsed(), latencies))
    })
    .await
}

/// Runs `work` on a thread of its own: no wake-up crosses threads, and its processor time is its own.
pub async fn on_one_thread<W, F, T>(work: W) -> Result<T>
where
    W: FnOnce() -> F + Send + 'static,
    F: Future<Output = Result<T>>,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(work())
    })
    .await
    .context("the load came to a bad end")?
}
