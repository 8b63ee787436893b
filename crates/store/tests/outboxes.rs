//! Declared outboxes on both drivers: the conformance suite, and what lies in the database of their secrets.

use std::sync::Arc;

use anyhow::Result;
use relais_store::{EncryptionKey, Options, Ports};
use relais_testkit::{TestDatabase, outbox_suite::OutboxHarness};
use tempfile::TempDir;

async fn open(url: &str, keys: &[&str]) -> Result<Ports> {
    let encryption_keys = keys.iter().map(|key| key.parse::<EncryptionKey>()).collect::<Result<_, _>>()?;
    let ports = relais_store::open_ports(url, &Options { encryption_keys, ..Options::default() }).await?;
    ports.store.migrate().await?;
    Ok(ports)
}

fn file(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().join("relais.db").display())
}

mod sqlite {
    use super::*;

    async fn harness() -> Result<OutboxHarness> {
        let folder = tempfile::tempdir()?;
        let Ports { store, outboxes } = open(&file(&folder), &[]).await?;
        Ok(OutboxHarness { store, outboxes, keep: Box::new(folder) })
    }

    relais_testkit::outbox_suite!(harness);
}

mod postgres {
    use super::*;

    async fn harness() -> Result<OutboxHarness> {
        let database = TestDatabase::create().await?;
        let Ports { store, outboxes } = open(database.url(), &[]).await?;
        Ok(OutboxHarness { store, outboxes, keep: Box::new(database) })
    }

    relais_testkit::outbox_suite!(harness);
}

mod encryption {
    use anyhow::ensure;
    use relais_core::StoreError;
    use relais_testkit::outbox_suite::{outbox, put};
    use sqlx::{Connection as _, PgConnection, SqliteConnection};

    use super::*;

    const OLD: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    const NEW: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

    /// What a dump would show.
    async fn stored(url: &str) -> Result<String> {
        Ok(match url.starts_with("sqlite:") {
            true => {
                let mut connection = SqliteConnection::connect(url).await?;
                sqlx::query_scalar("SELECT secrets FROM outbox_declaration").fetch_one(&mut connection).await?
            }
            false => {
                let mut connection = PgConnection::connect(url).await?;
                sqlx::query_scalar("SELECT secrets FROM relais.outbox_declaration").fetch_one(&mut connection).await?
            }
        })
    }

    #[tokio::test]
    async fn secrets_of_outboxes_are_encrypted_and_keys_can_be_changed() -> Result<()> {
        let (folder, database) = (Arc::new(tempfile::tempdir()?), TestDatabase::create().await?);
        for url in [file(&folder), database.url().to_owned()] {
            let secrets = r#"{"databaseUrl": "postgres://u:hidden@h/db"}"#;
            let declared = outbox("orders", "{}", secrets)?;
            // Without a key it lies there in clear; the first start with one encrypts it.
            let ports = open(&url, &[]).await?;
            ports.store.declare(vec![put(&declared, None)]).await?;
            ensure!(stored(&url).await? == secrets);
            ports.store.close().await;
            let ports = open(&url, &[OLD]).await?;
            let old = stored(&url).await?;
            ensure!(old.starts_with("enc:1:") && !old.contains("hidden"), "{old}");
            ensure!(ports.outboxes.list_outboxes().await? == std::slice::from_ref(&declared));
            ensure!(!format!("{:?}", ports.outboxes.list_outboxes().await?).contains("hidden"), "not in a log either");
            ports.store.close().await;
            // Another first key: written anew, and the old key alone is not enough any more.
            let ports = open(&url, &[NEW, OLD]).await?;
            ensure!(stored(&url).await? != old);
            ports.store.declare(vec![put(&declared, None)]).await?;
            ensure!(ports.outboxes.list_outboxes().await? == std::slice::from_ref(&declared));
            ports.store.close().await;
            for keys in [&[][..], &[OLD]] {
                let refused = open(&url, keys).await.map(drop).expect_err("it lacks the key");
                let refused = refused.downcast::<StoreError>()?;
                ensure!(matches!(refused, StoreError::Encrypted(_)), "{refused:?}");
            }
        }
        Ok(())
    }
}
