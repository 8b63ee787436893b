//! One transaction on PostgreSQL. What is said in it is in the folders of the features.

use std::time::Duration;

use crate::{
    postgres::error,
    postgres::lent::Lent,
    postgres::names::Names,
    session::{Result, Session},
};

/// A process that vanishes in the midst of a transaction, with its machine or its network, must not keep its locks
/// until PostgreSQL misses it, which takes hours: shorter than any caller waits. Said here, since a pooler may give
/// every transaction another connection.
const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '10s'";

/// One transaction.
pub(crate) struct PgSession {
    pub(crate) tx: Lent,
    /// Names this process in wake-ups; none where others are not told.
    pub(crate) origin: Option<String>,
    pub(crate) names: Names,
}

impl PgSession {
    pub(crate) async fn begin(mut tx: Lent, origin: Option<&str>, names: Names) -> Result<Self> {
        tx.begin(BEGIN).await?;
        Ok(Self { tx, origin: origin.map(str::to_owned), names })
    }
}

impl Session for PgSession {
    async fn take_turn(&mut self, chore: &str, period: Duration) -> Result<bool> {
        let done = sqlx::query(
            "INSERT INTO relais.chore AS c (name, begun) VALUES ($1, now())
             ON CONFLICT (name) DO UPDATE SET begun = now() WHERE c.begun <= now() - make_interval(secs => $2)",
        )
        .bind(chore)
        .bind(period.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected() > 0)
    }

    async fn commit(self) -> Result<()> {
        self.tx.commit().await
    }
}

/// One column of a batch, for UNNEST.
pub(crate) fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}
