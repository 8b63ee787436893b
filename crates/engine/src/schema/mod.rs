//! The services' JSON Schemas: compiled once, never fetched from anywhere, bounded in time.

use jsonschema::{PatternOptions, Validator};
use relais_core::{Json, MAX_DEPTH};
use serde_json::Value;

use crate::Problem;

/// As many problems as are worth telling.
const MAX_PROBLEMS: usize = 20;

/// A schema ready to judge.
pub(crate) struct Schema {
    validator: Validator,
    text: String,
}

impl Schema {
    /// Compiles a schema. What it refers to must be inside it: nothing is fetched, from the network or from files. Its
    /// patterns are matched in linear time; those that can not be (look-around, back-references) are refused.
    pub(crate) fn compile(schema: &Json) -> Result<Self, String> {
        let value = schema.to_value().map_err(|error| error.to_string())?;
        if !value.is_object() && !value.is_boolean() {
            return Err("a JSON Schema is an object".to_owned());
        }
        if let Some(reference) = remote_reference(&value, 0) {
            return Err(format!("{reference:?} refers to something outside the schema, and nothing is fetched"));
        }
        let validator = jsonschema::options()
            .with_pattern_options(PatternOptions::regex().size_limit(1 << 20).dfa_size_limit(1 << 20))
            .build(&value)
            .map_err(|error| error.to_string())?;
        Ok(Self { validator, text: schema.get().to_owned() })
    }

    /// Whether this was compiled from that text.
    pub(crate) fn is_of(&self, schema: &Json) -> bool {
        self.text == schema.get()
    }

    /// Says what is wrong with a body; nothing if it conforms.
    pub(crate) fn problems(&self, body: &Json) -> Vec<Problem> {
        let value = match body.to_value() {
            Ok(value) => value,
            Err(error) => return vec![Problem::at("", error.to_string())],
        };
        if self.validator.is_valid(&value) {
            return Vec::new();
        }
        self.validator
            .iter_errors(&value)
            .take(MAX_PROBLEMS)
            .map(|error| Problem::at(error.instance_path().to_string(), clip(error.to_string())))
            .collect()
    }
}

/// A message quotes what it complains about, which may be long.
fn clip(mut message: String) -> String {
    const MOST: usize = 300;
    if let Some((at, _)) = message.char_indices().nth(MOST) {
        message.truncate(at);
        message.push('…');
    }
    message
}

/// The first reference that leads out of the document. The dialects' own identifiers are known to the validator.
fn remote_reference(value: &Value, depth: usize) -> Option<&str> {
    if depth > MAX_DEPTH {
        return None;
    }
    match value {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| match (key.as_str(), value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => (target.contains("://")
                && !target.starts_with("http://json-schema.org/")
                && !target.starts_with("https://json-schema.org/"))
            .then_some(target.as_str()),
            (_, value) => remote_reference(value, depth + 1),
        }),
        Value::Array(values) => values.iter().find_map(|value| remote_reference(value, depth + 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn a_body_that_does_not_conform_is_told_where() {
        let schema = Schema::compile(&json(
            r#"{"type":"object","required":["sleep"],"properties":{"sleep":{"type":"number","maximum":10},"mustSucceed":{"type":"boolean"}}}"#,
        ))
        .unwrap();
        assert!(schema.problems(&json(r#"{"sleep": 1}"#)).is_empty());
        let problems = schema.problems(&json(r#"{"sleep":"long","mustSucceed":3}"#));
        let mut paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["/mustSucceed", "/sleep"]);
        assert!(schema.problems(&json(r#"{}"#))[0].message.contains("sleep"));
    }

    #[test]
    fn numbers_that_no_float_can_hold_are_judged_and_not_refused() {
        let schema = Schema::compile(&json(r#"{"properties":{"n":{"type":"number"}}}"#)).unwrap();
        assert!(schema.problems(&json(r#"{"n":1e400}"#)).is_empty());
        assert!(schema.problems(&json(r#"{"n":9223372036854775808}"#)).is_empty());
        assert!(!schema.problems(&json(r#"{"n":"1e400"}"#)).is_empty());
    }

    #[test]
    fn nothing_is_fetched() {
        for reference in
            ["http://127.0.0.1:1/x.json", "https://example.org/s", "file:///etc/passwd", "other.json", "urn:x"]
        {
            let compiled = Schema::compile(&json(&format!(r#"{{"properties":{{"a":{{"$ref":"{reference}"}}}}}}"#)));
            assert!(compiled.is_err(), "{reference} was accepted");
        }
        assert!(Schema::compile(&json(r##"{"$defs":{"a":{"type":"string"}},"$ref":"#/$defs/a"}"##)).is_ok());
    }

    #[test]
    fn a_catastrophic_pattern_takes_linear_time_and_what_can_not_is_refused() {
        let schema = Schema::compile(&json(r#"{"properties":{"s":{"pattern":"^(a+)+$"}}}"#)).unwrap();
        let body = json(&format!(r#"{{"s":"{}!"}}"#, "a".repeat(50_000)));
        let begun = Instant::now();
        assert_eq!(schema.problems(&body).len(), 1);
        assert!(begun.elapsed() < Duration::from_secs(5), "an exponential matcher would never end");
        assert!(Schema::compile(&json(r#"{"pattern":"(?=a)b"}"#)).is_err());
        assert!(Schema::compile(&json(r#"{"pattern":"((a{1,1000}){1,1000}){1,1000}"}"#)).is_err());
    }
}
