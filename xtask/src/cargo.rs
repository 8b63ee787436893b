//! Calling cargo and other programs, and asking cargo what it knows about the workspace.
//!
//! Children stay in this process's group on purpose: Ctrl-C reaches all of them at once.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The cargo that runs us, from the root of the workspace.
pub fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    // What cargo says of this package would be news to build scripts, which look for such names: their crates, and all
    // that stand on them, would be compiled anew whenever cargo was called by hand before.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command
}

/// Shows the command as one would type it, runs it, and fails if it does.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    eprintln!("$ {shown}");
    let status = command.status().with_context(|| format!("cannot run `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Runs quietly and returns what it printed.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let shown = shown(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed ({})", output.status);
    }
    Ok(output.stdout)
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut words = vec![program.display().to_string()];
    words.extend(command.get_args().map(|argument| argument.display().to_string()));
    words.join(" ")
}

/// The root of the workspace.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        // Cargo sets it for `cargo xtask`; the compiled-in path serves a binary called directly.
        let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let package = PathBuf::from(package);
        package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
    })
}

/// `cargo metadata` of the workspace's own packages.
pub fn metadata() -> Result<Value> {
    read_metadata(&["metadata", "--format-version", "1", "--no-deps"])
}

/// `cargo metadata` with every dependency.
pub fn metadata_with_dependencies() -> Result<Value> {
    read_metadata(&["metadata", "--format-version", "1"])
}

fn read_metadata(arguments: &[&str]) -> Result<Value> {
    let json = output(&mut cargo(arguments.iter().copied()))?;
    serde_json::from_slice(&json).context("cannot read cargo's metadata")
}

/// Where cargo builds, wherever that was configured.
pub fn target_directory() -> Result<PathBuf> {
    let metadata = metadata()?;
    let path = metadata["target_directory"].as_str().context("cargo names no target directory")?;
    Ok(path.into())
}

/// A binary that has been built in `profile` (`debug`, `release`).
pub fn binary(profile: &str, name: &str) -> Result<PathBuf> {
    let path = target_directory()?.join(profile).join(name);
    if !path.is_file() {
        bail!("{} has not been built", path.display());
    }
    Ok(path)
}
