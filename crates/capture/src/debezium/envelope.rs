//! Whole records: topic, key, value and headers of a change.
//!
//! What depends only on the table (names, schemas, how each column is written) is a plan, which is made once and used until
//! the table changes. A row is written straight into one buffer.

use std::collections::HashMap;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{
    field::Field,
    options::EnvelopeOptions,
    schema::{self, Named},
    text::{string, write_escaped, write_i64, write_string},
    value::write_hex,
};
use crate::model::{Column, Mask, Operation, Row, SnapshotPlace, Source, Table, Value};

/// What a change becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `<capture>.<schema>.<table>`.
    pub topic: String,
    /// The key, as JSON. None where the table has none.
    pub key: Option<Bytes>,
    /// The value, as JSON. None is a tombstone.
    pub value: Option<Bytes>,
    /// Headers.
    pub headers: Vec<(String, Option<String>)>,
}

/// The key that a row had, in the record that creates it again under another.
const OLD_KEY: &str = "__debezium.oldkey";
/// The key that a row has now, in the record that deletes it under the one before.
const NEW_KEY: &str = "__debezium.newkey";

/// Which program wrote the record, in `source.version`.
const VERSION: &str = concat!("relais-", env!("CARGO_PKG_VERSION"));

/// One large row must not make every later buffer as large.
const LARGEST_GUESS: usize = 64 << 10;

/// Makes records of changes.
#[derive(Debug)]
pub struct Envelope {
    options: EnvelopeOptions,
    plans: HashMap<u32, Plan>,
}

impl Envelope {
    /// An envelope with these options.
    pub fn new(options: EnvelopeOptions) -> Self {
        Self { options, plans: HashMap::new() }
    }

    /// The records of a change, in their order. `now_ms` is when it was read, in milliseconds since 1970.
    pub fn records(&mut self, table: &Table, operation: &Operation, source: &Source, now_ms: i64) -> Vec<Record> {
        if self.plans.get(&table.oid).is_none_or(|plan| plan.table != *table) {
            self.plans.insert(table.oid, Plan::new(table, &self.options));
        }
        let Some(plan) = self.plans.get_mut(&table.oid) else { return Vec::new() };
        let mut change = Change { plan, source, now_ms };
        match operation {
            Operation::Insert { after } => vec![change.record(None, Some(after), None, b"c")],
            Operation::Read { after } => vec![change.record(None, Some(after), None, b"r")],
            Operation::Truncate => vec![change.record(None, None, None, b"t")],
            Operation::Delete { before, .. } => {
                let mut records = vec![change.record(Some(before), None, None, b"d")];
                records.extend(change.plan.tombstone(&records[0], self.options.tombstones));
                records
            }
            Operation::Update { before, whole_before, after } => {
                let old = before.as_ref().filter(|_| *whole_before);
                match before {
                    Some(before) if change.plan.moves(before, after) => {
                        let mut deleted = change.record(Some(before), None, None, b"d");
                        let mut created = change.record(None, Some(after), old, b"c");
                        deleted.headers = header(NEW_KEY, created.key.as_ref());
                        created.headers = header(OLD_KEY, deleted.key.as_ref());
                        let tombstone = change.plan.tombstone(&deleted, self.options.tombstones);
                        std::iter::once(deleted).chain(tombstone).chain([created]).collect()
                    }
                    _ => vec![change.record(before.as_ref(), Some(after), old, b"u")],
                }
            }
        }
    }
}

fn header(name: &str, key: Option<&Bytes>) -> Vec<(String, Option<String>)> {
    let key = key.map(|key| String::from_utf8_lossy(key).into_owned());
    vec![(name.to_owned(), key)]
}

/// What is known of a table.
#[derive(Debug)]
struct Plan {
    table: Table,
    topic: String,
    columns: Vec<PlannedColumn>,
    /// Places in `columns`.
    key: Vec<usize>,
    /// Up to the payload: the schema, where it is wanted.
    key_start: Vec<u8>,
    value_start: Vec<u8>,
    end: &'static [u8],
    /// `"source":{…,"ts_ms":`
    source_start: Vec<u8>,
    /// `,"schema":…,"table":…,"txId":`
    source_table: Vec<u8>,
    /// How large the last value was: a good guess for the next one.
    size: usize,
}

#[derive(Debug)]
struct PlannedColumn {
    /// Its place in a row.
    place: usize,
    /// `"name":`
    label: Vec<u8>,
    field: Field,
    optional: bool,
    null: Vec<u8>,
    unavailable: Vec<u8>,
    mask: Option<PlannedMask>,
}

#[derive(Debug)]
enum PlannedMask {
    Fixed(Vec<u8>),
    Hash(Sha256),
}

impl PlannedColumn {
    /// None where the column is left out.
    fn new(place: usize, column: &Column, options: &EnvelopeOptions) -> Option<Self> {
        let mut field = Field::of(&column.kind, column.type_oid, column.type_modifier, options)?;
        let mut optional = !column.not_null;
        let mask = match &column.mask {
            None => None,
            Some(Mask::Null) => {
                optional = true;
                Some(PlannedMask::Fixed(b"null".to_vec()))
            }
            // Whatever it was, now it is a string.
            Some(Mask::Text(text)) => {
                field = Field::Text(None);
                Some(PlannedMask::Fixed(string(text)))
            }
            Some(Mask::Hash { salt }) => {
                field = Field::Text(None);
                Some(PlannedMask::Hash(Sha256::new_with_prefix(salt)))
            }
        };
        let mut label = string(&column.name);
        label.push(b':');
        Some(Self {
            place,
            label,
            null: if optional { b"null".to_vec() } else { field.fallback() },
            unavailable: field.unavailable(&options.unavailable_value),
            field,
            optional,
            mask,
        })
    }

    fn write(&self, out: &mut Vec<u8>, row: &Row, old: Option<&Row>) {
        out.extend_from_slice(&self.label);
        let value = match row.get(self.place) {
            Some(Value::Unchanged) => old.and_then(|old| old.get(self.place)).unwrap_or(&Value::Unchanged),
            value => value.unwrap_or(&Value::Null),
        };
        match (&self.mask, value) {
            (Some(PlannedMask::Fixed(fixed)), _) => out.extend_from_slice(fixed),
            (_, Value::Null) => out.extend_from_slice(&self.null),
            (_, Value::Unchanged) => out.extend_from_slice(&self.unavailable),
            (Some(PlannedMask::Hash(salted)), Value::Text(text)) => {
                write_hex(out, &salted.clone().chain_update(text).finalize());
            }
            (None, Value::Text(text)) => self.field.write(out, text),
        }
    }
}

impl Plan {
    fn new(table: &Table, options: &EnvelopeOptions) -> Self {
        let topic = sanitized(&format!("{}.{}.{}", options.name, table.schema, table.name));
        let columns: Vec<PlannedColumn> = table
            .columns
            .iter()
            .enumerate()
            .filter_map(|(place, column)| PlannedColumn::new(place, column, options))
            .collect();
        let key: Vec<usize> = key_places(table, options)
            .iter()
            .filter_map(|place| columns.iter().position(|column| column.place == *place))
            .collect();
        let (mut key_start, mut value_start, mut end): (Vec<u8>, Vec<u8>, &[u8]) = (Vec::new(), Vec::new(), b"");
        if options.schemas {
            fn named<'a>(column: &'a PlannedColumn, table: &'a Table, masked: bool) -> Named<'a> {
                let name = &table.columns[column.place].name;
                Named { name, field: &column.field, optional: column.optional, masked }
            }
            let of_key = key.iter().map(|place| named(&columns[*place], table, false));
            let all = columns.iter().map(|column| named(column, table, column.mask.is_some()));
            key_start = wrapped(&schema::key(&topic, of_key));
            value_start = wrapped(&schema::value(&topic, all));
            end = b"}";
        }
        let mut source_start = b"\"source\":{\"version\":\"".to_vec();
        source_start.extend_from_slice(VERSION.as_bytes());
        source_start.extend_from_slice(b"\",\"connector\":\"postgresql\",\"name\":");
        write_string(&mut source_start, options.name.as_bytes());
        source_start.extend_from_slice(b",\"ts_ms\":");
        let mut source_table = b",\"schema\":".to_vec();
        write_string(&mut source_table, table.schema.as_bytes());
        source_table.extend_from_slice(b",\"table\":");
        write_string(&mut source_table, table.name.as_bytes());
        source_table.extend_from_slice(b",\"txId\":");
        let table = table.clone();
        Self { table, topic, columns, key, key_start, value_start, end, source_start, source_table, size: 512 }
    }

    /// Whether an update gives a row another key.
    fn moves(&self, before: &Row, after: &Row) -> bool {
        self.key.iter().any(|place| {
            let place = self.columns[*place].place;
            // A key that is not in the replica identity may be missing.
            match (before.get(place), after.get(place)) {
                (_, None | Some(Value::Unchanged)) | (None | Some(Value::Unchanged), _) => false,
                (before, after) => before != after,
            }
        })
    }

    fn key(&self, row: &Row, old: Option<&Row>) -> Option<Bytes> {
        if self.key.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(self.key_start.len() + 64);
        out.extend_from_slice(&self.key_start);
        out.push(b'{');
        for (index, place) in self.key.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            self.columns[*place].write(&mut out, row, old);
        }
        out.push(b'}');
        out.extend_from_slice(self.end);
        Some(out.into())
    }

    /// What follows a delete. Without a key it would say nothing.
    fn tombstone(&self, deleted: &Record, wanted: bool) -> Option<Record> {
        (wanted && deleted.key.is_some()).then(|| Record { value: None, ..deleted.clone() })
    }
}

fn wrapped(schema: &[u8]) -> Vec<u8> {
    [b"{\"schema\":", schema, b",\"payload\":"].concat()
}

/// A topic has letters, digits, dots, dashes and underscores. Debezium puts an underscore in place of anything else.
fn sanitized(topic: &str) -> String {
    let allowed = |character: char| character.is_ascii_alphanumeric() || ".-_".contains(character);
    topic.chars().map(|character| if allowed(character) { character } else { '_' }).collect()
}

/// The columns of the key: those that were asked for, the primary key, or the replica identity's index.
fn key_places(table: &Table, options: &EnvelopeOptions) -> Vec<usize> {
    let places = |wanted: &dyn Fn(&Column) -> bool| -> Vec<usize> {
        table.columns.iter().enumerate().filter(|(_, column)| wanted(column)).map(|(place, _)| place).collect()
    };
    if let Some(names) = options.key_columns.get(&format!("{}.{}", table.schema, table.name)) {
        return names.iter().filter_map(|name| table.columns.iter().position(|column| column.name == *name)).collect();
    }
    let identity = places(&|column| column.in_identity);
    let primary = places(&|column| column.in_primary_key);
    // A primary key outside the replica identity is not in the log when a row is deleted.
    if !primary.is_empty() && (identity.is_empty() || primary.iter().all(|place| identity.contains(place))) {
        return primary;
    }
    // With REPLICA IDENTITY FULL every column belongs to it: no key.
    if identity.len() < table.columns.len() { identity } else { Vec::new() }
}

/// One change on its way.
struct Change<'a> {
    plan: &'a mut Plan,
    source: &'a Source,
    now_ms: i64,
}

impl Change<'_> {
    fn record(&mut self, before: Option<&Row>, after: Option<&Row>, old: Option<&Row>, operation: &[u8]) -> Record {
        let key = after.or(before).and_then(|row| self.plan.key(row, old));
        let mut out = Vec::with_capacity(self.plan.value_start.len() + self.plan.size);
        out.extend_from_slice(&self.plan.value_start);
        out.extend_from_slice(b"{\"before\":");
        self.write_image(&mut out, before, None);
        out.extend_from_slice(b",\"after\":");
        self.write_image(&mut out, after, old);
        out.push(b',');
        self.write_source(&mut out);
        out.extend_from_slice(b",\"transaction\":null,\"op\":\"");
        out.extend_from_slice(operation);
        out.push(b'"');
        write_times(&mut out, self.now_ms.saturating_mul(1000));
        out.push(b'}');
        out.extend_from_slice(self.plan.end);
        self.plan.size = (out.len() - self.plan.value_start.len() + 64).min(LARGEST_GUESS);
        Record { topic: self.plan.topic.clone(), key, value: Some(out.into()), headers: Vec::new() }
    }

    fn write_image(&self, out: &mut Vec<u8>, row: Option<&Row>, old: Option<&Row>) {
        let Some(row) = row else {
            return out.extend_from_slice(b"null");
        };
        out.push(b'{');
        for (index, column) in self.plan.columns.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            column.write(out, row, old);
        }
        out.push(b'}');
    }

    fn write_source(&self, out: &mut Vec<u8>) {
        let source = self.source;
        out.extend_from_slice(&self.plan.source_start);
        write_i64(out, source.committed_at.div_euclid(1000));
        let snapshot = match source.snapshot {
            None => "false",
            Some(SnapshotPlace::First) => "first",
            Some(SnapshotPlace::Middle) => "true",
            Some(SnapshotPlace::Last) => "last",
        };
        out.extend_from_slice(b",\"snapshot\":\"");
        out.extend_from_slice(snapshot.as_bytes());
        out.extend_from_slice(b"\",\"db\":\"");
        write_escaped(out, source.database.as_bytes());
        // A list of two numbers as text: where the transaction was committed, and where the change is in the log.
        out.extend_from_slice(b"\",\"sequence\":\"[");
        match source.commit_lsn.filter(|_| source.snapshot.is_none()) {
            Some(lsn) => {
                out.extend_from_slice(b"\\\"");
                write_lsn(out, lsn);
                out.extend_from_slice(b"\\\"");
            }
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\\\"");
        write_lsn(out, source.lsn);
        out.extend_from_slice(b"\\\"]\",\"ts_us\":");
        write_i64(out, source.committed_at);
        out.extend_from_slice(b",\"ts_ns\":");
        write_i64(out, source.committed_at.saturating_mul(1000));
        out.extend_from_slice(&self.plan.source_table);
        write_i64(out, i64::from(source.transaction));
        out.extend_from_slice(b",\"lsn\":");
        write_lsn(out, source.lsn);
        out.extend_from_slice(b",\"xmin\":null,\"origin\":null,\"origin_lsn\":null}");
    }
}

fn write_lsn(out: &mut Vec<u8>, lsn: u64) {
    // Java's long: a log of more than 2⁶³ bytes does not exist.
    write_i64(out, i64::try_from(lsn).unwrap_or(i64::MAX));
}

fn write_times(out: &mut Vec<u8>, micros: i64) {
    out.extend_from_slice(b",\"ts_ms\":");
    write_i64(out, micros.div_euclid(1000));
    out.extend_from_slice(b",\"ts_us\":");
    write_i64(out, micros);
    out.extend_from_slice(b",\"ts_ns\":");
    write_i64(out, micros.saturating_mul(1000));
}
