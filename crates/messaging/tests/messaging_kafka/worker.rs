//! Push workers on Kafka topics, on a real broker.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use rdkafka::{Message as _, message::Headers as _};
use relais_messaging::kafka::{
    Codec, DeadLetters, KafkaConsumerOptions, KafkaProducer, KafkaPushWorker, KafkaRecord, NewRecord, ProducerOptions,
    StartAt, TypedRecord,
};
use relais_push_worker::{SubscriberError, handler};
use serde::Deserialize;

use crate::broker::{TOPIC, broker_or_return, create_topic, read};

const PATIENCE: Duration = Duration::from_secs(30);

fn topics(brokers: &str) -> KafkaConsumerOptions {
    let mut options = KafkaConsumerOptions::new(brokers, "g", [TOPIC]);
    options.start = StartAt::Earliest;
    options
}

async fn write(brokers: &str, records: Vec<NewRecord>) -> Result<()> {
    let producer = KafkaProducer::new(&ProducerOptions::new(brokers))?;
    for answer in producer.send_all(records).await {
        answer?;
    }
    Ok(())
}

async fn until(what: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !what() {
        ensure!(Instant::now() < deadline, "it did not come true");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[tokio::test]
async fn keys_are_handled_side_by_side_and_each_in_order_while_some_fail() -> Result<()> {
    let server = broker_or_return!("keys_are_handled_side_by_side_and_each_in_order_while_some_fail");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    let (keys, each) = (100, 10);
    let all = (0..each)
        .flat_map(|n| (0..keys).map(move |key| NewRecord::new(TOPIC, n.to_string()).with_key(format!("{key}"))));
    write(&brokers, all.collect()).await?;

    let handled: Arc<Mutex<HashMap<String, Vec<usize>>>> = Arc::default();
    let seen = Arc::clone(&handled);
    let handle = handler(move |record: Arc<KafkaRecord>| {
        let seen = Arc::clone(&seen);
        async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let key = String::from_utf8_lossy(record.key.as_deref().unwrap()).into_owned();
            let number: usize = std::str::from_utf8(record.value.as_deref().unwrap())?.parse()?;
            if key.ends_with('7') && number == 3 && record.retry_count < 2 {
                return Err(SubscriberError::retryable("not now"));
            }
            seen.lock().unwrap().entry(key).or_default().push(number);
            Ok(())
        }
    });
    let builder = KafkaPushWorker::builder("w").concurrency(100).retry_unit(Duration::from_millis(100));
    let (worker, monitor) = builder.launch(topics(&brokers), handle).await?;
    let total = || handled.lock().unwrap().values().map(Vec::len).sum::<usize>();
    until(|| total() > 0).await?;
    let begun = Instant::now();
    until(|| total() == keys * each).await?;
    // One after the other they take 2 s, and the retries 600 ms for each of ten keys.
    ensure!(begun.elapsed() < Duration::from_millis(1_900), "{:?}", begun.elapsed());
    for (key, numbers) in handled.lock().unwrap().iter() {
        assert_eq!(*numbers, (0..each).collect::<Vec<_>>(), "{key}");
    }
    until(|| monitor.status().partitions[0].parked_keys == 0).await?;
    let stats = worker.stats();
    assert_eq!((stats.execution_count, stats.errors_count, stats.channels), (1_000, 20, vec![TOPIC.to_owned()]));
    let report = worker.stop().await;
    assert!(report.left.is_empty(), "{report:?}");
    let status = monitor.status();
    assert!(!status.healthy && status.partitions.is_empty(), "it has left: {status:?}");
    Ok(())
}

#[derive(Deserialize)]
struct Order {
    total: u64,
}

#[tokio::test]
async fn what_is_not_of_the_type_is_a_dead_letter_and_a_tombstone_has_no_value() -> Result<()> {
    let server = broker_or_return!("what_is_not_of_the_type_is_a_dead_letter_and_a_tombstone_has_no_value");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    let records = vec![
        NewRecord::new(TOPIC, r#"{"total":"many"}"#).with_key("bad"),
        NewRecord::new(TOPIC, r#"{"total":7}"#).with_key(vec![0xff]),
        NewRecord::new(TOPIC, r#"{"total":7}"#).with_key("good"),
        NewRecord::tombstone(TOPIC, "gone"),
    ];
    write(&brokers, records).await?;
    type Handled = Vec<(String, Option<u64>)>;
    let handled = Arc::new(Mutex::new(Handled::new()));
    let seen = Arc::clone(&handled);
    let handle = move |record: TypedRecord<String, Order>| {
        seen.lock().unwrap().push((record.key.unwrap(), record.value.map(|order| order.total)));
        async { Ok(()) }
    };
    let worker =
        KafkaPushWorker::builder("w").start_typed(topics(&brokers), Codec::text(), Codec::json(), handle).await?;
    until(|| handled.lock().unwrap().len() == 2).await?;
    assert_eq!(*handled.lock().unwrap(), [("good".to_owned(), Some(7)), ("gone".to_owned(), None)]);
    let report = worker.stop().await;
    assert_eq!((report.processed, report.dead_lettered), (2, 2));
    let letters = DeadLetters::new(&brokers, "dlq.orders").list(9).await?;
    let [value, key] = &letters[..] else { bail!("{letters:?}") };
    assert_eq!(value.record.value.as_deref(), Some(&br#"{"total":"many"}"#[..]));
    assert!(value.error.starts_with("the record's value can not be decoded: invalid type"), "{}", value.error);
    assert!(key.error.starts_with("the record's key can not be decoded: invalid utf-8"), "{}", key.error);
    Ok(())
}

#[tokio::test]
async fn dead_letters_are_sent_back_once_or_given_up() -> Result<()> {
    let server = broker_or_return!("dead_letters_are_sent_back_once_or_given_up");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    let letters = DeadLetters::new(&brokers, "dlq.orders");
    assert_eq!((letters.list(9).await?.len(), letters.replay(9).await?), (0, 0), "there is no such topic yet");
    let poison = |n: usize| NewRecord::new(TOPIC, n.to_string()).with_key("k").with_header("event-type", "t");
    write(&brokers, (0..3).map(poison).collect()).await?;
    let fails =
        |record: Arc<KafkaRecord>| async move { Err(SubscriberError::fatal(format!("no {:?}", record.offset))) };
    let worker = KafkaPushWorker::builder("w").start(topics(&brokers), fails).await?;
    until(|| worker.stats().errors_count == 3).await?;
    worker.stop().await;

    let listed = letters.list(2).await?;
    let found: Vec<_> = listed.iter().map(|letter| (letter.offset, letter.error.as_str(), letter.retries)).collect();
    assert_eq!(found, [(0, "no 0", 0), (1, "no 1", 0)]);
    assert_eq!(letters.replay(2).await?, 2);
    assert_eq!(letters.list(9).await?.len(), 1, "those that were sent back are dealt with");
    assert_eq!((letters.discard(9).await?, letters.replay(9).await?), (1, 0));
    let records = read(&brokers, TOPIC).await?;
    let values: Vec<_> = records.iter().map(|record| record.payload().unwrap()).collect();
    assert_eq!(values, [b"0", b"1", b"2", b"0", b"1"]);
    let names: Vec<_> = records[4].headers().unwrap().iter().map(|header| header.key).collect();
    assert_eq!((records[4].key(), names), (Some(&b"k"[..]), vec!["event-type"]));
    Ok(())
}
