//! Which tests a name means, and what those need: found in the sources, so that nothing else is built or started.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::cargo;

/// Something that `cargo test` can build by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The unit tests of all libraries.
    Libraries,
    /// The unit tests of all programs.
    Programs,
    /// An integration test.
    Test(String),
}

impl Target {
    /// As cargo is told.
    pub fn arguments(&self) -> Vec<&str> {
        match self {
            Self::Libraries => vec!["--lib"],
            Self::Programs => vec!["--bins"],
            Self::Test(name) => vec!["--test", name],
        }
    }
}

/// What tests need besides themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    pub postgres: bool,
    pub postgres_18: bool,
    pub rabbitmq: bool,
    pub redis: bool,
    pub valkey: bool,
    pub redisbloom: bool,
    /// The compiled `relais`.
    pub binary: bool,
    pub browser: bool,
    /// Workers, receivers and examples in Python and JavaScript.
    pub languages: bool,
}

/// What is to be run.
#[derive(Debug, Default)]
pub struct Selection {
    /// Integration tests that were named: all of each.
    pub whole: BTreeSet<Target>,
    /// What has tests whose names contain one of the words.
    pub some: BTreeSet<Target>,
    /// Those words.
    pub words: Vec<String>,
    pub needs: Needs,
}

struct Source {
    target: Target,
    /// Below the folder of its target, without the ending: `auth/memory`.
    module: String,
    text: String,
}

/// Finds what these words mean.
pub fn select(words: &[String]) -> Result<Selection> {
    let sources = sources(cargo::root())?;
    let mut selection = Selection::default();
    let mut used: Vec<&Source> = Vec::new();
    for word in words {
        let whole = Target::Test(word.clone());
        if sources.iter().any(|source| source.target == whole) {
            selection.whole.insert(whole);
            continue;
        }
        let found: Vec<&Source> = sources.iter().filter(|source| has_test(source, word)).collect();
        if found.is_empty() {
            bail!("no test's name contains `{word}`, and no test file is called so");
        }
        selection.some.extend(found.iter().map(|source| source.target.clone()));
        selection.words.push(word.clone());
        used.extend(found);
    }
    // Files of an integration test share what stands beside them; those of libraries stand alone.
    let whole = |source: &&Source| {
        let target = &source.target;
        matches!(target, Target::Test(_)) && (selection.whole.contains(target) || selection.some.contains(target))
    };
    used.extend(sources.iter().filter(whole));
    selection.needs = needs(&used);
    Ok(selection)
}

/// Whether a file may have a test of this name: `module::a_part_of_the_function`.
fn has_test(source: &Source, word: &str) -> bool {
    let name = word.rsplit("::").next().unwrap_or(word);
    let modules = word.strip_suffix(name).unwrap_or_default().trim_end_matches("::").replace("::", "/");
    let in_module = modules.is_empty() || source.module.contains(&modules);
    let is_module = !name.is_empty() && source.module.split('/').any(|part| part == name);
    let tests = source.text.contains("#[test]") || source.text.contains("#[tokio::test") || is_test_folder(source);
    tests && in_module && (is_module || functions(&source.text).any(|function| function.contains(name)))
}

fn is_test_folder(source: &Source) -> bool {
    matches!(source.target, Target::Test(_)) || source.module.contains("store_suite")
}

fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<', ' ']).next())
}

fn needs(sources: &[&Source]) -> Needs {
    let any = |words: &[&str]| {
        sources.iter().any(|source| {
            let text = source.text.to_lowercase();
            words.iter().any(|word| text.contains(word))
        })
    };
    let test = |names: &[&str]| {
        sources.iter().any(|source| matches!(&source.target, Target::Test(name) if names.contains(&name.as_str())))
    };
    Needs {
        postgres: any(&["postgres", "testdatabase"]),
        postgres_18: any(&["version_18()"]),
        rabbitmq: any(&["rabbitmq", "testvhost", "amqp"]),
        redis: any(&["redis"]),
        valkey: any(&["start_valkey"]),
        redisbloom: any(&["start_with_bloom"]),
        binary: any(&["instance::", "relais_bin", "serverprocess"]) || test(&["binary", "chaos", "hostile", "worker"]),
        browser: test(&["ui"]),
        languages: test(&["worker", "binary", "guide", "outbox", "dedup"]),
    }
}

/// All files of all targets.
fn sources(root: &Path) -> Result<Vec<Source>> {
    let mut packages: Vec<PathBuf> = entries(&root.join("crates"))?;
    packages.extend(["tests", "bench", "xtask"].map(|name| root.join(name)));
    let mut found = Vec::new();
    for package in packages {
        let own = if package.join("src/lib.rs").is_file() { Target::Libraries } else { Target::Programs };
        collect(&package.join("src"), &package.join("src"), &own, &mut found)?;
        for entry in entries(&package.join("tests"))? {
            let Some(name) = entry.file_stem().map(|name| name.to_string_lossy().into_owned()) else { continue };
            if entry.is_dir() && entry.join("main.rs").is_file()
                || entry.extension().is_some_and(|ending| ending == "rs")
            {
                collect(&entry, &entry, &Target::Test(name), &mut found)?;
            }
        }
    }
    Ok(found)
}

fn collect(folder: &Path, at: &Path, target: &Target, found: &mut Vec<Source>) -> Result<()> {
    if at.is_dir() {
        return entries(at)?.iter().try_for_each(|entry| collect(folder, entry, target, found));
    }
    if at.extension().is_some_and(|ending| ending == "rs") {
        let text = fs::read_to_string(at).with_context(|| format!("cannot read {}", at.display()))?;
        let module = at.strip_prefix(folder).unwrap_or(at).with_extension("").to_string_lossy().into_owned();
        found.push(Source { target: target.clone(), module, text });
    }
    Ok(())
}

/// What is in a folder, in the order of the names; nothing if there is no such folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let read = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let mut entries = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    entries.sort_unstable();
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(words: &[&str]) -> Selection {
        select(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).expect("there are such tests")
    }

    #[test]
    fn a_test_file_is_run_whole_and_needs_what_it_uses() {
        let limits = selected(&["limits"]);
        assert_eq!(limits.whole, BTreeSet::from([Target::Test("limits".to_owned())]));
        assert_eq!((limits.words.len(), limits.needs), (0, Needs::default()));
        assert!(selected(&["hostile"]).needs.binary);
    }

    #[test]
    fn a_part_of_a_name_finds_its_target_alone() {
        let one = selected(&["a_part_of_a_name_finds_its_target"]);
        assert_eq!(one.some, BTreeSet::from([Target::Programs]));
        let memory = selected(&["memory::wrong_secrets_neither"]);
        assert_eq!((memory.some, memory.needs), (BTreeSet::from([Target::Libraries]), Needs::default()));
        assert!(select(&["no test is called so".to_owned()]).is_err());
    }
}
