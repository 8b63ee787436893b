//! The table of claims and marks: its name, its columns, and the statements that make it.

use std::fmt;

use crate::DedupError;

/// Which SQL is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
}

/// The name of the table: `relais_dedup` unless it is said, or `shop.processed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DedupTable {
    schema: Option<String>,
    name: String,
}

impl Default for DedupTable {
    fn default() -> Self {
        Self { schema: None, name: "relais_dedup".to_owned() }
    }
}

impl DedupTable {
    /// Reads `name` or `schema.name`. Names are taken as they are, without folding of case.
    ///
    /// # Errors
    ///
    /// If that is not a name: letters, digits and underscores, at most 40 of them.
    pub fn parse(text: &str) -> Result<Self, DedupError> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        let fine =
            |part: &str| (1..=40).contains(&part.len()) && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !fine(name) || !schema.is_none_or(fine) {
            return Err(DedupError::Table(text.to_owned()));
        }
        Ok(Self { schema: schema.map(str::to_owned), name: name.to_owned() })
    }

    /// The name as SQL.
    pub(crate) fn sql(&self) -> String {
        match &self.schema {
            Some(schema) => format!("\"{schema}\".\"{}\"", self.name),
            None => format!("\"{}\"", self.name),
        }
    }

    /// The statements that make the table, for who makes tables by hand. A table that exists stays as it is.
    ///
    /// A row without a `token` is a mark, one with a `token` a claim. At `expires_at` either is over.
    pub fn create_statements(&self, dialect: Dialect) -> Vec<String> {
        let (sql, name) = (self.sql(), &self.name);
        match dialect {
            Dialect::Postgres => vec![
                format!(
                    "CREATE TABLE IF NOT EXISTS {sql} (
    consumer     text COLLATE \"C\" NOT NULL,
    id           text COLLATE \"C\" NOT NULL,
    token        text,
    processed_at timestamptz,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (consumer, id)
)"
                ),
                format!("CREATE INDEX IF NOT EXISTS \"{name}_expires\" ON {sql} (expires_at)"),
            ],
            Dialect::Sqlite => vec![
                format!(
                    "CREATE TABLE IF NOT EXISTS {sql} (
    consumer     TEXT NOT NULL,
    id           TEXT NOT NULL,
    token        TEXT,
    processed_at TEXT,
    expires_at   TEXT NOT NULL,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID"
                ),
                match &self.schema {
                    Some(schema) => {
                        format!("CREATE INDEX IF NOT EXISTS \"{schema}\".\"{name}_expires\" ON \"{name}\" (expires_at)")
                    }
                    None => format!("CREATE INDEX IF NOT EXISTS \"{name}_expires\" ON \"{name}\" (expires_at)"),
                },
            ],
        }
    }
}

impl fmt::Display for DedupTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_statements_to_run_by_hand() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/deduplication.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        for statement in DedupTable::default().create_statements(Dialect::Postgres) {
            assert!(guide.contains(&format!("{statement};\n")), "the guide lacks: {statement}");
        }
    }

    #[test]
    fn a_name_that_could_be_more_than_a_name_is_refused() {
        assert_eq!(DedupTable::parse("shop.processed").unwrap().to_string(), "shop.processed");
        assert_eq!(DedupTable::parse("relais_dedup").unwrap(), DedupTable::default());
        for wrong in ["", ".", "a.", ".a", "a.b.c", "a b", "a\"b", "a;", &"x".repeat(41)] {
            assert!(matches!(DedupTable::parse(wrong), Err(DedupError::Table(_))), "{wrong:?}");
        }
    }
}
