//! Who may read the files of a SQLite database. One test: it sets the umask, which is the whole process's.
#![cfg(unix)]

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::{Result, ensure};
use relais_core::{Change, ClientId};
use relais_store::Options;

/// The mode of every file in a folder.
fn modes(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut modes = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let mode = entry.metadata()?.permissions().mode() & 0o777;
        modes.insert(entry.file_name().to_string_lossy().into_owned(), format!("{mode:o}"));
    }
    Ok(modes)
}

#[tokio::test]
async fn the_files_of_a_new_database_are_for_its_owner_alone_whatever_the_umask() -> Result<()> {
    let before = rustix::process::umask(rustix::fs::Mode::empty());
    let folder = tempfile::tempdir()?;
    // The second time, SQLite finds the database, and makes the other two anew.
    for round in ["created", "started again"] {
        let url = format!("sqlite:{}", folder.path().join("relais.db").display());
        let store = relais_store::open(&url, &Options::default()).await?;
        store.migrate().await?;
        let client_id = ClientId::new("shop")?;
        let secret_hash = Some("hash".to_owned());
        store
            .declare(vec![Change::PutClient { client_id, secret_hash, destinations: None, notifications: None }])
            .await?;
        ensure!(store.declared().await?.clients.len() == 1, "a reader has the files open as well");
        let found = modes(folder.path())?;
        let expected = ["relais.db", "relais.db-shm", "relais.db-wal", "relais.db.lock"];
        ensure!(found.keys().eq(expected) && found.values().all(|mode| *mode == "600"), "{round}: {found:?}");
        store.close().await;
        ensure!(!folder.path().join("relais.db-wal").exists(), "{round}: it was not closed");
    }

    // A link whose target is not there yet: SQLite follows it, and so does the mode.
    let (link, target) = (folder.path().join("link.db"), folder.path().join("target.db"));
    std::os::unix::fs::symlink(&target, &link)?;
    let store = relais_store::open(&format!("sqlite:{}", link.display()), &Options::default()).await?;
    ensure!(modes(folder.path())?["target.db"] == "600", "by a link: {:?}", modes(folder.path())?);
    store.close().await;
    rustix::process::umask(before);
    Ok(())
}
