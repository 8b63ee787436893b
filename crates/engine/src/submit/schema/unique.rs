//! The keyword `uniqueItems`, in a time that grows with the size of the body and not with its square.
//!
//! The validator's own puts items into a hash table under a hash that a sender can choose to be the same for all of
//! them (numbers that are the same to a float, arrays of empty arrays), and then compares each with each. Here an
//! item's key is its value written in one way only: numbers without exponent or trailing zeros, members in the order of
//! their names.

use std::collections::HashSet;

use jsonschema::{Keyword, ValidationError};
use serde_json::{Map, Value};

/// `"uniqueItems": true`.
pub(crate) struct UniqueItems {
    wanted: bool,
}

/// Makes the keyword of a schema. `false`, and what is no boolean, asks for nothing.
pub(crate) fn keyword<'a>(
    _: &'a Map<String, Value>,
    value: &'a Value,
    _: jsonschema::paths::Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    Ok(Box::new(UniqueItems { wanted: value == &Value::Bool(true) }))
}

impl<'i> Keyword<'i> for UniqueItems {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.is_valid(instance) { Ok(()) } else { Err(ValidationError::custom("has non-unique elements")) }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        match instance {
            Value::Array(items) if self.wanted => are_unique(items),
            _ => true,
        }
    }
}

fn are_unique(items: &[Value]) -> bool {
    if items.len() < 2 {
        return true;
    }
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().all(|item| {
        let mut key = Vec::new();
        write(item, &mut key);
        seen.insert(key)
    })
}

/// Writes a value so that equal values, as JSON Schema has it, are equal bytes, and others are not. As deep as the
/// value, which is bounded where a payload is read.
fn write(value: &Value, key: &mut Vec<u8>) {
    match value {
        Value::Null => key.push(b'n'),
        Value::Bool(true) => key.push(b't'),
        Value::Bool(false) => key.push(b'f'),
        Value::Number(number) => write_number(number.as_str(), key),
        Value::String(text) => write_text(text, key),
        Value::Array(items) => {
            key.push(b'[');
            for item in items {
                write(item, key);
            }
            key.push(b']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| name.as_str());
            key.push(b'{');
            for (name, value) in members {
                write_text(name, key);
                write(value, key);
            }
            key.push(b'}');
        }
    }
}

fn write_text(text: &str, key: &mut Vec<u8>) {
    key.push(b'"');
    key.extend_from_slice(&(text.len() as u64).to_le_bytes());
    key.extend_from_slice(text.as_bytes());
}

/// Sign, digits without zeros at either end, and the power of ten that they are to be multiplied with.
fn write_number(text: &str, key: &mut Vec<u8>) {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    // Too large a one was refused before (`numbers`); whatever is left of it here is as good as any.
    let mut exponent: i64 = exponent.parse().unwrap_or(i64::MAX / 2);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    exponent = exponent.saturating_sub(fraction.len() as i64);
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).filter(u8::is_ascii_digit).collect();
    let first = digits.iter().position(|digit| *digit != b'0');
    key.push(b'#');
    if let Some(first) = first {
        let last = digits.iter().rposition(|digit| *digit != b'0').unwrap_or(first);
        exponent = exponent.saturating_add((digits.len() - 1 - last) as i64);
        key.push(if mantissa.starts_with('-') { b'-' } else { b'+' });
        key.extend_from_slice(&digits[first..=last]);
        key.push(b'e');
        key.extend_from_slice(&exponent.to_le_bytes());
    }
    key.push(b';');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unique(items: &str) -> bool {
        let value: Value = serde_json::from_str(items).unwrap();
        UniqueItems { wanted: true }.is_valid(&value)
    }

    #[test]
    fn items_are_equal_as_json_schema_has_it() {
        for same in [
            "[1, 1.0]",
            "[1, 10e-1]",
            "[100, 1e2]",
            "[0, -0.0]",
            "[0, 0e7]",
            "[1e400, 10e399]",
            r#"["a", "\u0061"]"#,
            r#"[{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]"#,
            "[[1, [2]], [1, [2]]]",
            "[null, 1, null]",
        ] {
            assert!(!unique(same), "{same}");
        }
        for other in [
            "[]",
            "[1]",
            "[1, -1]",
            "[1, 10]",
            "[1e-400, 0]",
            "[9007199254740993, 9007199254740992]",
            r#"[1, "1", true, null, [1], {"1": 1}]"#,
            r#"[["a", "b"], ["ab"], [["a"], "b"]]"#,
            r#"[{"a": {"b": 1}}, {"a": {}, "b": 1}]"#,
            "[[], [[]], [[], []], [[[]]], {}]",
        ] {
            assert!(unique(other), "{other}");
        }
    }
}
