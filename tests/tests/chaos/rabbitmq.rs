//! Faults while tasks go to workers over RabbitMQ: whatever is killed, every task that was answered 201 ends with one
//! result.
//!
//! Consumers submit over HTTP and wait for their results; workers are on the broker. A task may run twice: that is
//! counted, and is no fault.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use relais_messaging::rabbitmq::{Broker, BrokerOptions, ConsumeOptions, Consumer, Publish, PublishError};
use relais_testkit::{PostgresServer, RabbitMqServer, ServerProcess, TcpProxy, TestVhost};
use relais_tests::{
    amqp,
    chaos::{
        Api, BrokerWorkers, Load, LoadOptions, Random, SERVICE, Watchers, consumer, declare_service, judge, rounds,
        wait_until_drained,
    },
    instance::{Instance, InstanceOptions, command},
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Dispatches reserved for a killed server are taken by others after 15 s, and those that it had taken after 20 s.
const DRAIN: Duration = Duration::from_secs(60);

/// How long it may take until the next tasks are accepted after a fault: as many as there may be wait to be done first.
const RECOVERY: Duration = Duration::from_secs(60);

const WORKERS: usize = 3;

/// What can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Server(usize),
    Worker,
    /// The worker that is a process of its own.
    Process,
    Broker,
    Database,
}

/// Everything that can be killed, and what goes on all the while.
struct World {
    node: RabbitMqServer,
    database: Option<PostgresServer>,
    servers: Vec<Instance>,
    workers: BrokerWorkers,
    process: ServerProcess,
    watchers: Watchers,
    load: Load,
    random: Random,
}

impl World {
    async fn start(
        node: RabbitMqServer,
        database: Option<PostgresServer>,
        urls: &[String],
        queue: &str,
    ) -> Result<Self> {
        let random = Random::new();
        let mut servers = Vec::new();
        for url in urls {
            servers.push(options(&node, url).start().await?);
        }
        let addresses: Vec<String> = servers.iter().map(Instance::url).collect();
        let service = json!({
            "serviceName": SERVICE,
            "transport": "rabbitmq",
            "queue": {"type": queue},
            // What is killed here is not the task's fault.
            "deliveryLimit": 1000,
        });
        // All: whoever is only told of it by another one may be asked first.
        for address in &addresses {
            declare_service(address, service.clone()).await?;
        }
        let load = LoadOptions { workers: 0, library_workers: 0, backlog: 300, ..LoadOptions::default() };
        let load = Load::start(&addresses, load)?;
        let workers = BrokerWorkers::start(&node.url("/"), WORKERS, load.ledger())?;
        let process = worker_process(&node.url("/"))?;
        let watchers = Watchers::start(&addresses, 64, load.ledger())?;
        Ok(Self { node, database, servers, workers, process, watchers, load, random })
    }

    /// Kills all of these at a random moment, told by events and not by a clock, and brings them back.
    async fn strike(&mut self, faults: &[Fault]) -> Result<()> {
        self.load.ledger().more(self.random.between(20, 150), RECOVERY).await?;
        if faults.contains(&Fault::Broker) {
            // A node that is killed within two seconds of a queue's declaration comes back with a queue that is neither
            // there nor gone: that is the broker's, and not what is tried here.
            self.node.write_down().await?;
        }
        for fault in faults {
            match fault {
                Fault::Server(number) => self.servers[*number].kill9()?,
                Fault::Worker => self.workers.kill(self.random.between(0, WORKERS)),
                Fault::Process => self.process.kill9()?,
                Fault::Broker => self.node.kill9()?,
                Fault::Database => self.database.as_mut().context("there is none to kill")?.kill9()?,
            }
        }
        // A server says that it is ready when its database is there.
        if faults.contains(&Fault::Database) {
            self.database.as_mut().context("there is none to start")?.restart().await?;
        }
        for fault in faults {
            match fault {
                Fault::Server(number) => self.servers[*number].restart().await?,
                Fault::Worker => self.workers.replace()?,
                Fault::Process => self.process = worker_process(&self.node.url("/"))?,
                Fault::Broker => self.node.restart().await?,
                Fault::Database => {}
            }
        }
        Ok(())
    }

    /// Each fault alone, in a random order, then two at a time, until there were so many rounds.
    #[expect(clippy::print_stdout, reason = "what a run did, shown when it fails")]
    async fn strike_all(&mut self, faults: &[Fault], rounds: usize) -> Result<usize> {
        let mut struck = 0;
        let mut alone = faults.to_vec();
        for _ in 0..rounds {
            let first = if alone.is_empty() {
                faults[self.random.between(0, faults.len())]
            } else {
                alone.swap_remove(self.random.between(0, alone.len()))
            };
            let mut together = vec![first];
            if alone.is_empty() && struck >= faults.len() {
                let others: Vec<Fault> = faults.iter().copied().filter(|other| *other != first).collect();
                together.push(others[self.random.between(0, others.len())]);
            }
            let begun = Instant::now();
            self.strike(&together).await.with_context(|| format!("{together:?}"))?;
            struck += together.len();
            println!("{together:?}: back after {:?}", begun.elapsed());
        }
        Ok(struck)
    }

    /// Lets everything come to its end, and judges it.
    #[expect(clippy::print_stdout, reason = "what a run did, shown when it fails")]
    async fn verdict(mut self, name: &str, faults: usize) -> Result<()> {
        self.load.ledger().more(100, RECOVERY).await?;
        self.load.stop_consumers().await?;
        let url = self.servers[0].url();
        let begun = Instant::now();
        wait_until_drained(&url, DRAIN).await?;
        let drained = begun.elapsed();
        self.watchers.stop().await;
        let ledger = self.load.stop().await?;
        println!("{name}: {} tasks were done once more; the last ones ended after {drained:?}", ledger.repeats());
        ledger.sent_of_each(|mark| format!("by the process for {mark}"));
        ensure!(self.process.is_running()?, "the worker ended by itself\n{}", self.process.stderr()?);
        for server in &mut self.servers {
            ensure!(server.process().is_running()?, "a server ended by itself\n{}", server.process().stderr()?);
        }
        // All may be done by another server before this one has found the broker again.
        let letters = format!("{url}/admin/deadletters");
        self.servers[0].process().wait_for_http(&letters, RECOVERY).await?;
        let letters = Api::admin(&url)?.get("/admin/deadletters").await?.data()?;
        ensure!(letters["deadLetters"] == json!([]), "what workers said was not understood: {letters}");
        judge(&url, &ledger, faults).await?.report(name)
    }
}

/// A worker that shares nothing with this process, and runs a command for each task.
fn worker_process(broker: &str) -> Result<ServerProcess> {
    let mut command = command()?;
    command
        .args(["worker", "--service", SERVICE, "--host-name", "process", "--concurrency", "2", "--", "sed", "-n"])
        .arg(r#"s/.*"mark":"\([^"]*\)".*/{"result":"by the process for \1"}/p"#)
        .env("RELAIS_BROKER_URL", broker);
    ServerProcess::spawn_command(command)
}

fn options(node: &RabbitMqServer, database: &str) -> InstanceOptions {
    Instance::options(database)
        .env("RELAIS_BROKER_URL", node.url("/"))
        .env("RELAIS_BROKER_MANAGEMENT_URL", node.management_url())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_in_crashes_of_a_server_on_sqlite_its_broker_and_workers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let database = format!("sqlite:{}", folder.path().join("relais.db").display());
    let node = RabbitMqServer::start().await?;
    let mut world = World::start(node, None, &[database], "classic").await?;
    let kinds = [Fault::Server(0), Fault::Worker, Fault::Process, Fault::Broker];
    let faults = world.strike_all(&kinds, rounds(6)).await?;
    world.verdict("RabbitMQ, classic queues, SQLite", faults).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_in_crashes_of_two_servers_on_postgresql_their_broker_and_workers() -> Result<()> {
    let database = PostgresServer::options().fsync(true).start().await?;
    let node = RabbitMqServer::start().await?;
    let urls = [database.url("postgres"), database.url("postgres")];
    let mut world = World::start(node, Some(database), &urls, "quorum").await?;
    let kinds = [Fault::Server(0), Fault::Server(1), Fault::Worker, Fault::Process, Fault::Broker, Fault::Database];
    let faults = world.strike_all(&kinds, rounds(8)).await?;
    world.verdict("RabbitMQ, quorum queues, two servers on PostgreSQL", faults).await
}

/// A connection whose silence the broker notices after two seconds or so.
fn attentive(url: &str) -> Result<Broker> {
    let options = BrokerOptions { heartbeat: Duration::from_secs(1), ..BrokerOptions::default() };
    Ok(Broker::new(url, options)?)
}

async fn take(broker: &Broker) -> Result<(Consumer, Value, bool)> {
    let mut consumer = broker.consume(&format!("{SERVICE}-in"), ConsumeOptions::default()).await?;
    let delivery = timeout(RECOVERY, consumer.next()).await.context("no task comes")??;
    Ok((consumer, serde_json::from_slice(&delivery.body)?, delivery.redelivered))
}

/// Says it, and once more if the connection was lost before the broker confirmed it: as any worker does.
async fn tell(broker: &Broker, task: &Value, data: Value) -> Result<()> {
    let message = json!({"taskId": task["taskId"], "data": data}).to_string();
    let message = Publish::new("", format!("{SERVICE}-out"), message);
    let begun = Instant::now();
    loop {
        match broker.publish(message.clone()).await {
            Err(PublishError::Away { .. }) if begun.elapsed() < RECOVERY => tokio::task::yield_now().await,
            said => return Ok(said?),
        }
    }
}

/// Asks until it is so.
async fn until(what: &str, so: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !so().await? {
        ensure!(begun.elapsed() < RECOVERY, "not so after {RECOVERY:?}: {what}");
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_of_a_silent_worker_goes_to_another_and_the_first_is_fenced() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let folder = tempfile::tempdir()?;
    let database = format!("sqlite:{}", folder.path().join("relais.db").display());
    let server = Instance::options(database).env("RELAIS_BROKER_URL", vhost.url()).start().await?;
    declare_service(&server.url(), json!({"serviceName": SERVICE})).await?;
    let (admin, client) = (Api::admin(server.url())?, consumer(&server.url())?);
    let submission = json!({"body": {"sleep": 600}});
    let task = client.post(&format!("/v1/services/{SERVICE}/tasks"), &submission).await?.data()?;
    let path = format!("/admin/tasks/{}", task["taskId"].as_str().context("a task without a name")?);
    let view = async || admin.get(&path).await?.data();

    let other = amqp::broker(vhost.url());
    let queue = format!("{SERVICE}-in");
    until("there is a queue of tasks", async || Ok(other.find(&queue).await?.is_some())).await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let silent = attentive(&vhost.url_via(proxy.addr())?)?;
    let (_held, task, again) = take(&silent).await?;
    ensure!(!again, "nobody had it before");
    tell(&silent, &task, json!({"messageType": "started", "hostName": "silent"})).await?;
    until("the silent one has it", async || Ok(view().await?["workerHost"] == "silent")).await?;
    proxy.stall().await?;

    let frozen = Instant::now();
    let (held, again_task, again) = take(&other).await?;
    let noticed = frozen.elapsed();
    println!("a silent worker: its task was another's after {noticed:?}, with a heartbeat of 1 s");
    ensure!(again && again_task["taskId"] == task["taskId"], "another task: {again_task}");
    ensure!(noticed < Duration::from_secs(30), "the broker took {noticed:?}");
    tell(&other, &task, json!({"messageType": "started", "hostName": "other"})).await?;
    until("the other one has it", async || Ok(view().await?["workerHost"] == "other")).await?;
    let seen = view().await?;
    ensure!((&seen["attempt"], &seen["losses"]) == (&json!(2), &json!(1)), "{seen}");
    tell(&other, &task, json!({"messageType": "success", "response": {"result": "the other's"}})).await?;
    drop(held);
    until("it has ended", async || Ok(view().await?["task"]["status"] == "SUCCESS")).await?;

    proxy.restore().await?;
    tell(&silent, &task, json!({"messageType": "success", "response": {"result": "late"}})).await?;
    until("the late result was heard", async || {
        let metrics = admin.request(reqwest::Method::GET, "/metrics").send().await?.text().await?;
        let ended = format!("relais_worker_messages_total{{service=\"{SERVICE}\",outcome=\"ended\"}}");
        Ok(metrics.lines().any(|line| line.starts_with(&ended)))
    })
    .await?;
    let seen =
        client.get(&format!("/v1/services/{SERVICE}/tasks/{}", task["taskId"].as_str().unwrap_or_default())).await?;
    ensure!(seen.body["data"]["response"]["result"] == "the other's", "{}", seen.body);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_is_published_again_to_a_broker_that_lost_its_disk() -> Result<()> {
    const TASKS: usize = 10_000;
    let mut node = RabbitMqServer::start().await?;
    let folder = tempfile::tempdir()?;
    let database = format!("sqlite:{}", folder.path().join("relais.db").display());
    let server = options(&node, &database).start().await?;
    declare_service(&server.url(), json!({"serviceName": SERVICE})).await?;
    let client = consumer(&server.url())?;
    let batch = json!({"tasks": vec![json!({"body": {}}); 1000]});
    let mut submitted = BTreeSet::new();
    while submitted.len() < TASKS {
        let taken = client.post(&format!("/v1/services/{SERVICE}/tasks/batch"), &batch).await?.data()?;
        let names = taken["tasks"].as_array().into_iter().flatten().filter_map(|task| task["data"]["taskId"].as_str());
        submitted.extend(names.map(str::to_owned));
    }
    let broker = amqp::broker(&node.url("/"));
    let waiting = async || {
        let found = broker.find(&format!("{SERVICE}-in")).await;
        Ok(found.ok().flatten().is_some_and(|queue| queue.messages as usize >= TASKS))
    };
    until("all are in the queue", waiting).await?;
    node.start_anew().await?;
    let begun = Instant::now();
    until("all are in the queue again", waiting).await?;
    println!("a broker that lost its disk: {TASKS} tasks were in its queue again after {:?}", begun.elapsed());

    let every = ConsumeOptions { prefetch: 0, ..ConsumeOptions::default() };
    let mut consumer = broker.consume(&format!("{SERVICE}-in"), every).await?;
    let mut came = BTreeSet::new();
    while came.len() < TASKS {
        let delivery = timeout(RECOVERY, consumer.next()).await.context("some are missing")??;
        came.extend(delivery.message_id);
    }
    ensure!(came == submitted, "others came than were submitted");
    Ok(())
}
