//! JSON carried as text.
//!
//! A payload belongs to its consumer and its provider: Relais checks that it is JSON and not absurdly nested, and then
//! carries it byte for byte. Numbers beyond 2^53, `1e400` and the order of keys survive because nothing is decoded.

use std::{fmt, sync::Arc};

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Deeper nesting than this is refused: validators and databases recurse.
pub const MAX_DEPTH: usize = 100;

/// Why a text is not a payload.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It is nested deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// One JSON value, as the text it was given in. Cloning is cheap.
#[derive(Clone)]
pub struct Json(Arc<RawValue>);

impl Json {
    /// Checks a text and keeps it.
    pub fn parse(text: String) -> Result<Self, JsonError> {
        Self::try_from(RawValue::from_string(text)?)
    }

    /// The text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// The text as serde carries it.
    pub fn as_raw(&self) -> &RawValue {
        &self.0
    }

    /// Whether it is an object. Surrounding white space is not part of the text.
    pub fn is_object(&self) -> bool {
        self.get().starts_with('{')
    }

    /// Decoded, for a validator.
    pub fn to_value(&self) -> Result<serde_json::Value, JsonError> {
        Ok(serde_json::from_str(self.get())?)
    }
}

impl TryFrom<Box<RawValue>> for Json {
    type Error = JsonError;

    fn try_from(raw: Box<RawValue>) -> Result<Self, JsonError> {
        if depth(raw.get()) > MAX_DEPTH { Err(JsonError::TooDeep) } else { Ok(Self(Arc::from(raw))) }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

/// How deep the arrays and objects of a valid JSON text are nested. A loop, not a recursion: its input is hostile.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_kept_byte_for_byte() {
        let text = r#"{"z":9223372036854775808,"a":1e400,"é":"\u0000 \ud83d\ude00","n":-0.0}"#;
        assert_eq!(Json::parse(text.to_owned()).unwrap().get(), text);
    }

    #[test]
    fn nesting_is_bounded_and_brackets_in_strings_do_not_count() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(Json::parse(nested(MAX_DEPTH)).is_ok());
        assert!(matches!(Json::parse(nested(MAX_DEPTH + 1)), Err(JsonError::TooDeep)));
        assert!(matches!(Json::parse(nested(1_000_000)), Err(JsonError::TooDeep)));
        assert!(Json::parse(format!(r#""{}\"{}""#, "[".repeat(500), "{".repeat(500))).is_ok());
        assert!(Json::parse(nested(MAX_DEPTH)).unwrap().to_value().is_ok(), "a validator can decode all that is kept");
    }
}
