//! Notifications: the memory of idle links, the fan-out to many of them beside bare writes, the way from an emission to a page,
//! and pages that all come back at once.
//!
//! Links are streams of server-sent events over connections of their own, opened from many loopback addresses. Readers run in
//! the load and count events; the bare loop writes the same bytes to as many sockets that the same readers read.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Notify, mpsc},
    task::JoinHandle,
};

use crate::{
    Plan,
    load::Connection,
    report::Section,
    sample::{Sample, ms, number},
    world::{Kind, World, call, post},
};

/// So many addresses of this machine open links: one address has 28,000 ports at most.
const ADDRESSES: u8 = 8;

/// So many messages go to all links.
const MESSAGES: usize = 20;

/// So many messages are missed by each link that comes back.
const MISSED: usize = 20;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What readers have seen.
#[derive(Default)]
struct Seen {
    events: AtomicUsize,
    bell: Notify,
}

impl Seen {
    async fn until(&self, events: usize) -> Result<()> {
        let reached = async {
            loop {
                let bell = self.bell.notified();
                if self.events.load(Ordering::Relaxed) >= events {
                    return;
                }
                // Readers ring seldom: looking now and then costs less than ringing for each event.
                let _ = tokio::time::timeout(Duration::from_millis(2), bell).await;
            }
        };
        let seen = || format!("{} of {events} events came", self.events.load(Ordering::Relaxed));
        tokio::time::timeout(PATIENCE, reached).await.with_context(seen)
    }
}

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let header = ["what", "links", "events", "events/s", "p50 ms", "p99 ms", "bytes a link", "queries"];
    let mut section = Section::new("notify", "notifications to web pages, PostgreSQL", &header);
    let settings = BTreeMap::from([
        ("RELAIS_SERVER_MAX_CONNECTIONS", "60000".to_owned()),
        ("RELAIS_SERVER_MAX_CONNECTIONS_PER_PEER", "30000".to_owned()),
        ("RELAIS_NOTIFICATIONS_LINKS_PER_USER", "100000".to_owned()),
        ("RELAIS_NOTIFICATIONS_LINKS_PER_ADDRESS", "100000".to_owned()),
    ]);
    let mut world = World::with(plan, Kind::Postgres, 0, settings).await?;
    latency(plan, &mut section, &world, world.address(), "one process").await?;
    world.start_another().await?;
    latency(plan, &mut section, &world, world.other_address(), "to a page of another process").await?;
    let tickets = tickets(&world, plan.links).await?;
    idle_and_fan_out(plan, &mut section, &world, &tickets).await?;
    storm(plan, &mut section, &world, &tickets).await?;
    section.note(
        "A link is one of as many users, each in one group by the ticket. `bytes a link` is what the server's resident memory \
         grew by while they were opened, without the kernel's buffers. The fan-out is of one message after the other to all \
         links, from the first emission to the last arrival; the bare loop writes as many events of the same length to as many \
         sockets. All readers, PostgreSQL and the server share two cores.",
    );
    Ok(section)
}

/// A ticket for each of so many users, who belong to one group.
async fn tickets(world: &World, users: usize) -> Result<Vec<String>> {
    let address = world.address();
    let each = users.div_ceil(8);
    let chunks = stream::iter((0..users).step_by(each)).map(|from| async move {
        let mut connection = Connection::open(address).await?;
        let mut tickets = Vec::new();
        for user in from..(from + each).min(users) {
            let body = json!({"user": format!("u{user}"), "audiences": {"GROUP": ["all"]}}).to_string();
            let answer = connection.expect(&post("/v1/notifications/tickets", &body), 201).await?;
            let answer: serde_json::Value = serde_json::from_slice(answer)?;
            tickets.push(answer["data"]["ticket"].as_str().context("a ticket")?.to_owned());
        }
        anyhow::Ok(tickets)
    });
    Ok(chunks.buffered(8).try_collect::<Vec<_>>().await?.concat())
}

fn emission(audience: &serde_json::Value, payload: &str) -> Vec<u8> {
    let body = json!({
        "metadata": {"type": "REALTIME"}, "payload": payload,
        "routing": {"audience": audience},
    });
    post("/v1/notifications", &body.to_string())
}

/// Opens a connection from one of the addresses.
async fn connect(number: usize, to: SocketAddr) -> Result<TcpStream> {
    let from = Ipv4Addr::new(127, 0, 1, 1 + (number % usize::from(ADDRESSES)) as u8);
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((from, 0)))?;
    Ok(socket.connect(to).await?)
}

async fn open_link(number: usize, to: SocketAddr, ticket: &str, cursor: Option<&str>) -> Result<TcpStream> {
    let mut stream = connect(number, to).await?;
    let resume = cursor.map(|cursor| format!("Last-Event-ID: {cursor}\r\n")).unwrap_or_default();
    let request = format!("GET /v1/notifications/stream?ticket={ticket} HTTP/1.1\r\nHost: relais\r\n{resume}\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// Counts how often `needle` is in what a connection brings, until it ends.
fn count(mut stream: TcpStream, needle: &'static [u8], seen: Arc<Seen>, opened: Arc<Seen>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let (mut buffer, mut kept, mut is_open) = (vec![0; 2048], 0, false);
        while let Ok(read) = stream.read(&mut buffer[kept..]).await {
            if read == 0 {
                break;
            }
            let text = &buffer[..kept + read];
            if !is_open && memory_find(text, b"event: hello").is_some() {
                is_open = true;
                opened.events.fetch_add(1, Ordering::Relaxed);
            }
            let (mut found, mut from) = (0, 0);
            while let Some(at) = memory_find(&text[from..], needle) {
                found += 1;
                from += at + needle.len();
            }
            if found > 0 {
                seen.events.fetch_add(found, Ordering::Relaxed);
            }
            // What may be the beginning of the next one.
            let keep = (kept + read - from).min(needle.len() - 1);
            buffer.copy_within(kept + read - keep..kept + read, 0);
            kept = keep;
        }
    })
}

fn memory_find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

const NOTIFICATION: &[u8] = b"event: notification";

async fn latency(plan: &Plan, section: &mut Section, world: &World, reader: SocketAddr, what: &str) -> Result<()> {
    let ticket = tickets(world, 1).await?.pop().context("a ticket")?;
    let mut link = open_link(0, reader, &ticket, None).await?;
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = link.read(&mut buffer).await {
            let text = &buffer[..read];
            if memory_find(text, NOTIFICATION).is_some() || memory_find(text, b"event: hello").is_some() {
                let _ = arrived.send(Instant::now());
            }
        }
    });
    arrivals.recv().await.context("the link did not open")?;
    let mut emitter = Connection::open(world.address()).await?;
    let request = emission(&json!({"type": "USER", "targets": ["u0"]}), "x");
    let mut latencies = Vec::with_capacity(plan.samples);
    for _ in 0..plan.samples {
        let begin = Instant::now();
        emitter.expect(&request, 201).await?;
        let arrived = tokio::time::timeout(PATIENCE, arrivals.recv()).await?.context("the link has ended")?;
        latencies.push(arrived.saturating_duration_since(begin));
    }
    reading.abort();
    let sample = Sample::new(latencies.len(), Duration::from_secs(1), latencies);
    let [p50, p99] = [0.5, 0.99].map(|share| sample.percentile(share));
    let name = format!("emission to arrival, {what}");
    let blank = String::new;
    section.row([name.clone(), "1".into(), sample.len().to_string(), blank(), ms(p50), ms(p99), blank(), blank()]);
    section.below(&format!("at p50: {name}"), p50.as_secs_f64() * 1000.0, 3.0, " ms");
    section.below(&format!("at p99: {name}"), p99.as_secs_f64() * 1000.0, 10.0, " ms");
    Ok(())
}

async fn open_all(
    world: &World,
    tickets: &[String],
    cursor: Option<&str>,
    seen: &Arc<Seen>,
) -> Result<Vec<JoinHandle<()>>> {
    let opened = Arc::new(Seen::default());
    let address = world.address();
    let links = stream::iter(tickets.iter().enumerate())
        .map(|(number, ticket)| open_link(number, address, ticket, cursor))
        .buffered(64)
        .try_collect::<Vec<_>>()
        .await?;
    let readers = links.into_iter().map(|link| count(link, NOTIFICATION, Arc::clone(seen), Arc::clone(&opened)));
    let readers = readers.collect();
    opened.until(tickets.len()).await?;
    Ok(readers)
}

async fn idle_and_fan_out(plan: &Plan, section: &mut Section, world: &World, tickets: &[String]) -> Result<()> {
    let links = tickets.len();
    // The first ones warm up what the server keeps.
    let seen = Arc::new(Seen::default());
    let mut readers = open_all(world, &tickets[..links / 10], None, &seen).await?;
    let before = world.process().rss_bytes()?;
    readers.extend(open_all(world, &tickets[links / 10..], None, &seen).await?);
    let grown = world.process().rss_bytes()?.saturating_sub(before) as f64 / (links - links / 10) as f64;
    let (begin, used) = (Instant::now(), world.process().cpu_time()?);
    tokio::time::sleep(plan.idle / 4).await;
    let percent = 100.0 * (world.process().cpu_time()? - used).as_secs_f64() / begin.elapsed().as_secs_f64();
    let blank = String::new;
    let bytes = number(grown);
    section.row(["idle links".into(), links.to_string(), blank(), blank(), blank(), blank(), bytes, blank()]);
    section.below("a link that is idle", grown / 1024.0, 4.0, " KiB");
    section.below("of a core: idle links", percent, 0.5, " %");
    let payload = "x".repeat(200);
    let mut emitter = Connection::open(world.address()).await?;
    let request = emission(&json!({"type": "GROUP", "targets": ["all"]}), &payload);
    let begin = Instant::now();
    for _ in 0..MESSAGES {
        emitter.expect(&request, 201).await?;
    }
    seen.until(MESSAGES * links).await?;
    let rate = (MESSAGES * links) as f64 / begin.elapsed().as_secs_f64();
    readers.into_iter().for_each(|reader| reader.abort());
    let bare = bare_fan_out(links).await?;
    for (what, rate) in [("fan-out", rate), ("bare writes to as many sockets", bare)] {
        let events = (MESSAGES * links).to_string();
        section.row([what.into(), links.to_string(), events, number(rate), blank(), blank(), blank(), blank()]);
    }
    section.at_least("bare writes: fan-out", rate / bare, 0.8);
    Ok(())
}

/// The same bytes, written by a loop to as many sockets.
async fn bare_fan_out(links: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let accepting = tokio::spawn(async move {
        let mut sockets = Vec::with_capacity(links);
        while sockets.len() < links {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            sockets.push(socket);
        }
        anyhow::Ok(sockets)
    });
    let (seen, opened) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
    let clients = stream::iter(0..links).map(|number| connect(number, address)).buffered(64);
    let clients = clients.try_collect::<Vec<_>>().await?;
    let readers: Vec<_> =
        clients.into_iter().map(|client| count(client, NOTIFICATION, Arc::clone(&seen), Arc::clone(&opened))).collect();
    let mut sockets = accepting.await??;
    // As long as an event of the fan-out.
    let event = format!("id: 0123abcd-1f4\nevent: notification\ndata: {}\n\n", "x".repeat(560));
    let begin = Instant::now();
    for _ in 0..MESSAGES {
        for socket in &mut sockets {
            socket.write_all(event.as_bytes()).await?;
        }
    }
    seen.until(MESSAGES * links).await?;
    let rate = (MESSAGES * links) as f64 / begin.elapsed().as_secs_f64();
    readers.into_iter().for_each(|reader| reader.abort());
    Ok(rate)
}

/// How many statements the database has answered, roughly: transactions.
async fn transactions(world: &World) -> Result<i64> {
    let mut connection = PgConnection::connect(&world.postgres_url().context("PostgreSQL")?).await?;
    // Other sessions report once a second at most.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let count = sqlx::query_scalar(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()",
    )
    .fetch_one(&mut connection)
    .await?;
    Ok(count)
}

async fn storm(plan: &Plan, section: &mut Section, world: &World, tickets: &[String]) -> Result<()> {
    // A share of the links: each gets many messages at once.
    let tickets = &tickets[..(tickets.len() / 2).max(1)];
    let ticket = &tickets[0];
    let poll = format!("GET /v1/notifications/poll?ticket={ticket} HTTP/1.1\r\nHost: relais\r\n\r\n");
    let cursor = call(world.address(), poll.as_bytes(), 200).await?;
    let cursor = cursor["data"]["cursor"].as_str().context("a cursor")?.to_owned();
    let mut emitter = Connection::open(world.address()).await?;
    let request = emission(&json!({"type": "GROUP", "targets": ["all"]}), &"x".repeat(200));
    for _ in 0..MISSED {
        emitter.expect(&request, 201).await?;
    }
    let before = transactions(world).await?;
    let seen = Arc::new(Seen::default());
    let begin = Instant::now();
    let readers = open_all(world, tickets, Some(&cursor), &seen).await?;
    seen.until(MISSED * tickets.len()).await?;
    let took = begin.elapsed();
    let queries = transactions(world).await? - before;
    readers.into_iter().for_each(|reader| reader.abort());
    ensure!(plan.links > 0, "links");
    let events = MISSED * tickets.len();
    let rate = number(events as f64 / took.as_secs_f64());
    let blank = String::new;
    section.row([
        "all come back, with missed messages".to_owned(),
        tickets.len().to_string(),
        events.to_string(),
        rate,
        blank(),
        blank(),
        blank(),
        queries.to_string(),
    ]);
    section.below("queries a link that comes back", queries as f64 / tickets.len() as f64, 0.2, "");
    Ok(())
}
