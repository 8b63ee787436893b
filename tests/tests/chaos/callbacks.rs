//! Faults while callbacks are sent: whatever is killed or cut off, every requested callback is sent.
//!
//! Consumers submit tasks with a callback and end them; a receiver accepts some callbacks, refuses some, leaves some
//! without an answer and closes the connection on others. An accepted callback may come again, under the same id and
//! with the same content: that is counted, and is no fault. `doubled` counts tasks with callbacks under two ids or in
//! two versions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_testkit::{TcpProxy, TestDatabase};
use relais_tests::{
    chaos::{Answer, Api, Random, SERVICE, Verdict, consumer, declare, rounds},
    instance::{Instance, InstanceOptions},
    receiver::{Received, Receiver, Reply},
};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet, time::timeout};

/// What a killed server was sending is sent again after three of these and 5 s.
const TIMEOUT: &str = "500ms";

/// How long it may take after a fault until the next callbacks are taken: the lease of what was under way, and then
/// some.
const RECOVERY: Duration = Duration::from_secs(30);

const CONSUMERS: usize = 6;

/// As many ended tasks may be untold before consumers hold back. A killed server keeps about 80 from the others for a
/// while.
const BACKLOG: usize = 600;

/// What the receiver does with a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Take,
    Refuse,
    Hold,
    Cut,
}

impl Act {
    /// By the task's number and how often it was told before. From the third time on it is taken, so that no schedule
    /// ends.
    fn of(number: u64, turn: usize) -> Self {
        match (number * 7 % 20, turn) {
            (0 | 1, 0) | (2, 1) => Self::Refuse,
            (2 | 3, 0) | (4, 1) => Self::Hold,
            (4 | 5, 0) | (0, 1) => Self::Cut,
            _ => Self::Take,
        }
    }

    fn reply(self) -> Reply {
        match self {
            Self::Take => Reply::status(204),
            Self::Refuse => Reply::status(500),
            // Never let go: until the server gives up, or is killed.
            Self::Hold => Reply::status(204).held(),
            Self::Cut => Reply::cut(),
        }
    }
}

/// What happened so far, as it is known outside of the servers.
#[derive(Debug, Default)]
struct Tally {
    /// Tasks that ended, by their numbers: their names, and how they ended.
    ended: HashMap<u64, (String, &'static str)>,
    /// How often the callback of each came.
    told: HashMap<u64, usize>,
    /// Those that were taken.
    taken: HashSet<u64>,
    /// How often one came that had been taken.
    again: usize,
    acts: BTreeMap<Act, usize>,
}

impl Tally {
    fn act(&mut self, number: u64) -> Act {
        let turn = self.told.entry(number).or_default();
        let act = Act::of(number, *turn);
        *turn += 1;
        *self.acts.entry(act).or_default() += 1;
        if self.taken.contains(&number) {
            self.again += 1;
        } else if act == Act::Take {
            self.taken.insert(number);
        }
        act
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (came, Self { again, acts, .. }) = (self.told.values().sum::<usize>(), self);
        write!(f, "{came} callbacks came ({acts:?}), {again} of them again after they were taken")
    }
}

fn number(received: &Received) -> Option<u64> {
    received.path.strip_prefix("/told/")?.parse().ok()
}

/// Consumers at work, and the receiver of their callbacks.
struct World {
    receiver: Receiver,
    tally: Arc<watch::Sender<Tally>>,
    /// Whether it is worth trying.
    up: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    consumers: JoinSet<Result<()>>,
}

impl World {
    async fn new() -> Result<Self> {
        let (receiver, tally) = (Receiver::start().await?, Arc::new(watch::Sender::new(Tally::default())));
        let book = Arc::clone(&tally);
        receiver.answering(move |received| {
            let mut act = Act::Refuse;
            if let Some(number) = number(received) {
                book.send_modify(|tally| act = tally.act(number));
            }
            act.reply()
        });
        let (up, stop) = (watch::Sender::new(true), watch::Sender::new(false));
        Ok(Self { receiver, tally, up, stop, consumers: JoinSet::new() })
    }

    /// A server that may call this receiver, with short retries.
    fn options(&self, database: impl Into<String>) -> InstanceOptions {
        let retries = ["100ms", "200ms"].into_iter().chain(std::iter::repeat_n("300ms", 18));
        Instance::options(database)
            .env("RELAIS_CALLBACKS_TIMEOUT", TIMEOUT)
            .env("RELAIS_CALLBACKS_RETRIES", retries.collect::<Vec<_>>().join(","))
            .env("RELAIS_CALLBACKS_PARK_FIRST", "100ms")
            .env("RELAIS_CALLBACKS_PARK_MOST", "500ms")
            .env("RELAIS_CALLBACKS_ALLOW_HTTP", "true")
            .env("RELAIS_CALLBACKS_ALLOW_NETWORKS", "127.0.0.0/8")
            .env("RELAIS_CALLBACKS_PORTS", self.receiver.address().port().to_string())
    }

    /// Starts consumers that use these servers, turn about.
    async fn start(&mut self, servers: &[&Instance]) -> Result<()> {
        declare(&servers[0].url(), "60s").await?;
        let apis = servers.iter().map(|server| consumer(&server.url())).collect::<Result<Vec<_>>>()?;
        for api in &apis {
            until("it knows the service", async || Ok(api.get(&path("")).await?.status == 200)).await?;
        }
        for first in 0..CONSUMERS {
            let consumer = Consumer {
                apis: apis.clone(),
                url: self.receiver.url("/told"),
                tally: Arc::clone(&self.tally),
                up: self.up.subscribe(),
                stop: self.stop.subscribe(),
            };
            self.consumers.spawn(consumer.run(first as u64));
        }
        Ok(())
    }

    /// Returns when so many more callbacks were accepted.
    async fn more(&self, tasks: usize) -> Result<()> {
        let goal = self.tally.borrow().taken.len() + tasks;
        let mut seen = self.tally.subscribe();
        let reached = timeout(RECOVERY, seen.wait_for(|tally| tally.taken.len() >= goal)).await.map(drop);
        reached.with_context(|| format!("{tasks} more should be taken within {RECOVERY:?}: {}", *self.tally.borrow()))
    }

    /// Ends it, waits until every callback is sent, and judges what the server says and what came.
    #[expect(clippy::print_stdout, reason = "the result of a run, also when it is good")]
    async fn verdict(mut self, url: &str, name: &str, faults: usize) -> Result<()> {
        self.stop.send_replace(true);
        while let Some(ended) = timeout(RECOVERY, self.consumers.join_next()).await.context("consumers hang")? {
            ended.context("a consumer panicked")??;
        }
        let begun = Instant::now();
        let mut seen = self.tally.subscribe();
        // If not, the verdict says which.
        let all = |tally: &Tally| tally.ended.keys().all(|number| tally.taken.contains(number));
        let _ = timeout(RECOVERY, seen.wait_for(all)).await.map(drop);
        let admin = Api::admin(url)?;
        let pending = "/admin/callbacks?status=PENDING&limit=1";
        let noted = async || Ok(admin.get(pending).await?.data()?["callbacks"] == json!([]));
        let _ = until("nothing is to be told", noted).await;
        let drained = begun.elapsed();

        let mut verdict = Verdict { tasks: self.tally.borrow().ended.len(), faults, ..Verdict::default() };
        judge_stored(&stored(&admin).await?, &self.tally.borrow(), &mut verdict);
        judge_arrived(&self.receiver.received(), &self.tally.borrow(), &mut verdict);
        println!("{name}: {}; all was told {drained:?} after the last task", *self.tally.borrow());
        for act in [Act::Take, Act::Refuse, Act::Hold, Act::Cut] {
            ensure!(self.tally.borrow().acts.contains_key(&act), "this run proves nothing: there was no {act:?}");
        }
        verdict.report(name)
    }
}

fn path(rest: &str) -> String {
    format!("/v1/services/{SERVICE}{rest}")
}

/// Asks until it is so.
async fn until(what: &str, mut so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !so().await? {
        ensure!(begun.elapsed() < RECOVERY, "after {RECOVERY:?} it is not so that {what}");
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Submits tasks, and ends each: none is left over.
struct Consumer {
    apis: Vec<Api>,
    url: String,
    tally: Arc<watch::Sender<Tally>>,
    up: watch::Receiver<bool>,
    stop: watch::Receiver<bool>,
}

impl Consumer {
    async fn run(mut self, first: u64) -> Result<()> {
        let mut tally = self.tally.subscribe();
        for number in (first..).step_by(CONSUMERS) {
            tokio::select! {
                room = tally.wait_for(|tally| tally.ended.len() < tally.taken.len() + BACKLOG) => drop(room?),
                stop = self.stop.wait_for(|stop| *stop) => return stop.map(drop).context("nobody says when to stop"),
            }
            let ended = self.one(number).await?;
            self.tally.send_modify(|tally| drop(tally.ended.insert(number, ended)));
        }
        Ok(())
    }

    async fn one(&mut self, number: u64) -> Result<(String, &'static str)> {
        let callback = json!({"type": "http", "url": format!("{}/{number}", self.url)});
        let submission = json!({"body": {"number": number}, "callback": callback});
        let key = format!("task-{number}");
        let submit =
            |api: &Api| api.request(Method::POST, &path("/tasks")).header("Idempotency-Key", &key).json(&submission);
        let task = self.answered(number, submit).await?.data()?;
        let task = task["taskId"].as_str().context("a task without a name")?.to_owned();
        let (kind, status) = match number % 7 {
            3 => ("failure", "FAILURE"),
            5 => ("", "CANCELLED"),
            _ => ("success", "SUCCESS"),
        };
        if kind.is_empty() {
            let cancel = |api: &Api| api.request(Method::DELETE, &path(&format!("/tasks/{task}")));
            let answer = self.answered(number, cancel).await?;
            // The second time, if the answer to the first was lost, it has ended already.
            ensure!(matches!(answer.status, 200 | 409), "{}: {}", answer.status, answer.body);
        } else {
            let said = format!("number {number}");
            let data = json!({"messageType": kind, "response": {"said": said}, "errorMessage": said});
            let message = json!({"taskId": task, "data": data});
            let end = |api: &Api| api.request(Method::POST, &path("/messages")).json(&message);
            let outcomes = self.answered(number, end).await?.data()?;
            let outcome = outcomes["outcomes"][0]["outcome"].as_str();
            ensure!(matches!(outcome, Some("accepted" | "ended")), "{outcomes}");
        }
        Ok((task, status))
    }

    /// Tries until there is an answer, server by server.
    async fn answered(&mut self, first: u64, request: impl Fn(&Api) -> RequestBuilder) -> Result<Answer> {
        for turn in first as usize.. {
            match Api::send(request(&self.apis[turn % self.apis.len()])).await {
                Ok(answer) if answer.status != 503 => return Ok(answer),
                _ => drop(timeout(RECOVERY, self.up.wait_for(|up| *up)).await.context("nothing comes back")??),
            }
        }
        unreachable!("turns do not end")
    }
}

/// All tasks, by their names.
async fn stored(admin: &Api) -> Result<BTreeMap<String, Value>> {
    let (mut stored, mut cursor) = (BTreeMap::new(), String::new());
    loop {
        let page = admin.get(&format!("/admin/tasks?service={SERVICE}&limit=200{cursor}")).await?.data()?;
        for entry in page["tasks"].as_array().context("a page without tasks")? {
            let task_id = entry["task"]["taskId"].as_str().context("a task without a name")?;
            stored.insert(task_id.to_owned(), entry.clone());
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(stored),
        }
    }
}

/// What the server says: every task ended as it should, and its callback was delivered.
fn judge_stored(stored: &BTreeMap<String, Value>, tally: &Tally, verdict: &mut Verdict) {
    for (task, status) in tally.ended.values() {
        let Some(entry) = stored.get(task) else {
            verdict.lost += 1;
            verdict.findings.push(format!("task {task} ended and is not there"));
            continue;
        };
        if entry["task"]["status"] != *status {
            verdict.findings.push(format!("task {task} should be {status}: {entry}"));
        }
        match entry["notificationStatus"].as_str() {
            Some("SUCCESS") => continue,
            Some("PENDING") => verdict.stuck += 1,
            _ => verdict.lost += 1,
        }
        verdict.findings.push(format!("the end of task {task} is not told: {entry}"));
    }
    let known: HashSet<&String> = tally.ended.values().map(|(task, _)| task).collect();
    for task in stored.keys().filter(|task| !known.contains(task)) {
        verdict.doubled += 1;
        verdict.findings.push(format!("task {task} is nobody's"));
    }
}

/// What came: everything, as it is, and what came twice is the same.
fn judge_arrived(received: &[Received], tally: &Tally, verdict: &mut Verdict) {
    let mut arrived: BTreeMap<u64, Vec<&Received>> = BTreeMap::new();
    for one in received {
        match number(one) {
            Some(number) => arrived.entry(number).or_default().push(one),
            None => verdict.findings.push(format!("nobody asked for this: {one:?}")),
        }
    }
    for (number, (task, status)) in &tally.ended {
        let all = arrived.remove(number).unwrap_or_default();
        if !tally.taken.contains(number) {
            verdict.lost += 1;
            verdict.findings.push(format!("number {number}, task {task}, came {} times, never taken", all.len()));
        }
        let versions: BTreeSet<(&str, &str)> = all.iter().map(|one| (one.id(), one.body.as_str())).collect();
        if versions.len() > 1 {
            verdict.doubled += 1;
            verdict.findings.push(format!("number {number} was told in several ways: {versions:?}"));
        }
        for (id, body) in versions {
            let told: Value = serde_json::from_str(body).unwrap_or_default();
            let right = told["taskId"] == *task && told["status"] == *status && id.starts_with(task.as_str());
            let said = json!(format!("number {number}"));
            let said = match *status {
                "SUCCESS" => told["response"]["said"] == said,
                "FAILURE" => told["errorMessage"] == said,
                _ => true,
            };
            if !(right && said) {
                verdict.findings.push(format!("number {number}, task {task}, {status}, was told as {id}: {body}"));
            }
        }
    }
    for (number, all) in arrived {
        verdict.findings.push(format!("number {number} was told and did not end: {all:?}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_callback_is_sent_when_the_server_on_sqlite_crashes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (mut random, faults) = (Random::new(), rounds(4));
    let mut world = World::new().await?;
    let database = format!("sqlite:{}", folder.path().join("relais.db").display());
    let mut server = world.options(database).start().await?;
    world.start(&[&server]).await?;
    for _ in 0..faults {
        // A random moment, told by events and not by a clock.
        world.more(random.between(30, 150)).await?;
        world.up.send_replace(false);
        server.kill9()?;
        server.restart().await?;
        world.up.send_replace(true);
    }
    world.more(50).await?;
    world.verdict(&server.url(), "callbacks, kill -9 of the server, SQLite", faults).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_callback_is_sent_when_one_of_two_servers_on_postgresql_crashes() -> Result<()> {
    let database = TestDatabase::create().await?;
    let (mut random, faults) = (Random::new(), rounds(4));
    let mut world = World::new().await?;
    let one = world.options(database.url()).start().await?;
    let mut servers = [one, world.options(database.url()).start().await?];
    let [one, two] = &servers;
    world.start(&[one, two]).await?;
    for round in 0..faults {
        world.more(random.between(30, 150)).await?;
        let server = &mut servers[round % 2];
        server.kill9()?;
        // The other one goes on by itself.
        world.more(random.between(10, 100)).await?;
        server.restart().await?;
    }
    world.more(50).await?;
    world.verdict(&servers[0].url(), "callbacks, kill -9 of one of two servers, PostgreSQL", faults).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_callback_is_sent_when_postgresql_is_cut_off_for_a_moment() -> Result<()> {
    let database = TestDatabase::create().await?;
    let proxy = TcpProxy::start(database.server_addr()?).await?;
    let (mut random, faults) = (Random::new(), rounds(3));
    let mut world = World::new().await?;
    let mut server = world.options(database.url_via(proxy.addr())?).start().await?;
    world.start(&[&server]).await?;
    let admin = Api::admin(server.url())?;
    for _ in 0..faults {
        world.more(random.between(30, 150)).await?;
        world.up.send_replace(false);
        proxy.cut().await?;
        until("the server knows", async || Ok(admin.get("/readyz").await?.status == 503)).await?;
        proxy.restore().await?;
        world.up.send_replace(true);
    }
    world.more(50).await?;
    ensure!(server.process().is_running()?, "a server does not end because its database is away");
    world.verdict(&server.url(), "callbacks, PostgreSQL cut off", faults).await
}

/// The judge itself: what it is there to find, it finds.
#[test]
fn the_judge_notices_lost_duplicate_and_stuck_callbacks() {
    let received = |number: u64, id: &str, status: &str| Received {
        path: format!("/told/{number}"),
        headers: BTreeMap::from([("webhook-id".to_owned(), id.to_owned())]),
        body: json!({"taskId": format!("t{number}"), "status": status}).to_string(),
    };
    let stored = |told: &str| json!({"task": {"status": "CANCELLED"}, "notificationStatus": told});
    let mut tally = Tally::default();
    for number in 0..6 {
        tally.ended.insert(number, (format!("t{number}"), "CANCELLED"));
        tally.taken.insert(number);
    }
    tally.taken.remove(&3);
    let told = ["SUCCESS", "PENDING", "FAILURE", "SUCCESS", "SUCCESS", "SUCCESS"].map(stored);
    let told = told.into_iter().enumerate().map(|(number, entry)| (format!("t{number}"), entry)).collect();
    let mut verdict = Verdict { tasks: 6, faults: 1, ..Verdict::default() };
    judge_stored(&told, &tally, &mut verdict);
    assert_eq!((verdict.lost, verdict.doubled, verdict.stuck), (1, 0, 1), "{:?}", verdict.findings);

    let mut came: Vec<Received> =
        [0, 0, 1, 2, 3].map(|number| received(number, &format!("t{number}-1"), "CANCELLED")).into();
    came.extend([received(4, "t4-1", "CANCELLED"), received(4, "t4-2", "CANCELLED"), received(5, "t5-1", "SUCCESS")]);
    let mut verdict = Verdict { tasks: 6, faults: 1, ..Verdict::default() };
    judge_arrived(&came, &tally, &mut verdict);
    assert_eq!((verdict.lost, verdict.doubled, verdict.stuck), (1, 1, 0), "{:?}", verdict.findings);
    assert!(verdict.findings.iter().any(|finding| finding.starts_with("number 5")), "{:?}", verdict.findings);
    assert!(verdict.report("tampered with").is_err());
}
