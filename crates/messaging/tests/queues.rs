//! Promises of declaring, browsing and policies.

use std::{error::Error, time::Duration};

use anyhow::Result;
use futures::future::join_all;
use relais_messaging::rabbitmq::{
    Broker, BrokerOptions, BrokerState, Browser, ConsumeError, ConsumeOptions, DeclaredQueue, HeaderValue, Management,
    ManagementError, Publish, Queue, QueueKind,
};
use relais_testkit::{TcpProxy, TestVhost, free_port};
use serde_json::json;
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn options() -> BrokerOptions {
    BrokerOptions {
        publish_timeout: SOON,
        patience: SOON,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
        ..BrokerOptions::default()
    }
}

fn queue(name: &str, kind: QueueKind) -> Queue {
    Queue { name: name.to_owned(), kind }
}

async fn fill(broker: &Broker, queue: &str, count: usize) -> Result<()> {
    let messages = (0..count).map(|number| Publish::new("", queue, number.to_string()).message_id(number.to_string()));
    for answer in broker.publish_all(messages.collect()).await {
        answer?;
    }
    Ok(())
}

async fn look(browser: &mut Browser) -> Result<Vec<(u64, String)>> {
    let mut seen = Vec::new();
    while let Some(delivery) = timeout(SOON, browser.next()).await?? {
        seen.push((delivery.tag, String::from_utf8(delivery.body)?));
    }
    Ok(seen)
}

fn texts(seen: &[(u64, String)]) -> Vec<&str> {
    seen.iter().map(|(_, text)| text.as_str()).collect()
}

#[tokio::test]
async fn a_queue_is_made_once_and_found_afterwards() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let broker = Broker::new(vhost.url(), options())?;
    let management = Management::new(&vhost.management_url(), vhost.name())?;
    for (name, kind, made_of) in
        [("plain", QueueKind::Classic, "classic"), ("a / safe one", QueueKind::Quorum, "quorum")]
    {
        let made = broker.declare(&queue(name, kind)).await?;
        assert_eq!(made, DeclaredQueue { existed: false, messages: 0, consumers: 0 });
        fill(&broker, name, 3).await?;
        let _consumer = broker.consume(name, ConsumeOptions { prefetch: 1, ..ConsumeOptions::default() }).await?;
        let found = broker.declare(&queue(name, kind)).await?;
        assert!(found.existed && found.consumers == 1 && found.messages <= 3, "{found:?}");
        // Whatever it is made of.
        for kind in [QueueKind::Classic, QueueKind::Quorum] {
            assert!(broker.declare(&queue(name, kind)).await?.existed);
        }
        let facts = management.queue(name).await?.unwrap();
        assert_eq!(facts.kind, made_of);
    }
    assert_eq!(management.queue("no such queue").await?, None);
    let long = broker.declare(&queue(&"q".repeat(256), QueueKind::Classic)).await.unwrap_err();
    assert!(matches!(long, ConsumeError::Refused { .. }), "{long}");
    let reserved = broker.declare(&queue("amq.mine", QueueKind::Classic)).await.unwrap_err();
    assert!(matches!(&reserved, ConsumeError::Refused { why } if why.contains("amq.mine")), "{reserved}");
    assert!(broker.state().is_connected());
    Ok(())
}

#[tokio::test]
async fn a_queue_that_somebody_made_in_another_way_is_used_as_it_is() -> Result<()> {
    let vhost = TestVhost::create().await?;
    vhost.declare_queue_with("odd", json!({"x-max-length": 7, "x-message-ttl": 60_000})).await?;
    let broker = Broker::new(vhost.url(), options())?;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        assert!(broker.declare(&queue("odd", kind)).await?.existed);
    }
    Ok(())
}

#[tokio::test]
async fn many_may_make_the_same_queue_at_once() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let brokers: Vec<Broker> = (0..6).map(|_| Broker::new(vhost.url(), options())).collect::<Result<_, _>>()?;
    for name in ["one", "two", "three"] {
        let kinds = [QueueKind::Classic, QueueKind::Quorum].into_iter().cycle();
        let declaring = brokers.iter().zip(kinds).map(async |(broker, kind)| broker.declare(&queue(name, kind)).await);
        for declared in timeout(SOON, join_all(declaring)).await? {
            declared?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_browser_returns_the_messages_it_looked_at() -> Result<()> {
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let vhost = TestVhost::create().await?;
        let broker = Broker::new(vhost.url(), options())?;
        broker.declare(&queue("dead", kind)).await?;
        fill(&broker, "dead", 10).await?;

        let mut browser = broker.browse("dead").await?;
        for number in 0..4 {
            assert_eq!(browser.next().await?.unwrap().body, number.to_string().as_bytes());
        }
        // Nobody else is handed them meanwhile.
        let mut other = broker.browse("dead").await?;
        assert_eq!(texts(&look(&mut other).await?), ["4", "5", "6", "7", "8", "9"], "{kind:?}");
        timeout(SOON, other.close()).await??;
        timeout(SOON, browser.close()).await??;

        let mut browser = broker.browse("dead").await?;
        let mut seen = look(&mut browser).await?;
        if kind == QueueKind::Quorum {
            // It has no places to give back to: what comes back is in front, as it came.
            seen.sort_by(|one, other| one.1.cmp(&other.1));
        }
        assert_eq!(texts(&seen), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], "{kind:?}");
        browser.ack(seen[2].0)?;
        browser.ack(seen[7].0)?;
        // Dropped, not closed: a consumer waits for what comes back.
        drop(browser);
        let mut consumer = broker.consume("dead", ConsumeOptions { prefetch: 0, tag: String::new() }).await?;
        let mut found = Vec::new();
        while found.len() < 8 {
            let delivery = timeout(SOON, consumer.next()).await??;
            assert!(delivery.redelivered && delivery.delivery_count() > 0, "{kind:?}");
            found.push(String::from_utf8(delivery.body)?);
        }
        if kind == QueueKind::Quorum {
            found.sort();
        }
        assert_eq!(found, ["0", "1", "3", "4", "5", "6", "8", "9"], "{kind:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_browser_says_what_is_missing_and_never_hangs() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let broker = Broker::new(&vhost.url_via(proxy.addr())?, options())?;
    let error = broker.browse("dead").await.err().unwrap();
    assert_eq!(error, ConsumeError::NoQueue { queue: "dead".to_owned() });
    vhost.declare_queue("dead").await?;
    let mut browser = broker.browse("dead").await?;
    assert_eq!(browser.next().await?, None);
    vhost.delete_queue("dead").await?;
    assert_eq!(timeout(SOON, browser.next()).await?, Err(ConsumeError::NoQueue { queue: "dead".to_owned() }));

    vhost.declare_queue("dead").await?;
    fill(&broker, "dead", 1).await?;
    let mut browser = broker.browse("dead").await?;
    let seen = browser.next().await?.unwrap();
    proxy.cut().await?;
    assert!(matches!(timeout(SOON, browser.next()).await?, Err(ConsumeError::Away { .. })));
    timeout(SOON, broker.until(BrokerState::is_away)).await?;
    let BrokerState::Away { why, .. } = broker.state() else { panic!("{:?}", broker.state()) };
    assert!(!why.contains("NOT_FOUND"), "that was a channel's end: {why}");
    assert!(matches!(browser.ack(seen.tag), Err(ConsumeError::Away { .. })));
    assert!(matches!(timeout(SOON, browser.close()).await?, Err(ConsumeError::Away { .. })));
    Ok(())
}

#[tokio::test]
async fn a_policy_dead_letters_rejected_messages() -> Result<()> {
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let vhost = TestVhost::create().await?;
        let broker = Broker::new(vhost.url(), options())?;
        let management = Management::new(&vhost.management_url(), vhost.name())?;
        broker.declare(&queue("tasks", kind)).await?;
        broker.declare(&queue("dead", QueueKind::Classic)).await?;
        let definition = json!({"dead-letter-exchange": "", "dead-letter-routing-key": "dead"});
        management.put_policy("dead letters", "^tasks$", "queues", definition, 3).await?;
        // A policy takes effect a moment later.
        until_policy(&vhost, "tasks").await?;
        fill(&broker, "tasks", 2).await?;

        let mut consumer = broker.consume("tasks", ConsumeOptions::default()).await?;
        for _ in 0..2 {
            let rejected = timeout(SOON, consumer.next()).await??;
            consumer.nack(rejected.tag, false)?;
        }
        let mut dead = broker.consume("dead", ConsumeOptions::default()).await?;
        let letter = timeout(SOON, dead.next()).await??;
        assert_eq!((letter.body.as_slice(), letter.message_id.as_deref()), (b"0".as_slice(), Some("0")));
        let death = &letter.header("x-death").unwrap().items()[0];
        let says = |name: &str| death.get(name).and_then(HeaderValue::as_text);
        assert_eq!((says("queue"), says("reason")), (Some("tasks"), Some("rejected")), "{kind:?}");
        assert_eq!(death.get("count").and_then(HeaderValue::as_number), Some(1));
        assert_eq!(death.get("routing-keys").unwrap().items(), [HeaderValue::Text("tasks".to_owned())]);

        management.delete_policy("dead letters").await?;
        management.delete_policy("dead letters").await?;
    }
    Ok(())
}

/// Waits until a queue has a policy: the broker applies them in the background.
async fn until_policy(vhost: &TestVhost, queue: &str) -> Result<()> {
    timeout(SOON, async {
        while vhost.queue(queue).await?["policy"].is_null() {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    })
    .await?
}

#[tokio::test]
async fn the_management_api_says_what_to_do_and_no_password() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let url = vhost.management_url();
    let policy = async |url: &str, vhost: &str, definition: serde_json::Value| {
        let management = Management::new(url, vhost).unwrap();
        assert!(!format!("{management:?}").contains("hush"));
        management.put_policy("p", "^x$", "queues", definition, 0).await.unwrap_err()
    };
    let fine = json!({"max-length": 7});
    let refused = policy(&url, vhost.name(), json!({"no-such-setting": 7})).await;
    assert!(matches!(&refused, ManagementError::Refused { why, .. } if why.contains("no-such-setting")), "{refused}");
    let missing = policy(&url, "no-such-host", fine.clone()).await;
    assert!(matches!(missing, ManagementError::NoVhost { .. }), "{missing}");
    let wrong = policy(&url.replace(":guest@", ":hush@"), vhost.name(), fine.clone()).await;
    assert!(matches!(&wrong, ManagementError::Login { user, .. } if user == "guest"), "{wrong:?}");
    let away = policy(&format!("http://guest:hush@127.0.0.1:{}", free_port()?), vhost.name(), fine.clone()).await;
    assert!(away.to_string().contains("rabbitmq_management"), "{away}");
    for error in [wrong, away] {
        let (said, debug) = (said(&error), format!("{error:?}"));
        assert!(!said.contains("hush") && !debug.contains("hush"), "{said} {debug}");
    }
    for url in ["", "localhost:15672", "amqp://localhost", "http://"] {
        assert!(matches!(Management::new(url, "/"), Err(ManagementError::Url(_))), "{url}");
    }
    Ok(())
}

/// An error with all its causes.
fn said(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said += &format!(": {error}");
        cause = error.source();
    }
    said
}

#[tokio::test]
async fn a_witness_disappears_with_its_queue_however_soon_that_is_recreated() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let broker = Broker::new(vhost.url(), options())?;
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        assert!(!broker.has_witness("tasks.witness").await?);
        let placed = broker.place_witness("tasks.witness", "tasks").await;
        assert!(matches!(placed, Err(ConsumeError::NoQueue { .. })), "{placed:?}");
        broker.declare(&queue("tasks", kind)).await?;
        for _ in 0..2 {
            broker.place_witness("tasks.witness", "tasks").await?;
            assert!(broker.has_witness("tasks.witness").await?);
        }
        vhost.delete_queue("tasks").await?;
        broker.declare(&queue("tasks", kind)).await?;
        assert!(!broker.has_witness("tasks.witness").await?, "it is another one");
        vhost.delete_queue("tasks").await?;
    }
    Ok(())
}
