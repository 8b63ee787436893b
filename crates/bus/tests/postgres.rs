//! PostgreSQL NOTIFY, held to the suite with both ways to treat large events, and to what it promises in an outage.

#![cfg(feature = "postgres")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod suite;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use relais_bus::{Bus, Notice, Transport, postgres::PostgresNotify};
use relais_testkit::{PostgresServer, TestDatabase};
use sqlx::{PgPool, postgres::PgPoolOptions};

use self::suite::{next, within};

/// A pool that waits for as long as a connection may take on a busy machine.
async fn pool(url: &str) -> PgPool {
    PgPoolOptions::new().max_connections(4).connect(url).await.unwrap()
}

async fn harness_of(make: fn(PgPool) -> PostgresNotify) -> suite::Harness {
    let database = Arc::new(TestDatabase::create().await.unwrap());
    let features = make(pool(database.url()).await).features();
    let make = move |_: &str| {
        let database = Arc::clone(&database);
        async move { Bus::builder().transport(make(pool(database.url()).await)).start().await.unwrap() }.boxed()
    };
    suite::Harness { features, make: Box::new(make) }
}

mod small {
    use super::*;
    use crate::conformance;

    conformance!(harness_of(PostgresNotify::new));
}

mod by_reference {
    use super::*;
    use crate::conformance;

    conformance!(harness_of(|pool| PostgresNotify::new(pool).large_events()));
}

#[tokio::test]
async fn subscribers_survive_a_server_restart_and_get_a_gap_notice() {
    let mut server = PostgresServer::start().await.unwrap();
    // One that gives up soon, so that a publisher is told soon.
    let pool =
        PgPoolOptions::new().acquire_timeout(Duration::from_secs(5)).connect(&server.url("postgres")).await.unwrap();
    let bus = Bus::builder().transport(PostgresNotify::new(pool)).start().await.unwrap();
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

#[tokio::test]
async fn names_that_would_be_sql_are_refused() {
    let database = TestDatabase::create().await.unwrap();
    let pool = pool(database.url()).await;
    for bad in ["", "a b", "a;", "A", "ü"] {
        assert!(PostgresNotify::new(pool.clone()).channel(bad).is_err(), "{bad:?}");
    }
    assert!(PostgresNotify::new(pool).channel("orders_2").is_ok());
}
