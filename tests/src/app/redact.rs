//! Answers as snapshots: what differs from run to run is replaced by what it is; all else is exact, order included.

use super::Answer;

/// The headers that are part of what is promised.
const PROMISED: [&str; 5] = ["content-type", "connection", "allow", "retry-after", "idempotency-replayed"];

/// An answer as a text that is the same in every run: task ids are numbered in the order in which they appear, dates
/// are checked for their form and replaced by `[date]`, generated secrets by `[secret]`.
pub fn redacted(answer: &Answer) -> String {
    let mut text = format!("{}\n", answer.status);
    for name in PROMISED {
        if let Some(value) = answer.header(name) {
            text.push_str(&format!("{name}: {value}\n"));
        }
    }
    text.push('\n');
    text.push_str(&pretty(&answer.text));
    text.push('\n');
    text
}

/// Spreads JSON over lines without reading it: the order of keys and the form of numbers stay as they are.
fn pretty(json: &str) -> String {
    let (mut out, mut depth, mut ids) = (String::new(), 0usize, Vec::new());
    let mut rest = json.char_indices();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.push_str(&"  ".repeat(depth));
    };
    while let Some((at, c)) = rest.next() {
        match c {
            '"' => {
                let mut escaped = false;
                let end = rest.by_ref().find(|(_, c)| {
                    let ends = *c == '"' && !escaped;
                    escaped = *c == '\\' && !escaped;
                    ends
                });
                let end = end.map_or(json.len(), |(end, _)| end);
                out.push_str(&format!("\"{}\"", redact(&json[at + 1..end], &mut ids)));
            }
            '{' | '[' if json[at + 1..].starts_with(['}', ']']) => {
                out.push(c);
                out.extend(rest.next().map(|(_, c)| c));
            }
            '{' | '[' => {
                out.push(c);
                depth += 1;
                line(&mut out, depth);
            }
            '}' | ']' => {
                depth -= 1;
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            other => out.push(other),
        }
    }
    out
}

fn redact(text: &str, ids: &mut Vec<String>) -> String {
    if looks_like(text, "xxxxxxxx-xxxx-7xxx-xxxx-xxxxxxxxxxxx") {
        let known = ids.iter().position(|id| id == text).unwrap_or_else(|| {
            ids.push(text.to_owned());
            ids.len() - 1
        });
        return format!("[task {}]", known + 1);
    }
    if looks_like(text, "dddd-dd-ddTdd:dd:dd.dddZ") {
        return "[date]".to_owned();
    }
    // 24 bytes in URL-safe base64.
    if text.len() == 32 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
        return "[secret]".to_owned();
    }
    text.to_owned()
}

/// `x` stands for a hexadecimal digit, `d` for a decimal one, anything else for itself.
fn looks_like(text: &str, form: &str) -> bool {
    text.len() == form.len()
        && text.bytes().zip(form.bytes()).all(|(byte, form)| match form {
            b'x' => byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase(),
            b'd' => byte.is_ascii_digit(),
            other => byte == other,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redaction_names_values_that_differ_and_keeps_the_rest() {
        let json =
            r#"{"b":"019a0000-0000-7000-8000-000000000000","a":[1.0,{}],"d":"2026-01-31T08:30:00.125Z","e":"a\"{,"}"#;
        let expected = "{\n  \"b\": \"[task 1]\",\n  \"a\": [\n    1.0,\n    {}\n  ],\n  \"d\": \"[date]\",\n  \"e\": \"a\\\"{,\"\n}";
        assert_eq!(pretty(json), expected);
        assert_eq!(pretty(r#""2026-01-31T08:30:00Z""#), r#""2026-01-31T08:30:00Z""#, "milliseconds are promised");
    }
}
