//! Asks an outbox's database and sink whether they can be used, before the outbox is stored. The sink of a capture is asked
//! alike.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use relais_engine::{Problem, RelayCheck};
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink};
use relais_outbox::{Mode, OutboxError, OutboxStore, Relay};
use relais_protocol::outbox::SinkDeclaration;
use tokio::time::timeout;

use crate::{SinkError, SinkFactory, declaration::Declared};

/// How long a database or a sink may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

const UNCHECKED: &str = "or declare it without this check (`--no-check`, `check=false`)";

/// What is wrong, at places below the declaration.
pub(crate) async fn check(declared: &Declared, sinks: &dyn SinkFactory, how: RelayCheck) -> Vec<Problem> {
    if how == RelayCheck::Declaration {
        return Vec::new();
    }
    let sink = declared.sink();
    let (database, sink) = tokio::join!(check_database(declared), check_sink(declared.name.as_str(), &sink, sinks));
    problems([database, sink], declared.name.as_str(), how)
}

/// What is to be told of it.
pub(crate) fn problems<const N: usize>(checked: [Result<(), Wrong>; N], name: &str, how: RelayCheck) -> Vec<Problem> {
    let mut problems = Vec::new();
    for wrong in checked.into_iter().filter_map(Result::err) {
        match wrong {
            Wrong::Away(problem) if how == RelayCheck::IfThere => {
                tracing::warn!(
                    name,
                    at = problem.path,
                    error = problem.message,
                    "a database or sink is declared that is away; its messages are published when it is there"
                );
            }
            Wrong::Away(problem) | Wrong::Unusable(problem) => problems.push(problem),
        }
    }
    problems
}

/// Why something that is declared can not be used.
pub(crate) enum Wrong {
    /// It does not answer.
    Away(Problem),
    /// It answers, and can not be used.
    Unusable(Problem),
}

async fn check_database(declared: &Declared) -> Result<(), Wrong> {
    let checked = async {
        let store = open(declared).await?;
        Relay::new(Arc::clone(&store), Arc::new(NoSink), declared.options.clone()).await?;
        // Where polling is behind it, what is missing is told by the relay.
        match declared.options.mode {
            Mode::Capture => match relais_outbox::capture_lacks(store.as_ref(), &declared.options).await? {
                lacks if lacks.is_empty() => Ok(()),
                lacks => Err(OutboxError::CaptureLacks(lacks.join("; "))),
            },
            Mode::Auto | Mode::Polling => Ok(()),
        }
    };
    match timeout(PATIENCE, checked).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(OutboxError::Database(error))) if is_away(&error) => Err(database_away(&error.to_string())),
        Ok(Err(error)) => Err(Wrong::Unusable(unusable(&error))),
        Err(_) => Err(database_away(&format!("no answer within {PATIENCE:?}"))),
    }
}

pub(crate) fn database_away(why: &str) -> Wrong {
    let message = format!("the database can not be reached: {why}; start it, correct the URL, {UNCHECKED}");
    Wrong::Away(Problem::at("databaseUrl", message))
}

/// Opens the database of an outbox.
pub(crate) async fn open(declared: &Declared) -> Result<Arc<dyn OutboxStore>, OutboxError> {
    relais_outbox::ping(declared.database_url()).await?;
    relais_outbox::open(declared.database_url(), &declared.table).await
}

/// Whether a database does not answer, or not yet: class 08 (connections) and 57P03 (it starts, or stops).
pub(crate) fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => true,
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| code.starts_with("08") || code.starts_with("57P"))
        }
        _ => false,
    }
}

/// What is wrong, once: what a database says already has all that caused it.
pub(crate) fn why(error: &OutboxError) -> String {
    match error {
        OutboxError::Database(cause) => format!("{error}: {cause}"),
        other => other.to_string(),
    }
}

fn unusable(error: &OutboxError) -> Problem {
    let place = match error {
        OutboxError::Url | OutboxError::Database(_) => "databaseUrl",
        OutboxError::NoCapture | OutboxError::CaptureLacks(_) => "mode",
        OutboxError::Template(_) | OutboxError::Key(_) => "key",
        _ => "table",
    };
    let denied = match error {
        OutboxError::Database(sqlx::Error::Database(error)) => error.code().as_deref() == Some("42501"),
        _ => false,
    };
    let mut message = why(error);
    if denied {
        message.push_str(
            "; relays keep three tables beside the outbox: let `relais outbox init` make them as a user who may, \
             and grant this one SELECT, INSERT, UPDATE and DELETE on them",
        );
    }
    Problem::at(place, message)
}

pub(crate) async fn check_sink(source: &str, sink: &SinkDeclaration, sinks: &dyn SinkFactory) -> Result<(), Wrong> {
    let away = |field: &str, why: String| {
        let message = format!("the sink can not be reached: {why}; start it, correct the URL, {UNCHECKED}");
        Wrong::Away(Problem::at(below_sink(field), message))
    };
    match timeout(PATIENCE, sinks.check(source, sink)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(SinkError::Declaration { field, message })) => {
            Err(Wrong::Unusable(Problem::at(below_sink(&field), message)))
        }
        Ok(Err(SinkError::Away { field, message })) => Err(away(&field, message)),
        Err(_) => Err(away("", format!("no answer within {PATIENCE:?}"))),
    }
}

fn below_sink(field: &str) -> String {
    if field.is_empty() { "sink".to_owned() } else { format!("sink/{field}") }
}

/// Stands for a sink while a relay's settings are checked. Nothing is published.
struct NoSink;

#[async_trait]
impl Sink for NoSink {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        vec![PublishOutcome::NotSent; batch.len()]
    }

    async fn close(&self) {}
}
