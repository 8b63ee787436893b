//! Many emitters, two instances, links that break: each user gets each entry once per chain of links and cursors, in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use relais_notify::NotificationOptions;
use relais_testkit::Random;
use relais_tests::app::{Backend, Caller};
use serde_json::{Value, json};

use crate::{
    link::{Event, Link},
    stage::{NOTIFICATIONS, Stage, required, text, to},
};

const USERS: usize = 10;
const LINKS_EACH: usize = 2;
const EMITTERS: usize = 4;
const MESSAGES: usize = 2000;
const GROUPS: usize = 3;

/// What was accepted, for whom: by the message's id.
type Accepted = BTreeMap<String, BTreeSet<usize>>;

fn name(user: usize) -> String {
    format!("u{user}")
}

/// User 7 is in the groups 0 and 1: whose bits are set.
fn members(group: usize) -> impl Iterator<Item = usize> {
    (0..USERS).filter(move |user| (user + 1) & (1 << group) > 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_user_gets_each_message_once_in_order_over_two_instances() {
    let mut random = Random::new();
    // What is sent again would count as doubled, and a busy machine may take longer than 30 s for all of it.
    let patient = |options: &mut NotificationOptions| options.ack_timeout = Duration::from_secs(3600);
    let here = Stage::with(Backend::Postgres, |options| {
        options.hub.tail_entries = 150;
        patient(options);
    })
    .await;
    let there = here.beside(patient).await;
    for group in 0..GROUPS {
        let users: Vec<String> = members(group).map(name).collect();
        here.join(&format!("g{group}"), &users.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let mut callers = Vec::new();
    for user in 0..USERS {
        // A ticket of one instance is one of the other.
        let ticket = here.ticket(&name(user)).await;
        callers.push([here.bearing(&ticket), there.bearing(&ticket)]);
    }
    let begun = Link::open(&callers[0][0], None).await.cursor;
    let (reconnects, failed_acks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let started = Instant::now();
    let mut readers = Vec::new();
    for link in 0..USERS * LINKS_EACH {
        let user = link % USERS;
        let reader = Reader {
            callers: callers[user].clone(),
            random: Random::from_seed(random.bits()),
            cursor: begun.clone(),
            reconnects: Arc::clone(&reconnects),
            failed_acks: Arc::clone(&failed_acks),
            acknowledged: BTreeSet::new(),
        };
        readers.push((user, tokio::spawn(reader.read())));
    }
    let mut emitters = Vec::new();
    for emitter in 0..EMITTERS {
        let shops = [here.shop.clone(), there.shop.clone()];
        emitters.push(tokio::spawn(emit(emitter, shops, Random::from_seed(random.bits()))));
    }
    let mut accepted = Accepted::new();
    for emitter in emitters {
        accepted.extend(emitter.await.expect("it is there"));
    }
    let all: Vec<String> = (0..USERS).map(name).collect();
    let end = there.emit(&to("USER", &all.iter().map(String::as_str).collect::<Vec<_>>(), json!("end"))).await;
    accepted.insert(end, (0..USERS).collect());

    let (mut lost, mut doubled, mut out_of_order, mut deliveries) = (0, 0, 0, 0);
    let mut acknowledged: Vec<BTreeSet<String>> = vec![BTreeSet::new(); USERS];
    for (user, reader) in readers {
        let (events, acks) = reader.await.expect("it is there");
        acknowledged[user].extend(acks);
        let positions: Vec<u64> = events.iter().map(position).collect();
        out_of_order += positions.windows(2).filter(|pair| pair[0] > pair[1]).count();
        let sent: Vec<String> =
            events.iter().filter(|event| event.name == "notification").map(Event::message).collect();
        let once: BTreeSet<&String> = sent.iter().collect();
        deliveries += sent.len();
        doubled += positions.windows(2).filter(|pair| pair[0] == pair[1]).count() + sent.len() - once.len();
        lost += accepted.iter().filter(|(id, users)| users.contains(&user) && !once.contains(id)).count();
        let foreign = sent.iter().filter(|id| !accepted.get(*id).is_some_and(|users| users.contains(&user))).count();
        assert_eq!(foreign, 0, "{user} got what is for others");
    }
    let (reconnects, failed) = (reconnects.load(Ordering::Relaxed), failed_acks.load(Ordering::Relaxed));
    println!(
        "fan-in: 2 instances, {EMITTERS} emitters, {} links, {} messages, {deliveries} deliveries, {reconnects} reconnects, \
         {} acknowledgements ({failed} failed and repeated), lost {lost}, doubled {doubled}, out of order {out_of_order}, {:?}",
        USERS * LINKS_EACH,
        accepted.len(),
        acknowledged.iter().map(BTreeSet::len).sum::<usize>(),
        started.elapsed(),
    );
    assert_eq!((lost, doubled, out_of_order), (0, 0, 0));
    assert!(reconnects > 200, "{reconnects}");
    assert_eq!(failed, 0, "an acknowledgement failed though nothing was away");
    // What was acknowledged is what the ledger says.
    for user in 0..USERS {
        let counts = callers[user][1].get("/v1/notifications/counts").await.data();
        let of_user = accepted.values().filter(|users| users.contains(&user)).count();
        assert_eq!(counts["all"], of_user, "{user}");
        assert_eq!(counts["unread"], of_user - acknowledged[user].len(), "{user}");
    }
}

/// The position of the log that a cursor names. It is opaque to pages; a test may look.
fn position(event: &Event) -> u64 {
    let cursor = event.id.as_deref().unwrap_or_else(|| panic!("an event without a cursor: {event:?}"));
    u64::from_str_radix(cursor.split_once('-').map_or("", |(_, position)| position), 16).expect("it is there")
}

async fn emit(emitter: usize, shops: [Caller; 2], mut random: Random) -> Accepted {
    let mut accepted = Accepted::new();
    let mut left = MESSAGES / EMITTERS;
    while left > 0 {
        let mut drafts = Vec::new();
        let mut users = Vec::new();
        for n in 0..(1 + random.below(10)).min(left) {
            let payload = json!({"emitter": emitter, "left": left, "n": n});
            let make = if random.once_in(5) { required } else { to };
            let (draft, to) = match random.below(3) {
                0 => {
                    let group = random.below(GROUPS);
                    (make("GROUP", &[&format!("g{group}")], payload), members(group).collect())
                }
                1 => {
                    let groups = ["g0", "g1", "g2"];
                    (make("GROUP", &groups, payload), (0..GROUPS).flat_map(members).collect::<BTreeSet<_>>())
                }
                _ => {
                    let (one, other) = (random.below(USERS), random.below(USERS));
                    (make("USER", &[&name(one), &name(other)], payload), [one, other].into())
                }
            };
            drafts.push(draft);
            users.push(to);
        }
        left -= drafts.len();
        let answer = random.pick(&shops).post(NOTIFICATIONS, &json!(drafts)).await.data();
        let ids: Vec<String> = answer["ids"].as_array().into_iter().flatten().map(text).collect();
        accepted.extend(ids.into_iter().zip(users));
    }
    accepted
}

/// A page that comes back with its last cursor, whichever instance answers.
struct Reader {
    callers: [Caller; 2],
    random: Random,
    cursor: String,
    reconnects: Arc<AtomicUsize>,
    failed_acks: Arc<AtomicUsize>,
    acknowledged: BTreeSet<String>,
}

impl Reader {
    /// Reads to the end; all events, and what was acknowledged.
    async fn read(mut self) -> (Vec<Event>, BTreeSet<String>) {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let caller = self.random.pick(&self.callers).clone();
            let some = 1 + self.random.below(60);
            let read = match self.random.once_in(4) {
                true => self.poll(&caller).await,
                false => self.stream(&caller, some).await,
            };
            self.reconnects.fetch_add(1, Ordering::Relaxed);
            for event in read {
                assert!(["notification", "acknowledged"].contains(&event.name.as_str()), "{event:?}");
                if event.data["routing"]["retry"]["ack_required"] == true && self.random.once_in(10) {
                    self.acknowledge(&event.message()).await;
                }
                events.push(event);
            }
            if events.iter().any(|event| event.data["payload"] == "end") {
                // An acknowledgement behind the end is nobody's to wait for.
                let end = events.iter().position(|event| event.data["payload"] == "end").expect("it is there");
                events.truncate(end + 1);
                return (events, self.acknowledged);
            }
        }
    }

    async fn stream(&mut self, caller: &Caller, some: usize) -> Vec<Event> {
        let mut link = Link::open(caller, Some(&self.cursor)).await;
        let mut read = Vec::new();
        while read.len() < some {
            let Some(event) = link.next().await else { break };
            let is_end = event.data["payload"] == "end";
            read.push(event);
            if is_end {
                break;
            }
        }
        self.cursor.clone_from(&link.cursor);
        read
    }

    async fn poll(&mut self, caller: &Caller) -> Vec<Event> {
        let answer = caller.get(&format!("/v1/notifications/poll?after={}&wait=1s", self.cursor)).await.data();
        self.cursor = text(&answer["cursor"]);
        let events = answer["events"].as_array().into_iter().flatten();
        let event = |event: &Value| Event {
            name: text(&event["event"]),
            id: event["id"].as_str().map(str::to_owned),
            data: event["data"].clone(),
        };
        events.map(event).collect()
    }

    async fn acknowledge(&mut self, id: &str) {
        let path = format!("{NOTIFICATIONS}/{id}/ack");
        while self.random.pick(&self.callers).post_nothing(&path).await.status != 200 {
            self.failed_acks.fetch_add(1, Ordering::Relaxed);
        }
        self.acknowledged.insert(id.to_owned());
    }
}
