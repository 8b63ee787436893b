//! Writing YAML by hand, with comments.

/// A string, in quotes where YAML would read something else.
pub fn scalar(text: &str) -> String {
    let plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "_.-/".contains(character))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { quoted(text) }
}

/// A string in quotes. YAML's are JSON's.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A list on one line.
pub fn list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| scalar(item)).collect();
    format!("[{}]", items.join(", "))
}

/// A map on one line. Values are YAML already.
pub fn map(entries: &[(String, String)]) -> String {
    let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{}: {value}", scalar(key))).collect();
    format!("{{{}}}", entries.join(", "))
}

/// A name that declarations allow: letters, digits, `.`, `_` and `-`.
pub fn name(text: &str) -> String {
    let allowed = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    let name: String =
        text.chars().map(|character| if allowed(character) { character } else { '-' }).take(100).collect();
    let name = name.trim_start_matches(['.', '_', '-']);
    if name.is_empty() { "imported".to_owned() } else { name.to_owned() }
}

/// A name for a variable of the environment.
pub fn variable(text: &str) -> String {
    text.chars()
        .map(|character| if character.is_ascii_alphanumeric() { character.to_ascii_uppercase() } else { '_' })
        .collect()
}

/// Nothing of the file may end a comment.
pub fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// An item of a list in a comment, in lines of at most 120 characters where words allow it.
pub fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = "# -".to_owned();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if line.chars().count() + 1 + word.chars().count() > 120 {
            lines.push_str(&line);
            lines.push('\n');
            line = "#  ".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_yaml_would_misread_is_quoted() {
        for (text, written) in [
            ("public.orders", "public.orders"),
            ("yes", "\"yes\""),
            ("12", "\"12\""),
            ("a: b", "\"a: b\""),
            ("{x}", "\"{x}\""),
            ("", "\"\""),
        ] {
            assert_eq!(scalar(text), written);
        }
    }
}
