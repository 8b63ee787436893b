//! How the columns of a row are read.

use std::cell::Cell;

use relais_core::{TaskId, Timestamp};
use sqlx::{Column as _, ColumnIndex as _, Row as _, postgres::PgRow};

use crate::{
    postgres::{error, from_sql},
    row::{Columns, plain_columns},
    session::Result,
};

/// A row whose columns are found by their names.
trait Named {
    fn get<'r, T>(&'r self, column: &str) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>;
}

impl Named for PgRow {
    fn get<'r, T>(&'r self, column: &str) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        self.try_get(column).map_err(error)
    }
}

/// A row of which each column is asked for after the one before it, as a rule: then no name has to be looked up. Of a
/// thousand rows with forty columns, that is a good part of what it takes to read them.
pub(crate) struct InOrder<'a> {
    row: &'a PgRow,
    next: Cell<usize>,
}

/// The same rows, to be read in the order of their columns.
pub(crate) fn in_order(rows: &[PgRow]) -> Vec<InOrder<'_>> {
    rows.iter().map(|row| InOrder { row, next: Cell::new(0) }).collect()
}

/// One column of rows that are alike.
pub(crate) fn ints(rows: &[PgRow], column: &str) -> Result<Vec<i32>> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let at = column.index(first).map_err(error)?;
    rows.iter().map(|row| row.try_get(at).map_err(error)).collect()
}

impl Named for InOrder<'_> {
    fn get<'r, T>(&'r self, column: &str) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let next = self.next.get();
        let at = match self.row.columns().get(next) {
            Some(found) if found.name() == column => next,
            _ => column.index(self.row).map_err(error)?,
        };
        self.next.set(at + 1);
        self.row.try_get(at).map_err(error)
    }
}

fn get<'r, T>(row: &'r impl Named, column: &str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.get(column)
}

impl<R: Named> Columns for R {
    plain_columns!();

    fn moment(&self, column: &str) -> Result<Timestamp> {
        Ok(from_sql(get(self, column)?))
    }

    fn moment_if_any(&self, column: &str) -> Result<Option<Timestamp>> {
        Ok(get::<Option<jiff_sqlx::Timestamp>>(self, column)?.map(from_sql))
    }

    fn task_id(&self, column: &str) -> Result<TaskId> {
        Ok(TaskId(get(self, column)?))
    }

    fn task_id_if_any(&self, column: &str) -> Result<Option<TaskId>> {
        Ok(get::<Option<uuid::Uuid>>(self, column)?.map(TaskId))
    }
}
