//! Looks at a database before anything is changed, and says what change capture lacks there and what to do.

use sqlx::{PgPool, Row as _, postgres::PgRow};

use crate::{CaptureError, Publication};

/// What a capture wants of a database.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Schema and name of each table.
    pub tables: Vec<(String, String)>,
    /// Whether updates and deletes are captured too, which need a replica identity.
    pub changes: bool,
    /// The slot, which may be there already.
    pub slot: String,
    /// The publication, which may be there already.
    pub publication: String,
    /// Whose the publication is.
    pub owner: String,
}

/// Something that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// What is missing.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether changes can be captured without it.
    pub only_a_warning: bool,
}

impl Lack {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), only_a_warning: false }
    }

    fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { only_a_warning: true, ..Self::new(what, remedy) }
    }
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

struct ServerFacts {
    version: i32,
    wal_level: String,
    slots: i64,
    max_slots: i64,
    senders: i64,
    max_senders: i64,
    may_replicate: bool,
    may_create: bool,
    has_slot: bool,
    /// What the slot is of, if it is not of this database.
    slot_of_other: Option<String>,
    has_publication: bool,
    keep_size: String,
    username: String,
    database: String,
    in_recovery: bool,
}

impl ServerFacts {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            version: row.try_get("version")?,
            wal_level: row.try_get("wal_level")?,
            slots: row.try_get("slots")?,
            max_slots: row.try_get("max_slots")?,
            senders: row.try_get("senders")?,
            max_senders: row.try_get("max_senders")?,
            may_replicate: row.try_get("may_replicate")?,
            may_create: row.try_get("may_create")?,
            has_slot: row.try_get("has_slot")?,
            slot_of_other: row.try_get("slot_of_other")?,
            has_publication: row.try_get("has_publication")?,
            keep_size: row.try_get("keep_size")?,
            username: row.try_get("username")?,
            database: row.try_get("database")?,
            in_recovery: row.try_get("in_recovery")?,
        })
    }
}

const SERVER: &str = "SELECT current_setting('server_version_num')::integer AS version,
    current_setting('wal_level') AS wal_level,
    (SELECT count(*) FROM pg_replication_slots) AS slots,
    current_setting('max_replication_slots')::bigint AS max_slots,
    (SELECT count(*) FROM pg_stat_replication) AS senders,
    current_setting('max_wal_senders')::bigint AS max_senders,
    (SELECT rolreplication OR rolsuper OR EXISTS (
         SELECT 1 FROM pg_roles g WHERE g.rolname IN ('rds_replication', 'rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin')
                AND pg_has_role(r.oid, g.oid, 'MEMBER'))
     FROM pg_roles r WHERE r.rolname = current_user) AS may_replicate,
    has_database_privilege(current_database(), 'CREATE') AS may_create,
    EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = $1) AS has_slot,
    (SELECT coalesce('the database ' || database, 'a standby') FROM pg_replication_slots
     WHERE slot_name = $1 AND database IS DISTINCT FROM current_database()) AS slot_of_other,
    EXISTS (SELECT 1 FROM pg_publication WHERE pubname = $2) AS has_publication,
    current_setting('max_slot_wal_keep_size') AS keep_size,
    current_user::text AS username, current_database()::text AS database, pg_is_in_recovery() AS in_recovery";

struct TableFacts {
    identity: String,
    has_key: bool,
    may_read: bool,
    owns: bool,
    published: bool,
    /// Whether the publication sends only some of its rows or columns.
    filtered: bool,
    kind: String,
    unlogged: bool,
}

impl TableFacts {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            identity: row.try_get("identity")?,
            has_key: row.try_get("has_key")?,
            may_read: row.try_get("may_read")?,
            owns: row.try_get("owns")?,
            published: row.try_get("published")?,
            filtered: row.try_get("filtered")?,
            kind: row.try_get("kind")?,
            unlogged: row.try_get("unlogged")?,
        })
    }
}

const TABLE: &str =
    "SELECT c.relreplident::text AS identity, c.relkind::text AS kind, c.relpersistence <> 'p' AS unlogged,
    EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key,
    has_table_privilege(c.oid, 'SELECT') AS may_read, pg_has_role(c.relowner, 'USAGE') AS owns,
    EXISTS (SELECT 1 FROM pg_publication_tables p
            WHERE p.pubname = $3 AND p.schemaname = n.nspname AND p.tablename = c.relname) AS published,
    EXISTS (SELECT 1 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
            WHERE p.pubname = $3 AND r.prrelid = c.oid
              AND (to_jsonb(r) ->> 'prqual' IS NOT NULL OR to_jsonb(r) ->> 'prattrs' IS NOT NULL)) AS filtered
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";

/// What is missing; nothing is changed.
pub async fn check(pool: &PgPool, wanted: &Wanted) -> Result<Vec<Lack>, CaptureError> {
    let facts = sqlx::query(SERVER).bind(&wanted.slot).bind(&wanted.publication).fetch_one(pool).await?;
    let facts = ServerFacts::read(&facts)?;
    let mut lacks = lacks_of_server(&facts);
    if let Some(other) = &facts.slot_of_other {
        lacks.push(Lack::new(
            format!("the slot {} is that of {other}: slots are of the whole server", wanted.slot),
            "name another slot",
        ));
    }
    for (schema, name) in &wanted.tables {
        let found = sqlx::query(TABLE).bind(schema).bind(name).bind(&wanted.publication).fetch_optional(pool).await?;
        let table = format!("{schema}.{name}");
        match found {
            Some(found) => {
                let found = TableFacts::read(&found)?;
                lacks.extend(lacks_of_table(&table, &found, wanted.changes, &facts.username));
            }
            None => lacks.push(Lack::new(
                format!("there is no table {table}, or this user may not see it"),
                "correct its name, or grant USAGE on its schema",
            )),
        }
    }
    let operations = if wanted.changes { "insert, update, delete, truncate" } else { "insert" };
    let publication = Publication {
        name: wanted.publication.clone(),
        tables: wanted.tables.clone(),
        operations: operations.to_owned(),
        owner: wanted.owner.clone(),
    };
    lacks.extend(publication.lacks(pool).await?);
    Ok(lacks)
}

fn lacks_of_server(facts: &ServerFacts) -> Vec<Lack> {
    let mut lacks = Vec::new();
    if facts.version < 140_000 {
        lacks.push(Lack::new("the server is older than PostgreSQL 14", "upgrade it"));
    }
    if facts.in_recovery {
        lacks.push(Lack::new("the server is a standby", "name the primary in the URL"));
    }
    if facts.wal_level != "logical" {
        lacks.push(Lack::new(
            format!("wal_level is {}, and must be logical", facts.wal_level),
            "ALTER SYSTEM SET wal_level = logical, then restart the server",
        ));
    }
    if !facts.may_replicate {
        lacks.push(Lack::new(
            format!("the user {} may not replicate", facts.username),
            format!("ALTER ROLE \"{}\" REPLICATION (on a managed server: its own role for that)", facts.username),
        ));
    }
    if !facts.has_slot && facts.slots >= facts.max_slots {
        lacks.push(Lack::new(
            format!("all {} replication slots are taken", facts.max_slots),
            "drop one that nobody reads, or raise max_replication_slots and restart the server",
        ));
    }
    if facts.senders >= facts.max_senders {
        lacks.push(Lack::new(
            format!("all {} WAL senders are busy", facts.max_senders),
            "raise max_wal_senders and restart the server",
        ));
    }
    if !facts.has_publication && !facts.may_create {
        lacks.push(Lack::new(
            format!("the user {} may not create a publication", facts.username),
            format!("GRANT CREATE ON DATABASE \"{}\" TO \"{}\"", facts.database, facts.username),
        ));
    }
    if facts.keep_size == "-1" {
        lacks.push(Lack::warning(
            "max_slot_wal_keep_size is not set",
            "set it, so that no slot can fill the server's disk while nobody reads it",
        ));
    }
    lacks
}

fn lacks_of_table(table: &str, found: &TableFacts, changes: bool, user: &str) -> Vec<Lack> {
    let mut lacks = Vec::new();
    if !matches!(found.kind.as_str(), "r" | "p") {
        lacks.push(Lack::new(format!("{table} is no table"), "views and foreign tables have no changes in the log"));
        return lacks;
    }
    if found.unlogged {
        lacks.push(Lack::new(
            format!("{table} is unlogged or temporary"),
            format!("ALTER TABLE {table} SET LOGGED: only then its changes are in the log"),
        ));
    }
    if !found.may_read {
        lacks.push(Lack::new(
            format!("the user {user} may not read {table}"),
            format!("GRANT SELECT ON {table} TO \"{user}\""),
        ));
    }
    if !found.published && !found.owns {
        lacks.push(Lack::new(
            format!("the user {user} does not own {table}, so it can not publish it"),
            format!("let its owner create the publication, or ALTER TABLE {table} OWNER TO a role that {user} has"),
        ));
    }
    if found.filtered {
        lacks.push(Lack::new(
            format!("the publication sends only some rows or columns of {table}"),
            "ALTER PUBLICATION … SET TABLE without WHERE and without columns, or name another publication",
        ));
    }
    let has_identity = matches!(found.identity.as_str(), "f" | "i") || (found.identity == "d" && found.has_key);
    if changes && !has_identity {
        lacks.push(Lack::new(
            format!("{table} has no replica identity: once it is published, its updates and deletes fail"),
            format!("add a primary key, or ALTER TABLE {table} REPLICA IDENTITY FULL"),
        ));
    } else if changes && found.identity != "f" {
        lacks.push(Lack::warning(
            format!("{table} has no full replica identity: `before` has its key only"),
            format!("ALTER TABLE {table} REPLICA IDENTITY FULL, if the whole row before is wanted"),
        ));
    }
    lacks
}
