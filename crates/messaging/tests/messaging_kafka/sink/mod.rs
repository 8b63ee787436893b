//! The Sink conformance suite on a Kafka broker, and what only this sink promises.

mod harness;

use std::time::Duration;

use rdkafka::{
    Message as _,
    message::Headers as _,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink};
use relais_messaging::kafka::{KafkaSink, KafkaSinkOptions};

use self::harness::own_broker;
use crate::broker::{Mock, TOPIC, mock, read};

/// The tests of the suite, where there is a broker; else their names.
macro_rules! on_a_broker {
    ($($promise:ident),* $(,)?) => {
        mod suite {
            $(#[tokio::test]
            async fn $promise() -> anyhow::Result<()> {
                match super::own_broker(stringify!($promise)).await? {
                    Some(harness) => relais_testkit::sink_suite::$promise(&harness).await,
                    None => Ok(()),
                }
            })*
        }
    };
}

on_a_broker! {
    a_message_arrives_with_its_id_key_headers_and_payload,
    messages_of_a_key_arrive_in_order,
    an_empty_batch_is_answered,
    a_message_to_a_missing_destination_is_refused_alone,
    a_message_without_permission_is_refused_alone,
    a_message_that_is_too_large_is_refused_alone,
    nothing_of_a_key_is_sent_after_a_refusal,
    a_connection_lost_in_the_middle_loses_nothing_that_was_confirmed,
    a_server_that_hangs_does_not_hold_up_the_caller,
    a_confirmed_message_survives_a_crash_as_declared,
    a_closed_sink_refuses_everything,
}

fn options(cluster: &Mock) -> KafkaSinkOptions {
    KafkaSinkOptions { timeout: Duration::from_secs(3), ..KafkaSinkOptions::new(cluster.bootstrap_servers()) }
}

fn to(topic: &str, message: Message) -> RoutedMessage {
    RoutedMessage { destination: topic.to_owned(), routing_key: String::new(), message }
}

fn batch(keys: &[&str], each: usize) -> Vec<RoutedMessage> {
    let numbered = (0..each).flat_map(|n| keys.iter().map(move |key| (n, key)));
    numbered.map(|(n, key)| to(TOPIC, Message::new(format!("{key}-{n}"), "t", "{}").with_key(*key))).collect()
}

#[tokio::test]
async fn a_record_has_the_messages_key_time_headers_and_value() {
    let cluster = mock(1);
    let sink = KafkaSink::new(&options(&cluster)).unwrap();
    assert_eq!(sink.durability(), Durability::Replicated);
    let message = Message::new("m-1", "order.placed", r#"{"order":7}"#)
        .with_key("o-7")
        .with_time("2026-01-31T08:30:00.125Z".parse().unwrap())
        .with_header("event-type", "order.placed")
        .with_header("correlation-id", "c-1");
    let tombstone = Message { payload: None, ..Message::new("m-2", "order.gone", "").with_key("o-7") };
    let outcomes = sink.publish(vec![to(TOPIC, message), to(TOPIC, tombstone)]).await;
    assert!(outcomes.iter().all(PublishOutcome::is_confirmed), "{outcomes:?}");
    let records = read(&cluster.bootstrap_servers(), TOPIC).await.unwrap();
    let [record, tombstone] = &records[..] else { panic!("{records:?}") };
    assert_eq!((record.key(), record.payload()), (Some(&b"o-7"[..]), Some(&br#"{"order":7}"#[..])));
    assert_eq!(record.timestamp().to_millis(), Some(1_769_848_200_125));
    let headers: Vec<_> = record.headers().unwrap().iter().map(|header| (header.key, header.value.unwrap())).collect();
    let expected: [(&str, &[u8]); 4] = [
        ("id", b"m-1"),
        ("event-type", b"order.placed"),
        ("content-type", b"application/json"),
        ("correlation-id", b"c-1"),
    ];
    assert_eq!(headers, expected);
    assert_eq!((tombstone.key(), tombstone.payload()), (Some(&b"o-7"[..]), None));
}

#[tokio::test]
async fn keys_are_placed_as_javas_producers_place_them() {
    let cluster = mock(12);
    let sink = KafkaSink::new(&options(&cluster)).unwrap();
    // What org.apache.kafka.common.utils.Utils.murmur2 gives: toPositive(hash) % 12.
    let expected = [("21", -973_932_308_i32), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)];
    let outcomes = sink.publish(batch(&expected.map(|(key, _)| key), 1)).await;
    assert!(outcomes.iter().all(PublishOutcome::is_confirmed), "{outcomes:?}");
    let records = read(&cluster.bootstrap_servers(), TOPIC).await.unwrap();
    for (key, hash) in expected {
        let record = records.iter().find(|record| record.key() == Some(key.as_bytes())).unwrap();
        assert_eq!(record.partition(), (hash & 0x7fff_ffff) % 12, "{key}");
    }
}

#[tokio::test]
async fn a_refusal_by_the_broker_stops_its_key_and_no_other() {
    let cluster = mock(1);
    // Long enough for all keys to be in one batch of records.
    let sink = KafkaSink::new(&options(&cluster).setting("linger.ms", "200")).unwrap();
    // Twice: the first time for the batch of all keys, then for one record that is sent alone.
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refusal, refusal]);
    let outcomes = sink.publish(batch(&["a", "b", "c"], 3)).await;
    let refused: Vec<usize> = (0..3).filter(|place| matches!(outcomes[*place], PublishOutcome::Refused(_))).collect();
    assert_eq!(refused.len(), 1, "the others of the batch are sent again, alone: {outcomes:?}");
    for (place, outcome) in outcomes.iter().enumerate() {
        match (place, place % 3 == refused[0]) {
            (0..3, _) => {}
            (_, true) => assert_eq!(*outcome, PublishOutcome::NotSent, "{outcomes:?}"),
            (_, false) => assert_eq!(*outcome, PublishOutcome::Confirmed, "{outcomes:?}"),
        }
    }
}

#[tokio::test]
async fn answers_that_pass_are_retried_and_nothing_arrives_twice() {
    let cluster = mock(1);
    let sink = KafkaSink::new(&options(&cluster)).unwrap();
    let passing = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
    ];
    cluster.request_errors(RDKafkaApiKey::Produce, &passing);
    let outcomes = sink.publish(batch(&["a", "b"], 2)).await;
    assert!(outcomes.iter().all(PublishOutcome::is_confirmed), "{outcomes:?}");
    assert_eq!(read(&cluster.bootstrap_servers(), TOPIC).await.unwrap().len(), 4);
}

#[tokio::test]
async fn a_producer_that_has_given_up_is_replaced() {
    let cluster = mock(1);
    let sink = KafkaSink::new(&options(&cluster)).unwrap();
    // The broker says that a record before this one is missing, which the producer knows to be wrong.
    let gap = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    cluster.request_errors(RDKafkaApiKey::Produce, &[gap]);
    let outcomes = sink.publish(batch(&["a"], 2)).await;
    assert!(matches!(&outcomes[..], [PublishOutcome::Unknown(_), PublishOutcome::NotSent]), "{outcomes:?}");
    let outcomes = sink.publish(batch(&["a"], 2)).await;
    assert!(outcomes.iter().all(PublishOutcome::is_confirmed), "{outcomes:?}");
}

#[tokio::test]
async fn a_topic_that_may_not_be_written_is_refused() {
    let cluster = mock(1);
    let sink = KafkaSink::new(&options(&cluster)).unwrap();
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::Produce, &[denied]);
    let outcomes = sink.publish(batch(&["a"], 1)).await;
    assert!(matches!(&outcomes[..], [PublishOutcome::Refused(_)]), "{outcomes:?}");
}

#[tokio::test]
async fn a_name_that_is_no_topic_is_refused() {
    let cluster = mock(1);
    let sink = KafkaSink::new(&options(&cluster)).unwrap();
    for topic in ["", "a b", "é", &"x".repeat(250)] {
        let outcomes = sink.publish(vec![to(topic, Message::new("m", "t", "{}"))]).await;
        assert!(matches!(&outcomes[..], [PublishOutcome::Refused(_)]), "{topic}: {outcomes:?}");
    }
}

#[tokio::test]
async fn a_header_that_kafka_can_not_carry_is_refused_alone() {
    let cluster = mock(1);
    let sink = KafkaSink::new(&options(&cluster)).unwrap();
    let bad = Message::new("m", "t", "{}").with_header("a\0b", "c");
    let fine = Message::new("m", "t", "{}").with_header("é", "\0");
    let outcomes = sink.publish(vec![to(TOPIC, bad), to(TOPIC, fine)]).await;
    assert!(matches!(&outcomes[..], [PublishOutcome::Refused(_), PublishOutcome::Confirmed]), "{outcomes:?}");
}

#[tokio::test]
async fn a_cluster_that_is_away_is_no_refusal() {
    let port = relais_testkit::free_port().unwrap();
    let options =
        KafkaSinkOptions { timeout: Duration::from_secs(1), ..KafkaSinkOptions::new(format!("127.0.0.1:{port}")) };
    let sink = KafkaSink::new(&options).unwrap();
    let outcomes = sink.publish(batch(&["a"], 2)).await;
    assert!(matches!(&outcomes[..], [PublishOutcome::Unknown(_), PublishOutcome::NotSent]), "{outcomes:?}");
}
