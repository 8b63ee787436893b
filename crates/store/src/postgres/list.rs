//! Listing tasks, and counting them up to a limit.
//!
//! One index range for each service and status, merged: no filter makes it look at more than a page of each. Where nothing is
//! asked for but the newest, it is the order of the tasks themselves.

use relais_core::{Page, Status, Task, TaskFilter, Timestamp};
use sqlx::{
    Postgres as Dialect,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    Postgres, error,
    read::{task_columns, with_names},
    to_sql,
};
use crate::{
    row::{task, wide},
    session::Result,
};

/// The ranges, as `t`. What begins the index comes first in both, each with what ends it.
macro_rules! ranges {
    ($columns:literal, $first:literal, $order:literal, $rest:literal) => {
        concat!(
            " FROM unnest(coalesce($1::integer[], (SELECT array_agg(id) FROM relais.service))) AS wanted (service_id)
              CROSS JOIN unnest($2::smallint[]) AS status (code)
              CROSS JOIN LATERAL (
                  SELECT ",
            $columns,
            " FROM relais.task
                  WHERE ",
            $first,
            "service_id = wanted.service_id AND status BETWEEN status.code AND status.code
                    AND id >= $4 AND id < $3 AND submitted >= $5 AND submitted < $6",
            $rest,
            " ORDER BY ",
            $order,
            "service_id DESC, status DESC, id DESC LIMIT $7
              ) t"
        )
    };
}

/// A listing over such ranges, and the count of what it would list.
macro_rules! statements {
    ($first:literal, $order:literal, $rest:literal, $whole:literal) => {
        (
            concat!(
                "SELECT ",
                task_columns!("'null'", "NULL"),
                ranges!("*", $first, $order, $rest),
                with_names!(),
                $whole,
                " ORDER BY t.id DESC LIMIT $7"
            ),
            concat!(
                "SELECT count(*) FROM (SELECT 1",
                ranges!("id", $first, $order, $rest),
                $whole,
                " LIMIT $7) AS counted"
            ),
        )
    };
}

const BY_SERVICE: (&str, &str) = statements!("", "", "", " WHERE $8::integer IS NULL");
const BY_CLIENT: (&str, &str) = statements!("client_id = $8 AND ", "client_id DESC, ", "", "");

/// What is of any service, in any status and of any client: the tasks themselves are in this order. What is not asked for is
/// named all the same, so that all three take the same values.
macro_rules! newest {
    ($columns:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM relais.task WHERE id >= $4 AND id < $3 AND submitted >= $5 AND submitted < $6
               AND $1::integer[] IS NULL AND $2::smallint[] IS NOT NULL AND $8::integer IS NULL
             ORDER BY id DESC LIMIT $7"
        )
    };
}

const NEWEST: (&str, &str) = (
    concat!(
        "SELECT ",
        task_columns!("'null'", "NULL"),
        " FROM (",
        newest!("*"),
        ") t",
        with_names!(),
        "ORDER BY t.id DESC"
    ),
    concat!("SELECT count(*) FROM (", newest!("id"), ") AS counted"),
);

impl Postgres {
    pub(crate) async fn list(&self, filter: &TaskFilter, from_id: i64) -> Result<Page> {
        let rows: Vec<PgRow> =
            bound(statements(filter).0, filter, from_id).fetch_all(&mut *self.lend().await?).await.map_err(error)?;
        let tasks: Vec<Task> = rows.iter().map(task).collect::<Result<_>>()?;
        let next_before_id = tasks.last().filter(|_| tasks.len() == filter.limit).map(|task| task.id);
        Ok(Page { tasks, next_before_id })
    }

    pub(crate) async fn count(&self, filter: &TaskFilter, from_id: i64) -> Result<u64> {
        let row =
            bound(statements(filter).1, filter, from_id).fetch_one(&mut *self.lend().await?).await.map_err(error)?;
        let counted: i64 = sqlx::Row::try_get(&row, 0).map_err(error)?;
        Ok(counted.unsigned_abs())
    }
}

fn statements(filter: &TaskFilter) -> (&'static str, &'static str) {
    match filter.client {
        _ if filter.is_wide() => NEWEST,
        Some(_) => BY_CLIENT,
        None => BY_SERVICE,
    }
}

fn bound<'q>(statement: &'static str, filter: &'q TaskFilter, from_id: i64) -> Query<'q, Dialect, PgArguments> {
    let services: Option<Vec<i32>> =
        (!filter.services.is_empty()).then(|| filter.services.iter().map(|service| service.0).collect());
    let statuses: &[Status] = if filter.statuses.is_empty() { &Status::ALL } else { &filter.statuses };
    sqlx::query(statement)
        .bind(services)
        .bind(statuses.iter().map(|status| status.code()).collect::<Vec<_>>())
        .bind(filter.before_id.unwrap_or(i64::MAX))
        .bind(from_id)
        .bind(to_sql(filter.submitted_from.unwrap_or(Timestamp::from_millis(0))))
        .bind(to_sql(filter.submitted_before.unwrap_or(Timestamp::from_millis(i64::MAX))))
        .bind(wide(filter.limit))
        .bind(filter.client.map(|client| client.0))
}
