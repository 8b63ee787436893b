//! `kill -9` of two processes of the real binary on one PostgreSQL, while messages are emitted, read and acknowledged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use relais_testkit::{Random, TestDatabase};
use relais_tests::{
    app::secret,
    chaos::{Api, rounds},
    instance::Instance,
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    link::{Event, parse},
    stage::{declaration, required, text, to},
};

const USERS: usize = 4;
const EMITTERS: usize = 2;
/// Deliveries between two kills.
const BETWEEN: usize = 100;
const PATIENCE: Duration = Duration::from_secs(30);

fn name(user: usize) -> String {
    format!("u{user}")
}

/// The two servers, as their clients know them.
#[derive(Clone)]
struct Servers {
    apis: Arc<[Api; 2]>,
    delivered: watch::Sender<usize>,
    ended: watch::Sender<bool>,
}

impl Servers {
    /// Asks one server or the other until there is an answer with this status.
    async fn insist(
        &self,
        random: &mut Random,
        status: u16,
        ask: impl Fn(&Api) -> reqwest::RequestBuilder,
    ) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let answer = Api::send(ask(random.pick(&self.apis[..]))).await;
            match answer {
                Ok(answer) if answer.status == status => return answer.data(),
                Ok(answer) if answer.status != 503 => {
                    anyhow::bail!("answered {}: {}", answer.status, answer.body)
                }
                Ok(_) | Err(_) => ensure!(begun.elapsed() < PATIENCE, "no answer {status} within {PATIENCE:?}"),
            }
            tokio::task::yield_now().await;
        }
    }

    /// Emits until the end, with ids of its own so that it may repeat; answers the messages by id: for whom, and whether they
    /// must be acknowledged.
    async fn emit(self, emitter: usize, mut random: Random) -> Result<BTreeMap<String, (usize, bool)>> {
        let (mut accepted, mut call) = (BTreeMap::new(), 0);
        while !*self.ended.borrow() {
            call += 1;
            let drafts: Vec<(usize, bool)> =
                (0..1 + random.below(5)).map(|_| (random.below(USERS), random.once_in(4))).collect();
            let body: Vec<Value> = drafts
                .iter()
                .map(|(user, ack)| if *ack { required } else { to }("USER", &[&name(*user)], json!(call)))
                .collect();
            let key = format!("{emitter}-{call}");
            let answer = self
                .insist(&mut random, 201, |api| {
                    api.request(Method::POST, "/v1/notifications").header("idempotency-key", &key).json(&body)
                })
                .await?;
            let ids = answer["ids"].as_array().into_iter().flatten().map(text);
            accepted.extend(ids.zip(drafts));
            // Not faster than they are read, or the last reads would go on for long.
            let ahead = accepted.len();
            let mut delivered = self.delivered.subscribe();
            let near = delivered.wait_for(|delivered| delivered + 100 > ahead);
            let _ = tokio::time::timeout(Duration::from_secs(1), near).await;
        }
        Ok(accepted)
    }

    /// Reads with the last cursor whenever a link breaks, and acknowledges what must be; until the last message.
    async fn read(
        self,
        ticket: String,
        last: String,
        mut random: Random,
    ) -> Result<(Vec<Event>, BTreeSet<String>, usize)> {
        let (mut events, mut acknowledged, mut links): (Vec<Event>, _, _) = (Vec::new(), BTreeSet::new(), 0);
        let mut cursor = last;
        loop {
            links += 1;
            let path = format!("/v1/notifications/stream?ticket={ticket}&lastEventId={cursor}");
            let request = random.pick(&self.apis[..]).request(Method::GET, &path).timeout(Duration::from_secs(600));
            let Ok(response) = request.send().await else { continue };
            if response.status() != 200 {
                continue;
            }
            let (mut bytes, mut buffer) = (response.bytes_stream(), Vec::new());
            while let Some(Ok(chunk)) =
                tokio::time::timeout(PATIENCE, bytes.next()).await.context("a link is silent")?
            {
                buffer.extend_from_slice(&chunk);
                while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                    let block: Vec<u8> = buffer.drain(..end + 2).collect();
                    let Some(event) = parse(std::str::from_utf8(&block)?) else { continue };
                    cursor = event.id.clone().unwrap_or(cursor);
                    match event.name.as_str() {
                        "hello" | "bye" => continue,
                        "notification" => self.delivered.send_modify(|delivered| *delivered += 1),
                        _ => {}
                    }
                    if event.data["routing"]["retry"]["ack_required"] == true && acknowledged.insert(event.message()) {
                        let path = format!("/v1/notifications/{}/ack?ticket={ticket}", event.message());
                        self.insist(&mut random, 200, |api| api.request(Method::POST, &path)).await?;
                    }
                    let is_end = event.data["payload"] == "end";
                    events.push(event);
                    if is_end {
                        return Ok((events, acknowledged, links));
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_out_of_order_when_processes_are_killed() -> Result<()> {
    let (mut random, kills) = (Random::new(), rounds(10));
    let database = TestDatabase::create().await?;
    let mut instances = [Instance::start(database.url()).await?, Instance::start(database.url()).await?];
    let admins = [Api::admin(instances[0].url())?, Api::admin(instances[1].url())?];
    for admin in &admins {
        admin.post("/admin/apply", &declaration()).await?.data()?;
    }
    let servers = Servers {
        apis: Arc::new(admins.clone().map(|admin| admin.with("shop", &secret("shop")))),
        delivered: watch::channel(0).0,
        ended: watch::channel(false).0,
    };
    let started = Instant::now();
    let mut readers = Vec::new();
    for user in 0..USERS {
        let ticket = servers
            .insist(&mut random, 201, |api| {
                api.request(Method::POST, "/v1/notifications/tickets").json(&json!({"user": name(user)}))
            })
            .await?;
        let ticket = text(&ticket["ticket"]);
        let path = format!("/v1/notifications/poll?ticket={ticket}");
        let begun = servers.insist(&mut random, 200, |api| api.request(Method::GET, &path)).await?;
        let reader = servers.clone().read(ticket, text(&begun["cursor"]), Random::from_seed(random.bits()));
        readers.push(tokio::spawn(reader));
    }
    let emitters: Vec<_> = (0..EMITTERS)
        .map(|emitter| tokio::spawn(servers.clone().emit(emitter, Random::from_seed(random.bits()))))
        .collect();
    let mut delivered = servers.delivered.subscribe();
    for kill in 1..=kills {
        let reached = delivered.wait_for(|delivered| *delivered >= kill * BETWEEN);
        tokio::time::timeout(PATIENCE, reached).await.context("nothing is delivered any more")??;
        let victim = &mut instances[random.below(2)];
        victim.kill9()?;
        victim.restart().await?;
    }
    let reached = delivered.wait_for(|delivered| *delivered >= (kills + 1) * BETWEEN);
    tokio::time::timeout(PATIENCE, reached).await.context("nothing is delivered any more")??;
    servers.ended.send_replace(true);
    let mut accepted = BTreeMap::new();
    for emitter in emitters {
        accepted.extend(emitter.await??);
    }
    for user in 0..USERS {
        let (body, key) = (to("USER", &[&name(user)], json!("end")), format!("end-{user}"));
        let ask =
            |api: &Api| api.request(Method::POST, "/v1/notifications").header("idempotency-key", &key).json(&body);
        let answer = servers.insist(&mut random, 201, ask).await?;
        accepted.insert(text(&answer["id"]), (user, false));
    }
    let (mut lost, mut doubled, mut out_of_order, mut deliveries, mut links) = (0, 0, 0, 0, 0);
    let mut acknowledged = BTreeSet::new();
    for (user, reader) in readers.into_iter().enumerate() {
        let (events, acks, opened) = tokio::time::timeout(PATIENCE, reader).await???;
        let positions = events.iter().map(position).collect::<Result<Vec<u64>>>()?;
        out_of_order += positions.windows(2).filter(|pair| pair[0] > pair[1]).count();
        doubled += positions.windows(2).filter(|pair| pair[0] == pair[1]).count();
        let sent: BTreeSet<String> =
            events.iter().filter(|event| event.name == "notification").map(Event::message).collect();
        deliveries += events.iter().filter(|event| event.name == "notification").count();
        lost += accepted.iter().filter(|(id, (to, _))| *to == user && !sent.contains(*id)).count();
        ensure!(events.iter().all(|event| event.name != "gap"), "a gap");
        links += opened;
        acknowledged.extend(acks);
    }
    // The ledger is what the pages saw.
    let mut wrong = 0;
    for (id, (user, ack)) in &accepted {
        let shown = admins[0].get(&format!("/admin/notifications/{id}")).await?.data()?;
        let line =
            shown["ledger"].as_array().and_then(|lines| lines.iter().find(|line| line["user"] == name(*user).as_str()));
        let is_acknowledged = line.is_some_and(|line| line["acknowledged"].is_string());
        let is_settled = shown["status"] == "ACKNOWLEDGED";
        wrong += usize::from(is_acknowledged != acknowledged.contains(id) || *ack != is_settled);
    }
    println!(
        "notifications, kill -9 of two processes: {} messages, {deliveries} deliveries, {kills} kills, {links} links, \
         {} acknowledged, lost {lost}, doubled {doubled}, out of order {out_of_order}, wrong in the ledger {wrong}, {:?}",
        accepted.len(),
        acknowledged.len(),
        started.elapsed(),
    );
    ensure!((lost, doubled, out_of_order, wrong) == (0, 0, 0, 0), "see above");
    ensure!(deliveries >= kills * BETWEEN && acknowledged.len() > kills, "too little happened");
    Ok(())
}

/// The position of the log that a cursor names. It is opaque to pages; a test may look.
fn position(event: &Event) -> Result<u64> {
    let cursor = event.id.as_deref().with_context(|| format!("an event without a cursor: {event:?}"))?;
    let (_, position) = cursor.split_once('-').context("a cursor without a position")?;
    Ok(u64::from_str_radix(position, 16)?)
}
