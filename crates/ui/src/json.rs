//! JSON as it was given, laid out: numbers keep their digits, members their order, and what is declared secret is
//! masked.

use std::collections::HashSet;

use maud::{Markup, PreEscaped, Render as _};
use serde_json::Value;

use crate::show::visible;

/// Longer texts are shown in part.
const MOST: usize = 256 * 1024;

/// What stands in place of a value that is not to be shown.
const MASK: &str = "\"•••\"";

/// The names of members that a schema declares to be secret: `writeOnly`, or of the format `password`.
pub(crate) fn secrets(schema: Option<&Value>) -> HashSet<String> {
    let mut names = HashSet::new();
    if let Some(schema) = schema {
        collect(schema, &mut names, 0);
    }
    names
}

fn collect(schema: &Value, names: &mut HashSet<String>, depth: usize) {
    if depth > 64 {
        return;
    }
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Object(properties)) = fields.get("properties") {
                for (name, property) in properties {
                    let secret = property.get("writeOnly") == Some(&Value::Bool(true))
                        || property.get("format").and_then(Value::as_str) == Some("password");
                    if secret {
                        names.insert(name.clone());
                    }
                }
            }
            fields.values().for_each(|value| collect(value, names, depth + 1));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, names, depth + 1)),
        _ => {}
    }
}

/// A piece of JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'t> {
    Text(&'t str),
    /// A number, `true`, `false`, `null`.
    Plain(&'t str),
    Sign(char),
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let (bytes, mut tokens, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let begin = at;
        match byte {
            b'{' | b'}' | b'[' | b']' | b',' | b':' => {
                tokens.push(Token::Sign(char::from(byte)));
                at += 1;
            }
            b'"' => {
                at += 1;
                while let Some(&inside) = bytes.get(at) {
                    at += if inside == b'\\' { 2 } else { 1 };
                    if inside == b'"' {
                        break;
                    }
                }
                at = at.min(bytes.len());
                tokens.push(Token::Text(text.get(begin..at).unwrap_or_default()));
            }
            byte if byte.is_ascii_whitespace() => at += 1,
            _ => {
                while bytes.get(at).is_some_and(|byte| !b"{}[],:\"".contains(byte) && !byte.is_ascii_whitespace()) {
                    at += 1;
                }
                tokens.push(Token::Plain(text.get(begin..at).unwrap_or_default()));
            }
        }
    }
    tokens
}

/// Lays JSON out, with its parts marked.
pub(crate) fn pretty(text: &str, secrets: &HashSet<String>) -> Markup {
    let mut page = String::with_capacity(text.len() * 2);
    let tokens = tokens(text);
    let (mut depth, mut at, mut written) = (0_usize, 0, 0);
    let mark = |page: &mut String, class: &str, text: &str| {
        page.push_str("<span class=\"");
        page.push_str(class);
        page.push_str("\">");
        visible(text).as_ref().render_to(page);
        page.push_str("</span>");
    };
    let line = |page: &mut String, depth: usize| {
        page.push('\n');
        page.push_str(&"  ".repeat(depth.min(200)));
    };
    while let Some(token) = tokens.get(at).copied() {
        let next = tokens.get(at + 1).copied();
        at += 1;
        if written > MOST {
            page.push_str("\n…");
            break;
        }
        match token {
            Token::Text(key) if next == Some(Token::Sign(':')) => {
                mark(&mut page, "k", key);
                page.push_str(": ");
                at += 1;
                written += key.len();
                if secrets.contains(&name(key)) {
                    at = after_value(&tokens, at);
                    mark(&mut page, "m", MASK);
                }
            }
            Token::Text(text) => {
                mark(&mut page, "s", text);
                written += text.len();
            }
            Token::Plain(text) => {
                mark(&mut page, "n", text);
                written += text.len();
            }
            Token::Sign(sign @ ('{' | '[')) => {
                page.push(sign);
                if matches!(next, Some(Token::Sign('}' | ']'))) {
                    continue;
                }
                depth += 1;
                line(&mut page, depth);
            }
            Token::Sign(sign @ ('}' | ']')) => {
                if !matches!(at.checked_sub(2).and_then(|before| tokens.get(before)), Some(Token::Sign('{' | '['))) {
                    depth = depth.saturating_sub(1);
                    line(&mut page, depth);
                }
                page.push(sign);
            }
            Token::Sign(',') => {
                page.push(',');
                line(&mut page, depth);
            }
            Token::Sign(sign) => page.push(sign),
        }
    }
    PreEscaped(page)
}

/// The name of a member, without its quotes and escapes.
fn name(key: &str) -> String {
    serde_json::from_str(key).unwrap_or_else(|_| key.trim_matches('"').to_owned())
}

/// Where a value ends that begins here.
fn after_value(tokens: &[Token<'_>], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0_usize);
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            Token::Sign('{' | '[') => depth += 1,
            Token::Sign('}' | ']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plain(markup: &Markup) -> String {
        let (mut text, mut inside) = (String::new(), false);
        for c in markup.0.chars() {
            match c {
                '<' => inside = true,
                '>' => inside = false,
                c if !inside => text.push(c),
                _ => {}
            }
        }
        text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    }

    #[test]
    fn digits_and_order_are_kept() {
        let text = r#"{"z":12345678901234567890.10,"a":[1,{"b":null}],"e":{},"f":[],"s":"a\"<b>,:{"}"#;
        let shown = plain(&pretty(text, &HashSet::new()));
        assert_eq!(
            shown,
            "{\n  \"z\": 12345678901234567890.10,\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ],\n  \"e\": {},\n  \"f\": [],\n  \"s\": \"a\\\"<b>,:{\"\n}"
        );
    }

    #[test]
    fn marks_that_turn_the_order_are_escaped() {
        assert_eq!(plain(&pretty("{\"a\":\"x\u{202e}y\"}", &HashSet::new())), "{\n  \"a\": \"x\\u202ey\"\n}");
    }

    #[test]
    fn nothing_in_a_text_becomes_markup() {
        let shown = pretty(r#"{"<script>":"</span><script>alert(1)</script>"}"#, &HashSet::new()).0;
        assert!(!shown.contains("<script>"), "{shown}");
    }

    #[test]
    fn what_is_declared_secret_is_masked_wherever_it_is() {
        let schema = json!({"properties": {
            "password": {"type": "string", "format": "password"},
            "card": {"type": "object", "writeOnly": true},
            "user": {"properties": {"pin": {"writeOnly": true}}},
        }});
        let names = secrets(Some(&schema));
        assert_eq!(names.len(), 3);
        let text = r#"{"password":"s3cret","card":{"number":[4111,{"x":1}]},"user":{"pin":1234,"name":"ada"}}"#;
        let shown = plain(&pretty(text, &names));
        for secret in ["s3cret", "4111", "1234"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("\"name\": \"ada\"") && shown.matches("•••").count() == 3, "{shown}");
        assert!(!plain(&pretty(r#"{"p\u0061ssword":"s3cret"}"#, &names)).contains("s3cret"), "however it is spelt");
    }

    #[test]
    fn invalid_json_is_shown_as_text() {
        for odd in ["", "\"", "{", "}}}]", "\"\\", "[1,", "é\"é"] {
            pretty(odd, &HashSet::new());
        }
    }
}
