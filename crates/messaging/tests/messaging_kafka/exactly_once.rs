//! Read, process, write: each record's result is seen once, whichever worker is killed.
//!
//! The broker is not killed: the one of the tests forgets offsets that were given to an open transaction when it is killed, and
//! then commits the records without them.

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdkafka::Message as _;
use relais_messaging::kafka::{
    ExactlyOnceOptions, ExactlyOnceWorker, KafkaConsumerOptions, KafkaProducer, NewRecord, ProducerOptions, StartAt,
    TransactionOptions,
};

use crate::broker::{broker_or_return, create_topic, read};

/// The variable that makes a worker of a test: brokers, and the worker's name.
const WORKER: &str = "RELAIS_TEST_EXACTLY_ONCE";

fn options(brokers: &str, name: &str) -> ExactlyOnceOptions {
    let mut consumer = KafkaConsumerOptions::new(brokers, "g", ["in"]);
    consumer.start = StartAt::Earliest;
    consumer.session_timeout = Duration::from_secs(6);
    consumer.heartbeat = Duration::from_millis(500);
    let timeout = Duration::from_secs(10);
    let transactions = TransactionOptions { timeout, ..TransactionOptions::new(brokers, name) };
    ExactlyOnceOptions { batch: 20, ..ExactlyOnceOptions::new(consumer, transactions) }
}

fn start(brokers: &str, name: &str) -> Result<ExactlyOnceWorker> {
    Ok(ExactlyOnceWorker::start(options(brokers, name), |records| async move {
        // Long enough to be killed in the middle.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let results = records.iter().map(|record| NewRecord {
            key: record.key.clone(),
            value: record.value.clone(),
            ..NewRecord::new("out", "")
        });
        Ok(results.collect())
    })?)
}

/// Not a test: a worker's process, which the test below starts and kills. Without its variable there is nothing to do.
#[tokio::test]
async fn worker_process() -> Result<()> {
    let Ok(variable) = std::env::var(WORKER) else { return Ok(()) };
    let (brokers, name) = variable.split_once(' ').context("brokers and a name")?;
    let worker = start(brokers, name)?;
    while worker.is_running() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    worker.stop().await?;
    Ok(())
}

struct Worker(Child);

impl Worker {
    fn start(brokers: &str, name: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", "exactly_once::worker_process"]).env(WORKER, format!("{brokers} {name}"));
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SIGKILL. It may have ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn each_record_becomes_one_result_while_workers_are_killed() -> Result<()> {
    let server = broker_or_return!("each_record_becomes_one_result_while_workers_are_killed");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, "in", 2).await?;
    create_topic(&brokers, "out", 2).await?;
    let producer = KafkaProducer::new(&ProducerOptions::new(&brokers))?;
    let count = 300;
    let all = (0..count).map(|n| NewRecord::new("in", n.to_string()).with_key(format!("k{}", n % 50)));
    for answer in producer.send_all(all.collect()).await {
        answer?;
    }
    let mut worker = Worker::start(&brokers, "w-0")?;
    let deadline = Instant::now() + Duration::from_secs(180);
    let (mut faults, mut seen) = (0, 0);
    while seen < count {
        ensure!(Instant::now() < deadline, "{seen} of {count} results after {faults} faults");
        tokio::time::sleep(Duration::from_millis(250)).await;
        seen = read(&brokers, "out").await.map_or(seen, |results| results.len());
        // Once something was done, and before everything is.
        if seen > faults * count / 3 && faults < 2 {
            // With a transaction open, most likely.
            drop(worker);
            worker = Worker::start(&brokers, "w-0")?;
            faults += 1;
        }
    }
    ensure!(faults == 2, "{faults} faults");
    drop(worker);
    let results = read(&brokers, "out").await?;
    let mut of_key: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
    for result in &results {
        let number = std::str::from_utf8(result.payload().unwrap())?.parse()?;
        of_key.entry(result.key().unwrap().to_vec()).or_default().push(number);
    }
    assert_eq!(results.len(), count);
    assert_eq!(of_key.len(), 50);
    for (key, numbers) in of_key {
        assert!(numbers.is_sorted() && numbers.len() == count / 50, "{key:?}: {numbers:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_batch_that_fails_leaves_nothing_and_is_processed_again() -> Result<()> {
    let server = broker_or_return!("a_batch_that_fails_leaves_nothing_and_is_processed_again");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, "in", 1).await?;
    create_topic(&brokers, "out", 1).await?;
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&tries);
    let worker = ExactlyOnceWorker::start(options(&brokers, "w"), move |records| {
        let tries = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            // The first time a record is written that can not be; the second time nothing is.
            let topic = ["nowhere", "", "out"][tries.min(2)];
            if topic.is_empty() {
                return Err("not now".into());
            }
            Ok(records.iter().flat_map(|_| [NewRecord::new("out", "half"), NewRecord::new(topic, "done")]).collect())
        }
    })?;
    let producer = KafkaProducer::new(&ProducerOptions::new(&brokers))?;
    producer.send(NewRecord::new("in", "x")).await?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while read(&brokers, "out").await?.is_empty() {
        ensure!(Instant::now() < deadline, "no result");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    worker.stop().await?;
    let results = read(&brokers, "out").await?;
    let values: Vec<_> = results.iter().map(|result| result.payload().unwrap()).collect();
    assert_eq!(values, [&b"half"[..], b"done"]);
    assert_eq!(tries.load(std::sync::atomic::Ordering::Relaxed), 3);
    Ok(())
}
