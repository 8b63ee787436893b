//! The producer, on the mock cluster: what it writes, what it retries, what it says of each record.

use std::time::Duration;

use rdkafka::{
    Message as _,
    message::Headers as _,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use relais_messaging::kafka::{Acks, Compression, KafkaProducer, NewRecord, ProduceError, ProducerOptions};

use crate::broker::{Mock, TOPIC, mock, read};

fn options(cluster: &Mock) -> ProducerOptions {
    ProducerOptions { timeout: Duration::from_secs(5), ..ProducerOptions::new(cluster.bootstrap_servers()) }
}

fn numbered(count: usize) -> Vec<NewRecord> {
    (0..count).map(|n| NewRecord::new(TOPIC, n.to_string()).with_key("k")).collect()
}

#[tokio::test]
async fn a_record_arrives_with_its_key_value_headers_partition_and_time() {
    let cluster = mock(4);
    let producer = KafkaProducer::new(&options(&cluster)).unwrap();
    let record = NewRecord::new(TOPIC, "value")
        .with_key("key")
        .with_partition(3)
        .with_header("one", "1")
        .with_header("one", "2")
        .with_timestamp(1_769_848_200_125);
    let delivered = producer.send(record).await.unwrap();
    assert_eq!((delivered.partition, delivered.offset), (3, Some(0)));
    producer.send(NewRecord::tombstone(TOPIC, "key").with_partition(3)).await.unwrap();
    let records = read(&cluster.bootstrap_servers(), TOPIC).await.unwrap();
    let [record, tombstone] = &records[..] else { panic!("{records:?}") };
    assert_eq!((record.key(), record.payload()), (Some(&b"key"[..]), Some(&b"value"[..])));
    assert_eq!(record.timestamp().to_millis(), Some(1_769_848_200_125));
    let headers: Vec<_> = record.headers().unwrap().iter().map(|header| (header.key, header.value.unwrap())).collect();
    assert_eq!(headers, [("one", &b"1"[..]), ("one", b"2")]);
    assert_eq!((tombstone.key(), tombstone.payload()), (Some(&b"key"[..]), None));
}

#[tokio::test]
async fn batches_are_compressed_as_asked_and_read_as_written() {
    for compression in [Compression::Gzip, Compression::Snappy, Compression::Lz4] {
        let cluster = mock(1);
        let producer = KafkaProducer::new(&ProducerOptions { compression, ..options(&cluster) }).unwrap();
        for answer in producer.send_all(numbered(20)).await {
            answer.unwrap();
        }
        let records = read(&cluster.bootstrap_servers(), TOPIC).await.unwrap();
        let values: Vec<_> = records.iter().map(|record| record.payload().unwrap().to_vec()).collect();
        assert_eq!(values, (0..20).map(|n| n.to_string().into_bytes()).collect::<Vec<_>>(), "{compression:?}");
    }
}

#[tokio::test]
async fn what_is_retried_arrives_once_and_in_order() {
    let cluster = mock(1);
    let producer = KafkaProducer::new(&options(&cluster)).unwrap();
    let passing = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ];
    cluster.request_errors(RDKafkaApiKey::Produce, &passing);
    for answer in producer.send_all(numbered(50)).await {
        answer.unwrap();
    }
    let records = read(&cluster.bootstrap_servers(), TOPIC).await.unwrap();
    let values: Vec<_> = records.iter().map(|record| record.payload().unwrap().to_vec()).collect();
    assert_eq!(values, (0..50).map(|n| n.to_string().into_bytes()).collect::<Vec<_>>());
}

#[tokio::test]
async fn each_record_has_an_answer_of_its_own() {
    let cluster = mock(1);
    let producer = KafkaProducer::new(&options(&cluster)).unwrap();
    let zero = NewRecord::new(TOPIC, "x").with_header("a\0b", "c");
    let records = vec![NewRecord::new("a b", "x"), NewRecord::new(TOPIC, "x"), zero];
    let answers = producer.send_all(records).await;
    assert!(
        matches!(&answers[..], [Err(ProduceError::Refused { .. }), Ok(_), Err(ProduceError::Refused { .. })]),
        "{answers:?}"
    );
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::Produce, &[denied]);
    let answer = producer.send(NewRecord::new(TOPIC, "x")).await;
    assert!(matches!(&answer, Err(ProduceError::Refused { why, .. }) if why.contains("uthoriz")), "{answer:?}");
}

#[tokio::test]
async fn a_producer_that_has_given_up_is_replaced() {
    let cluster = mock(1);
    let producer = KafkaProducer::new(&options(&cluster)).unwrap();
    let gap = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    cluster.request_errors(RDKafkaApiKey::Produce, &[gap]);
    let answer = producer.send(NewRecord::new(TOPIC, "x")).await;
    assert!(matches!(answer, Err(ProduceError::Unknown { .. })), "{answer:?}");
    producer.send(NewRecord::new(TOPIC, "x")).await.unwrap();
}

#[tokio::test]
async fn a_cluster_that_is_away_is_no_refusal_and_a_closed_producer_sends_nothing() {
    let port = relais_testkit::free_port().unwrap();
    let options =
        ProducerOptions { timeout: Duration::from_secs(1), ..ProducerOptions::new(format!("127.0.0.1:{port}")) };
    let producer = KafkaProducer::new(&options).unwrap();
    let answer = producer.send(NewRecord::new(TOPIC, "x")).await;
    assert!(matches!(answer, Err(ProduceError::Unknown { .. })), "{answer:?}");
    producer.close().await;
    assert!(matches!(producer.send(NewRecord::new(TOPIC, "x")).await, Err(ProduceError::Closed)));
}

#[tokio::test]
async fn without_acknowledgements_a_record_is_delivered_when_it_is_sent() {
    let cluster = mock(1);
    for acks in [Acks::Leader, Acks::None] {
        let producer = KafkaProducer::new(&ProducerOptions { acks, ..options(&cluster) }).unwrap();
        producer.send(NewRecord::new(TOPIC, "x")).await.unwrap();
        producer.close().await;
    }
    assert_eq!(read(&cluster.bootstrap_servers(), TOPIC).await.unwrap().len(), 2);
}
