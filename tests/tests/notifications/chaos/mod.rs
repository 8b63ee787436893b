//! `kill -9` of processes of the real binary, of their PostgreSQL and of their Redis, while messages are emitted over the API
//! and by tables, read and acknowledged.

mod emit;
mod read;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use relais_testkit::Random;
use relais_tests::chaos::Api;
use reqwest::Method;
use serde_json::{Value, json};

use self::{
    emit::Accepted,
    read::{END, Seen},
    world::{Kept, Length, To, World, user},
};
use crate::stage::{text, to};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_out_of_order_when_everything_is_killed() -> Result<()> {
    println!("{}", nothing_is_lost_or_out_of_order(Kept::InDatabase).await?);
    Ok(())
}

/// What Redis has answered is on its disk. It is killed more often than anything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_out_of_order_when_redis_has_the_log_and_is_killed() -> Result<()> {
    println!("{}", nothing_is_lost_or_out_of_order(Kept::InRedis).await?);
    Ok(())
}

/// Tells what has happened.
async fn nothing_is_lost_or_out_of_order(kept: Kept) -> Result<String> {
    let (mut random, length) = (Random::new(), Length::new());
    let mut world = World::start(length, kept).await?;
    let servers = world.servers.clone();
    let started = Instant::now();
    let mut readers = Vec::new();
    for number in 0..length.users {
        let entered = servers.enter(&mut random, number).await?;
        readers.push(tokio::spawn(servers.clone().read(entered, Random::from_seed(random.bits()))));
    }
    let mut seed = || Random::from_seed(random.bits());
    let emitters = [
        tokio::spawn(servers.clone().emit_by_api("api0".to_owned(), seed())),
        tokio::spawn(servers.clone().emit_by_api("api1".to_owned(), seed())),
        tokio::spawn(servers.clone().emit_by_outbox("outbox".to_owned(), seed())),
        tokio::spawn(servers.clone().emit_by_table("table".to_owned(), seed())),
    ];
    let between = length.deliveries / (length.faults + 1);
    for fault in 1..=length.faults {
        servers.until_delivered(fault * between).await?;
        world.fault(fault, &mut random).await?;
    }
    servers.until_delivered(length.deliveries).await?;
    servers.ended.send_replace(true);
    let mut accepted = Accepted::new();
    for emitter in emitters {
        accepted.extend(emitter.await??);
    }
    // What is late counts as lost.
    let late = servers.until_all_delivered().await;
    for group in 0..length.groups() {
        let (kind, target) = To::Group(group).audience();
        let (body, key) = (to(kind, &[&target], json!({"tag": END})), format!("end-{group}"));
        let ask =
            |api: &Api| api.request(Method::POST, "/v1/notifications").header("idempotency-key", &key).json(&body);
        servers.insist(&mut random, 201, ask).await?;
    }
    let mut seen = Vec::new();
    for reader in readers {
        seen.push(tokio::time::timeout(world::PATIENCE, reader).await???);
    }
    let lost_of = lost(&accepted, &seen, length);
    let lost: usize = lost_of.values().sum();
    let Differences { wrong, unrecorded } = compare(&world.admin, &accepted, &seen, length).await?;
    let sum = |count: fn(&Seen) -> usize| seen.iter().map(count).sum::<usize>();
    let (deliveries, acknowledged) = (sum(|seen| seen.deliveries), sum(|seen| seen.acknowledged.len()));
    let (doubled, out_of_order, gaps) =
        (sum(|seen| seen.doubled), sum(|seen| seen.out_of_order), sum(|seen| seen.gaps));
    let mut report = format!(
        "notifications {kept:?}, kill -9: {} processes, {} links, {} messages, {deliveries} deliveries, {} faults {:?}, {} links \
         opened, {acknowledged} acknowledged, lost {lost}, doubled {doubled}, out of order {out_of_order}, gaps {gaps}, wrong \
         in the ledger {wrong} ({unrecorded} deliveries not written down), {:?}",
        length.instances,
        length.users,
        accepted.len(),
        length.faults,
        world.killed,
        sum(|seen| seen.links),
        started.elapsed(),
    );
    if late.is_err() {
        for path in ["outboxes/orders", "captures/assignments"] {
            let state = world.admin.get(&format!("/admin/{path}")).await?.body;
            report.push_str(&format!("\nlost {lost_of:?}; {path}: {state}"));
        }
    }
    late.with_context(|| report.clone())?;
    ensure!((lost, doubled, out_of_order, gaps, wrong) == (0, 0, 0, 0, 0), "{report}");
    ensure!(deliveries >= length.deliveries && acknowledged > length.faults, "too little happened: {report}");
    for emitter in ["api0", "api1", "outbox", "table"] {
        ensure!(accepted.keys().any(|tag| tag.starts_with(emitter)), "{emitter} has emitted nothing");
    }
    Ok(report)
}

/// How many deliveries are missing, or went to somebody else, of each emitter.
fn lost(accepted: &Accepted, seen: &[Seen], length: Length) -> BTreeMap<String, usize> {
    let mut expected: Vec<BTreeSet<&str>> = vec![BTreeSet::from([END]); seen.len()];
    for (tag, sent) in accepted {
        for user in sent.to.users(length) {
            expected[user].insert(tag);
        }
    }
    let mut lost = BTreeMap::new();
    for (expected, seen) in expected.iter().zip(seen) {
        let seen: BTreeSet<&str> = seen.ids.keys().map(String::as_str).collect();
        for tag in expected.symmetric_difference(&seen) {
            *lost.entry(tag.split('-').next().unwrap_or(tag).to_owned()).or_default() += 1;
        }
    }
    lost
}

/// What the ledger says otherwise than the pages.
#[derive(Debug, Default)]
struct Differences {
    /// Messages whose acknowledgements are other ones, or that stand otherwise.
    wrong: usize,
    /// Acknowledgements without a delivery: the process was killed after it had written the message, before it wrote that down.
    unrecorded: usize,
}

/// Compares the ledger with what the pages saw.
async fn compare(admin: &Api, accepted: &Accepted, seen: &[Seen], length: Length) -> Result<Differences> {
    let messages = accepted.iter().filter_map(|(tag, sent)| {
        let users = sent.to.users(length);
        // One that nobody has seen is counted as lost.
        let id = users.iter().find_map(|user| seen[*user].ids.get(tag))?;
        let acknowledged = users.iter().filter(|user| seen[**user].acknowledged.contains(id));
        Some((id.clone(), *sent, acknowledged.map(|number| user(*number)).collect::<BTreeSet<_>>()))
    });
    let shown = stream::iter(messages).map(|(id, sent, acknowledged)| async move {
        let shown = admin.get(&format!("/admin/notifications/{id}")).await?.data()?;
        anyhow::Ok((shown, sent, acknowledged))
    });
    let mut differences = Differences::default();
    let mut shown = shown.buffered(8);
    while let Some((shown, sent, acknowledged)) = shown.try_next().await? {
        let lines = shown["ledger"].as_array().into_iter().flatten();
        let lines: Vec<&Value> = lines.filter(|line| line["acknowledged"].is_string()).collect();
        let known: BTreeSet<String> = lines.iter().map(|line| text(&line["user"])).collect();
        let is_right = known == acknowledged && sent.must_be_acknowledged == (shown["status"] == "ACKNOWLEDGED");
        differences.wrong += usize::from(!is_right);
        differences.unrecorded += lines.iter().filter(|line| line["deliveries"] == 0).count();
    }
    Ok(differences)
}
