//! Tables and cards for people: no borders and no colours, so that they read the same when piped.
//!
//! Programs are better served with `--json`. What others wrote can not steer the terminal: see [`printable`].

use comfy_table::{CellAlignment, Table, presets};

use crate::output::printable;

/// What stands where there is nothing.
pub const NONE: &str = "-";

/// One of a table's columns.
pub enum Column {
    /// Texts.
    Left(&'static str),
    /// Numbers.
    Right(&'static str),
}

use Column::{Left, Right};

/// A table with a head; `nothing` if it would have no rows.
pub fn table<const N: usize>(
    columns: [Column; N],
    rows: impl IntoIterator<Item = [String; N]>,
    nothing: &str,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| match column {
        Left(name) | Right(name) => *name,
    }));
    for row in rows {
        // A cell of many lines would break the table for whoever reads it line by line.
        table.add_row(row.map(|cell| {
            if cell.is_empty() {
                NONE.to_owned()
            } else {
                printable(&cell.replace(['\n', '\r', '\t'], " ")).into_owned()
            }
        }));
    }
    if table.is_empty() {
        return nothing.to_owned();
    }
    for (column, wanted) in table.column_iter_mut().zip(&columns) {
        column.set_padding((0, 2));
        if matches!(wanted, Right(_)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// One thing, a line per field; fields without a value are left out.
pub fn card(fields: impl IntoIterator<Item = (&'static str, Option<String>)>) -> String {
    let fields: Vec<(&str, String)> =
        fields.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect();
    let width = fields.iter().map(|(name, _)| name.len() + 2).max().unwrap_or_default();
    let indented = format!("\n{}", " ".repeat(width));
    let lines = fields.iter().map(|(name, value)| {
        format!("{:width$}{}", format!("{name}:"), printable(value.trim_end()).replace('\n', &indented))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The text of what may be absent.
pub fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_has_no_borders() {
        let rows = [
            ["resize".to_owned(), "7".to_owned(), "a\nb".to_owned()],
            ["x".to_owned(), "1200".to_owned(), String::new()],
        ];
        let text = table([Left("SERVICE"), Right("PENDING"), Left("NOTE")], rows, "none");
        assert_eq!(text, "SERVICE  PENDING  NOTE\nresize         7  a b\nx           1200  -");
        assert_eq!(table([Left("A")], [], "There is nothing."), "There is nothing.");
    }

    #[test]
    fn a_card_leaves_out_what_is_absent() {
        let text = card([("task", Some("t".to_owned())), ("ended", None), ("error", Some("one\ntwo".to_owned()))]);
        assert_eq!(text, "task:  t\nerror: one\n       two");
    }
}
