//! Writes JSON as YAML that people like to read and edit.
//!
//! Only what JSON has: no anchors, no tags, no folded texts. Numbers stay as they are written, which a serializer that
//! knows machine words only could not do. Whatever is not obviously a plain word is quoted as in JSON, which YAML reads
//! too.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// These come first, in this order; JSON objects have none.
const FIRST: [&str; 18] = [
    "services",
    "clients",
    "authorizations",
    "schedules",
    "outboxes",
    "captures",
    "audiences",
    "notificationSources",
    "outboxName",
    "captureName",
    "sourceName",
    "scheduleName",
    "serviceName",
    "clientId",
    "type",
    "target",
    "cron",
    "timeZone",
];

/// The YAML of a JSON value.
pub fn to_yaml(value: &Value) -> String {
    match value {
        Value::Object(map) if !map.is_empty() => object(map, 0),
        Value::Array(values) if !values.is_empty() => array(values, 0),
        other => format!("{}\n", scalar(other)),
    }
}

fn object(map: &Map<String, Value>, depth: usize) -> String {
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort_by_key(|key| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
    let mut text = String::new();
    for key in keys {
        let _ = write!(text, "{}{}:", "  ".repeat(depth), word(key));
        text.push_str(&match &map[key] {
            Value::Object(inner) if !inner.is_empty() => format!("\n{}", object(inner, depth + 1)),
            Value::Array(inner) if !inner.is_empty() => format!("\n{}", array(inner, depth + 1)),
            other => format!(" {}\n", scalar(other)),
        });
    }
    text
}

fn array(values: &[Value], depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let items = values.iter().map(|value| {
        let inner = match value {
            Value::Object(inner) if !inner.is_empty() => object(inner, depth + 1),
            Value::Array(inner) if !inner.is_empty() => array(inner, depth + 1),
            other => format!("{}\n", scalar(other)),
        };
        // The item's first line goes behind the dash, which is as wide as one step of indentation.
        format!("{indent}- {}", inner.trim_start())
    });
    items.collect()
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => word(text),
        other => other.to_string(),
    }
}

/// A text, quoted unless it can be nothing but a text.
fn word(text: &str) -> String {
    let taken = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !taken.contains(&text.to_lowercase().as_str());
    if plain { text.to_owned() } else { quoted(text) }
}

/// As in JSON, but YAML wants more characters escaped than JSON does.
fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in Value::from(text).to_string().chars() {
        match c {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_declaration_reads_well() {
        let value = json!({
            "authorizations": [{"clientId": "web", "roles": ["consume", "work"], "serviceName": "resize"}],
            "services": [{"capacity": 3, "jsonSchema": {"required": [], "type": "object"}, "lease": "60s", "serviceName": "resize"}],
        });
        let expected = "\
services:
  - serviceName: resize
    capacity: 3
    jsonSchema:
      type: object
      required: []
    lease: \"60s\"
authorizations:
  - serviceName: resize
    clientId: web
    roles:
      - consume
      - work
";
        assert_eq!(to_yaml(&value), expected);
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "",
            "no",
            "1e3",
            "0x1F",
            "~",
            "- a",
            "a: b",
            "#",
            "line\nline",
            "é \u{1F600}",
            "\u{7f}\u{85}\u{2028}\u{feff}",
            "\u{1}",
            "'",
            "\"",
            "NaN",
            ".inf",
            "<<",
        ] {
            let value =
                json!({"key": text, "list": [[text, [1, 2.5]], {text: null}, {}, []], "other": {"deep": {"er": text}}});
            let yaml = to_yaml(&value);
            let again: Value = serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
            // Numbers come back as machine words, so texts are compared.
            assert_eq!(again.to_string(), value.to_string(), "{yaml}");
        }
    }

    #[test]
    fn numbers_stay_as_they_are_written() {
        let value: Value = serde_json::from_str("{\"maximum\": 123456789012345678901234567890}").unwrap();
        assert_eq!(to_yaml(&value), "maximum: 123456789012345678901234567890\n");
    }
}
