//! Every dependency may be used and passed on under terms that ask nothing of our users.
//!
//! Judges what a package declares about itself. Does not read licence files.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{spdx, verdict};
use crate::cargo::metadata_with_dependencies;

/// Permissive licences, and MPL-2.0, whose duties end at the file's edge.
const ACCEPTED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

fn accepts(licence: &str) -> bool {
    ACCEPTED.contains(&licence) || licence.starts_with("BSD-")
}

/// Looks at every package that could end up in a build, on any platform.
pub fn check() -> Result<()> {
    let metadata = metadata_with_dependencies()?;
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    let findings: Vec<String> = packages.iter().filter_map(finding).collect();
    verdict(&findings)
}

fn finding(package: &Value) -> Option<String> {
    // Our own have no source.
    package["source"].as_str()?;
    let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
    let Some(expression) = package["license"].as_str() else {
        return Some(format!("{name} declares no licence"));
    };
    match spdx::satisfied(expression, &accepts) {
        Ok(true) => None,
        Ok(false) => Some(format!("{name} is under {expression}, which is not accepted")),
        Err(error) => Some(format!("{name}: {error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::finding;

    #[test]
    fn only_third_parties_with_accepted_licences_pass() {
        let package = |licence| json!({"name": "x", "version": "1.0.0", "source": "registry", "license": licence});
        assert_eq!(finding(&package(json!("BSD-3-Clause AND MIT"))), None);
        assert!(finding(&package(json!("AGPL-3.0-only"))).is_some());
        assert!(finding(&package(json!(null))).is_some());
        let ours = json!({"name": "relais-core", "version": "0.1.0", "source": null, "license": null});
        assert_eq!(finding(&ours), None);
    }
}
