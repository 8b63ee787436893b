//! What the envelope makes of changes, beside what Debezium made of the same statements (`debezium/*.jsonl`).
//!
//! The statements run on a real PostgreSQL. Every recorded record is compared field by field, schemas included. What is not
//! compared, and what differs on purpose, is listed here with its reason; a difference that is gone fails the test.

mod world;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result, ensure};
use relais_capture::{
    debezium::{BinaryMode, DecimalMode, Envelope, EnvelopeOptions, IntervalMode, Record, TimeMode},
    model::{Mask, Operation, Source, Table, Value as Cell},
};
use serde_json::{Value, json};
use world::{Change, changes};

/// Fields that are another run's.
const NOT_COMPARED: &[(&str, &str)] = &[
    ("value.source.version", "which program wrote it"),
    ("value.source.db", "the database of the recording"),
    ("value.source.ts_ms", "when it was committed"),
    ("value.source.ts_us", "when it was committed"),
    ("value.source.ts_ns", "when it was committed"),
    ("value.source.txId", "the transaction of the recording"),
    ("value.source.lsn", "the log of the recording"),
    ("value.source.sequence", "LSNs; its form is checked apart"),
    ("value.ts_ms", "when it was read"),
    ("value.ts_us", "when it was read"),
    ("value.ts_ns", "when it was read"),
    ("value.transaction", "transaction metadata is not published (`provide.transaction.metadata`)"),
    ("value.after.created_at", "the default of the column: now()"),
];

/// Topics of records that a capture does not publish.
const NOT_PUBLISHED: &[(&str, &str)] = &[
    ("peer.transaction", "transaction metadata"),
    ("peer.message", "logical messages are the capture's own watermarks"),
    ("peer.public.t_index", "the key differs: see `a_key_outside_the_identity_is_not_used`"),
];

/// What differs on purpose, by table and column.
const DIFFERENT: &[(&str, &str, &str)] = &[
    ("t_types", "nm", "name: always null in Debezium"),
    ("t_numbers", "n2", "numeric(5,-2): Debezium reads the scale as 2046"),
    ("t_arrays", "bi", "bit(3)[]: always null in Debezium; we leave it out like varbit[]"),
    ("t_arrays", "ttz", "timetz[]: Debezium drops the fraction of a second"),
    ("t_arrays", "nu", "numeric[]: one NaN makes Debezium's array null"),
    ("t_arrays", "da", "date[]: an infinite date is another number than outside of arrays"),
    ("t_toast", "by", "unchanged bytea in base64 modes: null in Debezium"),
    ("t_toast", "bya", "unchanged bytea[] as text: null in Debezium"),
    ("t_toast", "ea", "unchanged enum[]: null in Debezium"),
    ("t_toast", "tza", "unchanged timestamptz[]: null in Debezium"),
    ("t_toast", "da", "unchanged date[] as text: null in Debezium"),
    ("t_toast", "tsa", "unchanged timestamp[] as text: null in Debezium"),
    ("t_toast", "nua", "unchanged numeric[] as text: null in Debezium"),
    ("t_toast", "ua", "unchanged uuid[] with a placeholder of one's own: a UUID of its MD5 in Debezium"),
    ("t_pair", "key.v", "a masked column is masked in keys too: they must not give away what values hide"),
    ("t_pair", "headers[0][1].payload.v", "a masked column is masked in keys too"),
    // A key's columns only: Debezium fills in the column's default, we what stands for the type.
    ("t_defaults", "a", "default of a column"),
    ("t_defaults", "b", "default of a column"),
    ("t_defaults", "c", "default of a column"),
    ("t_defaults", "d", "default of a column"),
    ("t_defaults", "f", "default of a column"),
    ("t_defaults", "g", "default of a column"),
    ("t_defaults", "h", "default of a column"),
];

#[tokio::test]
async fn records_of_the_first_statements_are_debeziums() -> Result<()> {
    let changes = changes(include_str!("debezium/envelopes.sql")).await?;
    let mut comparison = Comparison { headers: false, ..Comparison::default() };
    comparison.run(&changes, include_str!("debezium/envelopes.jsonl"), EnvelopeOptions::new("peer"))?;
    comparison.run(&changes, include_str!("debezium/envelopes-strings.jsonl"), strings())?;
    let schemas = EnvelopeOptions { schemas: true, ..EnvelopeOptions::new("peer") };
    comparison.run(&changes, include_str!("debezium/envelopes-schemas.jsonl"), schemas)?;
    ensure!(comparison.records > 60, "only {} records were compared", comparison.records);
    comparison.verdict()
}

#[tokio::test]
async fn records_of_every_type_and_identity_are_debeziums() -> Result<()> {
    let changes = changes(include_str!("debezium/types.sql")).await?;
    let mut comparison = Comparison { headers: true, ..Comparison::default() };
    let schemas = EnvelopeOptions { schemas: true, ..EnvelopeOptions::new("peer") };
    comparison.run(&changes, include_str!("debezium/types.jsonl"), schemas.clone())?;
    let options = EnvelopeOptions { schemas: true, ..strings() };
    comparison.run(&changes, include_str!("debezium/types-strings.jsonl"), options)?;
    let options = EnvelopeOptions {
        decimal: DecimalMode::Double,
        time: TimeMode::Connect,
        binary: BinaryMode::Base64,
        unavailable_value: "gone".into(),
        ..schemas.clone()
    };
    comparison.run(&changes, include_str!("debezium/types-connect.jsonl"), options)?;
    let options = EnvelopeOptions {
        time: TimeMode::Microseconds,
        binary: BinaryMode::Base64UrlSafe,
        tombstones: false,
        ..schemas
    };
    comparison.run(&changes, include_str!("debezium/types-micro.jsonl"), options)?;
    // One table each, for the modes that differ in little.
    for (time, table, recording) in [
        (TimeMode::Nanoseconds, "t_times", include_str!("debezium/times-nano.jsonl")),
        (TimeMode::AdaptiveTimeMicroseconds, "t_required", include_str!("debezium/required-adaptive.jsonl")),
    ] {
        let only = changes.iter().filter(|change| change.table.name == table);
        let options = EnvelopeOptions { schemas: true, time, ..EnvelopeOptions::new("peer") };
        comparison.run(only, recording, options)?;
    }
    let (masked, options) = masked(changes);
    comparison.run(&masked, include_str!("debezium/masks.jsonl"), options)?;
    ensure!(comparison.records > 200, "only {} records were compared", comparison.records);
    let known: BTreeSet<(&str, &str)> = DIFFERENT.iter().map(|(table, column, _)| (*table, *column)).collect();
    let gone: Vec<_> = known.iter().filter(|known| !comparison.seen.contains(known)).collect();
    ensure!(gone.is_empty(), "these do not differ any more: {gone:?}");
    comparison.verdict()
}

/// In Debezium the key of such a row is {"id": 0} when it is deleted, whatever row it was.
#[tokio::test]
async fn a_key_outside_the_identity_is_not_used() -> Result<()> {
    let changes = changes(include_str!("debezium/types.sql")).await?;
    let mut envelope = Envelope::new(EnvelopeOptions::new("peer"));
    let records: Vec<(Option<Value>, String)> = changes
        .iter()
        .filter(|change| change.table.name == "t_index")
        .flat_map(|change| envelope.records(&change.table, &change.operation, &change.source, 0))
        .map(|record| (json_of(record.key.as_deref()), operation_of(&record)))
        .collect();
    let (a, b) = (json!({"code": "a"}), json!({"code": "b"}));
    let expected = [(&a, "c"), (&a, "u"), (&a, "d"), (&a, "-"), (&b, "c"), (&b, "u"), (&b, "d"), (&b, "-")];
    assert_eq!(records, expected.map(|(key, operation)| (Some(key.clone()), operation.to_owned())));
    Ok(())
}

#[tokio::test]
async fn a_capture_can_choose_the_key_and_mask_columns() -> Result<()> {
    let changes = changes(include_str!("debezium/types.sql")).await?;
    let mut options = EnvelopeOptions::new("peer");
    options.key_columns = BTreeMap::from([("public.t_pair".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
    let mut envelope = Envelope::new(options);
    let pair = changes.iter().find(|change| change.table.name == "t_pair").context("no change of t_pair")?;
    let key = |records: &[Record]| records[0].key.clone().map(|key| String::from_utf8_lossy(&key).into_owned());
    let records = envelope.records(&pair.table, &pair.operation, &pair.source, 0);
    assert_eq!(key(&records).as_deref(), Some(r#"{"a":"x","b":1}"#));

    let mut table = pair.table.clone();
    for (column, mask) in
        table.columns.iter_mut().zip([Mask::Text("****".into()), Mask::Null, Mask::Hash { salt: "salt".into() }])
    {
        column.mask = Some(mask);
    }
    let records = envelope.records(&table, &pair.operation, &pair.source, 0);
    // SHA-256 of "saltx". The key is masked too: it must not give away what the value hides.
    let hash = "c9ef43a03d58f2cb9b0c4b069c179595739f5181a5565c8db5dbb124564ea819";
    let value = json_of(records[0].value.as_deref()).context("no value")?;
    assert_eq!((&value["after"]["v"], &value["after"]["b"]), (&json!("****"), &Value::Null));
    assert_eq!(value["after"]["a"], json!(hash));
    assert_eq!(key(&records), Some(format!(r#"{{"a":"{hash}","b":null}}"#)));
    Ok(())
}

/// The bytes of one small record: order of fields, no spaces.
#[test]
fn a_record_is_written_in_debeziums_order() {
    let table = Table { oid: 1, schema: "public".into(), name: "t".into(), columns: Vec::new() };
    let source = Source {
        database: "shop".into(),
        transaction: 7,
        lsn: 42,
        commit_lsn: Some(50),
        committed_at: 1_700_000_000_123_456,
        snapshot: None,
    };
    let mut envelope = Envelope::new(EnvelopeOptions::new("peer"));
    let records =
        envelope.records(&table, &Operation::Insert { after: Vec::<Cell>::new() }, &source, 1_700_000_000_500);
    let value = records[0].value.clone().unwrap();
    let version = concat!("relais-", env!("CARGO_PKG_VERSION"));
    let expected = format!(
        concat!(
            r#"{{"before":null,"after":{{}},"source":{{"version":"{}","connector":"postgresql","name":"peer","#,
            r#""ts_ms":1700000000123,"snapshot":"false","db":"shop","sequence":"[\"50\",\"42\"]","#,
            r#""ts_us":1700000000123456,"ts_ns":1700000000123456000,"schema":"public","table":"t","txId":7,"lsn":42,"#,
            r#""xmin":null,"origin":null,"origin_lsn":null}},"transaction":null,"op":"c","ts_ms":1700000000500,"#,
            r#""ts_us":1700000000500000,"ts_ns":1700000000500000000}}"#,
        ),
        version
    );
    assert_eq!(String::from_utf8_lossy(&value), expected);
}

/// What `masks.settings` says: two tables, a hash, asterisks, keys of other columns.
fn masked(mut changes: Vec<Change>) -> (Vec<Change>, EnvelopeOptions) {
    changes.retain(|change| ["t_pair", "t_heap"].contains(&change.table.name.as_str()));
    for table in changes.iter_mut().map(|change| &mut change.table) {
        for column in &mut table.columns {
            column.mask = match (table.name.as_str(), column.name.as_str()) {
                ("t_heap", "b") => Some(Mask::Hash { salt: "salt".into() }),
                ("t_pair", "v") => Some(Mask::Text("****".into())),
                _ => None,
            };
        }
    }
    let keys = [("public.t_pair", vec!["v", "b"]), ("public.t_heap", vec!["a"])];
    let keys = keys.map(|(table, columns)| (table.to_owned(), columns.into_iter().map(str::to_owned).collect()));
    let key_columns = BTreeMap::from(keys);
    (changes, EnvelopeOptions { schemas: true, key_columns, ..EnvelopeOptions::new("peer") })
}

fn strings() -> EnvelopeOptions {
    EnvelopeOptions {
        decimal: DecimalMode::String,
        time: TimeMode::IsoString,
        binary: BinaryMode::Hex,
        interval: IntervalMode::String,
        ..EnvelopeOptions::new("peer")
    }
}

fn json_of(bytes: Option<&[u8]>) -> Option<Value> {
    bytes.map(|bytes| serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {bytes:?}")))
}

fn operation_of(record: &Record) -> String {
    json_of(record.value.as_deref()).map_or("-".into(), |value| value["op"].as_str().unwrap_or("?").to_owned())
}

/// Compares records with a recording.
#[derive(Default)]
struct Comparison {
    /// Whether the recording has headers.
    headers: bool,
    records: usize,
    seen: BTreeSet<(&'static str, &'static str)>,
    findings: Vec<String>,
}

impl Comparison {
    fn run<'a>(
        &mut self,
        changes: impl IntoIterator<Item = &'a Change>,
        recording: &str,
        options: EnvelopeOptions,
    ) -> Result<()> {
        let mut envelope = Envelope::new(options);
        let left_out = |topic: &str| NOT_PUBLISHED.iter().any(|(known, _)| *known == topic);
        let mut actual = changes
            .into_iter()
            .flat_map(|change| envelope.records(&change.table, &change.operation, &change.source, 1_700_000_000_000))
            .filter(|record| !left_out(&record.topic));
        let mut schemas = HashMap::new();
        for (line, expected) in recording.lines().enumerate() {
            let mut expected: Value = serde_json::from_str(expected)?;
            let topic = expected["topic"].as_str().context("a record without a topic")?.to_owned();
            restore_schemas(&topic, &mut expected, &mut schemas)?;
            // A tombstone without a key says nothing, and a compacted topic would refuse it.
            let says_nothing = expected["key"].is_null() && expected["value"].is_null();
            if left_out(&topic) || says_nothing {
                continue;
            }
            let record = actual.next().with_context(|| format!("no record for line {}: {topic}", line + 1))?;
            self.records += 1;
            let headers: Vec<Value> = record
                .headers
                .iter()
                .map(|(name, value)| json!([name, value.as_ref().map(|value| json_of(Some(value.as_bytes())))]))
                .collect();
            if self.headers {
                self.compare(&topic, "headers", &expected["headers"], &json!(headers));
            }
            self.compare(&topic, "topic", &expected["topic"], &json!(record.topic));
            for (part, bytes) in [("key", &record.key), ("value", &record.value)] {
                let actual = json_of(bytes.as_deref()).unwrap_or(Value::Null);
                if actual.get("schema").is_some() {
                    let path = format!("{part} schema");
                    self.compare(&topic, &path, &expected[part]["schema"], &actual["schema"]);
                    self.compare(&topic, part, &expected[part]["payload"], &actual["payload"]);
                } else {
                    self.compare(&topic, part, &expected[part], &actual);
                }
                let payload = actual.get("payload").unwrap_or(&actual);
                if let Some(sequence) = payload.get("source").and_then(|source| source["sequence"].as_str()) {
                    let numbers: [Option<String>; 2] = serde_json::from_str(sequence)?;
                    ensure!(numbers.into_iter().flatten().all(|number| number.parse::<u64>().is_ok()), "{sequence}");
                }
            }
        }
        match actual.next() {
            Some(record) => anyhow::bail!("a record too many: {record:?}"),
            None => Ok(()),
        }
    }

    fn compare(&mut self, topic: &str, path: &str, expected: &Value, actual: &Value) {
        if NOT_COMPARED.iter().any(|(known, _)| *known == path) {
            return;
        }
        match (expected, actual) {
            (Value::Object(expected), Value::Object(actual)) => {
                let names: BTreeSet<&String> = expected.keys().chain(actual.keys()).collect();
                for name in names {
                    // The defaults of columns are not in our schemas.
                    if path.contains("schema") && name == "default" && !path.ends_with("source.fields.snapshot") {
                        continue;
                    }
                    let path = format!("{path}.{name}");
                    let missing = json!("(missing)");
                    let both = (expected.get(name).unwrap_or(&missing), actual.get(name).unwrap_or(&missing));
                    self.compare(topic, &path, both.0, both.1);
                }
            }
            // Fields of a schema by their names, so that one that is missing does not shift the others.
            (Value::Array(expected), Value::Array(actual)) if path.ends_with(".fields") => {
                let by_name = |list: &[Value]| -> Value {
                    list.iter()
                        .map(|field| (field["field"].as_str().unwrap_or("?").to_owned(), field.clone()))
                        .collect()
                };
                self.compare(topic, path, &by_name(expected), &by_name(actual));
            }
            (Value::Array(expected), Value::Array(actual)) if expected.len() == actual.len() => {
                for (index, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                    self.compare(topic, &format!("{path}[{index}]"), expected, actual);
                }
            }
            (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() && !exact(one, other) => {}
            // A `real`: Java writes more digits than are needed.
            (Value::Number(one), Value::Number(other)) if path == "value.after.r" && single(one) == single(other) => {}
            (expected, actual) if expected == actual => {}
            // Where a row is in a snapshot: we do not tell the first and last row of each table.
            (Value::String(place), Value::String(other))
                if path == "value.source.snapshot" && place.starts_with("last") && other == "true" => {}
            (expected, actual) => self.differ(topic, path, expected, actual),
        }
    }

    fn differ(&mut self, topic: &str, path: &str, expected: &Value, actual: &Value) {
        let table = topic.rsplit('.').next().unwrap_or(topic);
        let known = DIFFERENT
            .iter()
            .filter(|(known, ..)| *known == table)
            .find(|(_, column, _)| path == *column || path.split(['.', '[']).any(|step| step == *column));
        match known {
            Some((table, column, _)) => {
                self.seen.insert((*table, *column));
            }
            None => self.findings.push(format!("{topic} {path}: Debezium {expected}, ours {actual}")),
        }
    }

    fn verdict(self) -> Result<()> {
        ensure!(self.findings.is_empty(), "{} differences:\n{}", self.findings.len(), self.findings.join("\n"));
        Ok(())
    }
}

/// Whether both are whole numbers, which a double could confuse.
fn exact(one: &serde_json::Number, other: &serde_json::Number) -> bool {
    one.as_i64().is_some() && other.as_i64().is_some()
}

fn single(number: &serde_json::Number) -> Option<f32> {
    number.to_string().parse().ok()
}

/// A recording has a schema only where it changes.
fn restore_schemas(topic: &str, record: &mut Value, schemas: &mut HashMap<String, Value>) -> Result<()> {
    for part in ["key", "value"] {
        if let Some(object) = record[part].as_object_mut()
            && object.contains_key("payload")
        {
            let name = format!("{part} of {topic}");
            if let Some(schema) = object.get_mut("schema") {
                if schema["fields"][1]["fields"] == "as before" {
                    schema["fields"][1]["fields"] = schema["fields"][0]["fields"].clone();
                }
                schemas.insert(name, schema.clone());
            } else {
                object.insert("schema".into(), schemas.get(&name).context("no schema")?.clone());
            }
        }
    }
    Ok(())
}
