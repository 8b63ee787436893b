//! What a change is, in PostgreSQL's own terms. Knows no envelope and no sink.

use bytes::Bytes;

/// A column of a captured table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The OID of its type.
    pub type_oid: u32,
    /// The modifier of its type; -1 if there is none.
    pub type_modifier: i32,
    /// What the catalog says about the type.
    pub kind: TypeKind,
    /// Whether it belongs to the replica identity.
    pub in_identity: bool,
    /// Whether it belongs to the primary key.
    pub in_primary_key: bool,
    /// Whether it is never null.
    pub not_null: bool,
    /// What is published in place of the value, if it is masked.
    pub mask: Option<Mask>,
}

/// What the catalog says about a type. Types that are not built in have OIDs of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeKind {
    /// A built-in type: its OID tells all.
    Base,
    /// A type of an extension, by name: citext, hstore, ltree, geometry.
    Extension(String),
    /// An enum, and its labels.
    Enum(Vec<String>),
    /// A domain over a type.
    Domain {
        /// The type.
        base: Box<TypeKind>,
        /// Its OID.
        base_oid: u32,
        /// Its modifier; -1 if there is none.
        base_modifier: i32,
    },
    /// An array of a type.
    Array {
        /// The type.
        element: Box<TypeKind>,
        /// Its OID.
        element_oid: u32,
    },
    /// A row type.
    Composite,
    /// A range.
    Range,
    /// A set of ranges.
    Multirange,
    /// A type that the catalog does not have any more.
    Unknown,
}

/// What is published in place of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mask {
    /// Nothing.
    Null,
    /// A fixed text.
    Text(String),
    /// The SHA-256 of the salt and the value, in hex.
    Hash {
        /// What makes it hard to guess.
        salt: String,
    },
}

/// A captured table, as it was when the change was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its OID.
    pub oid: u32,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its columns, in the order of a row's values.
    pub columns: Vec<Column>,
}

/// A value in a row: PostgreSQL's text form, with `datestyle=ISO`, `intervalstyle=postgres`, `bytea_output=hex` and
/// `timezone=UTC`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Null,
    /// A large value that did not change, so that the log does not have it.
    Unchanged,
    /// Any other.
    Text(Bytes),
}

/// The values of a row, one for each column.
pub type Row = Vec<Value>;

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// A row was inserted.
    Insert {
        /// The row.
        after: Row,
    },
    /// A row was updated.
    Update {
        /// The row before, as far as the replica identity gives it.
        before: Option<Row>,
        /// Whether that is the whole row. Otherwise it has the identity's columns, and NULL in all others.
        whole_before: bool,
        /// The row.
        after: Row,
    },
    /// A row was deleted.
    Delete {
        /// The row before, as far as the replica identity gives it.
        before: Row,
        /// Whether that is the whole row.
        whole_before: bool,
    },
    /// All rows were deleted.
    Truncate,
    /// A row was read in a snapshot.
    Read {
        /// The row.
        after: Row,
    },
}

impl Operation {
    /// About how many bytes it has.
    pub fn size(&self) -> usize {
        let of =
            |row: &Row| row.iter().map(|value| if let Value::Text(text) = value { text.len() } else { 0 } + 32).sum();
        match self {
            Self::Insert { after } | Self::Read { after } => of(after),
            Self::Update { before, after, .. } => of(after) + before.as_ref().map_or(0, of),
            Self::Delete { before, .. } => of(before),
            Self::Truncate => 0,
        }
    }
}

/// Where a change comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The database.
    pub database: String,
    /// The transaction's number.
    pub transaction: u32,
    /// The LSN of the change.
    pub lsn: u64,
    /// The LSN of the commit.
    pub commit_lsn: Option<u64>,
    /// When it was committed: microseconds since 1970.
    pub committed_at: i64,
    /// None: streamed. Otherwise which part of a snapshot it is.
    pub snapshot: Option<SnapshotPlace>,
}

/// Which row of a snapshot it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotPlace {
    /// The first.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last.
    Last,
}
