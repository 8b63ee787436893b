//! What the catalog says about tables and types. The stream brings names and OIDs only.
//!
//! It is today's catalog: a type or column that was dropped since the change was made is unknown, which must not stop the
//! stream.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::{PgPool, Row as _, postgres::PgRow};

use crate::{CaptureError, Column, Mask, Relation, Table, TypeKind};

type Result<T> = std::result::Result<T, CaptureError>;

/// Types within types: no deeper than this.
const DEEPEST: usize = 8;

/// Which columns are published, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnRules {
    /// Columns that are left out: `schema.table.column`.
    pub exclude: BTreeSet<String>,
    /// If there are any of a table, only these are published: `schema.table.column`.
    pub include: BTreeSet<String>,
    /// What stands in place of values: by `schema.table.column`.
    pub masks: BTreeMap<String, Mask>,
}

impl ColumnRules {
    fn publishes(&self, table: &str, column: &str) -> bool {
        let name = format!("{table}.{column}");
        let chosen = self.include.iter().any(|one| one.rsplit_once('.').is_some_and(|(of, _)| of == table));
        !self.exclude.contains(&name) && (!chosen || self.include.contains(&name))
    }
}

/// A table with the columns that are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// The table, with these columns only.
    pub table: Table,
    /// Their places in a streamed row.
    pub places: Vec<usize>,
}

/// Asks the catalog, and remembers.
#[derive(Debug)]
pub(crate) struct Catalog {
    pool: PgPool,
    rules: ColumnRules,
    kinds: HashMap<u32, TypeKind>,
}

impl Catalog {
    pub(crate) fn new(pool: PgPool, rules: ColumnRules) -> Self {
        Self { pool, rules, kinds: HashMap::new() }
    }

    /// What is to be known about a table of the stream.
    pub(crate) async fn table(&mut self, relation: &Relation) -> Result<PublishedTable> {
        let rows = sqlx::query(
            "SELECT a.attname::text AS name, a.attnotnull AS not_null, coalesce(a.attnum = ANY (i.indkey), false) AS in_key
             FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
             WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped",
        )
        .bind(i64::from(relation.oid))
        .fetch_all(&self.pool)
        .await?;
        let known: HashMap<String, (bool, bool)> = rows
            .iter()
            .map(|row| Ok((row.try_get("name")?, (row.try_get("not_null")?, row.try_get("in_key")?))))
            .collect::<std::result::Result<_, sqlx::Error>>()?;
        self.learn(relation.columns.iter().map(|column| column.type_oid).collect()).await?;
        let full_name = format!("{}.{}", relation.schema, relation.name);
        let (mut columns, mut places) = (Vec::new(), Vec::new());
        for (place, column) in relation.columns.iter().enumerate() {
            if !self.rules.publishes(&full_name, &column.name) {
                continue;
            }
            let (not_null, in_primary_key) = known.get(&column.name).copied().unwrap_or_default();
            places.push(place);
            columns.push(Column {
                name: column.name.clone(),
                type_oid: column.type_oid,
                type_modifier: column.type_modifier,
                kind: self.kinds.get(&column.type_oid).cloned().unwrap_or(TypeKind::Unknown),
                in_identity: column.in_identity,
                in_primary_key,
                not_null,
                mask: self.rules.masks.get(&format!("{full_name}.{}", column.name)).cloned(),
            });
        }
        let (oid, schema, name) = (relation.oid, relation.schema.clone(), relation.name.clone());
        Ok(PublishedTable { table: Table { oid, schema, name, columns }, places })
    }

    /// Asks about types. Domains and arrays name others, so that it may take some turns.
    async fn learn(&mut self, oids: BTreeSet<u32>) -> Result<()> {
        let mut rows: HashMap<u32, TypeRow> = HashMap::new();
        // An enum can get labels, so that a new description of a table asks again.
        let mut wanted: Vec<i64> = oids.iter().copied().map(i64::from).collect();
        for _ in 0..DEEPEST {
            if wanted.is_empty() {
                break;
            }
            let found = sqlx::query(TYPES).bind(&wanted).fetch_all(&self.pool).await?;
            wanted.clear();
            for row in &found {
                let row = TypeRow::read(row)?;
                wanted.extend([row.base, row.element].into_iter().filter(|oid| *oid != 0).map(i64::from));
                rows.insert(row.oid, row);
            }
            wanted.retain(|oid| !u32::try_from(*oid).is_ok_and(|oid| rows.contains_key(&oid)));
        }
        self.kinds.extend(oids.into_iter().map(|oid| (oid, kind(oid, &rows, 0))));
        Ok(())
    }
}

const TYPES: &str = "SELECT t.oid::bigint AS oid, t.typtype::text AS kind, t.typbasetype::bigint AS base, t.typtypmod AS modifier,
    t.typelem::bigint AS element, t.typcategory::text AS category, t.typname::text AS name,
    EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e') AS extension,
    ARRAY(SELECT enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY enumsortorder) AS labels
  FROM pg_type t WHERE t.oid = ANY($1::bigint[]::oid[])";

struct TypeRow {
    oid: u32,
    kind: String,
    base: u32,
    modifier: i32,
    element: u32,
    category: String,
    name: String,
    extension: bool,
    labels: Vec<String>,
}

impl TypeRow {
    fn read(row: &PgRow) -> std::result::Result<Self, sqlx::Error> {
        let oid = |name: &str| Ok::<_, sqlx::Error>(u32::try_from(row.try_get::<i64, _>(name)?).unwrap_or_default());
        Ok(Self {
            oid: oid("oid")?,
            kind: row.try_get("kind")?,
            base: oid("base")?,
            modifier: row.try_get("modifier")?,
            element: oid("element")?,
            category: row.try_get("category")?,
            name: row.try_get("name")?,
            extension: row.try_get("extension")?,
            labels: row.try_get("labels")?,
        })
    }
}

fn kind(oid: u32, rows: &HashMap<u32, TypeRow>, depth: usize) -> TypeKind {
    let Some(row) = rows.get(&oid).filter(|_| depth < DEEPEST) else { return TypeKind::Unknown };
    match (row.kind.as_str(), row.category.as_str()) {
        ("e", _) => TypeKind::Enum(row.labels.clone()),
        ("c", _) => TypeKind::Composite,
        ("r", _) => TypeKind::Range,
        ("m", _) => TypeKind::Multirange,
        ("d", _) => TypeKind::Domain {
            base: Box::new(kind(row.base, rows, depth + 1)),
            base_oid: row.base,
            base_modifier: row.modifier,
        },
        (_, "A") if row.element != 0 => {
            TypeKind::Array { element: Box::new(kind(row.element, rows, depth + 1)), element_oid: row.element }
        }
        _ if row.extension => TypeKind::Extension(row.name.clone()),
        _ => TypeKind::Base,
    }
}
