//! Notifications: the memory of idle links, the fan-out to many of them beside bare writes, Nchan and Pushpin, the way from an
//! emission to a page, and pages that all come back at once.
//!
//! Links are streams of server-sent events over connections of their own, opened from many loopback addresses. Readers run in
//! the load and count events; the bare loop writes the same bytes to as many sockets that the same readers read.

mod bare;
mod hold;
mod links;
mod peers;
mod process;

pub use self::{bare::run as run_writer, hold::run as run_holder};

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::{io::AsyncReadExt as _, sync::mpsc};

use self::{
    links::{Dialect, Links, PATIENCE, Seen, find, open},
    peers::{Found, Peer},
};
use crate::{
    Plan,
    load::Connection,
    report::Section,
    sample::{Sample, ms, number},
    world::{Kind, World, call, post},
};

/// So many messages go to all links.
const MESSAGES: usize = 20;

/// So many messages are missed by each link that comes back.
const MISSED: usize = 100;

/// What a message says to all links.
const PAYLOAD: usize = 200;

/// The streams of Relais.
const RELAIS: Dialect = Dialect { hello: b"event: hello", event: b"event: notification" };

/// The columns of the table.
const HEADER: [&str; 8] = ["what", "links", "events", "events/s", "p50 ms", "p99 ms", "bytes a link", "transactions"];

/// A row of the table: cells by their column, the others empty.
fn row<const N: usize>(section: &mut Section, what: &str, cells: [(&str, String); N]) {
    let cell =
        |column: &&str| cells.iter().find(|(name, _)| name == column).map_or(String::new(), |(_, cell)| cell.clone());
    section.row(std::iter::once(what.to_owned()).chain(HEADER[1..].iter().map(cell)));
}

fn latencies(section: &mut Section, what: &str, sample: &Sample) -> [f64; 2] {
    let [p50, p99] = [0.5, 0.99].map(|share| sample.percentile(share));
    let cells =
        [("links", "1".to_owned()), ("events", sample.len().to_string()), ("p50 ms", ms(p50)), ("p99 ms", ms(p99))];
    row(section, what, cells);
    [p50, p99].map(|time| time.as_secs_f64() * 1000.0)
}

/// Runs it.
pub async fn run(plan: &Plan) -> Result<Section> {
    let mut section = Section::new("notify", "notifications to web pages, PostgreSQL", &HEADER);
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
    let tickets = tickets(&world, plan.links * 3).await?;
    idle(plan, &mut section, &world, &tickets).await?;
    let tickets = &tickets[..plan.links];
    let rate = fan_out(plan, &mut section, &world, tickets).await?;
    storms(&mut section, &world, tickets).await?;
    if !plan.alone {
        world.stop().await?;
        beside(plan, &mut section, rate).await?;
    }
    section.note(
        "A link is one of as many users, each in one group by the ticket. `bytes a link` is what the proportional memory of the \
         server's processes grew by while nine tenths of the links were opened, without the kernel's buffers: at once, and after \
         they were idle for two heartbeats. The fan-out is of \
         one message of 200 bytes after the other to all links, from the first emission to the last arrival; a bare loop in a \
         process of its own writes as many events of the same length to as many sockets. Nchan (two workers) and Pushpin keep messages in memory and know \
         no users; their events have the payload alone. All readers, PostgreSQL and the server share two cores.",
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
            let answer: Value = serde_json::from_slice(answer)?;
            tickets.push(answer["data"]["ticket"].as_str().context("a ticket")?.to_owned());
        }
        anyhow::Ok(tickets)
    });
    Ok(chunks.buffered(8).try_collect::<Vec<_>>().await?.concat())
}

fn emission(audience: &Value, payload: &str) -> Vec<u8> {
    let body = json!({
        "metadata": {"type": "REALTIME"}, "payload": payload,
        "routing": {"audience": audience},
    });
    post("/v1/notifications", &body.to_string())
}

fn to_all() -> Vec<u8> {
    emission(&json!({"type": "GROUP", "targets": ["all"]}), &"x".repeat(PAYLOAD))
}

fn to_user(user: usize) -> Vec<u8> {
    emission(&json!({"type": "USER", "targets": [format!("u{user}")]}), "x")
}

/// The request of a page's stream.
fn stream_request(ticket: &str, cursor: Option<&str>) -> String {
    let resume = cursor.map(|cursor| format!("Last-Event-ID: {cursor}\r\n")).unwrap_or_default();
    format!("GET /v1/notifications/stream?ticket={ticket} HTTP/1.1\r\nHost: relais\r\n{resume}\r\n")
}

fn stream_requests(tickets: &[String], cursor: Option<&str>) -> Vec<String> {
    tickets.iter().map(|ticket| stream_request(ticket, cursor)).collect()
}

/// A page that is told when something arrives.
async fn watch(to: SocketAddr, ticket: &str) -> Result<mpsc::UnboundedReceiver<Instant>> {
    let mut link = open(0, to, &stream_request(ticket, None)).await?;
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = link.read(&mut buffer).await {
            let text = &buffer[..read];
            let is_event = [RELAIS.event, RELAIS.hello].iter().any(|needle| find(text, needle).is_some());
            if is_event && arrived.send(Instant::now()).is_err() {
                return;
            }
        }
    });
    arrivals.recv().await.context("the link did not open")?;
    Ok(arrivals)
}

/// Emits to a user who has one page until `enough`; how long each took to arrive.
async fn single_messages(
    emitter: SocketAddr,
    user: usize,
    arrivals: &mut mpsc::UnboundedReceiver<Instant>,
    enough: impl Fn(usize) -> bool,
) -> Result<Vec<Duration>> {
    let mut emitter = Connection::open(emitter).await?;
    let (request, mut latencies) = (to_user(user), Vec::new());
    while !enough(latencies.len()) {
        let begin = Instant::now();
        emitter.expect(&request, 201).await?;
        let arrived = tokio::time::timeout(PATIENCE, arrivals.recv()).await?.context("the link has ended")?;
        latencies.push(arrived.saturating_duration_since(begin));
    }
    Ok(latencies)
}

fn sample(latencies: Vec<Duration>) -> Sample {
    Sample::new(latencies.len(), Duration::from_secs(1), latencies)
}

async fn latency(plan: &Plan, section: &mut Section, world: &World, reader: SocketAddr, what: &str) -> Result<()> {
    let ticket = tickets(world, 1).await?.pop().context("a ticket")?;
    let mut arrivals = watch(reader, &ticket).await?;
    let enough = |done| done >= plan.samples;
    let found = single_messages(world.address(), 0, &mut arrivals, enough).await?;
    let name = format!("emission to arrival, {what}");
    let [p50, p99] = latencies(section, &name, &sample(found));
    section.below(&format!("at p50: {name}"), p50, 3.0, " ms");
    section.below(&format!("at p99: {name}"), p99, 10.0, " ms");
    Ok(())
}

/// Half as many links again as for the fan-out, to each of two processes.
async fn idle(plan: &Plan, section: &mut Section, world: &World, tickets: &[String]) -> Result<()> {
    let processes = world.processes();
    let each = tickets.len() / processes.len();
    let memory = || processes.iter().map(|process| peers::memory_of(process.id())).sum::<Result<u64>>();
    let cpu = || processes.iter().map(|process| process.cpu_time()).sum::<Result<Duration>>();
    // The first ones warm up what the servers keep.
    let (seen, mut own, mut holders) = (Arc::new(Seen::default()), Links::none(), Vec::new());
    let mut before = 0;
    for (share, count) in [(0..each / 10, each / 10), (each / 10..each, each - each / 10)] {
        before = memory()?;
        own.open(world.address(), stream_requests(&tickets[share.clone()], None), RELAIS, &seen).await?;
        // A process has not the descriptors for all of them.
        let others = &tickets[each..][share];
        holders.push(hold::start(world.other_address(), &stream_requests(others, None)).await?);
        debug_assert_eq!(others.len(), count);
    }
    let links = processes.len() * each;
    let grown = || Ok::<_, anyhow::Error>(memory()?.saturating_sub(before) as f64 / (links - 2 * (each / 10)) as f64);
    let count = ("links", links.to_string());
    row(section, "links just opened, two processes", [count.clone(), ("bytes a link", number(grown()?))]);
    let (begin, used) = (Instant::now(), cpu()?);
    // Two heartbeats of each link, unless it is a smoke test.
    tokio::time::sleep(plan.idle * 5 / 2).await;
    let percent = 100.0 * cpu()?.saturating_sub(used).as_secs_f64() / begin.elapsed().as_secs_f64();
    let grown = grown()?;
    row(section, "idle links, two processes", [count, ("bytes a link", number(grown))]);
    section.below("a link that is idle", grown / 1024.0, 4.0, " KiB");
    section.below("of a core: idle links, with their heartbeats", percent, 0.5, " %");
    for holder in holders {
        holder.stop().await?;
    }
    Ok(())
}

/// Messages to all links, beside bare writes and beside messages to one user; events a second.
async fn fan_out(plan: &Plan, section: &mut Section, world: &World, tickets: &[String]) -> Result<f64> {
    let links = tickets.len();
    // A user who is in no group.
    let alone = json!({"user": format!("u{links}")}).to_string();
    let ticket = call(world.address(), &post("/v1/notifications/tickets", &alone), 201).await?;
    let mut arrivals = watch(world.address(), ticket["data"]["ticket"].as_str().context("a ticket")?).await?;
    let length = event_length(world, &tickets[0]).await?;
    let mut rates = [Vec::new(), Vec::new()];
    let mut beside = Vec::new();
    // The first round warms up.
    for round in 0..=plan.rounds {
        let (seen, mut open) = (Arc::new(Seen::default()), Links::none());
        open.open(world.address(), stream_requests(tickets, None), RELAIS, &seen).await?;
        let mut emitter = Connection::open(world.address()).await?;
        let (request, begin) = (to_all(), Instant::now());
        let all = async {
            for _ in 0..MESSAGES {
                emitter.expect(&request, 201).await?;
            }
            seen.until(MESSAGES * links).await
        };
        all.await?;
        let rate = (MESSAGES * links) as f64 / begin.elapsed().as_secs_f64();
        // Once more, with somebody else's messages beside.
        let finished = std::cell::Cell::new(false);
        let again = async {
            for _ in 0..MESSAGES {
                emitter.expect(&request, 201).await?;
            }
            let ended = seen.until(2 * MESSAGES * links).await;
            finished.set(true);
            ended
        };
        let single = single_messages(world.address(), links, &mut arrivals, |_| finished.get());
        let ((), others) = tokio::try_join!(again, single)?;
        drop(open);
        let bare = bare::fan_out(links, length).await?;
        if round > 0 {
            rates[0].push(rate);
            rates[1].push(bare);
            beside.extend(others);
        }
    }
    let [rate, bare] = rates.map(median);
    for (what, rate) in [("fan-out", rate), ("bare writes to as many sockets", bare)] {
        let cells =
            [("links", links.to_string()), ("events", (MESSAGES * links).to_string()), ("events/s", number(rate))];
        row(section, what, cells);
    }
    let [_, p99] = latencies(section, "somebody else's messages beside the fan-out", &sample(beside));
    section.at_least("bare writes: fan-out", rate / bare, 0.8);
    section.below("at p99: somebody else's messages beside the fan-out", p99, 100.0, " ms");
    Ok(rate)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// How long an event of the fan-out is on the wire.
async fn event_length(world: &World, ticket: &str) -> Result<usize> {
    let mut link = open(0, world.address(), &stream_request(ticket, None)).await?;
    let (mut buffer, mut kept) = (vec![0; 64 * 1024], 0);
    let mut read_until = async |needle: &[u8]| {
        kept = 0;
        while find(&buffer[..kept], needle).is_none() {
            let read = tokio::time::timeout(PATIENCE, link.read(&mut buffer[kept..])).await??;
            anyhow::ensure!(read > 0, "the link has ended");
            kept += read;
        }
        Ok(kept)
    };
    read_until(RELAIS.hello).await?;
    Connection::open(world.address()).await?.expect(&to_all(), 201).await?;
    read_until(b"}\n\n").await
}

/// How many transactions the database has ended.
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

/// Pages that come back all at once: a tenth of them, then all.
async fn storms(section: &mut Section, world: &World, tickets: &[String]) -> Result<()> {
    let few = storm(section, world, &tickets[..(tickets.len() / 10).max(1)]).await?;
    let all = storm(section, world, tickets).await?;
    section.below("transactions a link that comes back", all / tickets.len() as f64, 0.2, "");
    section.ratio("the transactions of a storm of a tenth of the links", all / few.max(1.0));
    Ok(())
}

async fn storm(section: &mut Section, world: &World, tickets: &[String]) -> Result<f64> {
    let poll = format!("GET /v1/notifications/poll?ticket={} HTTP/1.1\r\nHost: relais\r\n\r\n", tickets[0]);
    let cursor = call(world.address(), poll.as_bytes(), 200).await?;
    let cursor = cursor["data"]["cursor"].as_str().context("a cursor")?.to_owned();
    let mut emitter = Connection::open(world.address()).await?;
    for _ in 0..MISSED {
        emitter.expect(&to_all(), 201).await?;
    }
    let before = transactions(world).await?;
    let (seen, mut open) = (Arc::new(Seen::default()), Links::none());
    let begin = Instant::now();
    open.open(world.address(), stream_requests(tickets, Some(&cursor)), RELAIS, &seen).await?;
    let events = MISSED * tickets.len();
    seen.until(events).await?;
    let rate = events as f64 / begin.elapsed().as_secs_f64();
    drop(open);
    let ended = (transactions(world).await? - before) as f64;
    let cells = [
        ("links", tickets.len().to_string()),
        ("events", events.to_string()),
        ("events/s", number(rate)),
        ("transactions", number(ended)),
    ];
    row(section, "all come back, with 100 missed messages each", cells);
    Ok(ended)
}

/// What others come to on the same machine.
async fn beside(plan: &Plan, section: &mut Section, rate: f64) -> Result<()> {
    for name in [peers::NCHAN, peers::PUSHPIN] {
        let found = match measure(plan, name).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                section.note(format!("{name} was not there."));
                continue;
            }
            Err(error) => {
                section.note(format!("{name} could not be measured: {error:#}."));
                continue;
            }
        };
        latencies(section, &format!("{name}: publication to arrival"), &found.latency);
        let cells = [
            ("links", plan.links.to_string()),
            ("events", (MESSAGES * plan.links).to_string()),
            ("events/s", number(found.rate)),
            ("bytes a link", number(found.bytes)),
        ];
        let what = format!("{name}: fan-out");
        row(section, &what, cells);
        match name {
            peers::NCHAN => section.at_least(&what, rate / found.rate, 1.0),
            _ => section.ratio(&what, rate / found.rate),
        }
    }
    Ok(())
}

/// Measures a peer, if it is there.
async fn measure(plan: &Plan, name: &str) -> Result<Option<Found>> {
    let peer = if name == peers::NCHAN { Peer::nchan().await? } else { Peer::pushpin().await? };
    let Some(peer) = peer else { return Ok(None) };
    Ok(Some(peer.measure(plan.links, MESSAGES, plan.samples, &"x".repeat(PAYLOAD)).await?))
}
