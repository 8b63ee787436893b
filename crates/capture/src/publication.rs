//! Publications: which tables and operations the server sends. Narrow: what nobody asks for is not decoded.

use std::collections::BTreeSet;

use sqlx::{AssertSqlSafe, PgPool};

use crate::{
    CaptureError, Lack,
    connection::{literal, quoted},
};

type Result<T> = std::result::Result<T, CaptureError>;

/// What a publication can have.
const OPERATIONS: [&str; 4] = ["insert", "update", "delete", "truncate"];

/// A publication, and what it is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Its name.
    pub name: String,
    /// Schema and name of each table.
    pub tables: Vec<(String, String)>,
    /// `insert`, or `insert, update, delete, truncate`.
    pub operations: String,
    /// Whose it is: `capture shop`, `outbox orders`. Kept in its comment. One that is somebody else's is never changed.
    pub owner: String,
}

/// The comment of a publication begins with it, and then names its owner.
const MADE_FOR: &str = "made by Relais for ";

/// A publication that is there.
struct Found {
    tables: BTreeSet<(String, String)>,
    operations: Vec<&'static str>,
    /// Whose it is, if Relais made it.
    owner: Option<String>,
}

impl Publication {
    /// Makes it, or brings it to what it is to have. One that somebody else made must have it already.
    pub async fn ensure(&self, pool: &PgPool) -> Result<()> {
        let tables: Vec<String> =
            self.tables.iter().map(|(schema, name)| format!("{}.{}", quoted(schema), quoted(name))).collect();
        let (name, tables) = (quoted(&self.name), tables.join(", "));
        let found = loop {
            if let Some(found) = Self::find(&self.name, pool).await? {
                break found;
            }
            let sql = format!(
                "CREATE PUBLICATION {name} FOR TABLE {tables}
                     WITH (publish = '{}', publish_via_partition_root = true);
                 COMMENT ON PUBLICATION {name} IS {}",
                self.operations,
                literal(&format!("{MADE_FOR}{}", self.owner))
            );
            match sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await {
                // Somebody else was faster: what is there now?
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42710") => {}
                other => return Ok(other.map(drop)?),
            }
        };
        if found.owner.as_ref() != Some(&self.owner) {
            let lacks: Vec<String> = self.lacks_of(&found).iter().map(ToString::to_string).collect();
            return if lacks.is_empty() { Ok(()) } else { Err(CaptureError::Lacks(lacks.join("; "))) };
        }
        if found.tables.iter().collect::<BTreeSet<_>>() != self.tables.iter().collect::<BTreeSet<_>>() {
            let sql = format!("ALTER PUBLICATION {name} SET TABLE {tables}");
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
        }
        if OPERATIONS
            .iter()
            .any(|operation| self.operations.contains(operation) != found.operations.contains(operation))
        {
            let sql = format!("ALTER PUBLICATION {name} SET (publish = '{}')", self.operations);
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
        }
        Ok(())
    }

    /// What a publication that somebody else made lacks, and what to do. Nothing if there is none, or if it is ours.
    pub(crate) async fn lacks(&self, pool: &PgPool) -> Result<Vec<Lack>> {
        let found = Self::find(&self.name, pool).await?.filter(|found| found.owner.as_ref() != Some(&self.owner));
        Ok(found.map(|found| self.lacks_of(&found)).unwrap_or_default())
    }

    fn lacks_of(&self, found: &Found) -> Vec<Lack> {
        let name = quoted(&self.name);
        if let Some(owner) = &found.owner {
            let what = format!("the publication {name} is that of the {owner}");
            return vec![Lack::new(what, "name another publication")];
        }
        let mut lacks = Vec::new();
        for (schema, table) in self.tables.iter().filter(|table| !found.tables.contains(table)) {
            lacks.push(Lack::new(
                format!("the publication {name}, which Relais has not made, does not have the table {schema}.{table}"),
                format!(
                    "ALTER PUBLICATION {name} ADD TABLE {}.{}, or name another publication",
                    quoted(schema),
                    quoted(table)
                ),
            ));
        }
        let missing = |operation: &&str| self.operations.contains(*operation) && !found.operations.contains(operation);
        if OPERATIONS.iter().any(missing) {
            let wanted = &self.operations;
            lacks.push(Lack::new(
                format!("the publication {name}, which Relais has not made, does not publish all of {wanted}"),
                format!("ALTER PUBLICATION {name} SET (publish = '{wanted}'), or name another publication"),
            ));
        }
        lacks
    }

    async fn find(name: &str, pool: &PgPool) -> Result<Option<Found>> {
        let there: Option<(bool, bool, bool, bool, Option<String>)> = sqlx::query_as(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, obj_description(oid, 'pg_publication')
             FROM pg_publication WHERE pubname = $1",
        )
        .bind(name)
        .fetch_optional(pool)
        .await?;
        let Some((insert, update, delete, truncate, comment)) = there else { return Ok(None) };
        let tables: Vec<(String, String)> =
            sqlx::query_as("SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = $1")
                .bind(name)
                .fetch_all(pool)
                .await?;
        let has = OPERATIONS.into_iter().zip([insert, update, delete, truncate]);
        Ok(Some(Found {
            tables: tables.into_iter().collect(),
            operations: has.filter(|(_, has)| *has).map(|(operation, _)| operation).collect(),
            owner: comment.as_deref().and_then(|text| text.strip_prefix(MADE_FOR)).map(str::to_owned),
        }))
    }

    /// Drops the publication of this name, if it is there and is this owner's.
    pub async fn drop(name: &str, owner: &str, pool: &PgPool) -> Result<()> {
        if Self::find(name, pool).await?.and_then(|found| found.owner).as_deref() != Some(owner) {
            return Ok(());
        }
        let sql = format!("DROP PUBLICATION IF EXISTS {}", quoted(name));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
        Ok(())
    }
}
