//! `cargo xtask gen`: contracts that are committed, and printed by the binary.
//!
//! What others rely on (the API, the configuration, the command line) shows in a change as a diff
//! of these files. Nothing here knows what is in them.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::cargo::{self, cargo, output, root, run};

/// What `relais` prints when called with these arguments is the content of this file.
const CONTRACTS: [(&[&str], &str); 5] = [
    (&["openapi"], "docs/openapi.json"),
    (&["config", "default"], "docs/relais.default.toml"),
    (&["help-all"], "docs/cli.md"),
    (&["reference", "declarations"], "docs/declarations.md"),
    (&["reference", "errors"], "docs/guides/errors.md"),
];

/// Writes every contract anew.
pub fn write() -> Result<()> {
    for (path, fresh) in generate()? {
        let file = root().join(path);
        if fs::read(&file).is_ok_and(|committed| committed == fresh) {
            continue;
        }
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(&file, fresh).with_context(|| format!("cannot write {path}"))?;
        println!("gen: {path} has changed");
    }
    Ok(())
}

/// Fails when a committed contract is not what the binary prints.
pub fn check() -> Result<()> {
    let mut stale = Vec::new();
    for (path, fresh) in generate()? {
        let committed = fs::read(root().join(path)).unwrap_or_default();
        if committed != fresh {
            println!("gen: {path} is not current: {}", first_difference(&committed, &fresh));
            stale.push(path);
        }
    }
    if !stale.is_empty() {
        bail!("{} not current; run `cargo xtask gen` and commit the result", stale.join(", "));
    }
    Ok(())
}

fn generate() -> Result<Vec<(&'static str, Vec<u8>)>> {
    run(&mut cargo(["build", "-p", "relais-server", "--bin", "relais"]))?;
    let relais = cargo::binary("debug", "relais")?;
    let mut files = Vec::new();
    for (arguments, path) in CONTRACTS {
        // Neither the developer's environment nor a file in the current directory may show up.
        let mut command = std::process::Command::new(&relais);
        command.args(arguments).env_clear().current_dir(root());
        let fresh = output(&mut command)?;
        if fresh.is_empty() {
            bail!("`relais {}` printed nothing", arguments.join(" "));
        }
        files.push((path, fresh));
    }
    Ok(files)
}

/// Where to look: the first line that differs.
fn first_difference(committed: &[u8], fresh: &[u8]) -> String {
    let (committed, fresh) = (String::from_utf8_lossy(committed), String::from_utf8_lossy(fresh));
    let (mut old, mut new) = (committed.lines(), fresh.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => {
                let show = |line: Option<&str>| line.map_or("(end)".to_owned(), |line| format!("{line:?}"));
                return format!("line {number} is {}, should be {}", show(old), show(new));
            }
        }
    }
    "they differ in line ends".to_owned()
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert_eq!(first_difference(b"a\nb", b"a\nc"), r#"line 2 is "b", should be "c""#);
        assert_eq!(first_difference(b"a", b"a\nb"), r#"line 2 is (end), should be "b""#);
        assert_eq!(first_difference(b"a\n", b"a"), "they differ in line ends");
    }
}
