//! What a new connection does before anybody waits for it.
//!
//! A connection parses and plans a statement when it first has it, and learns of the tables; together that takes as
//! long as the rest of what a task needs until its worker has it. So the statements that somebody waits for are run
//! once, on nothing.

use relais_core::ServiceKey;
use sqlx::{Executor as _, PgConnection};

use crate::{
    claims::postgres::{lock_pending, pending_unlocked, write_unlocked},
    counters::postgres::account,
    counters::statements::Accounts,
    session::Result,
    submit::postgres::insert_unlimited,
    tasks::postgres::{lock_tasks, write_tasks},
};

/// No service has this key.
const NONE: ServiceKey = ServiceKey(0);

/// Runs them. They fail where there are no tables yet, on a standby, or while somebody has locked a table; whoever
/// needs them hears of it, or waits.
pub(crate) async fn up(connection: &mut PgConnection) -> sqlx::Result<()> {
    connection.execute("SET lock_timeout = '100ms'").await?;
    if let Err(failure) = run(connection).await {
        tracing::debug!(%failure, "a connection to the database could not be warmed up");
    }
    connection.execute("RESET lock_timeout").await?;
    Ok(())
}

async fn run(connection: &mut PgConnection) -> Result<()> {
    insert_unlimited(connection, &[]).await?;
    lock_pending(connection, NONE, 0, false).await?;
    pending_unlocked(connection, NONE, 0).await?;
    lock_tasks(connection, &[]).await?;
    write_tasks(connection, &[]).await?;
    account(connection, &Accounts::default(), None).await?;
    write_unlocked(connection, NONE, &[], &Accounts::default(), None).await?;
    Ok(())
}
