//! The conformance suite of consumers, on a Kafka broker.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use relais_messaging::kafka::{
    Acks, DeadLetters, KafkaConsumer, KafkaConsumerOptions, KafkaProducer, KafkaPushWorkerBuilder, KafkaRecord,
    NewRecord, ProducerOptions, StartAt,
};
use relais_push_worker::{Consumer as _, ConsumerFeatures, Handler, WorkerSettings};
use relais_testkit::{
    KafkaServer,
    consumer_suite::{ConsumerHarness, Seen, SeenDeadLetter, SuiteWorker},
};
use tokio::sync::Mutex;

use crate::broker::{self, TOPIC, create_topic};

/// The tests of the suite, where there is a broker; else their names.
macro_rules! on_a_broker {
    ($($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> Result<()> {
            match own_broker(stringify!($promise)).await? {
                Some(harness) => relais_testkit::consumer_suite::$promise(&harness).await,
                None => Ok(()),
            }
        })*
    };
}

on_a_broker! {
    every_message_is_handled_once_and_counted,
    messages_of_a_key_are_handled_one_after_the_other,
    messages_without_order_are_handled_at_the_same_time,
    a_failed_message_is_retried_with_its_count,
    later_messages_of_a_key_wait_for_a_retry,
    retries_that_are_used_up_make_a_dead_letter,
    a_poison_message_becomes_a_dead_letter_and_the_rest_goes_on,
    a_panic_fails_its_message_only,
    a_handler_that_does_not_return_fails_its_message_only,
    a_busy_message_waits_and_counts_neither_as_error_nor_as_retry,
    an_error_hook_decides,
    a_stop_finishes_what_runs_and_nothing_is_lost_or_repeated,
    what_a_stop_leaves_at_its_deadline_comes_again,
    a_stopped_worker_is_not_healthy,
    what_a_killed_worker_had_comes_again,
    workers_share_the_messages,
    a_slow_handler_keeps_its_message,
    a_lost_connection_loses_nothing,
    a_crash_of_the_server_loses_nothing,
}

/// How long a member may be silent.
const SESSION: Duration = Duration::from_secs(6);

struct OnKafka {
    server: Mutex<KafkaServer>,
    brokers: String,
    producer: KafkaProducer,
}

async fn own_broker(test: &str) -> Result<Option<OnKafka>> {
    let Some(server) = broker::start(test).await? else { return Ok(None) };
    let brokers = server.bootstrap_servers();
    // The test of deadlines counts on the order of messages of several keys.
    create_topic(&brokers, TOPIC, if test.contains("deadline") { 1 } else { 4 }).await?;
    // The broker of the tests numbers idempotent producers anew after a crash, and takes the second one's records for repeats.
    let producer = KafkaProducer::new(&ProducerOptions { acks: Acks::Leader, ..ProducerOptions::new(&brokers) })?;
    Ok(Some(OnKafka { server: Mutex::new(server), brokers, producer }))
}

impl OnKafka {
    fn topics(&self) -> KafkaConsumerOptions {
        let options = KafkaConsumerOptions::new(&self.brokers, "g", [TOPIC]);
        let mut options = options.setting("max.poll.interval.ms", SESSION.as_millis().to_string());
        options.start = StartAt::Earliest;
        options.session_timeout = SESSION;
        options.heartbeat = Duration::from_millis(500);
        options
    }
}

#[async_trait(?Send)]
impl ConsumerHarness for OnKafka {
    type Message = KafkaRecord;

    fn features(&self) -> ConsumerFeatures {
        let features = KafkaConsumer::new(self.topics()).map(|consumer| consumer.features());
        features.unwrap()
    }

    async fn start(
        &self,
        settings: WorkerSettings<KafkaRecord>,
        handler: Handler<KafkaRecord>,
    ) -> Result<Box<dyn SuiteWorker<KafkaRecord>>> {
        let (worker, _) = KafkaPushWorkerBuilder::from(settings).launch(self.topics(), handler).await?;
        Ok(Box::new(worker))
    }

    async fn publish(&self, messages: &[(String, usize)]) -> Result<()> {
        let records =
            messages.iter().map(|(key, number)| NewRecord::new(TOPIC, number.to_string()).with_key(key.clone()));
        for answer in self.producer.send_all(records.collect()).await {
            answer?;
        }
        Ok(())
    }

    fn read(record: &KafkaRecord) -> Seen {
        Seen { key: key(record), number: number(record).unwrap(), retries: record.retry_count }
    }

    async fn dead_letters(&self) -> Result<Vec<SeenDeadLetter>> {
        let letters = DeadLetters::new(&self.brokers, format!("dlq.{TOPIC}")).list(usize::MAX).await?;
        let seen = letters.into_iter().map(|letter| {
            Ok(SeenDeadLetter { key: key(&letter.record), number: number(&letter.record)?, error: letter.error })
        });
        seen.collect()
    }

    // The broker tells its clients its own address: a proxy in front of it would be left aside.
    async fn cut(&self) -> Result<bool> {
        Ok(false)
    }

    async fn restore(&self) -> Result<()> {
        Ok(())
    }

    async fn crash(&self) -> Result<bool> {
        let mut server = self.server.lock().await;
        server.kill9()?;
        server.restart().await?;
        Ok(true)
    }

    fn patience(&self) -> Duration {
        SESSION
    }
}

fn key(record: &KafkaRecord) -> String {
    String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned()
}

fn number(record: &KafkaRecord) -> Result<usize> {
    Ok(std::str::from_utf8(record.value.as_deref().context("a value")?)?.parse()?)
}
