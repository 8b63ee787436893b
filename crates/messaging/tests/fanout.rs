//! Promises to those who listen to an exchange.

use std::time::Duration;

use anyhow::Result;
use relais_messaging::rabbitmq::{Broker, BrokerOptions, BrokerState, ConsumeError, Consumer, Publish};
use relais_testkit::{TcpProxy, TestVhost};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn broker(url: &str) -> Result<Broker> {
    let options = BrokerOptions {
        publish_timeout: SOON,
        patience: SOON,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
        ..BrokerOptions::default()
    };
    Ok(Broker::new(url, options)?)
}

async fn heard(consumer: &mut Consumer) -> Result<String> {
    Ok(String::from_utf8(timeout(SOON, consumer.next()).await??.body)?)
}

fn news(text: &str) -> Publish {
    Publish::new("news", "", text).mandatory(false)
}

#[tokio::test]
async fn a_fanout_message_reaches_every_current_listener() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let (one, two) = (broker(vhost.url())?, broker(vhost.url())?);
    one.declare_fanout("news").await?;
    one.declare_fanout("news").await?;
    one.publish(news("to nobody")).await?;
    let (mut here, mut there) = (one.listen("news", "news.1").await?, two.listen("news", "news.2").await?);
    one.publish(news("hello")).await?;
    assert_eq!((heard(&mut here).await?, heard(&mut there).await?), ("hello".to_owned(), "hello".to_owned()));
    Ok(())
}

#[tokio::test]
async fn an_exclusive_queue_is_deleted_with_its_listener() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let (one, two) = (broker(vhost.url())?, broker(vhost.url())?);
    let here = one.listen("news", "news.1").await?;
    let taken = two.listen("news", "news.1").await.err();
    assert!(matches!(taken, Some(ConsumeError::Refused { .. })), "{taken:?}");
    drop(here);
    let gone = async {
        while one.find("news.1").await?.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    };
    timeout(SOON, gone).await??;
    two.listen("news", "news.1").await?;
    Ok(())
}

#[tokio::test]
async fn a_lost_connection_ends_the_listener_and_it_can_start_again() -> Result<()> {
    let vhost = TestVhost::create().await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let (near, far) = (broker(vhost.url())?, broker(&vhost.url_via(proxy.addr())?)?);
    let mut there = far.listen("news", "news.1").await?;
    proxy.cut().await?;
    let end = timeout(SOON, there.next()).await?.err();
    assert!(end.as_ref().is_some_and(ConsumeError::is_away), "{end:?}");
    proxy.restore().await?;
    timeout(SOON, far.until(BrokerState::is_connected)).await?;
    let mut there = far.listen("news", "news.2").await?;
    near.publish(news("again")).await?;
    assert_eq!(heard(&mut there).await?, "again");
    Ok(())
}

#[tokio::test]
async fn a_listener_without_permission_gets_an_error_and_the_connection_stays() -> Result<()> {
    let vhost = TestVhost::create().await?;
    vhost.declare_queue("tasks").await?;
    vhost.declare_exchange("news", "fanout").await?;
    let restricted = broker(&vhost.url_restricted_to(r"^(tasks|amq\.default)$").await?)?;
    for exchange in ["news", "missing"] {
        let refused = restricted.listen(exchange, "news.1").await.err();
        assert!(matches!(refused, Some(ConsumeError::Refused { .. })), "{refused:?}");
    }
    restricted.publish(Publish::new("", "tasks", "work")).await?;
    assert_eq!(restricted.find("tasks").await?.map(|found| found.messages), Some(1));
    Ok(())
}
