//! PostgreSQL's text form of arrays: `{1,NULL,"a \"b\""}`.

use std::borrow::Cow;

/// An element of the outermost dimension.
#[derive(Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// NULL.
    Null,
    /// A value.
    Text(Cow<'a, [u8]>),
    /// An array, in an array of several dimensions.
    Array,
}

/// The elements of an array. None if the text is no array.
pub fn elements(text: &[u8]) -> Option<Vec<Element<'_>>> {
    // Bounds that do not begin at 1 come first: `[0:1]={1,2}`.
    let text = match text.first()? {
        b'[' => &text[text.iter().position(|byte| *byte == b'=')? + 1..],
        _ => text,
    };
    let mut rest = text.strip_prefix(b"{")?.strip_suffix(b"}")?;
    let mut elements = Vec::new();
    while !rest.is_empty() {
        let (element, after) = match rest[0] {
            b'"' => quoted(&rest[1..])?,
            b'{' => (Element::Array, &rest[nested(rest)?..]),
            _ => {
                let end = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
                let word = &rest[..end];
                let element = if word == b"NULL" { Element::Null } else { Element::Text(Cow::Borrowed(word)) };
                (element, &rest[end..])
            }
        };
        elements.push(element);
        rest = match after {
            [] => after,
            [b',', after @ ..] => after,
            _ => return None,
        };
    }
    Some(elements)
}

/// Reads up to the closing quote.
pub fn quoted(text: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let mut owned = Vec::new();
    let mut start = 0;
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => break,
            b'\\' => {
                owned.extend_from_slice(&text[start..at]);
                owned.push(*text.get(at + 1)?);
                at += 2;
                start = at;
            }
            _ => at += 1,
        }
    }
    let value = if start == 0 {
        Cow::Borrowed(&text[..at])
    } else {
        owned.extend_from_slice(&text[start..at]);
        Cow::Owned(owned)
    };
    Some((Element::Text(value), &text[at + 1..]))
}

/// Where an array inside an array ends.
fn nested(text: &[u8]) -> Option<usize> {
    let (mut depth, mut in_quotes, mut at) = (0, false, 0);
    loop {
        match text.get(at)? {
            b'\\' => at += 1,
            b'"' => in_quotes = !in_quotes,
            b'{' if !in_quotes => depth += 1,
            b'}' if !in_quotes => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_told_apart() {
        let text = |text: &'static str| Element::Text(Cow::Borrowed(text.as_bytes()));
        for (array, expected) in [
            ("{}", vec![]),
            ("{1,NULL,3}", vec![text("1"), Element::Null, text("3")]),
            (r#"{a,"b,c","NULL",""}"#, vec![text("a"), text("b,c"), text("NULL"), text("")]),
            (r#"{"a\\b\"c"}"#, vec![text(r#"a\b"c"#)]),
            (r#"{{1,2},{"}",4}}"#, vec![Element::Array, Element::Array]),
            ("[0:1]={1,2}", vec![text("1"), text("2")]),
        ] {
            assert_eq!(elements(array.as_bytes()), Some(expected), "{array}");
        }
        for broken in ["", "{", "1", "{\"a}", "{{1}", "{\"a\"b}"] {
            assert_eq!(elements(broken.as_bytes()), None, "{broken}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text in "[\\[\\]={}\",\\\\a]{0,12}") {
            let _ = elements(text.as_bytes());
        }
    }
}
