//! Publications: which tables and operations the server sends. Narrow: what nobody asks for is not decoded.

use std::collections::BTreeSet;

use sqlx::{AssertSqlSafe, PgPool};

use crate::{CaptureError, connection::quoted};

type Result<T> = std::result::Result<T, CaptureError>;

/// A publication, and what it is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Its name.
    pub name: String,
    /// Schema and name of each table.
    pub tables: Vec<(String, String)>,
    /// `insert`, or `insert, update, delete, truncate`.
    pub operations: String,
}

impl Publication {
    /// Makes it, or brings it to what it is to have.
    pub async fn ensure(&self, pool: &PgPool) -> Result<()> {
        let tables: Vec<String> =
            self.tables.iter().map(|(schema, name)| format!("{}.{}", quoted(schema), quoted(name))).collect();
        let (name, tables) = (quoted(&self.name), tables.join(", "));
        let there: Option<(bool, bool, bool, bool)> = sqlx::query_as(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = $1",
        )
        .bind(&self.name)
        .fetch_optional(pool)
        .await?;
        let Some((insert, update, delete, truncate)) = there else {
            let sql = format!(
                "CREATE PUBLICATION {name} FOR TABLE {tables}
                 WITH (publish = '{}', publish_via_partition_root = true)",
                self.operations
            );
            return match sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await {
                // Somebody else was faster.
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42710") => Ok(()),
                other => Ok(other.map(drop)?),
            };
        };
        let published: Vec<(String, String)> =
            sqlx::query_as("SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = $1")
                .bind(&self.name)
                .fetch_all(pool)
                .await?;
        if published.iter().collect::<BTreeSet<_>>() != self.tables.iter().collect::<BTreeSet<_>>() {
            let sql = format!("ALTER PUBLICATION {name} SET TABLE {tables}");
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
        }
        let has = [("insert", insert), ("update", update), ("delete", delete), ("truncate", truncate)];
        if has.into_iter().any(|(operation, has)| self.operations.contains(operation) != has) {
            let sql = format!("ALTER PUBLICATION {name} SET (publish = '{}')", self.operations);
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
        }
        Ok(())
    }

    /// Drops it, if it is there.
    pub async fn drop(name: &str, pool: &PgPool) -> Result<()> {
        let sql = format!("DROP PUBLICATION IF EXISTS {}", quoted(name));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
        Ok(())
    }
}
