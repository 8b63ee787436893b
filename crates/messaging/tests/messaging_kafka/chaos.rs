//! Processes with push workers that are killed, frozen and sent away while records come.
//!
//! A few seconds of it are in the suite. `cargo xtask chaos kafka` does it for minutes and prints what became of the records:
//! `RELAIS_CHAOS_MESSAGES`, `RELAIS_CHAOS_FAULTS`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    message::Message as _,
};
use relais_messaging::kafka::{
    CommitPolicy, KafkaConsumerOptions, KafkaProducer, KafkaPushWorker, KafkaRecord, NewRecord, ProducerOptions,
    StartAt,
};
use relais_push_worker::SubscriberError;

use crate::broker::{TOPIC, broker_or_return, create_topic, read};

/// The variable that makes a worker of a test: brokers, and the file of what it has handled.
const WORKER: &str = "RELAIS_TEST_KAFKA_WORKER";

const PARTITIONS: i32 = 6;
const KEYS: usize = 100;
const WORKERS: usize = 3;

/// Longer than a member may be silent.
const FROZEN: Duration = Duration::from_secs(8);

/// Not a test: a worker's process. Without its variable there is nothing to do. It ends when its input does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process() -> Result<()> {
    let Ok(variable) = std::env::var(WORKER) else { return Ok(()) };
    let (brokers, file) = variable.split_once(' ').context("brokers and a file")?;
    let mut topics = KafkaConsumerOptions::new(brokers, "g", [TOPIC]);
    topics.start = StartAt::Earliest;
    topics.session_timeout = Duration::from_secs(6);
    topics.heartbeat = Duration::from_millis(500);
    topics.commit = CommitPolicy::Batched { records: 100, after: Duration::from_millis(100) };
    let log = Arc::new(File::options().append(true).create(true).open(file)?);
    let handle = move |record: Arc<KafkaRecord>| {
        let log = Arc::clone(&log);
        async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let number: u64 = std::str::from_utf8(record.value.as_deref().unwrap())?.parse()?;
            if number.is_multiple_of(97) && record.retry_count < 2 {
                return Err(SubscriberError::retryable("not now"));
            }
            let key = String::from_utf8_lossy(record.key.as_deref().unwrap()).into_owned();
            let time = UNIX_EPOCH.elapsed()?.as_nanos();
            // One write is whole, or not there.
            (&*log).write_all(format!("{time} {key} {number} {} {}\n", record.partition, record.offset).as_bytes())?;
            Ok(())
        }
    };
    let builder = KafkaPushWorker::builder("w").concurrency(32).retry_unit(Duration::from_millis(100));
    let worker = builder.start(topics, handle).await?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    worker.stop().await;
    Ok(())
}

struct Worker {
    process: Child,
    input: Option<ChildStdin>,
}

impl Worker {
    fn start(brokers: &str, file: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", "chaos::worker_process"]).env(WORKER, format!("{brokers} {}", file.display()));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { input: process.stdin.take(), process })
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status()?;
        ensure!(sent.success(), "kill {signal}");
        Ok(())
    }

    /// Lets it finish and leave.
    fn stop(mut self) -> Result<()> {
        drop(self.input.take());
        let status = self.process.wait()?;
        ensure!(status.success(), "a worker ended with {status}");
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SIGKILL. It may have ended before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a handler did.
struct Handled {
    time: u128,
    key: String,
    number: u64,
    place: (i32, i64),
}

fn handled(directory: &Path) -> Result<Vec<Handled>> {
    let mut all = Vec::new();
    for file in fs::read_dir(directory)? {
        for line in fs::read_to_string(file?.path())?.lines() {
            let mut words = line.split(' ');
            let mut next = || words.next().context("a word");
            let (time, key, number) = (next()?.parse()?, next()?.to_owned(), next()?.parse()?);
            all.push(Handled { time, key, number, place: (next()?.parse()?, next()?.parse()?) });
        }
    }
    Ok(all)
}

/// How many records the group has passed that were neither handled nor parked.
async fn passed(brokers: &str, directory: &Path, written: &BTreeMap<i32, BTreeSet<i64>>) -> Result<usize> {
    // First what is committed: what is handled later does not count against it.
    let (address, partitions) = (brokers.to_owned(), PARTITIONS);
    let committed = tokio::task::spawn_blocking(move || -> Result<Vec<i64>> {
        let client: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", &address).set("group.id", "g").create()?;
        let mut list = TopicPartitionList::new();
        list.add_partition_range(TOPIC, 0, partitions - 1);
        let committed = client.committed_offsets(list, Duration::from_secs(20))?;
        let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
        Ok(committed.elements().iter().map(|element| offset(element.offset())).collect())
    });
    let committed = committed.await??;
    let mut safe: BTreeSet<(i32, i64)> = handled(directory)?.into_iter().map(|handled| handled.place).collect();
    for entry in read(brokers, &format!("parked.g.{TOPIC}")).await.unwrap_or_default() {
        let offset = entry.key().and_then(|key| std::str::from_utf8(key).ok()?.split(':').next()?.parse().ok());
        safe.insert((entry.partition(), offset.context("the offset of a parked record")?));
    }
    let passed = |(partition, offsets): (&i32, &BTreeSet<i64>)| {
        let committed = committed[usize::try_from(*partition).unwrap()];
        offsets.range(..committed).filter(|offset| !safe.contains(&(*partition, **offset))).count()
    };
    Ok(written.iter().map(passed).sum())
}

fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

#[tokio::test]
async fn nothing_is_lost_or_passed_while_workers_on_kafka_are_killed() -> Result<()> {
    let server = broker_or_return!("nothing_is_lost_or_passed_while_workers_on_kafka_are_killed");
    let brokers = server.bootstrap_servers();
    let (count, faults) = (setting("RELAIS_CHAOS_MESSAGES", 3_000), setting("RELAIS_CHAOS_FAULTS", 2));
    create_topic(&brokers, TOPIC, PARTITIONS).await?;
    let directory = tempfile::tempdir()?;
    let mut started = 0;
    let mut start = || {
        started += 1;
        Worker::start(&brokers, &PathBuf::from(directory.path()).join(format!("{started}.log")))
    };
    let mut workers = (0..WORKERS).map(|_| start()).collect::<Result<Vec<_>>>()?;
    let producer = KafkaProducer::new(&ProducerOptions::new(&brokers))?;
    let mut written: BTreeMap<i32, BTreeSet<i64>> = BTreeMap::new();
    let (mut next, mut beyond) = (0, 0);
    for fault in 0..=faults {
        let end = if fault == faults { count } else { count * (fault + 1) / (faults + 1) };
        let records = (next..end).map(|n| NewRecord::new(TOPIC, n.to_string()).with_key(format!("k{}", n % KEYS)));
        for answer in producer.send_all(records.collect()).await {
            let delivered = answer?;
            written.entry(delivered.partition).or_default().insert(delivered.offset.context("an offset")?);
        }
        // In the middle of what was written; at the end, all of it.
        let enough = if fault == faults { count } else { next + (end - next) / 2 };
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let numbers: BTreeSet<u64> = handled(directory.path())?.into_iter().map(|handled| handled.number).collect();
            if numbers.len() >= enough {
                break;
            }
            ensure!(Instant::now() < deadline, "{} of {enough} records after {fault} faults", numbers.len());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        next = end;
        beyond += passed(&brokers, directory.path(), &written).await?;
        let one = fault % WORKERS;
        match fault {
            _ if fault == faults => {}
            // Its partitions go to others, and it does not know. Long runs only: it takes its time.
            _ if fault % 5 == 4 => {
                workers[one].signal("-STOP")?;
                tokio::time::sleep(FROZEN).await;
                workers[one].signal("-CONT")?;
            }
            _ if fault % 2 == 1 => std::mem::replace(&mut workers[one], start()?).stop()?,
            _ => workers[one] = start()?,
        }
    }
    for worker in workers {
        worker.stop()?;
    }
    beyond += passed(&brokers, directory.path(), &written).await?;
    let mut all = handled(directory.path())?;
    all.sort_by_key(|handled| handled.time);
    let (mut seen, mut last): (BTreeSet<u64>, HashMap<&str, u64>) = Default::default();
    let mut out_of_order = 0;
    for one in &all {
        if seen.insert(one.number) {
            let before = last.insert(&one.key, one.number);
            out_of_order += usize::from(before.is_some_and(|before| before > one.number));
        }
    }
    println!(
        "{count} records, {faults} faults: {} lost, {out_of_order} out of order, {beyond} passed unfinished, {} repeated",
        count - seen.len(),
        all.len() - seen.len()
    );
    assert_eq!((seen.len(), out_of_order, beyond), (count, 0, 0));
    Ok(())
}
