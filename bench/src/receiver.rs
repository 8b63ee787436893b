//! Receivers of callbacks: an endpoint that accepts every callback and records when it came, and one that never
//! answers.
//!
//! They share the machine's cores with what is measured, so they are written by hand, like the load: of a request only
//! the name and the length are read, and all connections live on one thread.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};
use uuid::Uuid;

/// Nothing came for so long: nothing will. What a sender has lost is sent again after 35 s.
const PATIENCE: Duration = Duration::from_secs(60);

const TAKEN: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// What came so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// When the first callback of each task came.
    first: HashMap<Uuid, Instant>,
    /// How often something came that had come before.
    pub doubles: usize,
    /// How many connections there were.
    pub connections: usize,
    /// The body that came last.
    pub body: Vec<u8>,
    /// A request that could not be read.
    trouble: Option<String>,
}

impl Seen {
    fn take(&mut self, request: &[u8], body: usize) -> Result<()> {
        let now = Instant::now();
        let id = header(&request[..body], "webhook-id").context("a callback has no webhook-id")?;
        // A task and its revision.
        let task = Uuid::try_parse(id.get(..36).with_context(|| format!("a callback is called {id}"))?)?;
        match self.first.entry(task) {
            Entry::Vacant(place) => drop(place.insert(now)),
            Entry::Occupied(_) => self.doubles += 1,
        }
        self.body.clear();
        self.body.extend_from_slice(&request[body..]);
        Ok(())
    }

    /// How many tasks have a callback.
    pub fn tasks(&self) -> usize {
        self.first.len()
    }

    /// When the first callbacks of these tasks came, in order. All must have one.
    pub fn moments(&self, tasks: &[Uuid]) -> Result<Vec<Instant>> {
        let mut moments: Vec<Instant> = tasks.iter().filter_map(|task| self.first.get(task).copied()).collect();
        ensure!(moments.len() == tasks.len(), "{} of {} callbacks were lost", tasks.len() - moments.len(), tasks.len());
        moments.sort_unstable();
        Ok(moments)
    }
}

/// Endpoints that take every callback.
pub struct Receiver {
    /// Their ports.
    pub ports: Vec<u16>,
    seen: Arc<Mutex<Seen>>,
    /// Dropped with it, which ends its thread.
    _end: oneshot::Sender<()>,
}

impl Receiver {
    /// So many endpoints.
    pub fn start(endpoints: usize) -> Result<Self> {
        let (ports, listeners) = listen(endpoints)?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let all = Arc::clone(&seen);
        let end = serve(listeners, move |stream| {
            let seen = Arc::clone(&all);
            lock(&seen).connections += 1;
            tokio::spawn(async move {
                if let Err(error) = take_all(stream, &seen).await {
                    lock(&seen).trouble.get_or_insert_with(|| format!("{error:#}"));
                }
            });
        });
        Ok(Self { ports, seen, _end: end })
    }

    /// What came so far. Nothing more does until this is dropped.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Waits until so many tasks have a callback.
    pub async fn wait_for(&self, tasks: usize) -> Result<()> {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let now = {
                let seen = self.seen();
                if let Some(trouble) = &seen.trouble {
                    bail!("{trouble}");
                }
                seen.tasks()
            };
            if now >= tasks {
                return Ok(());
            }
            if now > last {
                (last, since) = (now, Instant::now());
            }
            ensure!(since.elapsed() < PATIENCE, "{} callbacks were lost", tasks - now);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// An endpoint that takes connections and never says anything.
pub struct Silent {
    /// Its port.
    pub port: u16,
    _end: oneshot::Sender<()>,
}

impl Silent {
    /// Starts it.
    pub fn start() -> Result<Self> {
        let (ports, listeners) = listen(1)?;
        let mut kept = Vec::new();
        let end = serve(listeners, move |stream| kept.push(stream));
        Ok(Self { port: ports[0], _end: end })
    }
}

fn listen(endpoints: usize) -> Result<(Vec<u16>, Vec<TcpListener>)> {
    let (mut ports, mut listeners) = (Vec::new(), Vec::new());
    for _ in 0..endpoints {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        listener.set_nonblocking(true)?;
        ports.push(listener.local_addr()?.port());
        listeners.push(listener);
    }
    Ok((ports, listeners))
}

/// A thread that hands over each connection, until what this returns is dropped.
fn serve(listeners: Vec<TcpListener>, mut with: impl FnMut(TcpStream) + Send + 'static) -> oneshot::Sender<()> {
    let (end, ended) = oneshot::channel::<()>();
    thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let (sender, mut accepted) = tokio::sync::mpsc::unbounded_channel();
            for listener in listeners {
                let (listener, sender) = (tokio::net::TcpListener::from_std(listener)?, sender.clone());
                tokio::spawn(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        if sender.send(stream).is_err() {
                            return;
                        }
                    }
                });
            }
            let serving = async {
                while let Some(stream) = accepted.recv().await {
                    with(stream);
                }
            };
            tokio::select! {
                () = serving => {}
                _ = ended => {}
            }
            Ok(())
        })
    });
    end
}

async fn take_all(mut stream: TcpStream, seen: &Mutex<Seen>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    loop {
        buffer.clear();
        let (body, end) = loop {
            if let Some(found) = request(&buffer)?
                && found.1 <= buffer.len()
            {
                break found;
            }
            // A sender may hang up whenever it likes: what was not answered comes again.
            match stream.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        };
        ensure!(buffer.len() == end, "a request came before the last one was answered");
        lock(seen).take(&buffer, body)?;
        if stream.write_all(TAKEN).await.is_err() {
            return Ok(());
        }
    }
}

/// Where the body of a request begins and ends, once its head is complete.
fn request(bytes: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(head) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else { return Ok(None) };
    let length = header(&bytes[..head + 2], "content-length").context("a request has no length")?;
    Ok(Some((head + 4, head + 4 + length.parse::<usize>()?)))
}

/// A header's value. Hyper writes names in lower case.
fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let lines = std::str::from_utf8(head).ok()?.split("\r\n");
    lines.filter_map(|line| line.split_once(": ")).find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: Uuid = Uuid::from_u128(7);

    fn callback(body: &str) -> String {
        let length = body.len();
        format!("POST /done HTTP/1.1\r\nwebhook-id: {TASK}-2\r\ncontent-length: {length}\r\n\r\n{body}")
    }

    #[test]
    fn a_request_is_whole_when_its_body_is() {
        let text = callback("{}");
        assert_eq!(request(text.as_bytes()).unwrap(), Some((text.len() - 2, text.len())));
        assert_eq!(request(&text.as_bytes()[..40]).unwrap(), None);
        assert!(request(b"GET / HTTP/1.1\r\n\r\n").is_err());
    }

    #[tokio::test]
    async fn a_duplicate_callback_counts_as_one_task() {
        let receiver = Receiver::start(2).unwrap();
        for (&port, body) in receiver.ports.iter().zip(["1", "22"]) {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            for _ in 0..2 {
                stream.write_all(callback(body).as_bytes()).await.unwrap();
                let mut answer = vec![0; TAKEN.len()];
                stream.read_exact(&mut answer).await.unwrap();
                assert_eq!(answer, TAKEN);
            }
        }
        receiver.wait_for(1).await.unwrap();
        let seen = receiver.seen();
        assert_eq!((seen.tasks(), seen.doubles, seen.connections, &*seen.body), (1, 3, 2, &b"22"[..]));
        assert_eq!(seen.moments(&[TASK]).unwrap().len(), 1);
        assert!(seen.moments(&[TASK, Uuid::nil()]).is_err(), "one is lost");
    }
}
