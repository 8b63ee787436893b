//! Making an outbox in a database that a URL names: `relais outbox init`.

use std::{str::FromStr as _, time::Duration};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::time::timeout;

use crate::{
    AggregateId, Dialect, OutboxError, TableName,
    table::{CHANNEL, create_statements, notify_function, notify_function_name, relay_tables},
};

/// How long a database may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

impl Dialect {
    /// What the database of a URL speaks: `postgres://…` or `sqlite:file.db`.
    pub fn of_url(url: &str) -> Result<Self, OutboxError> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => Ok(Self::Postgres),
            Some("sqlite") => Ok(Self::Sqlite),
            _ => Err(OutboxError::Url),
        }
    }
}

/// Whether a database is there and lets its user in. Answers at once, where a pool of connections would wait for it.
pub async fn ping(url: &str) -> Result<(), OutboxError> {
    match Dialect::of_url(url)? {
        Dialect::Postgres => connected(PgConnection::connect(url)).await?.close().await?,
        Dialect::Sqlite => connected(SqliteConnection::connect(url)).await?.close().await?,
    }
    Ok(())
}

/// Makes an outbox, and what relays keep beside it; an SQLite file too, if it is missing. A table that exists stays as it
/// is, but for the function of a trigger that an earlier version made. Returns whether the table was made now.
pub async fn init(url: &str, table: &TableName, aggregate_id: AggregateId, notify: bool) -> Result<bool, OutboxError> {
    let dialect = Dialect::of_url(url)?;
    let statements = |there: bool| match there {
        true => relay_tables(table, dialect),
        false => create_statements(table, dialect, aggregate_id, notify),
    };
    match dialect {
        Dialect::Postgres => {
            let mut connection = connected(PgConnection::connect(url)).await?;
            let mut transaction = connection.begin().await?;
            sqlx::query("SELECT pg_advisory_xact_lock(hashtext('relais_outbox'))").execute(&mut *transaction).await?;
            let there: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
                .bind(table.sql())
                .fetch_one(&mut *transaction)
                .await?;
            let notifies = "SELECT EXISTS (SELECT 1 FROM pg_proc WHERE oid = to_regproc($1) AND prosrc LIKE $2)";
            let notifies: bool = sqlx::query_scalar(notifies)
                .bind(notify_function_name(table))
                .bind(format!("%pg_notify('{CHANNEL}'%"))
                .fetch_one(&mut *transaction)
                .await?;
            let newer = (there && notifies).then(|| notify_function(table));
            for statement in statements(there).into_iter().chain(newer) {
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            connection.close().await?;
            Ok(!there)
        }
        Dialect::Sqlite => {
            let options = SqliteConnectOptions::from_str(url)?.create_if_missing(true);
            let mut connection = connected(SqliteConnection::connect_with(&options)).await?;
            let mut transaction = connection.begin().await?;
            let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1))")
                .bind(table.name())
                .fetch_one(&mut *transaction)
                .await?;
            for statement in statements(there) {
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            connection.close().await?;
            Ok(!there)
        }
    }
}

async fn connected<C>(connection: impl Future<Output = Result<C, sqlx::Error>>) -> Result<C, OutboxError> {
    let late = |_| sqlx::Error::Io(std::io::Error::from(std::io::ErrorKind::TimedOut));
    Ok(timeout(CONNECT, connection).await.map_err(late)??)
}
