//! Signing secrets are encrypted in the database, on both drivers: what lies there, who can read it, how keys change.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use relais_core::{Change, ClientId, Store, StoreError};
use relais_store::{EncryptionKey, Options};
use relais_testkit::{
    TestDatabase,
    store_suite::{Harness, StoreFeatures, callback},
};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tempfile::TempDir;

const OLD: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const NEW: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";
const OTHER: &str = "AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=";

/// A database, and how a test gets at it past the store.
enum Place {
    Sqlite(TempDir),
    Postgres(TestDatabase),
}

impl Place {
    async fn each() -> Result<[Self; 2]> {
        Ok([Self::Sqlite(tempfile::tempdir()?), Self::Postgres(TestDatabase::create().await?)])
    }

    fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("relais.db").display()),
            Self::Postgres(database) => database.url().to_owned(),
        }
    }

    /// A process with these keys, which has not migrated.
    async fn open(&self, keys: &[&str]) -> Result<Arc<dyn Store>> {
        let encryption_keys = keys.iter().map(|key| key.parse::<EncryptionKey>()).collect::<Result<_, _>>()?;
        Ok(relais_store::open(&self.url(), &Options { encryption_keys, ..Options::default() }).await?)
    }

    /// The same, and it has.
    async fn start(&self, keys: &[&str]) -> Result<Arc<dyn Store>> {
        let store = self.open(keys).await?;
        store.migrate().await?;
        Ok(store)
    }

    /// What the table has, as a dump would.
    async fn stored(&self) -> Result<Vec<String>> {
        const SELECT: &str = "SELECT secret FROM signing_secret ORDER BY secret";
        Ok(match self {
            Self::Sqlite(_) => {
                sqlx::query_scalar(SELECT).fetch_all(&mut SqliteConnection::connect(&self.url()).await?).await?
            }
            Self::Postgres(_) => {
                let mut connection = PgConnection::connect(&self.url()).await?;
                sqlx::query("SET search_path = relais").execute(&mut connection).await?;
                sqlx::query_scalar(SELECT).fetch_all(&mut connection).await?
            }
        })
    }
}

fn secret(number: usize) -> String {
    format!("whsec_{number:032}")
}

fn put(client: &str, secret: &str) -> Result<Vec<Change>> {
    let client_id = ClientId::new(client)?;
    let secret_hash = Some("hash".to_owned());
    Ok(vec![
        Change::PutClient { client_id: client_id.clone(), secret_hash, destinations: None, notifications: None },
        Change::PutSigningSecret {
            client_id,
            secret: secret.to_owned(),
            overlap: Duration::from_secs(3600),
            unless_any: false,
        },
    ])
}

/// What a client's callbacks are signed with, the newest first.
async fn secrets(store: &Arc<dyn Store>, client: &str) -> Result<Vec<String>> {
    let declared = store.declared().await?;
    let client = declared.clients.get(client).with_context(|| format!("no client {client}"))?;
    Ok(client.signing_secrets.iter().map(|one| one.secret.clone()).collect())
}

/// The message of one who lacks a key.
fn refused<T>(answer: Result<T, StoreError>, what: &str) -> Result<String> {
    match answer {
        Err(StoreError::Encrypted(why)) => Ok(why),
        Err(other) => anyhow::bail!("{what}: {other}"),
        Ok(_) => anyhow::bail!("{what}: it should have been refused"),
    }
}

#[tokio::test]
async fn with_a_key_signing_secrets_are_encrypted_in_the_database() -> Result<()> {
    for place in Place::each().await? {
        let store = place.start(&[]).await?;
        store.declare(put("shop", &secret(1))?).await?;
        ensure!(place.stored().await? == [secret(1)], "without a key it is stored as it is");
        store.close().await;

        let store = place.start(&[OLD]).await?;
        store.declare(put("bakery", &secret(2))?).await?;
        ensure!(secrets(&store, "shop").await? == [secret(1)] && secrets(&store, "bakery").await? == [secret(2)]);
        let stored = place.stored().await?;
        ensure!(stored.len() == 2 && stored.iter().all(|text| text.starts_with("enc:1:")), "{stored:?}");
        ensure!(store.encrypt_secrets().await? == 0, "there is nothing left to do");
        ensure!(place.stored().await? == stored);
        store.close().await;
    }
    Ok(())
}

#[tokio::test]
async fn the_bytes_of_a_sqlite_file_have_no_signing_secret_once_there_is_a_key() -> Result<()> {
    let place = Place::Sqlite(tempfile::tempdir()?);
    let Place::Sqlite(folder) = &place else { unreachable!() };
    let in_clear = || -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder.path())? {
            let entry = entry?;
            if fs::read(entry.path())?.windows(6).any(|bytes| bytes == b"whsec_") {
                found.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(found)
    };
    // Enough for many pages, of which some are freed again with what was written on them.
    let store = place.start(&[]).await?;
    for number in 0..600 {
        store.declare(put(&format!("client{}", number % 300), &secret(number))?).await?;
    }
    for number in 0..290 {
        store.declare(vec![Change::DeleteClient(ClientId::new(format!("client{number}"))?)]).await?;
    }
    store.close().await;
    ensure!(in_clear()? == ["relais.db"], "the test would see them");

    let store = place.start(&[OLD]).await?;
    ensure!(in_clear()?.is_empty(), "while the server runs: {:?}", in_clear()?);
    ensure!(secrets(&store, "client299").await? == [secret(599), secret(299)]);
    store.declare(put("client299", &secret(600))?).await?;
    store.declare(vec![Change::DeleteClient(ClientId::new("client298")?)]).await?;
    ensure!(in_clear()?.is_empty(), "after changes: {:?}", in_clear()?);
    store.close().await;
    ensure!(in_clear()?.is_empty(), "after it has stopped: {:?}", in_clear()?);
    Ok(())
}

#[tokio::test]
async fn a_process_without_the_right_key_reads_nothing_and_writes_no_secret() -> Result<()> {
    for place in Place::each().await? {
        let store = place.start(&[OLD]).await?;
        store.declare(put("shop", &secret(1))?).await?;
        store.close().await;
        let stored = place.stored().await?;
        for (keys, said) in [(&[][..], "this process has no key"), (&[OTHER][..], "this process has other keys")] {
            let store = place.open(keys).await?;
            for why in [
                refused(store.migrate().await, "migrate")?,
                refused(store.encrypt_secrets().await, "encrypt")?,
                refused(store.declared().await, "declared")?,
            ] {
                ensure!(why.contains(said) && why.contains("database.encryption_keys"), "{why}");
            }
            if keys.is_empty() {
                refused(store.declare(put("bakery", &secret(2))?).await, "a secret in clear among encrypted ones")?;
            }
            store.close().await;
            ensure!(place.stored().await? == stored, "nothing was changed");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_key_is_replaced_by_another_without_a_gap() -> Result<()> {
    for place in Place::each().await? {
        let store = place.start(&[OLD]).await?;
        store.declare(put("shop", &secret(1))?).await?;
        store.advance(Duration::from_secs(1)).await?;
        store.declare(put("shop", &secret(2))?).await?;
        store.close().await;
        let under_old = place.stored().await?;
        for keys in [&[OLD, NEW][..], &[NEW, OLD], &[NEW]] {
            let store = place.start(keys).await?;
            ensure!(secrets(&store, "shop").await? == [secret(2), secret(1)], "with {keys:?}");
            ensure!((place.stored().await? == under_old) == (keys[0] == OLD), "with {keys:?}");
            store.close().await;
        }
        let store = place.open(&[OLD]).await?;
        refused(store.declared().await, "with the key that was replaced")?;
        store.close().await;
    }
    Ok(())
}

#[tokio::test]
async fn expired_signing_secrets_are_deleted_and_need_no_key_any_more() -> Result<()> {
    for place in Place::each().await? {
        let store = place.start(&[OLD]).await?;
        store.declare(put("shop", &secret(1))?).await?;
        store.declare(put("shop", &secret(2))?).await?;
        store.advance(Duration::from_secs(4000)).await?;
        ensure!(store.encrypt_secrets().await? == 0);
        ensure!(place.stored().await?.len() == 1 && secrets(&store, "shop").await? == [secret(2)]);
        store.close().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_ciphertext_that_was_moved_to_another_client_signs_nothing() -> Result<()> {
    let place = Place::Postgres(TestDatabase::create().await?);
    let store = place.start(&[OLD]).await?;
    store.declare(put("shop", &secret(1))?).await?;
    store.declare(put("bakery", &secret(2))?).await?;
    let mut connection = PgConnection::connect(&place.url()).await?;
    let moved = "UPDATE relais.signing_secret SET client_id = 3 - client_id";
    ensure!(sqlx::query(moved).execute(&mut connection).await?.rows_affected() == 2);
    let why = refused(store.declared().await, "moved")?;
    ensure!(why.contains("moved there from another client"), "{why}");
    store.close().await;
    Ok(())
}

#[tokio::test]
async fn processes_that_start_at_once_encrypt_each_secret_once() -> Result<()> {
    let place = Place::Postgres(TestDatabase::create().await?);
    let plain = place.start(&[]).await?;
    for number in 0..20 {
        plain.declare(put(&format!("client{number}"), &secret(number))?).await?;
    }
    let (one, two) = (place.open(&[OLD, NEW]).await?, place.open(&[OLD, NEW]).await?);
    let (first, second) = tokio::try_join!(one.encrypt_secrets(), two.encrypt_secrets())?;
    ensure!(first + second == 20 && first.min(second) == 0, "{first} and {second}");
    for number in 0..20 {
        ensure!(secrets(&two, &format!("client{number}")).await? == [secret(number)]);
    }
    Ok(())
}

#[tokio::test]
async fn processes_that_apply_the_same_file_make_one_secret_whatever_their_first_key() -> Result<()> {
    let place = Place::Postgres(TestDatabase::create().await?);
    let plain = place.start(&[]).await?;
    plain.declare(put("shop", &secret(1))?).await?;
    // One has a key since a moment ago, two others are about to replace it.
    let stores = [place.open(&[OLD]).await?, place.open(&[OLD, NEW]).await?, place.open(&[NEW, OLD]).await?];
    for store in &stores {
        store.declare(put("shop", &secret(1))?).await?;
        ensure!(place.stored().await? == [secret(1)], "it has it already, in clear");
    }
    stores[0].encrypt_secrets().await?;
    let [_, old_first, new_first] = &stores;
    for round in 2..6 {
        let (one, two) = (put("shop", &secret(round))?, put("shop", &secret(round))?);
        tokio::try_join!(old_first.declare(one), new_first.declare(two))?;
        ensure!(secrets(old_first, "shop").await? == [secret(round), secret(round - 1)], "round {round}");
    }
    ensure!(place.stored().await?.len() == 2);
    Ok(())
}

#[tokio::test]
async fn at_most_two_signing_secrets_are_valid_where_they_are_encrypted() -> Result<()> {
    for place in Place::each().await? {
        let store = place.start(&[OLD]).await?;
        let harness =
            Harness { features: StoreFeatures { many_processes: false }, handles: vec![store], keep: Box::new(place) };
        callback::at_most_two_signing_secrets_are_valid(&harness).await?;
    }
    Ok(())
}
