//! What the envelope makes of changes, beside what Debezium made of the same statements (`debezium/*.jsonl`).
//!
//! The statements run on a real PostgreSQL. Every recorded record is compared field by field, schemas included. What is not
//! compared is listed here, and what differs on purpose in `debezium/comparison.rs`, each with its reason; a difference that is gone
//! fails the test. `cargo xtask debezium` compares whole captures with the real engine.

#[path = "debezium/comparison.rs"]
mod comparison;
mod world;

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, ensure};
use comparison::{Comparison, left_out};
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

#[tokio::test]
async fn records_of_the_first_statements_are_debeziums() -> Result<()> {
    let changes = changes(include_str!("debezium/envelopes.sql")).await?;
    let mut recordings = Recordings { headers: false, comparison: Comparison::new(NOT_COMPARED, &[]) };
    recordings.run(&changes, include_str!("debezium/envelopes.jsonl"), EnvelopeOptions::new("peer"))?;
    recordings.run(&changes, include_str!("debezium/envelopes-strings.jsonl"), strings())?;
    let schemas = EnvelopeOptions { schemas: true, ..EnvelopeOptions::new("peer") };
    recordings.run(&changes, include_str!("debezium/envelopes-schemas.jsonl"), schemas)?;
    recordings.more_than(60)?;
    recordings.verdict()
}

#[tokio::test]
async fn records_of_every_type_and_identity_are_debeziums() -> Result<()> {
    let changes = changes(include_str!("debezium/types.sql")).await?;
    let mut recordings = Recordings { headers: true, comparison: Comparison::new(NOT_COMPARED, &[]) };
    let schemas = EnvelopeOptions { schemas: true, ..EnvelopeOptions::new("peer") };
    recordings.run(&changes, include_str!("debezium/types.jsonl"), schemas.clone())?;
    let options = EnvelopeOptions { schemas: true, ..strings() };
    recordings.run(&changes, include_str!("debezium/types-strings.jsonl"), options)?;
    let options = EnvelopeOptions {
        decimal: DecimalMode::Double,
        time: TimeMode::Connect,
        binary: BinaryMode::Base64,
        unavailable_value: "gone".into(),
        ..schemas.clone()
    };
    recordings.run(&changes, include_str!("debezium/types-connect.jsonl"), options)?;
    let options = EnvelopeOptions {
        time: TimeMode::Microseconds,
        binary: BinaryMode::Base64UrlSafe,
        tombstones: false,
        ..schemas
    };
    recordings.run(&changes, include_str!("debezium/types-micro.jsonl"), options)?;
    // One table each, for the modes that differ in little.
    for (time, table, recording) in [
        (TimeMode::Nanoseconds, "t_times", include_str!("debezium/times-nano.jsonl")),
        (TimeMode::AdaptiveTimeMicroseconds, "t_required", include_str!("debezium/required-adaptive.jsonl")),
    ] {
        let only = changes.iter().filter(|change| change.table.name == table);
        let options = EnvelopeOptions { schemas: true, time, ..EnvelopeOptions::new("peer") };
        recordings.run(only, recording, options)?;
    }
    let (masked, options) = masked(changes);
    recordings.run(&masked, include_str!("debezium/masks.jsonl"), options)?;
    recordings.more_than(200)?;
    let gone = recordings.comparison.gone();
    ensure!(gone.is_empty(), "these do not differ any more: {gone:?}");
    recordings.verdict()
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

/// Compares records with recordings.
struct Recordings {
    /// Whether the recordings have headers.
    headers: bool,
    comparison: Comparison,
}

impl Recordings {
    fn run<'a>(
        &mut self,
        changes: impl IntoIterator<Item = &'a Change>,
        recording: &str,
        options: EnvelopeOptions,
    ) -> Result<()> {
        let mut envelope = Envelope::new(options);
        let mut actual = changes
            .into_iter()
            .flat_map(|change| envelope.records(&change.table, &change.operation, &change.source, 1_700_000_000_000))
            .map(|record| as_recorded(&record))
            .filter(|record| left_out(record).is_none());
        let mut schemas = HashMap::new();
        for (line, expected) in recording.lines().enumerate() {
            let mut expected: Value = serde_json::from_str(expected)?;
            let topic = expected["topic"].as_str().context("a record without a topic")?.to_owned();
            restore_schemas(&topic, &mut expected, &mut schemas)?;
            if left_out(&expected).is_some() {
                continue;
            }
            if !self.headers {
                expected.as_object_mut().context("not a record")?.remove("headers");
            }
            let record = actual.next().with_context(|| format!("no record for line {}: {topic}", line + 1))?;
            self.comparison.record(&expected, &record)?;
        }
        match actual.next() {
            Some(record) => anyhow::bail!("a record too many: {record}"),
            None => Ok(()),
        }
    }

    fn more_than(&self, records: usize) -> Result<()> {
        let compared = self.comparison.records;
        ensure!(compared > records, "only {compared} records were compared");
        Ok(())
    }

    fn verdict(self) -> Result<()> {
        let findings = self.comparison.findings;
        ensure!(findings.is_empty(), "{} differences:\n{}", findings.len(), findings.join("\n"));
        Ok(())
    }
}

/// A record in the form of the recordings.
fn as_recorded(record: &Record) -> Value {
    let headers: Vec<Value> = record
        .headers
        .iter()
        .map(|(name, value)| json!([name, value.as_ref().map(|value| json_of(Some(value.as_bytes())))]))
        .collect();
    let (key, value) = (json_of(record.key.as_deref()), json_of(record.value.as_deref()));
    json!({"topic": record.topic, "headers": headers, "key": key, "value": value})
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
