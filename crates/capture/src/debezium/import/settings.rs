//! Reading a connector's file.

use std::collections::BTreeMap;

use serde_json::Value;

use super::ImportError;

/// The settings of a connector that nobody has dealt with yet.
#[derive(Debug)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Reads JSON or properties.
    pub fn read(text: &str) -> Result<Self, ImportError> {
        let text = text.trim_start_matches('\u{feff}');
        let all = if text.trim_start().starts_with('{') { json(text)? } else { properties(text) };
        let settings: BTreeMap<String, String> =
            all.into_iter().filter_map(|(name, value)| Some((plain_name(&name)?, value.trim().to_owned()))).collect();
        if settings.is_empty() { Err(ImportError::Empty) } else { Ok(Self(settings)) }
    }

    /// The value of a setting, which is then dealt with. An empty value is none.
    pub fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name).filter(|value| !value.is_empty())
    }

    /// Whether a setting is `true`.
    pub fn take_flag(&mut self, name: &str) -> Option<bool> {
        self.take(name).map(|value| value.eq_ignore_ascii_case("true"))
    }

    /// A list, separated by commas.
    pub fn take_list(&mut self, name: &str) -> Vec<String> {
        list(&self.take(name).unwrap_or_default())
    }

    /// The value of a setting.
    pub fn peek(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Gives a setting another value.
    pub fn replace(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// The names of what is left, in order.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The names of what is left that begins so.
    pub fn names_with(&self, prefix: &str) -> Vec<String> {
        self.0.keys().filter(|name| name.starts_with(prefix)).cloned().collect()
    }

    /// The transforms by their names.
    pub fn transforms(&self) -> Vec<String> {
        list(self.peek("transforms").unwrap_or_default())
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// Debezium Server puts `debezium.source.` before a connector's settings. What is its own framework's is left out.
fn plain_name(name: &str) -> Option<String> {
    if name.starts_with("quarkus.") {
        return None;
    }
    let name = name.strip_prefix("debezium.source.").or_else(|| name.strip_prefix("debezium.")).unwrap_or(name);
    Some(name.to_owned())
}

fn json(text: &str) -> Result<Vec<(String, String)>, ImportError> {
    let file: Value = serde_json::from_str(text)?;
    let mut settings = Vec::new();
    // With `name` and `config` around the settings, or without.
    if let Some(name) = file.get("name") {
        settings.push(("name".to_owned(), plain(name)));
    }
    let config = file.get("config").unwrap_or(&file);
    for (name, value) in config.as_object().into_iter().flatten() {
        settings.push((name.clone(), plain(value)));
    }
    Ok(settings)
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Java's format: comments, three separators, lines that go on, escapes.
fn properties(text: &str) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut line = line.trim_start().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while goes_on(&line) {
            line.pop();
            match lines.next() {
                Some(next) => line.push_str(next.trim_start()),
                None => break,
            }
        }
        settings.push(name_and_value(&line));
    }
    settings
}

/// Whether an odd number of backslashes is at its end.
fn goes_on(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

fn name_and_value(line: &str) -> (String, String) {
    let mut escaped = false;
    let end = line
        .find(|character: char| {
            let separates = !escaped && (character == '=' || character == ':' || character.is_whitespace());
            escaped = character == '\\' && !escaped;
            separates
        })
        .unwrap_or(line.len());
    let rest = line[end..].trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (unescaped(&line[..end]), unescaped(value.trim_start()))
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('r') => plain.push('\r'),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                plain.push(code.unwrap_or('\u{fffd}'));
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read_as_java_reads_them() {
        let text =
            "# comment\n! comment\n a = b \nc:d\ne f\ng\\=h=i\\u0041\nlist=one,\\\n   two\nback=\\\\.x\nempty=\n";
        let expected =
            [("a", "b "), ("c", "d"), ("e", "f"), ("g=h", "iA"), ("list", "one,two"), ("back", "\\.x"), ("empty", "")];
        assert_eq!(properties(text), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn settings_of_debezium_server_lose_their_prefix() {
        let mut settings =
            Settings::read("debezium.source.slot.name=s\ndebezium.sink.type=kafka\nquarkus.log.level=INFO").unwrap();
        assert_eq!(settings.take("slot.name").as_deref(), Some("s"));
        assert_eq!(settings.names(), ["sink.type"]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z\\\\=:# \n{}\"u0]{0,60}") {
            let _ = Settings::read(&text);
        }
    }
}
