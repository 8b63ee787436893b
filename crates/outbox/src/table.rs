//! The outbox table: its name, its columns, and the statements that make it.

use std::{collections::BTreeSet, fmt};

use relais_message::{Template, TemplateField};

use crate::OutboxError;

/// Which SQL is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
}

/// The name of a table: `outbox`, or `shop.outbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    schema: Option<String>,
    name: String,
}

impl TableName {
    /// Reads `name` or `schema.name`. Names are taken as they are, without folding of case.
    pub fn parse(text: &str) -> Result<Self, OutboxError> {
        let wrong = || OutboxError::TableName(text.to_owned());
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        let fine = |part: &str| !part.is_empty() && part.len() <= 40 && !part.contains(['.', '\0', '"']);
        if !fine(name) || !schema.is_none_or(fine) {
            return Err(wrong());
        }
        Ok(Self { schema: schema.map(str::to_owned), name: name.to_owned() })
    }

    /// The table's own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its name in SQL.
    pub(crate) fn sql(&self) -> String {
        self.beside(&self.name)
    }

    /// The name in SQL of another table in the same schema.
    pub(crate) fn beside(&self, name: &str) -> String {
        match &self.schema {
            Some(schema) => format!("\"{schema}\".\"{name}\""),
            None => format!("\"{name}\""),
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// The columns that every outbox has.
pub(crate) const REQUIRED: [&str; 7] =
    ["id", "aggregate_id", "event_type", "payload", "created_at", "published_at", "retry_count"];

/// The columns that the relay uses where they exist.
pub(crate) const OPTIONAL: [&str; 9] = [
    "sequence",
    "aggregate_type",
    "headers",
    "destination",
    "schema_version",
    "correlation_id",
    "next_try_at",
    "last_error",
    "parked_at",
];

/// What templates can name.
pub const FIELDS: [&str; 8] =
    ["id", "key", "aggregate_id", "event_type", "aggregate_type", "destination", "schema_version", "correlation_id"];

/// What a table turned out to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The type of `id` in SQL.
    pub(crate) id_type: String,
    /// Whether the payload is JSON to the database.
    payload_is_json: bool,
    /// The optional columns that exist.
    optional: BTreeSet<&'static str>,
    /// Whether an index tells which aggregates have a row that failed.
    finds_failed_aggregates: bool,
}

impl Layout {
    /// Judges the columns of a table: pairs of name and type.
    pub(crate) fn new(table: &TableName, columns: &[(String, String)]) -> Result<Self, OutboxError> {
        if columns.is_empty() {
            return Err(OutboxError::NoTable(table.to_string()));
        }
        let has = |name: &str| columns.iter().any(|(column, _)| column == name);
        let missing: Vec<&str> = REQUIRED.into_iter().filter(|name| !has(name)).collect();
        if !missing.is_empty() {
            return Err(OutboxError::NoColumn { table: table.to_string(), columns: missing.join(", ") });
        }
        for (column, kind) in columns {
            let kind = kind.to_lowercase();
            let fits = match column.as_str() {
                "payload" => kind.contains("json") || kind.contains("text") || kind.contains("char"),
                "created_at" | "published_at" | "next_try_at" | "parked_at" => {
                    kind == "timestamp with time zone" || kind == "text"
                }
                "retry_count" | "sequence" => kind.contains("int"),
                "headers" => kind.contains("json") || kind == "text",
                _ => true,
            };
            if !fits {
                return Err(OutboxError::ColumnType { table: table.to_string(), column: column.clone(), kind });
            }
        }
        let id_type = columns.iter().find(|(column, _)| column == "id").map(|(_, kind)| kind.clone());
        let optional = OPTIONAL.into_iter().filter(|name| has(name)).collect();
        let payload_is_json = columns.iter().any(|(column, kind)| column == "payload" && kind.contains("json"));
        let id_type = id_type.unwrap_or_default();
        Ok(Self { id_type, payload_is_json, optional, finds_failed_aggregates: false })
    }

    /// Whether there is an index of aggregates that have a row that failed.
    pub(crate) fn with_index_of_failed_aggregates(self, is_there: bool) -> Self {
        Self { finds_failed_aggregates: is_there && self.keeps_retries(), ..self }
    }

    /// Whether such an index serves messages with this key.
    pub(crate) fn finds_failed_keys(&self, key: &Template) -> bool {
        let mut parts = key.parts();
        let is_aggregate = matches!(parts.next(), Some(Ok(TemplateField::Named(name))) if name == "aggregate_id");
        self.finds_failed_aggregates && is_aggregate && parts.next().is_none()
    }

    /// Whether an optional column exists.
    pub fn has(&self, column: &str) -> bool {
        self.optional.contains(column)
    }

    /// Whether retries are written into the table itself. Otherwise they are in `relais_outbox_retry`.
    pub(crate) fn keeps_retries(&self) -> bool {
        ["next_try_at", "last_error", "parked_at"].into_iter().all(|column| self.has(column))
    }

    /// The column by which rows are ordered first.
    pub(crate) fn order_column(&self) -> &'static str {
        if self.has("sequence") { "sequence" } else { "created_at" }
    }

    /// What rows of an aggregate are ordered by.
    pub(crate) fn order(&self, dialect: Dialect) -> &'static str {
        match (self.has("sequence"), dialect) {
            (true, _) => "o.sequence",
            // A row that failed was the first of its key, and a write has moved it since.
            (false, Dialect::Postgres) => "o.created_at, (o.retry_count > 0) DESC, o.ctid",
            (false, Dialect::Sqlite) => "o.created_at, o.rowid",
        }
    }
}

/// The SQL of a template that is to be a message's key: what the relay divides and orders messages by.
pub(crate) fn key_expression(template: &Template, layout: &Layout, dialect: Dialect) -> Result<String, OutboxError> {
    template.check(&FIELDS)?;
    let mut parts = Vec::new();
    for part in template.parts() {
        parts.push(match part {
            Err(text) => literal(text),
            Ok(TemplateField::Named(name)) => match name.as_str() {
                "key" => return Err(OutboxError::Key("the key cannot name itself".to_owned())),
                "id" | "aggregate_id" | "event_type" => text(&format!("o.{name}"), dialect),
                other if layout.has(other) => text(&format!("o.{other}"), dialect),
                other => return Err(OutboxError::Key(format!("the table has no column {other}"))),
            },
            Ok(TemplateField::Header(_)) if !layout.has("headers") => {
                return Err(OutboxError::Key("the table has no column headers".to_owned()));
            }
            Ok(TemplateField::Header(name)) => inside("o.headers", std::slice::from_ref(name), dialect),
            Ok(TemplateField::Payload(_)) if dialect == Dialect::Postgres && !layout.payload_is_json => {
                return Err(OutboxError::Key("the column payload is text, not json or jsonb".to_owned()));
            }
            Ok(TemplateField::Payload(path)) => inside("o.payload", path, dialect),
        });
    }
    if parts.is_empty() {
        return Err(OutboxError::Key("the key is empty".to_owned()));
    }
    // A row without the value shares the key of all that have none.
    Ok(format!("coalesce({}, '')", parts.join(" || ")))
}

fn text(column: &str, dialect: Dialect) -> String {
    match dialect {
        Dialect::Postgres => format!("{column}::text"),
        Dialect::Sqlite => sqlite_text(column),
    }
}

fn inside(column: &str, path: &[String], dialect: Dialect) -> String {
    match dialect {
        Dialect::Postgres => {
            let steps: Vec<String> = path.iter().map(|step| literal(step)).collect();
            format!("jsonb_extract_path_text({column}::jsonb, {})", steps.join(", "))
        }
        Dialect::Sqlite => {
            let steps: Vec<String> = path
                .iter()
                .map(|step| match step.parse::<usize>() {
                    Ok(number) => format!("[{number}]"),
                    Err(_) => format!(".\"{}\"", step.replace('"', "")),
                })
                .collect();
            let path = literal(&format!("${}", steps.concat()));
            format!("CASE WHEN json_valid({column}) THEN CAST(json_extract({column}, {path}) AS TEXT) END")
        }
    }
}

/// A column of SQLite as text. What programs bind as a UUID is 16 bytes there.
pub(crate) fn sqlite_text(column: &str) -> String {
    format!("CASE typeof({column}) WHEN 'blob' THEN lower(hex({column})) ELSE CAST({column} AS TEXT) END")
}

/// A text in SQL.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The type of `aggregate_id` in a new table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AggregateId {
    /// UUIDs.
    #[default]
    Uuid,
    /// Any text.
    Text,
}

/// The statements that make an outbox, with all optional columns, and what the relay keeps beside it. All of them leave what
/// exists as it is.
pub fn create_statements(table: &TableName, dialect: Dialect, aggregate_id: AggregateId, notify: bool) -> Vec<String> {
    let mut statements = match dialect {
        Dialect::Postgres => postgres(table, aggregate_id),
        Dialect::Sqlite => sqlite(table),
    };
    statements.extend(relay_tables(table, dialect));
    if notify && dialect == Dialect::Postgres {
        statements.extend(notify_trigger(table));
    }
    statements
}

fn postgres(table: &TableName, aggregate_id: AggregateId) -> Vec<String> {
    let (sql, name) = (table.sql(), table.name());
    let aggregate_id = match aggregate_id {
        AggregateId::Uuid => "uuid",
        AggregateId::Text => "text",
    };
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {sql} (
    id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_id   {aggregate_id} NOT NULL,
    event_type     varchar(200) NOT NULL,
    payload        jsonb NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    published_at   timestamptz,
    retry_count    integer NOT NULL DEFAULT 0,
    sequence       bigint GENERATED ALWAYS AS IDENTITY,
    aggregate_type varchar(200),
    headers        jsonb,
    destination    text,
    schema_version text,
    correlation_id text,
    next_try_at    timestamptz,
    last_error     text,
    parked_at      timestamptz
)"
        ),
        format!("CREATE INDEX IF NOT EXISTS \"{name}_unpublished\" ON {sql} (created_at) WHERE published_at IS NULL"),
        format!(
            "CREATE INDEX IF NOT EXISTS \"{name}_in_order\" ON {sql} (sequence)
    WHERE published_at IS NULL AND parked_at IS NULL"
        ),
        format!(
            "CREATE INDEX IF NOT EXISTS \"{name}_waiting\" ON {sql} (next_try_at)
    WHERE published_at IS NULL AND (next_try_at IS NOT NULL OR parked_at IS NOT NULL)"
        ),
        format!(
            "CREATE INDEX IF NOT EXISTS \"{}\" ON {sql} (aggregate_id)
    WHERE published_at IS NULL AND (next_try_at IS NOT NULL OR parked_at IS NOT NULL)",
            failed_aggregates_index(table)
        ),
        format!("CREATE INDEX IF NOT EXISTS \"{name}_published\" ON {sql} USING brin (published_at)"),
    ]
}

/// The name of the index of aggregates that have a row that failed.
pub(crate) fn failed_aggregates_index(table: &TableName) -> String {
    format!("{}_failed", table.name())
}

fn sqlite(table: &TableName) -> Vec<String> {
    let (sql, name) = (table.sql(), table.name());
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {sql} (
    sequence       INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL UNIQUE DEFAULT (lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' ||
                   substr(hex(randomblob(2)), 2) || '-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
    aggregate_id   TEXT NOT NULL,
    event_type     TEXT NOT NULL,
    payload        TEXT NOT NULL,
    created_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    published_at   TEXT,
    retry_count    INTEGER NOT NULL DEFAULT 0,
    aggregate_type TEXT,
    headers        TEXT,
    destination    TEXT,
    schema_version TEXT,
    correlation_id TEXT,
    next_try_at    TEXT,
    last_error     TEXT,
    parked_at      TEXT
)"
        ),
        format!("CREATE INDEX IF NOT EXISTS \"{name}_unpublished\" ON {sql} (created_at) WHERE published_at IS NULL"),
        format!("CREATE INDEX IF NOT EXISTS \"{name}_in_order\" ON {sql} (sequence) WHERE published_at IS NULL"),
        format!(
            "CREATE INDEX IF NOT EXISTS \"{name}_published\" ON {sql} (published_at) WHERE published_at IS NOT NULL"
        ),
    ]
}

/// What relays keep in the outbox's own database: who is there, who has which partition, and what waits for a retry where the
/// outbox has no columns for that.
pub(crate) fn relay_tables(table: &TableName, dialect: Dialect) -> Vec<String> {
    let time = match dialect {
        Dialect::Postgres => "timestamptz",
        Dialect::Sqlite => "TEXT",
    };
    let beside = |name: &str| table.beside(name);
    let mut tables = vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {} (outbox text NOT NULL, relay text NOT NULL, until {time} NOT NULL,
    intent text NOT NULL DEFAULT 'shares', PRIMARY KEY (outbox, relay))",
            beside("relais_outbox_relay")
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {} (outbox text NOT NULL, partition integer NOT NULL, relay text NOT NULL,
    until {time} NOT NULL, PRIMARY KEY (outbox, partition))",
            beside("relais_outbox_lease")
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {} (outbox text NOT NULL, id text NOT NULL, key text NOT NULL,
    next_try_at {time}, last_error text, parked_at {time}, PRIMARY KEY (outbox, id))",
            beside("relais_outbox_retry")
        ),
    ];
    if dialect == Dialect::Postgres {
        tables.push(format!(
            "CREATE INDEX IF NOT EXISTS {RETRY_KEYS} ON {} (outbox, key)",
            beside("relais_outbox_retry")
        ));
    }
    tables
}

/// The index of keys that wait for a retry, where the outbox has no columns for that.
pub(crate) const RETRY_KEYS: &str = "relais_outbox_retry_keys";

/// The channel on which a trigger tells relays of new rows. What it says is the table's name.
pub(crate) const CHANNEL: &str = "relais_outbox";

/// The trigger that wakes relays; see `listen` for what the lock is for.
fn notify_trigger(table: &TableName) -> Vec<String> {
    let (sql, name) = (table.sql(), table.name());
    vec![
        notify_function(table),
        format!(
            "CREATE OR REPLACE TRIGGER \"{name}_notify\" AFTER INSERT ON {sql}
    FOR EACH STATEMENT EXECUTE FUNCTION {}()",
            notify_function_name(table)
        ),
    ]
}

/// The function of the trigger, which replaces one of an earlier version.
pub(crate) fn notify_function(table: &TableName) -> String {
    let (function, said) = (notify_function_name(table), literal(&table.to_string()));
    format!(
        "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(hashtext('relais_outbox'), TG_RELID::int) THEN
        PERFORM pg_notify('{CHANNEL}', {said});
    END IF;
    RETURN NULL;
END
$$"
    )
}

pub(crate) fn notify_function_name(table: &TableName) -> String {
    table.beside(&format!("{}_notify", table.name()))
}
