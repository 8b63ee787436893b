//! Markdown that reads well as a file too: short lines, and code that is never broken.

/// The longest line of a document.
const WIDTH: usize = 120;

/// A paragraph in lines that are short enough. What stands between backticks stays on one line.
pub(super) fn paragraph(text: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in words(text) {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out += &word;
        width += length;
    }
    out.push('\n');
    out
}

/// The text of a cell in a table: on one line, and no end of the cell in it.
pub(super) fn cell(text: &str) -> String {
    words(text).join(" ").replace('|', "\\|")
}

/// The words of a text; a piece of code with spaces in it is one.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut code = false;
    for c in text.chars() {
        code ^= c == '`';
        match words.last_mut() {
            Some(word) if !c.is_whitespace() => word.push(c),
            Some(word) if code => word.push(' '),
            _ => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_short_and_code_is_whole() {
        assert_eq!(paragraph("a  b\nc"), "a b c\n");
        assert_eq!(cell("a |\n`b\nc`"), "a \\| `b c`");
        let code = format!("`{}`", "x ".repeat(30));
        let text = format!("{code} and {code} and {code}.");
        let wrapped = paragraph(&text);
        assert_eq!(wrapped.lines().count(), 3, "{wrapped}");
        assert!(wrapped.lines().all(|line| line.matches('`').count() == 2), "{wrapped}");
    }
}
