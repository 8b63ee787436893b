//! The store on Redis does what the one on SQLite does: the same random calls, the same answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use relais_notify::{
    AckChoice, Acknowledgement, AudienceKey, Backoff, Delivery, EntryContent, FillIn, ListFilter, ListRequest,
    MembersChange, NewNotification, NotificationDraft, NotificationFilter, NotificationLimits, NotificationStore,
    Retry,
};
use relais_notify_redis::{RedisNotificationOptions, RedisNotifications};
use relais_testkit::{Random, RedisServer};
use uuid::Uuid;

const USERS: [&str; 4] = ["ann", "bob", "cem", "dia eve"];
const STEPS: usize = 150;

type Store = Arc<dyn NotificationStore>;

/// A call, made of what has happened so far.
#[derive(Debug, Clone)]
enum Call {
    Emit(Vec<NewNotification>),
    Acknowledge(Vec<(String, AckChoice)>),
    Change(AudienceKey, MembersChange),
    Withdraw(Uuid, Option<String>, Option<Box<NewNotification>>),
    Resend(Uuid, Option<String>),
    Deliver(Vec<Delivery>),
    Fire,
    Purge,
}

fn group(number: usize) -> AudienceKey {
    [
        AudienceKey::new("GROUP", "a"),
        AudienceKey::new("GROUP", "b"),
        AudienceKey::new("GROUP X", "a b:c"),
        AudienceKey::new("STRUCTURE", "é%"),
    ][number]
        .clone()
}

fn message(random: &mut Random) -> Result<NewNotification> {
    let (kind, targets) = match random.below(3) {
        0 => {
            let users: Vec<&str> = (0..=random.below(2)).map(|_| USERS[random.below(USERS.len())]).collect();
            ("USER".to_owned(), users.into_iter().map(str::to_owned).collect::<Vec<_>>())
        }
        _ => {
            let key = group(random.below(4));
            (key.kind, vec![key.target, "nobody".to_owned()])
        }
    };
    let json = serde_json::json!({"payload": {"n": random.below(9)}, "routing": {"audience": {"type": kind, "targets": targets}}});
    let draft: NotificationDraft = serde_json::from_value(json)?;
    let with = FillIn { now: jiff::Timestamp::now(), id: Uuid::now_v7(), emitter: "model" };
    let mut notification = draft.fill(&with, &NotificationLimits::default())?;
    if random.once_in(5) {
        notification.metadata.expiration = jiff::Timestamp::UNIX_EPOCH;
    }
    if random.once_in(2) {
        let limit = random.below(3) as u32;
        notification.routing.retry = Retry {
            ack_required: true,
            enabled: random.below(4) > 0,
            limit,
            backoff: Backoff::Fixed,
            ..Retry::default()
        };
    }
    // Due at once or never within this test: what is due does not depend on how long calls take.
    let ack_timeout = if random.once_in(2) { Duration::ZERO } else { Duration::from_secs(36_000) };
    let client = random.once_in(2).then(|| "shop".to_owned());
    Ok(NewNotification { notification, client, ack_timeout })
}

fn part(random: &mut Random) -> AudienceKey {
    if random.once_in(3) { group(random.below(4)) } else { AudienceKey::user(USERS[random.below(USERS.len())]) }
}

fn call(random: &mut Random, emitted: &mut Vec<Uuid>) -> Result<Call> {
    let any = |random: &mut Random, emitted: &[Uuid]| match emitted.len() {
        0 => Uuid::nil(),
        length => emitted[random.below(length)],
    };
    Ok(match random.below(16) {
        0..=4 => {
            let mut batch = (0..=random.below(3)).map(|_| message(random)).collect::<Result<Vec<_>>>()?;
            if random.once_in(4) {
                // One that is known already, perhaps.
                batch[0].notification.metadata.id = any(random, emitted);
            }
            emitted.extend(batch.iter().map(|new| new.notification.metadata.id));
            Call::Emit(batch)
        }
        5..=7 => {
            let choices = (0..=random.below(2)).map(|_| {
                let user = USERS[random.below(USERS.len())].to_owned();
                let ids = (0..=random.below(4)).map(|_| any(random, emitted)).collect();
                (user, if random.once_in(4) { AckChoice::All } else { AckChoice::These(ids) })
            });
            Call::Acknowledge(choices.collect())
        }
        8..=10 => {
            let parts = (0..=random.below(2)).map(|_| part(random)).collect();
            let change = match random.below(4) {
                0 => MembersChange::Set(parts),
                1 => MembersChange::Remove(parts),
                _ => MembersChange::Add(parts),
            };
            Call::Change(group(random.below(4)), change)
        }
        11 => {
            let new = if random.once_in(2) { Some(Box::new(message(random)?)) } else { None };
            let id = any(random, emitted);
            emitted.extend(new.iter().map(|new| new.notification.metadata.id));
            Call::Withdraw(id, random.once_in(3).then(|| "shop".to_owned()), new)
        }
        12 => Call::Resend(any(random, emitted), random.once_in(3).then(|| "shop".to_owned())),
        13 => {
            let sent = |random: &mut Random| Delivery {
                id: any(random, emitted),
                user: USERS[random.below(USERS.len())].to_owned(),
            };
            Call::Deliver((0..3).map(|_| sent(random)).collect())
        }
        14 => Call::Fire,
        _ => Call::Purge,
    })
}

/// What a store answers, without moments, as a text.
async fn answer(store: &Store, call: Call) -> Result<String> {
    Ok(match call {
        Call::Emit(batch) => {
            let checked = store.check_notifications(&batch).await?;
            format!("{checked:?} {:?}", store.emit_notifications(batch).await?)
        }
        Call::Acknowledge(choices) => {
            let mut acknowledgements = Vec::new();
            for (user, choice) in choices {
                let scope = store.scopes_of(vec![user.clone()]).await?.remove(&user).context("a scope")?;
                acknowledgements.push(Acknowledgement { scope, choice });
            }
            let mut answers = store.acknowledge(acknowledgements).await?;
            for answer in &mut answers {
                answer.new.sort_unstable();
                answer.known.sort_unstable();
            }
            format!("{answers:?}")
        }
        Call::Change(key, change) => format!("{:?}", store.change_members(key, change).await),
        Call::Withdraw(id, client, new) => format!("{:?}", store.withdraw(id, client, new.map(|new| *new)).await),
        Call::Resend(id, client) => format!("{:?}", store.resend(id, client).await),
        Call::Deliver(deliveries) => format!("{:?}", store.record_deliveries(deliveries).await?),
        // What is due next is due by the clock.
        Call::Fire => {
            let fired = store.fire_notification_timers(1000).await?;
            format!("{} {} {}", fired.replayed, fired.failed, fired.expired)
        }
        Call::Purge => {
            let ages = (Duration::from_secs(3600), Duration::from_secs(3600));
            format!("{:?}", store.purge_notifications(ages.0, ages.1, 1000).await?)
        }
    })
}

/// Positions of the log. Messages that are due at the same moment may be sent again in any order: their entries count as if
/// they were at one place.
#[derive(Debug, Default)]
struct Places(BTreeMap<u64, u64>);

impl Places {
    /// The entries from `first` to `last` are in any order.
    fn add(&mut self, first: u64, last: u64) {
        self.0.insert(first, last);
    }

    fn of(&self, position: u64) -> u64 {
        let range = self.0.range(..=position).next_back().filter(|(_, last)| position <= **last);
        range.map_or(position, |(first, _)| *first)
    }
}

/// All that a store says of itself.
async fn state(store: &Store, emitted: &[Uuid], places: &Places) -> Result<Vec<String>> {
    let mut said = Vec::new();
    let head = store.log_head().await?;
    said.push(format!("head {} {}", head.position, head.floor));
    let content = |content: EntryContent| match content {
        EntryContent::Message(kind, stored) => {
            format!("{kind:?} {} {:?} {}", stored.notification.metadata.id, stored.status, stored.notification.payload)
        }
        EntryContent::Acknowledged { user, ids } => format!("{user} {:?}", ids.into_iter().collect::<BTreeSet<_>>()),
        other => format!("{other:?}"),
    };
    for entry in store.read_log(0, 10_000).await? {
        said.push(format!("entry {:09} {}", places.of(entry.position), content(entry.content)));
    }
    said.sort();
    for user in USERS {
        let scope = store.scopes_of(vec![user.to_owned()]).await?.remove(user).context("a scope")?;
        let belongs: BTreeMap<String, _> =
            scope.belongs.iter().map(|belonging| (belonging.key.to_string(), belonging.since)).collect();
        said.push(format!("{user} {belongs:?} {:?}", store.count_of_user(&scope).await?));
        for filter in [ListFilter::All, ListFilter::Unread, ListFilter::Unacknowledged] {
            let mut before = None;
            loop {
                let request = ListRequest { scope: scope.clone(), filter, before, limit: 3 };
                let page = store.list_of_user(request).await?;
                let Some(last) = page.last() else { break };
                before = Some(last.stored.position);
                for listed in page {
                    let (id, acknowledged) = (listed.stored.notification.metadata.id, listed.acknowledged.is_some());
                    said.push(format!("{user} {filter:?} {id} {acknowledged} {:?}", listed.stored.status));
                }
            }
        }
        let own = store.read_log_of(&scope, 0, head.position, 10_000).await?;
        // An index may name entries of messages that were purged, or not: both say nothing.
        let known = own.iter().filter(|entry| !matches!(entry.content, EntryContent::Gone));
        said.push(format!("{user} {:?}", known.map(|entry| places.of(entry.position)).collect::<Vec<_>>()));
        let (middle, end) = (head.position / 3, head.position / 3 * 2);
        let page = store.read_log_of(&scope, middle, end, 10).await?;
        let expected = own.iter().map(|entry| entry.position).filter(|position| (middle + 1..=end).contains(position));
        ensure!(page.iter().map(|entry| entry.position).eq(expected.take(10)), "a page is a part of all");
        said.push(format!(
            "{user} {:?}",
            store.acknowledged_of(user, emitted.to_vec()).await?.into_iter().collect::<BTreeSet<_>>()
        ));
    }
    for number in 0..4 {
        said.push(format!("{:?}", store.list_members(&group(number), None, 100).await?));
    }
    for status in [None, Some(relais_notify::AckStatus::Failed), Some(relais_notify::AckStatus::Open)] {
        for client in [None, Some("shop".to_owned())] {
            let filter = NotificationFilter { client, status, limit: 1000, ..NotificationFilter::default() };
            for stored in store.list_notifications(filter).await? {
                let id = stored.notification.metadata.id;
                let (_, ledger) = store.find_notification(id, 100).await?.context("it is listed")?;
                let ledger: Vec<_> = ledger
                    .iter()
                    .map(|line| {
                        (
                            &line.user,
                            line.awaited,
                            line.deliveries,
                            line.delivered.is_some(),
                            line.acknowledged.is_some(),
                        )
                    })
                    .collect();
                said.push(format!(
                    "{id} {:?} {} {:?} {:?} {:?} {ledger:?}",
                    stored.status, stored.attempts, stored.replaced_by, stored.client, stored.position
                ));
            }
        }
    }
    Ok(said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_answers_as_sqlite_does() -> Result<()> {
    let mut random = Random::new();
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("relais.db").display());
    let ports = relais_store::open_ports(&url, &relais_store::Options::default()).await?;
    ports.store.migrate().await?;
    let server = RedisServer::start_with(&["--appendonly", "no", "--save", ""]).await?;
    let redis: Store = Arc::new(RedisNotifications::new(&server.url(), RedisNotificationOptions::default())?);
    let (mut emitted, mut calls, mut places) = (Vec::new(), Vec::new(), Places::default());
    for step in 0..STEPS {
        let call = call(&mut random, &mut emitted)?;
        calls.push(call.clone());
        let before = redis.log_head().await?.position;
        let fires = matches!(call, Call::Fire);
        let (expected, found) = (answer(&ports.notifications, call.clone()).await?, answer(&redis, call).await?);
        ensure!(expected == found, "step {step}: {found}, and not {expected}, after {calls:#?}");
        let after = redis.log_head().await?.position;
        if fires && after > before {
            places.add(before + 1, after);
        }
        if matches!(calls.last(), Some(Call::Purge)) {
            // Nobody emits under the id of a message that was purged: its entries would say what the new one says.
            for id in std::mem::take(&mut emitted) {
                emitted.extend(redis.find_notification(id, 0).await?.map(|_| id));
            }
        }
        if step % 15 == 14 {
            let expected = state(&ports.notifications, &emitted, &places).await?;
            let found = state(&redis, &emitted, &places).await?;
            let differs = expected.iter().zip(&found).find(|(expected, found)| expected != found);
            ensure!(expected.len() == found.len() && differs.is_none(), "after {step}: {differs:?}, after {calls:#?}");
        }
    }
    Ok(())
}
