//! The consumer on a real broker: what it commits, and what the next owner of a partition gets.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewPartitions},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    message::Headers as _,
};
use relais_messaging::kafka::{
    Acks, CommitPolicy, KafkaConsumer, KafkaConsumerOptions, KafkaDelivery, KafkaEvent, KafkaProducer, NewRecord,
    ProducerOptions, StartAt, TransactionOptions, TransactionalProducer, dead_letter_header,
};
use tokio::time::{Instant, timeout};

use crate::broker::{TOPIC, broker_or_return, create_topic, read};

const PATIENCE: Duration = Duration::from_secs(30);

fn options(brokers: &str) -> KafkaConsumerOptions {
    let mut options = KafkaConsumerOptions::new(brokers, "g", [TOPIC]);
    options.start = StartAt::Earliest;
    options.commit = CommitPolicy::Each;
    options.session_timeout = Duration::from_secs(6);
    options.heartbeat = Duration::from_millis(500);
    options
}

fn join(options: KafkaConsumerOptions) -> Result<Member> {
    Ok(Member { consumer: KafkaConsumer::new(options)?, received: VecDeque::new() })
}

/// A consumer, and what it has received.
struct Member {
    consumer: KafkaConsumer,
    received: VecDeque<KafkaDelivery>,
}

impl Member {
    /// The next records, this many.
    async fn next(&mut self, count: usize) -> Result<Vec<KafkaDelivery>> {
        let deadline = Instant::now() + PATIENCE;
        while self.received.len() < count {
            let event = tokio::time::timeout_at(deadline, self.consumer.receive(&mut self.received)).await;
            match event
                .with_context(|| format!("{} of {count} records: {:?}", self.received.len(), self.consumer.status()))?
            {
                KafkaEvent::Records => {}
                KafkaEvent::Revoked(partitions, done) => {
                    self.received.retain(|delivery| !partitions.cover(delivery));
                    let _ = done.send(());
                }
                KafkaEvent::Lost(partitions) => self.received.retain(|delivery| !partitions.cover(delivery)),
                event => bail!("{event:?}"),
            }
        }
        Ok(self.received.drain(..count).collect())
    }

    /// That nothing more comes.
    async fn nothing(&mut self) -> Result<()> {
        let more = timeout(Duration::from_millis(300), self.next(1)).await;
        ensure!(more.is_err(), "{more:?}");
        Ok(())
    }

    fn done(&self, delivery: &KafkaDelivery) {
        self.consumer.settle(delivery, true);
    }

    async fn until(&self, what: impl Fn(&KafkaConsumer) -> bool) -> Result<()> {
        until(|| what(&self.consumer)).await.with_context(|| format!("{:?}", self.consumer.status()))
    }

    /// Ends without committing anything more, as if the process was killed.
    fn crash(self) {
        drop(self);
    }
}

async fn until(what: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !what() {
        ensure!(Instant::now() < deadline, "it did not come true");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Writes one record for each of these: key and value.
async fn write(brokers: &str, records: &[(&str, &str)]) -> Result<()> {
    // Not idempotent: the broker of the tests numbers producers anew after a kill, and takes the second one's records for
    // repeats of the first one's.
    let producer = KafkaProducer::new(&ProducerOptions { acks: Acks::Leader, ..ProducerOptions::new(brokers) })?;
    let records = records.iter().map(|(key, value)| NewRecord::new(TOPIC, value.to_string()).with_key(key.to_string()));
    for answer in producer.send_all(records.collect()).await {
        answer?;
    }
    producer.close().await;
    Ok(())
}

/// What the group has committed of the topic's first partition.
async fn committed(brokers: &str) -> Result<Option<i64>> {
    let brokers = brokers.to_owned();
    tokio::task::spawn_blocking(move || {
        let client: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", &brokers).set("group.id", "g").create()?;
        let mut list = TopicPartitionList::new();
        list.add_partition(TOPIC, 0);
        let offset = client.committed_offsets(list, PATIENCE)?.elements()[0].offset();
        Ok(match offset {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        })
    })
    .await?
}

fn values(deliveries: &[KafkaDelivery]) -> Vec<String> {
    deliveries
        .iter()
        .map(|delivery| String::from_utf8_lossy(delivery.record().value.as_deref().unwrap()).into())
        .collect()
}

#[tokio::test]
async fn nothing_is_committed_behind_a_record_that_is_not_done() -> Result<()> {
    let server = broker_or_return!("nothing_is_committed_behind_a_record_that_is_not_done");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    // Aborted records and the marks of transactions leave gaps between the offsets.
    let transactions = TransactionOptions::new(brokers.clone(), "t");
    let mut producer = TransactionalProducer::new(&transactions).await?;
    for (value, commit) in [("0", true), ("x", false), ("2", true)] {
        let mut transaction = producer.begin().await?;
        transaction.send(NewRecord::new(TOPIC, value).with_key("k")).await?;
        if commit { transaction.commit().await? } else { transaction.abort().await? }
    }
    write(&brokers, &[("a", "3"), ("b", "4")]).await?;

    let mut member = join(options(&brokers))?;
    let first = member.next(4).await?;
    assert_eq!(values(&first), ["0", "2", "3", "4"]);
    let offsets: Vec<i64> = first.iter().map(|delivery| delivery.record().offset).collect();
    assert!(offsets[1] > offsets[0] + 1, "{offsets:?}");
    member.done(&first[0]);
    member.done(&first[3]);
    member.done(&first[2]);
    let expected = Some(offsets[1]);
    member
        .until(|consumer| consumer.status().partitions.first().is_some_and(|found| found.committed == expected))
        .await?;
    assert_eq!(committed(&brokers).await?, expected);
    member.crash();

    let mut next = join(options(&brokers))?;
    let again = next.next(3).await?;
    assert_eq!(values(&again), ["2", "3", "4"], "what was done beyond the watermark is repeated");
    again.iter().for_each(|delivery| next.done(delivery));
    next.consumer.close().await;
    assert_eq!(committed(&brokers).await?, Some(offsets[3] + 1));
    Ok(())
}

#[tokio::test]
async fn a_member_that_joins_gets_partitions_and_nothing_is_lost_or_repeated() -> Result<()> {
    let server = broker_or_return!("a_member_that_joins_gets_partitions_and_nothing_is_lost_or_repeated");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 4).await?;
    let all: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let keyed: Vec<(&str, &str)> = all.iter().map(|n| (n.as_str(), n.as_str())).collect();
    write(&brokers, &keyed).await?;
    let mut one = join(options(&brokers))?;
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut count = |deliveries: &[KafkaDelivery]| {
        for value in values(deliveries) {
            *seen.entry(value).or_default() += 1;
        }
    };
    let first = one.next(40).await?;
    first.iter().for_each(|delivery| one.done(delivery));
    count(&first);

    let mut two = join(options(&brokers))?;
    // The one that is there hands over two of its partitions.
    let handed_over = async {
        while one.consumer.status().partitions.len() != 2 || two.consumer.status().partitions.len() != 2 {
            let _ = timeout(Duration::from_millis(50), one.next(1)).await;
        }
    };
    timeout(PATIENCE, handed_over).await.context("two partitions each")?;
    write(&brokers, &keyed).await?;
    let deadline = Instant::now() + PATIENCE;
    let mut got = 0;
    while got < 40 {
        ensure!(Instant::now() < deadline, "{got} of 40");
        for member in [&mut one, &mut two] {
            if let Ok(delivery) = timeout(Duration::from_millis(50), member.next(1)).await {
                let delivery = delivery?;
                delivery.iter().for_each(|delivery| member.done(delivery));
                count(&delivery);
                got += 1;
            }
        }
    }
    one.nothing().await?;
    two.nothing().await?;
    assert!(seen.len() == 40 && seen.values().all(|times| *times == 2), "{seen:?}");
    one.consumer.close().await;
    two.consumer.close().await;
    Ok(())
}

#[tokio::test]
async fn a_failing_key_is_parked_and_its_next_owner_begins_with_it() -> Result<()> {
    let server = broker_or_return!("a_failing_key_is_parked_and_its_next_owner_begins_with_it");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    write(&brokers, &[("bad", "b0"), ("good", "g1"), ("bad", "b2"), ("good", "g3")]).await?;
    let mut member = join(options(&brokers))?;
    let mut first = member.next(4).await?;
    member.done(&first[1]);
    member.done(&first[3]);
    member.consumer.retry(&mut first[0], 1);
    assert_eq!(first[0].record().retry_count, 1);
    // What comes later of the key is parked too, and other keys go on.
    write(&brokers, &[("bad", "b4"), ("good", "g5")]).await?;
    let more = member.next(2).await?;
    member.done(&more[1]);
    let parked = |consumer: &KafkaConsumer| {
        let status = consumer.status();
        let found = status.partitions.first().unwrap();
        (found.committed, found.parked_keys, found.parked_records) == (Some(6), 1, 3)
    };
    member.until(parked).await?;
    member.crash();

    let mut next = join(options(&brokers))?;
    write(&brokers, &[("bad", "b6"), ("good", "g7")]).await?;
    let again = next.next(5).await?;
    assert_eq!(values(&again), ["b0", "b2", "b4", "b6", "g7"]);
    assert_eq!(again[0].retries(), 1);
    assert_eq!(again[0].record().key.as_deref(), Some(&b"bad"[..]));
    again.iter().for_each(|delivery| next.done(delivery));
    next.until(|consumer| consumer.status().partitions[0].parked_keys == 0).await?;
    next.consumer.close().await;

    write(&brokers, &[("good", "g8")]).await?;
    let mut last = join(options(&brokers))?;
    assert_eq!(values(&last.next(1).await?), ["g8"], "what was parked is done");
    last.nothing().await?;
    Ok(())
}

#[tokio::test]
async fn a_partition_with_enough_in_flight_is_paused_and_keeps_its_member() -> Result<()> {
    let server = broker_or_return!("a_partition_with_enough_in_flight_is_paused_and_keeps_its_member");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    let all: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    write(&brokers, &all.iter().map(|n| (n.as_str(), n.as_str())).collect::<Vec<_>>()).await?;
    let mut limited = options(&brokers).setting("max.poll.interval.ms", "6000");
    limited.max_in_flight = 10;
    let mut member = join(limited)?;
    let first = member.next(10).await?;
    member.until(|consumer| consumer.status().partitions[0].paused).await?;
    // Longer than a member may be silent: the thread polls while it is paused.
    assert!(timeout(Duration::from_secs(8), member.next(1)).await.is_err(), "it is paused");
    first.iter().for_each(|delivery| member.done(delivery));
    let mut rest = Vec::new();
    while rest.len() < 40 {
        let next = member.next(1).await?;
        next.iter().for_each(|delivery| member.done(delivery));
        rest.extend(values(&next));
    }
    assert_eq!(rest, all[10..]);
    let status = member.consumer.status();
    assert!(status.healthy, "{status:?}");
    member.consumer.close().await;
    assert_eq!(committed(&brokers).await?, Some(50));
    Ok(())
}

#[tokio::test]
async fn a_group_that_begins_at_the_end_skips_nothing_after_a_restart() -> Result<()> {
    let server = broker_or_return!("a_group_that_begins_at_the_end_skips_nothing_after_a_restart");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    write(&brokers, &[("a", "old")]).await?;
    let mut latest = options(&brokers);
    latest.start = StartAt::Latest;
    let member = join(latest.clone())?;
    member
        .until(|consumer| consumer.status().partitions.first().is_some_and(|found| found.committed == Some(1)))
        .await?;
    member.consumer.close().await;
    write(&brokers, &[("a", "while it was away")]).await?;
    let mut member = join(latest)?;
    assert_eq!(values(&member.next(1).await?), ["while it was away"]);
    Ok(())
}

#[tokio::test]
async fn a_dead_letter_has_the_record_and_its_error() -> Result<()> {
    let server = broker_or_return!("a_dead_letter_has_the_record_and_its_error");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 2).await?;
    let producer = KafkaProducer::new(&ProducerOptions::new(&brokers))?;
    let record = NewRecord::new(TOPIC, "poison").with_key("k").with_partition(1).with_header("event-type", "t");
    producer.send(record).await?;
    let mut member = join(options(&brokers))?;
    let poison = member.next(1).await?.remove(0);
    assert!(member.consumer.dead_letter(poison.record(), "it is broken", 3).await);
    member.done(&poison);
    member.consumer.close().await;

    let letters = read(&brokers, "dlq.orders").await?;
    let [letter] = &letters[..] else { bail!("{letters:?}") };
    assert_eq!((letter.key(), letter.payload()), (Some(&b"k"[..]), Some(&b"poison"[..])));
    let headers: HashMap<_, _> = letter
        .headers()
        .unwrap()
        .iter()
        .map(|header| (header.key, String::from_utf8_lossy(header.value.unwrap()).into_owned()))
        .collect();
    let expected = [
        ("event-type", "t"),
        (dead_letter_header::TOPIC, TOPIC),
        (dead_letter_header::PARTITION, "1"),
        (dead_letter_header::OFFSET, "0"),
        (dead_letter_header::ERROR, "it is broken"),
        (dead_letter_header::RETRIES, "3"),
        (dead_letter_header::CONSUMER, "g"),
    ];
    for (name, value) in expected {
        assert_eq!(headers.get(name).map(String::as_str), Some(value), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_broker_that_comes_back_goes_on_where_it_was() -> Result<()> {
    let mut server = broker_or_return!("a_broker_that_comes_back_goes_on_where_it_was");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    write(&brokers, &[("a", "0"), ("a", "1")]).await?;
    let mut member = join(options(&brokers))?;
    let first = member.next(2).await?;
    member.done(&first[0]);
    member.until(|consumer| consumer.status().partitions[0].committed == Some(1)).await?;
    server.kill9()?;
    member.until(|consumer| consumer.status().trouble.is_some()).await?;
    member.done(&first[1]);
    server.restart().await?;
    write(&brokers, &[("a", "2")]).await?;
    let is_done = |consumer: &KafkaConsumer| {
        let status = consumer.status();
        status.trouble.is_none() && status.partitions.first().is_some_and(|found| found.committed == Some(3))
    };
    // A broker that forgot the group may have taken the partition away: then it begins with what is committed.
    let deadline = Instant::now() + PATIENCE;
    while !is_done(&member.consumer) {
        ensure!(Instant::now() < deadline, "{:?}", member.consumer.status());
        if let Ok(next) = timeout(Duration::from_millis(100), member.next(1)).await {
            let next = next?;
            member.done(&next[0]);
            assert!(["1", "2"].contains(&values(&next)[0].as_str()), "{next:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_and_a_topic_that_come_later_are_waited_for() -> Result<()> {
    let mut server = broker_or_return!("a_cluster_and_a_topic_that_come_later_are_waited_for");
    let brokers = server.bootstrap_servers();
    server.kill9()?;
    let mut member = join(options(&brokers).setting("topic.metadata.refresh.interval.ms", "500"))?;
    member.until(|consumer| consumer.status().trouble.is_some_and(|trouble| trouble.contains("no broker"))).await?;
    assert!(!member.consumer.status().healthy);
    server.restart().await?;
    member
        .until(|consumer| consumer.status().trouble.is_some_and(|trouble| trouble.contains("does not exist")))
        .await?;
    create_topic(&brokers, TOPIC, 1).await?;
    write(&brokers, &[("a", "0")]).await?;
    assert_eq!(values(&member.next(1).await?), ["0"]);
    assert!(member.consumer.status().healthy, "{:?}", member.consumer.status());
    Ok(())
}

#[tokio::test]
async fn a_batch_commits_what_it_has_resolved_and_gets_the_rest_again() -> Result<()> {
    let server = broker_or_return!("a_batch_commits_what_it_has_resolved_and_gets_the_rest_again");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    write(&brokers, &[("a", "0"), ("a", "1"), ("a", "2"), ("a", "3")]).await?;
    let consumer = KafkaConsumer::new(options(&brokers))?;
    let mut batches: Vec<Vec<i64>> = Vec::new();
    let handled = consumer.each_batch(4, async |batch| {
        batch.heartbeat().await?;
        let offsets: Vec<i64> = batch.records().map(|record| record.offset).collect();
        batches.push(offsets.clone());
        if batches.iter().flatten().count() <= 4 && offsets.contains(&2) {
            batch.records().filter(|record| record.offset < 2).for_each(|record| batch.resolve(record));
            return Err("not now".into());
        }
        if offsets.contains(&3) {
            consumer.stop_receiving().await;
        }
        Ok(())
    });
    timeout(PATIENCE, handled).await?;
    assert!(batches.last().is_some_and(|last| *last == [2, 3]), "{batches:?}");
    consumer.close().await;
    assert_eq!(committed(&brokers).await?, Some(4));
    Ok(())
}

#[tokio::test]
async fn partitions_that_are_added_and_a_topic_that_is_deleted_are_noticed() -> Result<()> {
    let server = broker_or_return!("partitions_that_are_added_and_a_topic_that_is_deleted_are_noticed");
    let brokers = server.bootstrap_servers();
    create_topic(&brokers, TOPIC, 1).await?;
    let mut latest = options(&brokers).setting("topic.metadata.refresh.interval.ms", "500");
    latest.start = StartAt::Latest;
    let mut member = join(latest)?;
    member.until(|consumer| consumer.status().partitions.len() == 1).await?;
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", &brokers).create()?;
    let limits = AdminOptions::new().operation_timeout(Some(PATIENCE));
    admin.create_partitions(&[NewPartitions::new(TOPIC, 2)], &limits).await?;
    let producer = KafkaProducer::new(&ProducerOptions::new(&brokers))?;
    // Before the member knows of it.
    producer.send(NewRecord::new(TOPIC, "new").with_partition(1)).await?;
    assert_eq!(values(&member.next(1).await?), ["new"], "a new partition is read from its beginning");
    admin.delete_topics(&[TOPIC], &limits).await?;
    member
        .until(|consumer| consumer.status().trouble.is_some_and(|trouble| trouble.contains("does not exist")))
        .await?;
    member.consumer.close().await;
    Ok(())
}
