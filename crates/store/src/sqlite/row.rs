//! How the columns of a row are read.

use relais_core::{TaskId, Timestamp};
use sqlx::{Row as _, sqlite::SqliteRow};

use crate::{
    row::{Columns, corrupt, plain_columns},
    session::Result,
    sqlite::error,
};

/// A column of a row.
fn get<'r, T>(row: &'r SqliteRow, column: &str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column).map_err(error)
}

impl Columns for SqliteRow {
    plain_columns!();

    fn moment(&self, column: &str) -> Result<Timestamp> {
        Ok(Timestamp::from_millis(get(self, column)?))
    }

    fn moment_if_any(&self, column: &str) -> Result<Option<Timestamp>> {
        Ok(get::<Option<i64>>(self, column)?.map(Timestamp::from_millis))
    }

    fn task_id(&self, column: &str) -> Result<TaskId> {
        let text: &str = get(self, column)?;
        TaskId::parse(text).ok_or_else(|| corrupt(format!("task id {text}")))
    }

    fn task_id_if_any(&self, column: &str) -> Result<Option<TaskId>> {
        let text: Option<&str> = get(self, column)?;
        text.map(|text| TaskId::parse(text).ok_or_else(|| corrupt(format!("task id {text}")))).transpose()
    }
}
