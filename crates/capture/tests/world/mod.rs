//! Changes of a real PostgreSQL, read through a slot by SQL functions, so that the envelope is tested without the stream.

#[path = "../debezium/script.rs"]
mod script;

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use relais_capture::model::{Column, Operation, Row, SnapshotPlace, Source, Table, TypeKind, Value};
use relais_testkit::PostgresServer;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _, ValueRef as _};

/// One change, as the capture gives it to the envelope.
pub struct Change {
    pub table: Table,
    pub operation: Operation,
    pub source: Source,
}

/// The fixed forms of text values.
const FORMS: &str = "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET bytea_output = 'hex'; \
                     SET extra_float_digits = 1; SET timezone = 'UTC'; SET lc_monetary = 'C'";

/// Runs the first part of a file of SQL, reads the rows as a snapshot would, runs the second part and reads its changes.
pub async fn changes(sql: &str) -> Result<Vec<Change>> {
    // A server of its own: creating a slot waits for every transaction of the server.
    let server = PostgresServer::start().await?;
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    connection.execute(FORMS).await?;
    let (before, after) = script::parts(sql)?;
    let publishes = before.iter().any(|statement| statement.starts_with("CREATE PUBLICATION"));
    for statement in before {
        connection.execute(AssertSqlSafe(statement)).await?;
    }
    if !publishes {
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES").await?;
    }
    let mut changes = snapshot(&mut connection).await?;
    connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', true)").await?;
    for statement in after {
        connection.execute(AssertSqlSafe(statement)).await?;
    }
    let messages = sqlx::query_as::<_, (String, Vec<u8>)>(
        "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, 'proto_version', '1', \
         'publication_names', 'p')",
    )
    .fetch_all(&mut connection)
    .await?;
    let mut decoder =
        Decoder { catalog: Catalog::read(&mut connection).await?, tables: HashMap::new(), source: origin() };
    for (lsn, message) in messages {
        decoder.source.lsn = lsn_of(&lsn)?;
        decoder.decode(&message, &mut changes)?;
    }
    Ok(changes)
}

fn origin() -> Source {
    Source { database: "env0".into(), transaction: 1, lsn: 1, commit_lsn: None, committed_at: 0, snapshot: None }
}

fn lsn_of(text: &str) -> Result<u64> {
    let (high, low) = text.split_once('/').context("not an LSN")?;
    Ok(u64::from_str_radix(high, 16)? << 32 | u64::from_str_radix(low, 16)?)
}

/// The rows of all tables. The simple protocol gives values in the same text form as the stream.
async fn snapshot(connection: &mut PgConnection) -> Result<Vec<Change>> {
    let catalog = Catalog::read(connection).await?;
    let tables = sqlx::query_as::<_, (i64, String)>(
        "SELECT oid::int8, relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace \
         ORDER BY relname COLLATE \"C\"",
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut changes = Vec::new();
    for (oid, name) in tables {
        let table = catalog.table(u32::try_from(oid)?, &name)?;
        let query = format!("SELECT * FROM \"{}\"", name.replace('"', "\"\""));
        for row in sqlx::raw_sql(AssertSqlSafe(query)).fetch_all(&mut *connection).await? {
            let mut after = Row::new();
            for place in 0..row.len() {
                let value = row.try_get_raw(place)?;
                after.push(match value.is_null() {
                    true => Value::Null,
                    false => Value::Text(Bytes::copy_from_slice(value.as_bytes().map_err(anyhow::Error::msg)?)),
                });
            }
            let source = Source { snapshot: Some(SnapshotPlace::Middle), ..origin() };
            changes.push(Change { table: table.clone(), operation: Operation::Read { after }, source });
        }
    }
    Ok(changes)
}

/// What today's catalog says.
struct Catalog {
    kinds: HashMap<u32, TypeKind>,
    /// By table and column: modifier, type, not null, in the primary key, in the identity.
    columns: HashMap<(u32, String), Column>,
    order: HashMap<u32, Vec<String>>,
}

impl Catalog {
    async fn read(connection: &mut PgConnection) -> Result<Self> {
        let types = sqlx::query(
            "SELECT t.oid::int8, t.typtype::text, t.typbasetype::int8, t.typtypmod, t.typelem::int8, t.typcategory::text, \
             t.typname::text, EXISTS (SELECT FROM pg_depend d WHERE d.objid = t.oid AND d.deptype = 'e'), \
             ARRAY(SELECT enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY enumsortorder) FROM pg_type t",
        )
        .fetch_all(&mut *connection)
        .await?;
        let mut rows = HashMap::new();
        for row in &types {
            rows.insert(u32::try_from(row.try_get::<i64, _>(0)?)?, row);
        }
        fn kind(oid: u32, rows: &HashMap<u32, &sqlx::postgres::PgRow>) -> Result<TypeKind> {
            let row = rows.get(&oid).context("no such type")?;
            let other = |place: usize| -> Result<u32> { Ok(u32::try_from(row.try_get::<i64, _>(place)?)?) };
            Ok(match (row.try_get::<&str, _>(1)?, row.try_get::<&str, _>(5)?) {
                ("e", _) => TypeKind::Enum(row.try_get(8)?),
                ("c", _) => TypeKind::Composite,
                ("r", _) => TypeKind::Range,
                ("m", _) => TypeKind::Multirange,
                ("d", _) => TypeKind::Domain {
                    base: Box::new(kind(other(2)?, rows)?),
                    base_oid: other(2)?,
                    base_modifier: row.try_get(3)?,
                },
                (_, "A") if other(4)? != 0 => {
                    TypeKind::Array { element: Box::new(kind(other(4)?, rows)?), element_oid: other(4)? }
                }
                _ if row.try_get::<bool, _>(7)? => TypeKind::Extension(row.try_get(6)?),
                _ => TypeKind::Base,
            })
        }
        let mut kinds = HashMap::new();
        for oid in rows.keys() {
            kinds.insert(*oid, kind(*oid, &rows)?);
        }
        let mut catalog = Self { kinds, columns: HashMap::new(), order: HashMap::new() };
        let columns = sqlx::query(
            "SELECT a.attrelid::int8, a.attname::text, a.atttypid::int8, a.atttypmod, a.attnotnull, \
             coalesce(a.attnum = ANY (i.indkey), false) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid \
             LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary \
             WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped \
             ORDER BY a.attrelid, a.attnum",
        )
        .fetch_all(connection)
        .await?;
        for row in &columns {
            let oid = u32::try_from(row.try_get::<i64, _>(0)?)?;
            let (name, in_primary_key): (String, bool) = (row.try_get(1)?, row.try_get(5)?);
            let type_oid = u32::try_from(row.try_get::<i64, _>(2)?)?;
            let column = Column {
                name: name.clone(),
                type_oid,
                type_modifier: row.try_get(3)?,
                kind: catalog.kind(type_oid),
                in_identity: in_primary_key,
                in_primary_key,
                not_null: row.try_get(4)?,
                mask: None,
            };
            catalog.order.entry(oid).or_default().push(name.clone());
            catalog.columns.insert((oid, name), column);
        }
        Ok(catalog)
    }

    fn kind(&self, oid: u32) -> TypeKind {
        self.kinds.get(&oid).cloned().unwrap_or(TypeKind::Unknown)
    }

    fn table(&self, oid: u32, name: &str) -> Result<Table> {
        let columns = self.order.get(&oid).context("no such table")?;
        let columns = columns.iter().map(|column| self.columns[&(oid, column.clone())].clone()).collect();
        Ok(Table { oid, schema: "public".into(), name: name.into(), columns })
    }
}

/// Reads pgoutput, version 1.
struct Decoder {
    catalog: Catalog,
    tables: HashMap<u32, Table>,
    source: Source,
}

impl Decoder {
    fn decode(&mut self, message: &[u8], changes: &mut Vec<Change>) -> Result<()> {
        let mut reader = Reader(message);
        match reader.u8()? {
            b'B' => {
                self.source.commit_lsn = Some(reader.u64()?);
                self.source.committed_at = reader.u64()?.cast_signed() + 946_684_800_000_000;
                self.source.transaction = reader.u32()?;
            }
            b'R' => self.relation(&mut reader)?,
            b'I' => {
                let oid = reader.u32()?;
                reader.u8()?;
                self.push(oid, Operation::Insert { after: reader.row()? }, changes)?;
            }
            b'U' => {
                let (oid, mut tag) = (reader.u32()?, reader.u8()?);
                let whole_before = tag == b'O';
                let mut before = None;
                if tag != b'N' {
                    before = Some(reader.row()?);
                    tag = reader.u8()?;
                }
                anyhow::ensure!(tag == b'N', "an update without a new row");
                let operation = Operation::Update { before, whole_before, after: reader.row()? };
                self.push(oid, operation, changes)?;
            }
            b'D' => {
                let (oid, tag) = (reader.u32()?, reader.u8()?);
                let operation = Operation::Delete { before: reader.row()?, whole_before: tag == b'O' };
                self.push(oid, operation, changes)?;
            }
            b'T' => {
                let count = reader.u32()?;
                reader.u8()?;
                for _ in 0..count {
                    let oid = reader.u32()?;
                    self.push(oid, Operation::Truncate, changes)?;
                }
            }
            b'C' | b'Y' | b'O' | b'M' => {}
            other => bail!("pgoutput has no message {other}"),
        }
        Ok(())
    }

    fn relation(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let (oid, schema, name) = (reader.u32()?, reader.text()?, reader.text()?);
        reader.u8()?;
        let mut columns = Vec::new();
        for _ in 0..reader.u16()? {
            let (flags, column, type_oid) = (reader.u8()?, reader.text()?, reader.u32()?);
            let known = self.catalog.columns.get(&(oid, column.clone()));
            columns.push(Column {
                type_oid,
                type_modifier: reader.u32()?.cast_signed(),
                kind: self.catalog.kind(type_oid),
                in_identity: flags & 1 == 1,
                in_primary_key: known.is_some_and(|known| known.in_primary_key),
                not_null: known.is_some_and(|known| known.not_null),
                mask: None,
                name: column,
            });
        }
        self.tables.insert(oid, Table { oid, schema, name, columns });
        Ok(())
    }

    fn push(&self, oid: u32, operation: Operation, changes: &mut Vec<Change>) -> Result<()> {
        let table = self.tables.get(&oid).context("a change without a relation")?.clone();
        changes.push(Change { table, operation, source: self.source.clone() });
        Ok(())
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("the message is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take(8)?.try_into()?))
    }

    fn text(&mut self) -> Result<String> {
        let end = self.0.iter().position(|byte| *byte == 0).context("a text without an end")?;
        let text = String::from_utf8(self.take(end)?.to_vec())?;
        self.u8()?;
        Ok(text)
    }

    fn row(&mut self) -> Result<Row> {
        let mut row = Row::new();
        for _ in 0..self.u16()? {
            row.push(match self.u8()? {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => {
                    let length = self.u32()? as usize;
                    Value::Text(Bytes::copy_from_slice(self.take(length)?))
                }
                other => bail!("pgoutput has no kind of value {other}"),
            });
        }
        Ok(row)
    }
}
