//! The Sink conformance suite on notifications, on both stores, and what only this sink promises.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink, Template};
use relais_notify::{
    AudienceMapping, EntryContent, Identities, NotificationOptions, NotificationSink, NotificationSinkOptions,
    NotificationStore, NotificationType, Notifications, StoredNotification,
};
use relais_store::{Options, Ports};
use relais_testkit::{
    OutageDatabase,
    sink_suite::{Received, SinkHarness},
};

/// A sink on a store, and the store as others see it.
struct OnStore {
    notifications: Notifications,
    stored: Arc<dyn NotificationStore>,
    sink: Arc<NotificationSink>,
    database: OutageDatabase,
}

async fn open(url: &str) -> Result<Ports> {
    Ok(relais_store::open_ports(url, &Options::default()).await?)
}

async fn postgres() -> Result<OnStore> {
    let database = OutageDatabase::postgres().await?;
    let (through, direct) = (open(&database.url_through().await?).await?, open(&database.url().await).await?);
    OnStore::start(&through, direct, database).await
}

async fn own_postgres() -> Result<OnStore> {
    alone(OutageDatabase::own_postgres().await?).await
}

async fn sqlite() -> Result<OnStore> {
    alone(OutageDatabase::sqlite()?).await
}

/// One store for all: two programs can not have a file.
async fn alone(database: OutageDatabase) -> Result<OnStore> {
    let ports = open(&database.url().await).await?;
    OnStore::start(&ports, ports.clone(), database).await
}

fn mapping(targets: &[&str]) -> Result<AudienceMapping> {
    let targets = targets.iter().map(|text| Template::parse(text)).collect::<Result<_, _>>()?;
    Ok(AudienceMapping { kind: "USER".to_owned(), targets })
}

fn sink(notifications: &Notifications, source: &str, audience: Option<AudienceMapping>) -> NotificationSink {
    let options = NotificationSinkOptions {
        source: source.to_owned(),
        audience,
        kind: NotificationType::Realtime,
        timeout: Duration::from_secs(5),
        durability: Durability::Disk,
    };
    NotificationSink::new(notifications.clone(), options)
}

impl OnStore {
    async fn start(through: &Ports, direct: Ports, database: OutageDatabase) -> Result<Self> {
        direct.store.migrate().await?;
        let options = NotificationOptions { timers: false, ..NotificationOptions::default() };
        let notifications =
            Notifications::start(Arc::clone(&through.notifications), Identities::new(None, None), options);
        let sink = Arc::new(sink(&notifications, "orders", Some(mapping(&["{payload.key}"])?)));
        Ok(Self { notifications, stored: direct.notifications, sink, database })
    }

    /// All messages, in the order of the log.
    async fn emitted(&self) -> Result<Vec<StoredNotification>> {
        let stored = match &self.database {
            // Connections from before a crash are dead.
            OutageDatabase::OwnPostgres(_) => open(&self.database.url().await).await?.notifications,
            OutageDatabase::Postgres { .. } | OutageDatabase::Sqlite { .. } => Arc::clone(&self.stored),
        };
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let entries = stored.read_log(after, 1000).await?;
            let Some(last) = entries.last() else { return Ok(found) };
            after = last.position;
            found.extend(entries.into_iter().filter_map(|entry| match entry.content {
                EntryContent::Message(_, stored) => Some(*stored),
                EntryContent::Acknowledged { .. } | EntryContent::Members { .. } | EntryContent::Gone => None,
            }));
        }
    }
}

#[async_trait(?Send)]
impl SinkHarness for OnStore {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::<NotificationSink>::clone(&self.sink)
    }

    fn destination(&self) -> String {
        "orders".to_owned()
    }

    fn carries_keys(&self) -> bool {
        false
    }

    fn carries_header(&self, _: &str) -> bool {
        false
    }

    /// The ids are made of those of the messages: which they were, the payload says.
    async fn received(&self) -> Result<Vec<Received>> {
        let received = self.emitted().await?.into_iter().map(|stored| {
            let payload = stored.notification.payload.get();
            let read: serde_json::Value = serde_json::from_str(payload)?;
            let id = format!("{}-{}", read["key"].as_str().context("a key")?, read["n"]);
            Ok(Received { id, key: None, headers: Default::default(), payload: payload.as_bytes().to_vec() })
        });
        received.collect()
    }

    fn missing(&self) -> Option<String> {
        None
    }

    fn forbidden(&self) -> Option<String> {
        None
    }

    fn enlarge(&self, message: &mut Message) -> bool {
        message.payload = Some(format!(r#"{{"key":"bad","x":"{}"}}"#, "x".repeat(1 << 20)).into());
        true
    }

    async fn cut(&self) -> Result<()> {
        self.database.cut().await
    }

    async fn stall(&self) -> Result<()> {
        self.database.stall().await
    }

    async fn restore(&self) -> Result<()> {
        self.database.restore().await
    }

    async fn crash(&self) -> Result<bool> {
        self.database.crash().await
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

mod on_postgres {
    use super::{own_postgres, postgres};
    relais_testkit::sink_suite!(postgres, crash: own_postgres);
}

mod on_sqlite {
    use super::sqlite;
    relais_testkit::sink_suite!(sqlite);
}

fn to(message: Message) -> RoutedMessage {
    RoutedMessage { destination: "shop.public.orders".to_owned(), routing_key: String::new(), message }
}

async fn publish(sink: &NotificationSink, message: Message) -> Result<PublishOutcome> {
    sink.publish(vec![to(message)]).await.pop().context("an answer")
}

#[tokio::test]
async fn a_message_that_is_published_twice_is_emitted_once() -> Result<()> {
    let stage = sqlite().await?;
    let message = || Message::new("m-1", "t", r#"{"key":"ann","n":1}"#);
    for _ in 0..3 {
        ensure!(publish(&stage.sink, message()).await?.is_confirmed());
    }
    // Another source has messages of its own.
    let other = sink(&stage.notifications, "invoices", Some(mapping(&["{payload.key}"])?));
    ensure!(publish(&other, message()).await?.is_confirmed());
    ensure!(stage.emitted().await?.len() == 2);
    Ok(())
}

#[tokio::test]
async fn a_change_that_is_read_again_from_the_log_is_emitted_once() -> Result<()> {
    let stage = sqlite().await?;
    // The envelope says when it was read.
    let read_at = |time: u32| format!(r#"{{"key":"ann","n":1,"ts_ms":{time}}}"#);
    for time in 1..=3 {
        ensure!(publish(&stage.sink, Message::new("16b3748-1", "insert", read_at(time))).await?.is_confirmed());
    }
    // An id that another source has chosen is not taken for one of ours.
    let id = "0193a7f2-7c33-7a41-8a3e-5b1c2d3e4f50";
    ensure!(publish(&stage.sink, Message::new(id, "insert", read_at(4))).await?.is_confirmed());
    let other = sink(&stage.notifications, "invoices", Some(mapping(&["{payload.key}"])?));
    let outcome = publish(&other, Message::new(id, "insert", read_at(5))).await?;
    ensure!(matches!(outcome, PublishOutcome::Refused(_)), "{outcome:?}");
    ensure!(stage.emitted().await?.len() == 2);
    Ok(())
}

#[tokio::test]
async fn a_captured_change_goes_to_those_whom_the_mapping_names() -> Result<()> {
    let stage = sqlite().await?;
    let captured = sink(
        &stage.notifications,
        "orders",
        Some(mapping(&["{payload.after.owner}", "{payload.before.owner}", "{payload.after.watchers}"])?),
    );
    let change = r#"{"before":{"owner":"ann","note": 1.50},"after":{"owner":"bob","watchers":["cem",7]},"op":"u","source":{"table":"orders"}}"#;
    ensure!(publish(&captured, Message::new("c-1", "", change)).await?.is_confirmed());
    // A row of nobody, and a tombstone, are for nobody.
    let nobody = r#"{"before":null,"after":{"owner":null},"op":"c","source":{"table":"orders"}}"#;
    ensure!(publish(&captured, Message::new("c-2", "", nobody)).await?.is_confirmed());
    let tombstone = Message { payload: None, ..Message::new("c-3", "", "") };
    ensure!(publish(&captured, tombstone).await?.is_confirmed());
    let emitted = stage.emitted().await?;
    let [stored] = &emitted[..] else { anyhow::bail!("{} messages", emitted.len()) };
    ensure!(stored.notification.payload.get() == change, "as it was written");
    let metadata = serde_json::to_value(&stored.notification.metadata)?;
    ensure!(metadata["source"] == "orders" && metadata["operation"] == "update", "{metadata}");
    ensure!(metadata["topic"] == "shop.public.orders" && metadata["emitter"] == "orders", "{metadata}");
    let targets: Vec<&str> = stored.notification.routing.audience.targets.iter().map(String::as_str).collect();
    ensure!(targets == ["7", "ann", "bob", "cem"], "{targets:?}");
    Ok(())
}

#[tokio::test]
async fn a_payload_can_be_a_whole_notification() -> Result<()> {
    let stage = sqlite().await?;
    let whole = sink(&stage.notifications, "orders", None);
    let payload = r#"{"payload":{"a":1},"routing":{"audience":{"type":"USER","targets":["ann"]},"retry":{"ack_required":true,"enabled":true,"attempts":3,"limit":5,"backoff":"FIXED"}}}"#;
    ensure!(publish(&whole, Message::new("w-1", "t", payload)).await?.is_confirmed());
    let emitted = stage.emitted().await?;
    ensure!(emitted[0].notification.routing.retry.attempts == 0 && emitted[0].notification.routing.retry.ack_required);
    for (id, payload) in
        [("w-2", "{}"), ("w-3", "[1]"), ("w-4", r#"{"routing":{"audience":{"type":"USER","targets":[]}}}"#)]
    {
        let outcome = publish(&whole, Message::new(id, "t", payload)).await?;
        ensure!(matches!(outcome, PublishOutcome::Refused(_)), "{id}: {outcome:?}");
    }
    Ok(())
}
