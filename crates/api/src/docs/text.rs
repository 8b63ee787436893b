//! From the document's text to HTML. Nothing reaches the page but through here, so that nothing is taken for markup.

/// The text, with every character that means something in HTML made harmless.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A line of text: what stands between backticks is code. A backtick without its pair is a backtick.
pub(super) fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('`') {
        let Some((code, tail)) = after.split_once('`') else { break };
        out += &format!("{}<code>{}</code>", escape(before), escape(code));
        rest = tail;
    }
    out + &escape(rest)
}

/// A text of several paragraphs, with blank lines between them.
pub(super) fn prose(text: &str) -> String {
    let mut out = String::new();
    let mut paragraph: Vec<&str> = Vec::new();
    for line in text.lines().chain([""]) {
        if !line.trim().is_empty() {
            paragraph.push(line.trim());
        } else if !paragraph.is_empty() {
            out += &format!("<p>{}</p>\n", inline(&paragraph.join("\n")));
            paragraph.clear();
        }
    }
    out
}

/// A path, with its parameters marked, that may be broken after each slash.
pub(super) fn path(path: &str) -> String {
    let breakable = escape(path).replace('/', "/<wbr>");
    let marked = breakable.replace('{', "<var>{").replace('}', "}</var>");
    format!("<code class=\"path\">{marked}</code>")
}

/// A name that can be both an `id` and the part of a link behind `#`; different texts have different ones.
pub(super) fn anchor(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '/' | '_' | '-' | '.' => out.push(c),
            '{' => out.push(':'),
            '}' => {}
            c => out += &format!("~{:x}~", u32::from(c)),
        }
    }
    out
}

/// A table. Headers are plain words; cells are HTML already.
pub(super) fn table<const N: usize>(kind: &str, headers: [&str; N], rows: &[[String; N]]) -> String {
    let head: String = headers.iter().map(|text| format!("<th scope=\"col\">{text}</th>")).collect();
    let body: String = rows
        .iter()
        .map(|cells| {
            let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
            format!("<tr>{cells}</tr>\n")
        })
        .collect();
    format!("<table class=\"{kind}\">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n")
}

/// Text to be read or copied as it stands.
pub(super) fn block(kind: &str, text: &str) -> String {
    format!("<pre class=\"{kind}\"><code>{}</code></pre>\n", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_text_stays_text() {
        assert_eq!(escape(r#"<a href="x" id='y'>&"#), "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;");
        assert_eq!(inline("`<b>` & `c"), "<code>&lt;b&gt;</code> &amp; `c");
        assert_eq!(path("/a/<b>/{c}"), "<code class=\"path\">/<wbr>a/<wbr>&lt;b&gt;/<wbr><var>{c}</var></code>");
        assert_eq!(anchor("x\" onclick='"), "x~22~~20~onclick~3d~~27~");
    }

    #[test]
    fn blank_lines_part_paragraphs() {
        assert_eq!(prose("\none\ntwo\n \n\nthree `four`\n"), "<p>one\ntwo</p>\n<p>three <code>four</code></p>\n");
        assert_eq!(prose(" \n"), "");
    }

    #[test]
    fn different_paths_have_different_anchors() {
        assert_eq!(anchor("get-/tasks/{taskId}"), "get-/tasks/:taskId");
        assert_ne!(anchor("get-/tasks/batch"), anchor("get-/tasks/{batch}"));
    }
}
