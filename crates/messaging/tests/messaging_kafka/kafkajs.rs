//! Beside kafkajs, the client of Node: keys are placed alike, and a group can be handed over in both directions.
//!
//! `RELAIS_TEST_KAFKAJS` is a folder with kafkajs in its `node_modules`; `cargo xtask test` fetches it and sets that.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rdkafka::Message as _;
use relais_messaging::kafka::{
    KafkaConsumerOptions, KafkaProducer, KafkaPushWorker, KafkaRecord, NewRecord, ProducerOptions, StartAt,
};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::broker::{TOPIC, broker_or_return, create_topic, read};

const FOLDER: &str = "RELAIS_TEST_KAFKAJS";

/// The folder, or the end of the test.
macro_rules! kafkajs_or_return {
    ($test:literal) => {
        match std::env::var(FOLDER) {
            Ok(folder) => folder,
            Err(_) => {
                writeln!(io::stderr(), "not run: {}, because {FOLDER} names no folder with kafkajs", $test)?;
                return Ok(());
            }
        }
    };
}

async fn kafkajs(folder: &str, brokers: &str, what: &str, count: usize) -> Result<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messaging_kafka/kafkajs.cjs");
    let mut command = Command::new("node");
    command.arg(script).args([folder, brokers, what, &count.to_string()]).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(Duration::from_secs(60), command.output()).await.context("kafkajs takes too long")??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[tokio::test]
async fn keys_are_placed_as_kafkajs_places_them() -> Result<()> {
    let folder = kafkajs_or_return!("keys_are_placed_as_kafkajs_places_them");
    let server = broker_or_return!("keys_are_placed_as_kafkajs_places_them");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, "placed", 7).await?;
    let count = 200;
    kafkajs(&folder, &brokers, "produce", count).await?;
    let producer = KafkaProducer::new(&ProducerOptions::new(&brokers))?;
    let ours = (0..count).map(|n| NewRecord::new("placed", "ours").with_key(format!("key-{n}")));
    for answer in producer.send_all(ours.collect()).await {
        answer?;
    }
    let mut places: HashMap<Vec<u8>, Vec<i32>> = HashMap::new();
    for record in read(&brokers, "placed").await? {
        places.entry(record.key().unwrap().to_vec()).or_default().push(record.partition());
    }
    assert_eq!(places.len(), count);
    for (key, places) in places {
        assert!(places.len() == 2 && places[0] == places[1], "{}: {places:?}", String::from_utf8_lossy(&key));
    }
    Ok(())
}

/// Handles this many records, and leaves.
async fn consume(brokers: &str, count: usize) -> Result<Vec<String>> {
    let mut topics = KafkaConsumerOptions::new(brokers, "g", [TOPIC]);
    topics.start = StartAt::Earliest;
    let values: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&values);
    let handle = move |record: Arc<KafkaRecord>| {
        seen.lock().unwrap().push(String::from_utf8_lossy(record.value.as_deref().unwrap()).into_owned());
        async { Ok(()) }
    };
    let worker = KafkaPushWorker::builder("w").start(topics, handle).await?;
    let enough = async {
        while values.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), enough).await.with_context(|| format!("{values:?} of {count}"))?;
    worker.stop().await;
    Ok(std::mem::take(&mut *values.lock().unwrap()))
}

#[tokio::test]
async fn a_group_is_handed_over_to_kafkajs_and_back() -> Result<()> {
    let folder = kafkajs_or_return!("a_group_is_handed_over_to_kafkajs_and_back");
    let server = broker_or_return!("a_group_is_handed_over_to_kafkajs_and_back");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 2).await?;
    let producer = KafkaProducer::new(&ProducerOptions::new(&brokers))?;
    for turn in 0..3 {
        let records = (0..20).map(|n| NewRecord::new(TOPIC, format!("{turn}-{n}")).with_key(format!("k{n}")));
        for answer in producer.send_all(records.collect()).await {
            answer?;
        }
        let mut values = match turn {
            1 => serde_json::from_value(kafkajs(&folder, &brokers, "consume", 20).await?)?,
            _ => consume(&brokers, 20).await?,
        };
        values.sort();
        let mut expected: Vec<String> = (0..20).map(|n| format!("{turn}-{n}")).collect();
        expected.sort();
        assert_eq!(values, expected, "each begins where the other has ended");
    }
    Ok(())
}
