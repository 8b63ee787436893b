//! One empty cluster per PostgreSQL version, made once and copied for every server.
//!
//! Kept between runs under the system's temporary directory. Test processes run side by side, so
//! it is made under a lock; and it appears by a rename, so a killed `initdb` leaves no half of one.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::programs::{self, Programs};
use crate::guardian::Scratch;

/// A fresh copy of the template, in [`data`] of a directory that the server's user may use.
pub(super) async fn copy(programs: &Programs) -> Result<Scratch> {
    let programs = programs.clone();
    tokio::task::spawn_blocking(move || copy_blocking(&programs))
        .await
        .context("prepare a PostgreSQL data directory")?
}

/// A copy of the cluster in such a directory, of a server that is stopped.
pub(super) async fn copy_of(directory: &Path) -> Result<Scratch> {
    let from = data(directory);
    tokio::task::spawn_blocking(move || copy_data(&from)).await.context("copy a PostgreSQL data directory")?
}

/// Where the cluster is in a directory from [`copy`].
pub(super) fn data(directory: &Path) -> PathBuf {
    directory.join("data")
}

/// Writes a file into the cluster of a directory from [`copy`].
pub(super) fn write(directory: &Scratch, name: &str, content: &str) -> Result<()> {
    let path = data(directory.path()).join(name);
    fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    // PostgreSQL refuses a key that others may read.
    fs::set_permissions(&path, Permissions::from_mode(0o600)).with_context(|| format!("hide {}", path.display()))?;
    give_to_server(&path)
}

fn copy_blocking(programs: &Programs) -> Result<Scratch> {
    copy_data(&prepared(programs)?)
}

fn copy_data(from: &Path) -> Result<Scratch> {
    let directory = Scratch::create(&std::env::temp_dir(), "relais-test-postgres-")?;
    give_to_server(directory.path())?;
    // `cp` keeps owners and modes, on which PostgreSQL insists.
    run(Command::new("cp").arg("-a").arg(from).arg(data(directory.path()))).context("copy a PostgreSQL cluster")?;
    Ok(directory)
}

/// The template's directory, made if this is the first time.
fn prepared(programs: &Programs) -> Result<PathBuf> {
    let cache = cache_directory()?;
    let template = cache.join(file_name(&programs.version()?));
    if template.exists() {
        return Ok(template);
    }
    let lock = File::create(cache.join("lock")).context("open the lock of the PostgreSQL template")?;
    lock.lock().context("lock the PostgreSQL template")?;
    if template.exists() {
        return Ok(template); // another process made it while we waited
    }
    let workshop = Scratch::create(&cache, "initdb-")?;
    give_to_server(workshop.path())?;
    let fresh = workshop.path().join("data");
    let mut initdb = Command::new(programs.initdb());
    initdb
        .args(["-U", "postgres", "--auth=trust", "--locale=C", "-E", "UTF8", "-D"])
        .arg(&fresh)
        .current_dir(workshop.path());
    programs::as_server_user(&mut initdb);
    // Synced to disk, unlike the copies: it is kept, and must be whole after a power cut too.
    run(&mut initdb).context("prepare a PostgreSQL cluster")?;
    fs::rename(&fresh, &template).context("put the PostgreSQL template in its place")?;
    Ok(template)
}

/// A directory of this user's; in a shared temporary directory the name alone proves nothing.
fn cache_directory() -> Result<PathBuf> {
    let user = rustix::process::geteuid();
    let path = std::env::temp_dir().join(format!("relais-testkit-{}", user.as_raw()));
    // Others may pass through: the server's user is one of them.
    match DirBuilder::new().mode(0o711).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("create {}", path.display()));
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(&path).with_context(|| format!("look at {}", path.display()))?;
    if !metadata.is_dir() || metadata.uid() != user.as_raw() {
        bail!("{} is not a directory of this user; remove it", path.display());
    }
    Ok(path)
}

fn file_name(version: &str) -> String {
    version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

fn give_to_server(path: &Path) -> Result<()> {
    if let Some(user) = programs::server_user() {
        chown(path, Some(user), Some(user)).with_context(|| format!("give {} to the server's user", path.display()))?;
    }
    Ok(())
}

/// Runs to the end; a failure shows what the program said.
fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let program = command.get_program().display().to_string();
    let output = output.with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program} failed ({})\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
