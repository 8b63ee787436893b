//! What was found: tables, and the bars that were met or missed. The same text for people, terminals and Markdown.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};

/// How long a line of text is at most.
const LINE: usize = 120;

/// What one benchmark found.
#[derive(Debug)]
pub struct Section {
    name: &'static str,
    title: &'static str,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    bars: Vec<String>,
    notes: Vec<String>,
}

impl Section {
    /// An empty one. The header's first entry is aligned to the left, all others to the right.
    pub fn new(name: &'static str, title: &'static str, header: &[&str]) -> Self {
        let header = header.iter().map(|&text| text.to_owned()).collect();
        Self { name, title, header, rows: Vec::new(), bars: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Adds a ratio, without judging it.
    pub fn ratio(&mut self, what: &str, ratio: f64) {
        self.bars.push(format!("      {ratio:.2} × {what}"));
    }

    /// Adds a ratio that has to reach a bar.
    pub fn at_least(&mut self, what: &str, ratio: f64, bar: f64) {
        self.bars.push(format!("{} {ratio:.2} × {what} (bar: at least {bar})", verdict(ratio >= bar)));
    }

    /// Adds a value that has to stay below a bar.
    pub fn below(&mut self, what: &str, value: f64, bar: f64, unit: &str) {
        self.bars.push(format!("{} {value:.2}{unit} {what} (bar: below {bar}{unit})", verdict(value < bar)));
    }

    /// Adds something to know.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// As it is printed, and as it stands in the documentation.
    pub fn text(&self, machine: &str) -> String {
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells = std::iter::once(&self.header).chain(&self.rows);
                cells.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
            })
            .collect();
        let line = |row: &[String]| {
            let mut text = String::from("|");
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                // Writing to a string does not fail.
                let _ = if column == 0 { write!(text, " {cell:<width$} |") } else { write!(text, " {cell:>width$} |") };
            }
            text
        };
        let rule: String = (widths.iter().enumerate())
            .map(|(column, width)| {
                if column == 0 {
                    format!("{:-<w$}|", "", w = width + 2)
                } else {
                    format!("{:->w$}:|", "", w = width + 1)
                }
            })
            .collect();
        let mut lines =
            vec![format!("### {}: {}", self.name, self.title), String::new(), format!("{machine}"), String::new()];
        lines.extend([line(&self.header), format!("|{rule}")]);
        lines.extend(self.rows.iter().map(|row| line(row)));
        if !self.bars.is_empty() {
            lines.push("\n```text".to_owned());
            lines.extend(self.bars.iter().cloned());
            lines.push("```".to_owned());
        }
        lines.extend(self.notes.iter().map(|note| format!("\n{}", wrapped(note))));
        lines.join("\n")
    }

    /// Puts it into a document, between the comments that mark its place, in place of what it said there before.
    pub fn put_into(&self, file: &Path, machine: &str) -> Result<()> {
        let document = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let (begin, end) = (format!("<!-- bench {} -->\n", self.name), format!("<!-- /bench {} -->", self.name));
        let place = document.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
        let (before, after) = place.with_context(|| format!("{} has no place marked {begin}", file.display()))?;
        fs::write(file, format!("{before}{begin}{}\n{end}{after}", self.text(machine)))
            .with_context(|| format!("write {}", file.display()))
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "PASS " } else { "MISS " }
}

/// A text in lines that are not too long.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let is_full =
            lines.last().is_some_and(|line| !line.is_empty() && line.chars().count() + 1 + word.chars().count() > LINE);
        if is_full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}
