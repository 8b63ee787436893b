//! Rows of PostgreSQL as rows of an outbox.

use bytes::Bytes;
use relais_message::Headers;
use sqlx::{Row as _, postgres::PgRow};

use crate::{OutboxError, OutboxRow};

/// Reads a row. One whose values can not be read is not published, and holds back only its own key.
pub(crate) fn read(row: &PgRow) -> Result<OutboxRow, OutboxError> {
    let (id, key) = (row.try_get("id")?, row.try_get("key")?);
    Ok(match read_values(row) {
        Ok(values) => OutboxRow { id, key, ..values },
        Err(error) => OutboxRow {
            id,
            key,
            retry_count: retry_count(row)?,
            ..OutboxRow::unreadable(format!("the row can not be read: {error}"))
        },
    })
}

fn retry_count(row: &PgRow) -> Result<u32, sqlx::Error> {
    Ok(u32::try_from(row.try_get::<i64, _>("retry_count")?).unwrap_or_default())
}

fn read_values(row: &PgRow) -> Result<OutboxRow, sqlx::Error> {
    let created_at: jiff_sqlx::Timestamp = row.try_get("created_at")?;
    let headers: Option<String> = row.try_get("headers")?;
    Ok(OutboxRow {
        id: String::new(),
        key: String::new(),
        aggregate_id: row.try_get("aggregate_id")?,
        event_type: row.try_get("event_type")?,
        payload: Bytes::from(row.try_get::<String, _>("payload")?),
        created_at: created_at.to_jiff(),
        retry_count: retry_count(row)?,
        aggregate_type: row.try_get("aggregate_type")?,
        headers: headers.as_deref().map(read_headers).unwrap_or_default(),
        destination: row.try_get("destination")?,
        schema_version: row.try_get("schema_version")?,
        correlation_id: row.try_get("correlation_id")?,
        unreadable: None,
    })
}

/// The members of a JSON object, as text.
pub(crate) fn read_headers(json: &str) -> Headers {
    let Ok(serde_json::Value::Object(members)) = serde_json::from_str(json) else { return Headers::default() };
    members
        .into_iter()
        .filter_map(|(name, value)| match value {
            serde_json::Value::Null => None,
            serde_json::Value::String(text) => Some((name, text)),
            other => Some((name, other.to_string())),
        })
        .collect()
}
