//! House rules that no linter knows.
//!
//! Few, and each with its reason; what clippy or rustfmt can say is left to them.

use std::{fs, process::Command};

use anyhow::Result;

use super::verdict;
use crate::cargo::{output, root};

/// Beyond this a file is about more than one thing.
const LONGEST: usize = 600;

/// Directories of the machines that this is written on. A path there works for nobody else.
/// Split, so that this file passes its own check.
const FOREIGN_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// Looks at every file that is, or could be, committed.
pub fn check() -> Result<()> {
    let list = output(
        Command::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]).current_dir(root()),
    )?;
    let mut findings = Vec::new();
    for path in String::from_utf8_lossy(&list).split_terminator('\0') {
        // Listed but deleted, or not text: nothing to read.
        if let Ok(text) = fs::read_to_string(root().join(path)) {
            findings.extend(complaints(path, &text).into_iter().map(|what| format!("{path}: {what}")));
        }
    }
    verdict(&findings)
}

fn complaints(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if path.ends_with(".rs") {
        let lines = text.lines().count();
        if lines > LONGEST {
            found.push(format!("{lines} lines; split it, {LONGEST} is the limit"));
        }
        if path.starts_with("crates/") && path.contains("/src/") && !opens_with_its_story(text) {
            found.push("does not open with `//!`: what it is for, what it does not do".to_owned());
        }
    }
    for (index, line) in text.lines().enumerate() {
        if let Some(foreign) = FOREIGN_PATHS.iter().find(|foreign| names_path(line, foreign)) {
            found.push(format!("line {} names {foreign}, which only exists here", index + 1));
        }
    }
    found
}

/// Only a shebang, inner attributes and blank lines may come before the story.
fn opens_with_its_story(text: &str) -> bool {
    text.lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with("#!"))
        .is_some_and(|line| line.starts_with("//!"))
}

/// Whether `line` contains `path` as the start of an absolute path, not in the middle of another.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}*~".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_needs_a_doc_comment() {
        assert!(complaints("crates/a/src/lib.rs", "//! A story.\n").is_empty());
        assert!(complaints("crates/a/src/b/c.rs", "#![expect(x)]\n\n//! A story.\n").is_empty());
        assert_eq!(complaints("crates/a/src/lib.rs", "use std::fs;\n").len(), 1);
        assert_eq!(complaints("crates/a/src/lib.rs", "").len(), 1);
        assert!(complaints("crates/a/build.rs", "fn main() {}\n").is_empty());
    }

    #[test]
    fn a_long_source_is_refused_and_a_long_document_is_not() {
        let long = "//! A story.\n".repeat(LONGEST + 1);
        assert_eq!(complaints("bench/src/main.rs", &long).len(), 1);
        assert!(complaints("docs/long.md", &long).is_empty());
    }

    #[test]
    fn paths_of_this_machine_are_refused() {
        let here = FOREIGN_PATHS[0];
        assert_eq!(complaints("README.md", &format!("see {here}main")).len(), 1);
        assert_eq!(complaints("README.md", &format!("`file://{here}x`")).len(), 1);
        assert!(complaints("README.md", &format!("docs{here}x and https://example.org{here}")).is_empty());
    }
}
