//! The bus over a store's own wake-ups, held to the suite that every transport is held to, and to what it promises in
//! an outage.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../../bus/tests/suite/mod.rs"]
mod suite;

use std::sync::Arc;

use futures::FutureExt;
use relais_bus::{Bus, Notice, Transport};
use relais_core::Store;
use relais_engine::StoreTransport;
use relais_testkit::{PostgresServer, TestDatabase};

use self::suite::{next, within};

/// A store that relays what others say, as the engine makes it do.
async fn store(url: &str) -> Arc<dyn Store> {
    let store = relais_store::open(url, &relais_store::Options::default()).await.unwrap();
    let relay = Arc::clone(&store);
    // Ends with the test's runtime.
    tokio::spawn(async move { relay.relay_wakeups().await });
    store
}

async fn harness() -> suite::Harness {
    let database = Arc::new(TestDatabase::create().await.unwrap());
    let features = StoreTransport::new(store(database.url()).await).features();
    let make = move |_: &str| {
        let database = Arc::clone(&database);
        async move {
            let transport = StoreTransport::new(store(database.url()).await);
            Bus::builder().transport(transport).start().await.unwrap()
        }
        .boxed()
    };
    suite::Harness { features, make: Box::new(make) }
}

mod postgres {
    use super::*;
    use crate::conformance;

    conformance!(harness());
}

#[tokio::test]
async fn subscribers_survive_a_server_restart_and_get_a_gap_notice() {
    let mut server = PostgresServer::start().await.unwrap();
    let transport = StoreTransport::new(store(&server.url("postgres")).await);
    let bus = Bus::builder().transport(transport).start().await.unwrap();
    let mut numbers = bus.subscribe("numbers").await.unwrap();
    let mut notices = bus.subscribe("$bus.>").await.unwrap();
    server.kill9().unwrap();
    assert_eq!(&*next(&mut notices).await.channel, Notice::DISCONNECTED);
    assert!(!bus.health().healthy);
    assert!(bus.publish("numbers", 1).await.is_err(), "a publisher is told");
    server.restart().await.unwrap();
    let notice = next(&mut notices).await.payload.get::<Notice>().unwrap();
    assert!(matches!(*notice, Notice::Reconnected { may_have_missed: true, .. }), "{notice:?}");
    within(async { while bus.publish("numbers", 2).await.is_err() {} }).await;
    assert_eq!(*next(&mut numbers).await.payload.get::<u32>().unwrap(), 2);
}
