//! Tasks over RabbitMQ, from the outside: a real node, a worker that knows two queues and JSON, a consumer that knows
//! HTTP.
//!
//! What a store could break runs on both: it is written once, as a function of a
//! [`Backend`](relais_tests::app::Backend), and listed in `on_each_store!`. Every test has a virtual host of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

/// Makes a test of each function, on SQLite and on PostgreSQL.
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

mod absence;
mod attempts;
mod control;
mod dead_letters;
mod dependencies;
mod existing_workers;
mod flow;
mod limits;
mod operators;
mod processes;
mod queues;
mod redelivery;
mod schedules;
mod stage;
mod volume;
mod window;
