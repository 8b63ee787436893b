//! Settings: which are passed on, which are refused, and that none is printed.

use relais_messaging::kafka::{
    KafkaCluster, KafkaProducer, KafkaSettingsError, KafkaSink, KafkaSinkOptions, ProducerOptions, Sasl,
    TransactionError, TransactionOptions, TransactionalProducer,
};

const HERE: &str = "localhost:9092";

#[tokio::test]
async fn settings_that_promises_rest_on_are_refused_with_a_reason() {
    let of_all = ["bootstrap.servers", "metadata.broker.list", "allow.auto.create.topics"];
    let of_producers = ["partitioner", "delivery.timeout.ms", "acks", "enable.idempotence", "transactional.id"];
    for name in of_all.into_iter().chain(of_producers) {
        let cluster = KafkaCluster::new(HERE).setting(name, "1");
        let refused = [
            KafkaSink::new(&KafkaSinkOptions::new(HERE).setting(name, "1")).err(),
            KafkaProducer::new(&ProducerOptions::new(HERE).setting(name, "1")).err(),
            KafkaProducer::new(&ProducerOptions { cluster, ..ProducerOptions::new(HERE) }).err(),
            match TransactionalProducer::new(&TransactionOptions::new(HERE, "t").setting(name, "1")).await {
                Err(TransactionError::Settings(error)) => Some(error),
                other => panic!("{name}: {other:?}"),
            },
        ];
        for error in refused {
            let Some(error @ KafkaSettingsError::Own { .. }) = error else { panic!("{name}: {error:?}") };
            assert!(error.to_string().starts_with(&format!("the setting {name} can not be changed: ")), "{error}");
        }
    }
}

#[test]
fn other_settings_are_passed_on_to_librdkafka() {
    let wrong = KafkaSinkOptions::new(HERE).setting("compresion.type", "lz4");
    assert!(matches!(KafkaSink::new(&wrong), Err(KafkaSettingsError::Value { .. })));
    // What an idempotent producer can not do is known only to librdkafka.
    let wrong = ProducerOptions::new(HERE).setting("max.in.flight", "6");
    assert!(matches!(KafkaProducer::new(&wrong), Err(KafkaSettingsError::Client(_))));
    let fine =
        ProducerOptions::new(HERE).setting("max.in.flight.requests.per.connection", "1").setting("linger.ms", "9");
    KafkaProducer::new(&fine).unwrap();
}

#[test]
fn no_value_of_a_setting_is_printed() {
    let cluster = KafkaCluster::new(HERE).sasl(Sasl::Plain, "user", "hush");
    let wrong = KafkaCluster::new(HERE).setting("security.protocol", "hush");
    let nul = KafkaCluster::new(HERE).setting("sasl.password", "hush\0");
    let printed = [
        format!("{cluster:?}"),
        format!("{:?}", ProducerOptions::new(HERE).setting("ssl.key.password", "hush")),
        format!("{:?}", TransactionOptions::new(HERE, "t").setting("ssl.key.password", "hush")),
        format!("{:?}", KafkaSinkOptions { cluster, ..KafkaSinkOptions::new(HERE) }),
        format!("{:?}", KafkaProducer::new(&ProducerOptions { cluster: wrong, ..ProducerOptions::new(HERE) })),
        format!("{:?}", KafkaProducer::new(&ProducerOptions { cluster: nul, ..ProducerOptions::new(HERE) })),
    ];
    for text in printed {
        assert!(!text.contains("hush"), "{text}");
    }
}

#[test]
fn tls_and_passwords_go_together_in_any_order() {
    let first = KafkaCluster::new(HERE).tls().sasl(Sasl::ScramSha256, "u", "p");
    let last = KafkaCluster::new(HERE).sasl(Sasl::ScramSha256, "u", "p").tls();
    assert_eq!(first, last);
    assert_eq!(first.settings["security.protocol"], "sasl_ssl");
    assert_eq!(KafkaCluster::new(HERE).tls().settings["security.protocol"], "ssl");
    let plain = KafkaCluster::new(HERE).sasl(Sasl::Plain, "u", "p");
    assert_eq!(plain.settings["security.protocol"], "sasl_plaintext");
}

/// With `kafka-tls`, librdkafka takes them. Without it, it says what it lacks.
#[test]
fn tls_and_scram_are_there_or_said_to_be_missing() {
    let tls = KafkaCluster::new(HERE).tls();
    let scram = KafkaCluster::new(HERE).sasl(Sasl::ScramSha512, "u", "p");
    for cluster in [tls, scram] {
        let made = KafkaProducer::new(&ProducerOptions { cluster, ..ProducerOptions::new(HERE) });
        if cfg!(feature = "kafka-tls") {
            made.unwrap();
        } else {
            assert!(matches!(made, Err(KafkaSettingsError::Value { .. } | KafkaSettingsError::Client(_))), "{made:?}");
        }
    }
    let plain = KafkaCluster::new(HERE).sasl(Sasl::Plain, "u", "p");
    KafkaProducer::new(&ProducerOptions { cluster: plain, ..ProducerOptions::new(HERE) }).unwrap();
}
