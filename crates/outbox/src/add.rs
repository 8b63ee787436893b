//! Writing a row in the caller's own transaction.

use std::future::Future;

use relais_message::Headers;
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use uuid::Uuid;

use crate::{
    AggregateId, Dialect, OutboxError, TableName,
    table::{create_statements, relay_tables},
};

/// An outbox, by the name of its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    table: TableName,
}

/// A row to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEvent {
    /// The message's id. Receivers drop repeats by it.
    pub id: Uuid,
    /// What the fact is about: order is kept per aggregate.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// The fact, as JSON.
    pub payload: String,
    /// What kind of thing the aggregate is.
    pub aggregate_type: Option<String>,
    /// Anything else that goes with the message.
    pub headers: Headers,
    /// Where it goes, instead of where the outbox's template says.
    pub destination: Option<String>,
    /// Which version of the payload's schema it is.
    pub schema_version: Option<String>,
    /// One id through a chain of tasks, messages and sagas.
    pub correlation_id: Option<String>,
}

impl OutboxEvent {
    /// A fact about an aggregate, under a new id. The other fields can be set afterwards; those that are set need their columns.
    pub fn new(
        aggregate_id: impl ToString,
        event_type: impl Into<String>,
        payload: &impl Serialize,
    ) -> Result<Self, OutboxError> {
        Ok(Self {
            id: Uuid::now_v7(),
            aggregate_id: aggregate_id.to_string(),
            event_type: event_type.into(),
            payload: serde_json::to_string(payload)?,
            aggregate_type: None,
            headers: Headers::default(),
            destination: None,
            schema_version: None,
            correlation_id: None,
        })
    }

    /// The columns that are written as text, and what they say.
    fn columns(&self) -> Vec<(&'static str, String)> {
        let headers: serde_json::Map<String, serde_json::Value> =
            self.headers.iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        [
            ("id", Some(self.id.to_string())),
            ("aggregate_id", Some(self.aggregate_id.clone())),
            ("event_type", Some(self.event_type.clone())),
            ("payload", Some(self.payload.clone())),
            ("aggregate_type", self.aggregate_type.clone()),
            ("headers", (!headers.is_empty()).then(|| serde_json::Value::Object(headers).to_string())),
            ("destination", self.destination.clone()),
            ("schema_version", self.schema_version.clone()),
            ("correlation_id", self.correlation_id.clone()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

impl Outbox {
    /// An outbox in the table `name` or `schema.name`.
    pub fn new(table: &str) -> Result<Self, OutboxError> {
        Ok(Self { table: TableName::parse(table)? })
    }

    /// Its table.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// Makes the table with all optional columns, if it is not there. `relais outbox init` does the same.
    pub async fn create(&self, connection: &mut impl AddEvent) -> Result<(), OutboxError> {
        connection.create(self, AggregateId::default()).await
    }

    /// Adds an event. It is published if the transaction that `connection` is in commits.
    pub async fn add(&self, connection: &mut impl AddEvent, event: &OutboxEvent) -> Result<(), OutboxError> {
        connection.add_event(self, event).await
    }
}

/// A connection to a database with an outbox.
pub trait AddEvent {
    /// See [`Outbox::create`].
    fn create(
        &mut self,
        outbox: &Outbox,
        aggregate_id: AggregateId,
    ) -> impl Future<Output = Result<(), OutboxError>> + Send;

    /// See [`Outbox::add`].
    fn add_event(
        &mut self,
        outbox: &Outbox,
        event: &OutboxEvent,
    ) -> impl Future<Output = Result<(), OutboxError>> + Send;
}

impl AddEvent for PgConnection {
    async fn create(&mut self, outbox: &Outbox, aggregate_id: AggregateId) -> Result<(), OutboxError> {
        let mut transaction = self.begin().await?;
        // Programs that start at once take turns. Where the table is there, it is not locked: others write to it.
        sqlx::query("SELECT pg_advisory_xact_lock(hashtext('relais_outbox'))").execute(&mut *transaction).await?;
        let there: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
            .bind(outbox.table.sql())
            .fetch_one(&mut *transaction)
            .await?;
        let statements = match there {
            true => relay_tables(&outbox.table, Dialect::Postgres),
            false => create_statements(&outbox.table, Dialect::Postgres, aggregate_id, true),
        };
        for statement in statements {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    async fn add_event(&mut self, outbox: &Outbox, event: &OutboxEvent) -> Result<(), OutboxError> {
        let columns = event.columns();
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        // The value of a column is given as text and read by the column's own type, whichever of the possible ones it has.
        let sql = format!(
            "INSERT INTO {table} ({names}) SELECT {names} FROM jsonb_populate_record(NULL::{table}, $1::jsonb)",
            table = outbox.table.sql(),
            names = names.join(", ")
        );
        let mut record = serde_json::Map::new();
        for (name, value) in columns {
            let value = match name {
                "payload" | "headers" => serde_json::from_str(&value)?,
                _ => serde_json::Value::String(value),
            };
            record.insert(name.to_owned(), value);
        }
        let record = serde_json::Value::Object(record).to_string();
        sqlx::query(AssertSqlSafe(sql)).bind(record).execute(self).await?;
        Ok(())
    }
}

impl AddEvent for SqliteConnection {
    async fn create(&mut self, outbox: &Outbox, aggregate_id: AggregateId) -> Result<(), OutboxError> {
        for statement in create_statements(&outbox.table, Dialect::Sqlite, aggregate_id, false) {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *self).await?;
        }
        Ok(())
    }

    async fn add_event(&mut self, outbox: &Outbox, event: &OutboxEvent) -> Result<(), OutboxError> {
        let columns = event.columns();
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let places: Vec<String> = (1..=columns.len()).map(|number| format!("?{number}")).collect();
        let sql = format!("INSERT INTO {} ({}) VALUES ({})", outbox.table.sql(), names.join(", "), places.join(", "));
        let mut insert = sqlx::query(AssertSqlSafe(sql));
        for (_, value) in columns {
            insert = insert.bind(value);
        }
        insert.execute(self).await?;
        Ok(())
    }
}
