//! The promises of notifications, tested by emitters and by the pages of users.
//!
//! Tests that a store could break run on each. Those of many instances run on PostgreSQL and on Redis, two in this process,
//! or two processes of the real binary.

/// Makes a test of each function, on SQLite, on PostgreSQL and on Redis.
macro_rules! on_each_store {
    ($($promise:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                super::$promise(relais_tests::app::Backend::Sqlite).await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                super::$promise(relais_tests::app::Backend::Postgres).await;
            })*
        }

        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                super::$promise(relais_tests::app::Backend::Redis).await;
            })*
        }
    };
}

/// Makes a test of each function, on SQLite alone: what it holds does not depend on the store.
macro_rules! on_one_store {
    ($($promise:ident),* $(,)?) => {
        mod one_store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                super::$promise(relais_tests::app::Backend::Sqlite).await;
            })*
        }
    };
}

mod acknowledge;
mod chaos;
mod clocks;
mod declared;
mod emit;
mod fan_in;
mod hostile;
mod link;
mod links;
mod outage;
mod poll;
mod push;
mod push_service;
mod socket;
mod sources;
mod stage;
mod stream;
