//! Compares records with Debezium's, field by field, and knows what differs on purpose.
//!
//! For the test with recordings (`tests/debezium.rs`), and for the run beside the real engine
//! (`examples/debezium_live`).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Topics of records that a capture does not publish.
pub const NOT_PUBLISHED: &[(&str, &str)] = &[
    ("peer.transaction", "transaction metadata"),
    ("peer.message", "logical messages are the capture's own watermarks"),
    ("peer.public.t_index", "the key differs: see `a_key_outside_the_identity_is_not_used`"),
    ("peer.public.t_rename", "a table that is renamed goes on under its old name; we publish the named tables only"),
];

/// Table, column or path, and the reason.
pub type Different = (&'static str, &'static str, &'static str);

/// What differs on purpose.
pub const DIFFERENT: &[Different] = &[
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

/// Whether no record of a capture is to be compared with this one of Debezium's, or the other way round, and why.
pub fn left_out(record: &Value) -> Option<&'static str> {
    // A compacted topic would refuse it.
    if record["key"].is_null() && record["value"].is_null() {
        return Some("a tombstone without a key says nothing");
    }
    NOT_PUBLISHED.iter().find(|(topic, _)| record["topic"] == *topic).map(|(_, why)| *why)
}

/// Compares records, which are JSON objects with `topic`, `key`, `value` and `headers`.
pub struct Comparison {
    /// Fields that are not compared, with the reason.
    pub not_compared: &'static [(&'static str, &'static str)],
    pub records: usize,
    pub fields: usize,
    /// How many fields differ on purpose, by reason.
    pub explained: BTreeMap<&'static str, usize>,
    /// What differs on purpose.
    different: Vec<Different>,
    /// What of that was seen.
    seen: BTreeSet<(&'static str, &'static str)>,
    /// What differs otherwise.
    pub findings: Vec<String>,
}

impl Comparison {
    /// `more` differs on purpose besides [`DIFFERENT`].
    pub fn new(not_compared: &'static [(&'static str, &'static str)], more: &[Different]) -> Self {
        Self {
            not_compared,
            records: 0,
            fields: 0,
            explained: BTreeMap::new(),
            different: [DIFFERENT, more].concat(),
            seen: BTreeSet::new(),
            findings: Vec::new(),
        }
    }

    /// Compares one record with Debezium's. A part that Debezium's does not have was not recorded.
    pub fn record(&mut self, expected: &Value, actual: &Value) -> Result<()> {
        self.records += 1;
        let topic = expected["topic"].as_str().context("a record without a topic")?;
        self.compare(topic, "topic", &expected["topic"], &actual["topic"]);
        if let Some(headers) = expected.get("headers") {
            self.compare(topic, "headers", headers, &actual["headers"]);
        }
        for part in ["key", "value"] {
            let (expected, actual) = (&expected[part], &actual[part]);
            if actual.get("schema").is_some() {
                let path = format!("{part} schema");
                self.compare(topic, &path, &expected["schema"], &actual["schema"]);
                self.compare(topic, part, &expected["payload"], &actual["payload"]);
            } else {
                self.compare(topic, part, expected, actual);
            }
            let payload = actual.get("payload").unwrap_or(actual);
            if let Some(sequence) = payload.get("source").and_then(|source| source["sequence"].as_str()) {
                let numbers: [Option<String>; 2] = serde_json::from_str(sequence)?;
                ensure!(numbers.into_iter().flatten().all(|number| number.parse::<u64>().is_ok()), "{sequence}");
            }
        }
        Ok(())
    }

    fn compare(&mut self, topic: &str, path: &str, expected: &Value, actual: &Value) {
        if let Some((_, why)) = self.not_compared.iter().find(|(known, _)| *known == path) {
            if expected != actual {
                self.explain(why);
            }
            return;
        }
        match (expected, actual) {
            (Value::Object(expected), Value::Object(actual)) => {
                let names: BTreeSet<&String> = expected.keys().chain(actual.keys()).collect();
                for name in names {
                    if path.contains("schema") && name == "default" && !path.ends_with("source.fields.snapshot") {
                        self.explain("the defaults of columns are not in our schemas");
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
            (expected, actual) => {
                self.fields += 1;
                if !same(path, expected, actual) {
                    self.differ(topic, path, expected, actual);
                }
            }
        }
    }

    /// What is known to differ and was not seen to.
    pub fn gone(&self) -> Vec<(&'static str, &'static str)> {
        let known = self.different.iter().map(|(table, column, _)| (*table, *column));
        known.filter(|known| !self.seen.contains(known)).collect()
    }

    /// Counts something that differs on purpose.
    pub fn explain(&mut self, why: &'static str) {
        *self.explained.entry(why).or_default() += 1;
    }

    fn differ(&mut self, topic: &str, path: &str, expected: &Value, actual: &Value) {
        let in_snapshot = |value: &Value| value.as_str().is_some_and(|place| place != "false");
        if path == "value.source.snapshot" && in_snapshot(expected) && in_snapshot(actual) {
            return self.explain("where a row is in a snapshot: the first and last row of each table are not marked");
        }
        let table = topic.rsplit('.').next().unwrap_or(topic);
        let known = self
            .different
            .iter()
            .filter(|(known, ..)| *known == table)
            .find(|(_, column, _)| path == *column || path.split(['.', '[']).any(|step| step == *column));
        match known {
            Some(&(table, column, why)) => {
                self.seen.insert((table, column));
                self.explain(why);
            }
            None => self.findings.push(format!("{topic} {path}: Debezium {expected}, ours {actual}")),
        }
    }
}

fn same(path: &str, expected: &Value, actual: &Value) -> bool {
    match (expected, actual) {
        (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() && !exact(one, other) => true,
        // A `real`: Java writes more digits than are needed.
        (Value::Number(one), Value::Number(other))
            if ["value.after.r", "value.before.r"].contains(&path) && single(one) == single(other) =>
        {
            true
        }
        (expected, actual) => expected == actual,
    }
}

/// Whether both are whole numbers, which a double could confuse.
fn exact(one: &serde_json::Number, other: &serde_json::Number) -> bool {
    one.as_i64().is_some() && other.as_i64().is_some()
}

fn single(number: &serde_json::Number) -> Option<f32> {
    number.to_string().parse().ok()
}
