//! Reads the files of SQL: what runs before anybody captures, and then the statements whose records are compared.

use anyhow::{Context as _, Result};

/// The statements of both parts. Each is a transaction, as it was when recordings were made.
pub fn parts(sql: &str) -> Result<(Vec<String>, Vec<String>)> {
    let (before, after) = sql.split_once("-- Part 2").context("the file has no second part")?;
    // The rest of that line is a comment.
    Ok((statements(before), statements(&format!("--{after}"))))
}

fn statements(sql: &str) -> Vec<String> {
    let lines: Vec<&str> = sql.lines().filter(|line| !line.starts_with("--")).collect();
    let statements = lines.join("\n");
    let statements = statements.split(";\n").map(|statement| statement.trim_end_matches([';', '\n']).to_owned());
    statements.filter(|statement| !statement.trim().is_empty()).collect()
}
