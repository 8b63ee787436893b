//! Prints the declaration that a Debezium connector becomes:
//! `cargo run -p relais-capture --example import -- connector.json`

#![expect(clippy::print_stdout, reason = "that is what it is for")]

use anyhow::{Context as _, Result};
use relais_capture::debezium::import::import;

fn main() -> Result<()> {
    let file = std::env::args().nth(1).context("name the connector's file: JSON or .properties")?;
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    print!("{}", import(&text)?.declaration);
    Ok(())
}
