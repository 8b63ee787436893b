//! The promises of the HTTP API, tested by a client.
//!
//! One binary with a module per promise, because linking costs more than running. Tests that a store could break run on
//! both: they are written once, as functions of a [`Backend`](relais_tests::app::Backend), and listed in
//! `on_each_store!`.

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

mod admin_access;
mod admin_answers;
mod admin_apply;
mod answers;
mod attempts;
mod backlog;
mod bad_declarations;
mod bad_input;
mod callbacks;
mod capacity;
mod claims;
mod dependencies;
mod event_bus;
mod events;
mod flow;
mod idempotency;
mod messages;
mod order;
mod payload;
mod refusals;
mod routes;
mod schedules;
mod waiting;
