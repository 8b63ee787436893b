//! The services' JSON Schemas: compiled once, never fetched from anywhere, bounded in time.
//!
//! An operator writes the schema, a stranger the body. So whatever the body is, judging it takes a time that grows with
//! its size: patterns are matched in linear time, numbers are bounded before they are decoded ([`numbers`]), and items
//! are compared by hash ([`unique`]). Still it can take milliseconds, so requests are judged by [`check`], off the
//! async threads unless they are small.

pub(crate) mod check;
mod numbers;
mod unique;

use jsonschema::{PatternOptions, Validator};
use relais_core::{Json, MAX_DEPTH};
use serde_json::Value;

use crate::{EngineError, Problem};

/// The most problems that are reported.
const MAX_PROBLEMS: usize = 20;

/// A body whose length, times that of a simple schema, is at most this is judged in microseconds: no part of the schema is
/// applied more than once to a part of the body, and none takes long.
const QUICK: usize = 256 * 1024;

/// Keywords whose cost does not follow from the lengths of schema and body: those that apply parts again, that match
/// patterns, or that divide numbers.
const COSTLY: [&str; 9] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "pattern",
    "patternProperties",
    "format",
    "multipleOf",
    "unevaluatedProperties",
    "unevaluatedItems",
];

/// Numbers of more digits take longer to compare.
const PLAIN_DIGITS: usize = 30;

/// A schema ready to judge.
pub(crate) struct Schema {
    validator: Validator,
    text: String,
    /// Whether it has none of [`COSTLY`].
    simple: bool,
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
            .with_keyword("uniqueItems", unique::keyword)
            .build(&value)
            .map_err(|error| error.to_string())?;
        Ok(Self { validator, text: schema.get().to_owned(), simple: !is_costly(&value) })
    }

    /// Says what is wrong with a schema that somebody wants to declare. One that was declared before is compiled
    /// whatever numbers it has: a service whose schema can not be used takes every body.
    pub(crate) fn check_declared(schema: &Json) -> Result<(), String> {
        match numbers::too_long(schema.get()) {
            Some(message) => Err(message),
            None => Self::compile(schema).map(drop),
        }
    }

    /// Whether this was compiled from that text.
    pub(crate) fn is_of(&self, schema: &Json) -> bool {
        self.text == schema.get()
    }

    /// Whether judging this body takes microseconds, whatever it says.
    pub(crate) fn is_quick(&self, body: &Json) -> bool {
        self.simple && self.text.len() * body.get().len() <= QUICK && has_plain_numbers(body.get())
    }

    /// Refuses a body that does not conform, or that can not be judged. May take milliseconds: not for an async thread.
    pub(crate) fn check(&self, body: &Json) -> Result<(), EngineError> {
        if let Some(message) = numbers::too_long(body.get()) {
            return Err(EngineError::NumberTooLong(message));
        }
        let value = match body.to_value() {
            Ok(value) => value,
            Err(error) => return Err(EngineError::SchemaMismatch(vec![Problem::at("", error.to_string())])),
        };
        if self.validator.is_valid(&value) {
            return Ok(());
        }
        let problems = self
            .validator
            .iter_errors(&value)
            .take(MAX_PROBLEMS)
            .map(|error| Problem::at(error.instance_path().to_string(), clip(error.to_string())));
        Err(EngineError::SchemaMismatch(problems.collect()))
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

/// Whether one of [`COSTLY`] is there anywhere.
fn is_costly(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| COSTLY.contains(&key.as_str()) || is_costly(value)),
        Value::Array(values) => values.iter().any(is_costly),
        _ => false,
    }
}

/// Whether no number has an exponent or many digits. What looks like one inside a text counts as well.
fn has_plain_numbers(body: &str) -> bool {
    let mut digits = 0;
    body.bytes().all(|byte| {
        let is_exponent = digits > 0 && matches!(byte, b'e' | b'E');
        digits = if byte.is_ascii_digit() || (digits > 0 && byte == b'.') { digits + 1 } else { 0 };
        !is_exponent && digits <= PLAIN_DIGITS
    })
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

    /// What a schema finds wrong with a body.
    fn problems(schema: &Schema, body: &Json) -> Vec<Problem> {
        match schema.check(body) {
            Ok(()) => Vec::new(),
            Err(EngineError::SchemaMismatch(problems)) => problems,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_schema_violation_is_reported_with_its_location() {
        let schema = Schema::compile(&json(
            r#"{"type":"object","required":["sleep"],"properties":{"sleep":{"type":"number","maximum":10},"mustSucceed":{"type":"boolean"}}}"#,
        ))
        .unwrap();
        assert!(problems(&schema, &json(r#"{"sleep": 1}"#)).is_empty());
        let found = problems(&schema, &json(r#"{"sleep":"long","mustSucceed":3}"#));
        let mut paths: Vec<_> = found.iter().map(|problem| problem.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["/mustSucceed", "/sleep"]);
        assert!(problems(&schema, &json(r#"{}"#))[0].message.contains("sleep"));
    }

    #[test]
    fn numbers_beyond_floating_point_are_validated() {
        let schema = Schema::compile(&json(r#"{"properties":{"n":{"type":"number"}}}"#)).unwrap();
        assert!(problems(&schema, &json(r#"{"n":1e400}"#)).is_empty());
        assert!(problems(&schema, &json(r#"{"n":9223372036854775808}"#)).is_empty());
        assert!(!problems(&schema, &json(r#"{"n":"1e400"}"#)).is_empty());
    }

    #[test]
    fn a_schema_reference_is_never_fetched() {
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
        assert_eq!(problems(&schema, &body).len(), 1);
        assert!(begun.elapsed() < Duration::from_secs(5), "an exponential matcher would never end");
        assert!(Schema::compile(&json(r#"{"pattern":"(?=a)b"}"#)).is_err());
        assert!(Schema::compile(&json(r#"{"pattern":"((a{1,1000}){1,1000}){1,1000}"}"#)).is_err());
    }

    #[test]
    fn only_small_bodies_of_simple_schemas_are_judged_at_once() {
        let small = json(r#"{"a":1}"#);
        let large = json(&format!(r#"{{"a":"{}"}}"#, "x".repeat(QUICK)));
        let plain = Schema::compile(&json(r#"{"properties":{"a":{"type":"integer"}}}"#)).unwrap();
        assert!(plain.is_quick(&small) && !plain.is_quick(&large));
        let recursive = json(r##"{"anyOf":[{"type":"integer"},{"additionalProperties":{"$ref":"#"}}]}"##);
        assert!(!Schema::compile(&recursive).unwrap().is_quick(&small));
        let divides = json(r#"{"items":{"multipleOf":0.01}}"#);
        assert!(!Schema::compile(&divides).unwrap().is_quick(&small));
        let digits = format!(r#"{{"a":{}}}"#, "1".repeat(PLAIN_DIGITS + 1));
        for body in [r#"{"a":1e-900}"#, r#"{"a":1.5E9}"#, digits.as_str()] {
            assert!(!plain.is_quick(&json(body)), "{body}");
        }
        assert!(plain.is_quick(&json(r#"{"a":-12.75,"e":"the e of 1 e"}"#)));
    }

    #[test]
    fn numbers_with_huge_exponents_are_refused_with_their_own_error() {
        let schema = r#"{"properties":{"a":{"uniqueItems":true,"items":{"minimum":0.5,"multipleOf":0.01}}}}"#;
        let schema = Schema::compile(&json(schema)).unwrap();
        let numbers: Vec<String> = (0..700).map(|n| format!("1e{}", 9_000 + n)).collect();
        let body = json(&format!(r#"{{"a":[{}]}}"#, numbers.join(",")));
        assert!(matches!(schema.check(&body), Err(EngineError::NumberTooLong(_))));
        assert!(Schema::check_declared(&json(r#"{"multipleOf":1e-9000}"#)).is_err(), "nor are they declared");
    }

    #[test]
    fn items_that_are_made_to_collide_are_compared_in_linear_time() {
        let schema = Schema::compile(&json(r#"{"properties":{"a":{"uniqueItems":true}}}"#)).unwrap();
        // The same to a float; and the same to a hash that skips brackets: each item has the bits of its number as
        // brackets.
        let floats: Vec<String> = (0..20_000).map(|n| format!("1.{:040}", n + 1)).collect();
        let brackets: Vec<String> = (0..20_000u32)
            .map(|n| {
                format!(
                    "[{}]",
                    (0..15).map(|bit| ["[]", "[[]]"][(n >> bit) as usize & 1]).collect::<Vec<_>>().join(",")
                )
            })
            .collect();
        for items in [floats, brackets] {
            let body = |items: &[String]| json(&format!(r#"{{"a":[{}]}}"#, items.join(",")));
            let begun = Instant::now();
            assert!(schema.check(&body(&items)).is_ok());
            assert_eq!(problems(&schema, &body(&[&items[..], &items[7..8]].concat())).len(), 1);
            assert!(begun.elapsed() < Duration::from_secs(20), "comparing each with each takes minutes");
        }
    }
}
