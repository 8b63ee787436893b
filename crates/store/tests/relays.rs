//! Declared outboxes, captures and notification sources on both drivers: the conformance suite, and what lies in the database of their secrets.

use std::sync::Arc;

use anyhow::Result;
use relais_core::RelayKind;
use relais_store::{EncryptionKey, Options, Ports};
use relais_testkit::{TestDatabase, relay_suite::RelayHarness};
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

    async fn harness(kind: RelayKind) -> Result<RelayHarness> {
        let folder = tempfile::tempdir()?;
        let Ports { store, relays, .. } = open(&file(&folder), &[]).await?;
        Ok(RelayHarness { kind, store, relays, keep: Box::new(folder) })
    }

    mod outboxes {
        async fn harness() -> anyhow::Result<super::RelayHarness> {
            super::harness(super::RelayKind::Outbox).await
        }

        relais_testkit::relay_suite!(harness);
    }

    mod captures {
        async fn harness() -> anyhow::Result<super::RelayHarness> {
            super::harness(super::RelayKind::Capture).await
        }

        relais_testkit::relay_suite!(harness);
    }

    mod notification_sources {
        async fn harness() -> anyhow::Result<super::RelayHarness> {
            super::harness(super::RelayKind::NotificationSource).await
        }

        relais_testkit::relay_suite!(harness);
    }
}

mod postgres {
    use super::*;

    async fn harness(kind: RelayKind) -> Result<RelayHarness> {
        let database = TestDatabase::create().await?;
        let Ports { store, relays, .. } = open(database.url(), &[]).await?;
        Ok(RelayHarness { kind, store, relays, keep: Box::new(database) })
    }

    mod outboxes {
        async fn harness() -> anyhow::Result<super::RelayHarness> {
            super::harness(super::RelayKind::Outbox).await
        }

        relais_testkit::relay_suite!(harness);
    }

    mod captures {
        async fn harness() -> anyhow::Result<super::RelayHarness> {
            super::harness(super::RelayKind::Capture).await
        }

        relais_testkit::relay_suite!(harness);
    }

    mod notification_sources {
        async fn harness() -> anyhow::Result<super::RelayHarness> {
            super::harness(super::RelayKind::NotificationSource).await
        }

        relais_testkit::relay_suite!(harness);
    }
}

mod encryption {
    use anyhow::ensure;
    use relais_core::StoreError;
    use relais_testkit::relay_suite::{put, relay};
    use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

    use super::*;

    const OLD: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    const NEW: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

    /// What a dump would show.
    async fn stored(url: &str, kind: RelayKind) -> Result<String> {
        let table = format!("{kind}_declaration");
        Ok(match url.starts_with("sqlite:") {
            true => {
                let mut connection = SqliteConnection::connect(url).await?;
                sqlx::query_scalar(AssertSqlSafe(format!("SELECT secrets FROM {table}")))
                    .fetch_one(&mut connection)
                    .await?
            }
            false => {
                let mut connection = PgConnection::connect(url).await?;
                sqlx::query_scalar(AssertSqlSafe(format!("SELECT secrets FROM relais.{table}")))
                    .fetch_one(&mut connection)
                    .await?
            }
        })
    }

    #[tokio::test]
    async fn secrets_of_outboxes_are_encrypted_and_keys_can_be_changed() -> Result<()> {
        are_encrypted(RelayKind::Outbox).await
    }

    #[tokio::test]
    async fn secrets_of_captures_are_encrypted_and_keys_can_be_changed() -> Result<()> {
        are_encrypted(RelayKind::Capture).await
    }

    async fn are_encrypted(kind: RelayKind) -> Result<()> {
        let (folder, database) = (Arc::new(tempfile::tempdir()?), TestDatabase::create().await?);
        for url in [file(&folder), database.url().to_owned()] {
            let secrets = r#"{"databaseUrl": "postgres://u:hidden@h/db"}"#;
            let declared = relay(kind, "orders", "{}", secrets)?;
            // Without a key it lies there in clear; the first start with one encrypts it.
            let ports = open(&url, &[]).await?;
            ports.store.declare(vec![put(&declared, None)]).await?;
            ensure!(stored(&url, kind).await? == secrets);
            ports.store.close().await;
            let ports = open(&url, &[OLD]).await?;
            let old = stored(&url, kind).await?;
            ensure!(old.starts_with("enc:1:") && !old.contains("hidden"), "{old}");
            ensure!(ports.relays.list_relays(kind).await? == std::slice::from_ref(&declared));
            ensure!(!format!("{:?}", ports.relays.list_relays(kind).await?).contains("hidden"), "not in a log either");
            ports.store.close().await;
            // Another first key: written anew, and the old key alone is not enough any more.
            let ports = open(&url, &[NEW, OLD]).await?;
            ensure!(stored(&url, kind).await? != old);
            ports.store.declare(vec![put(&declared, None)]).await?;
            ensure!(ports.relays.list_relays(kind).await? == std::slice::from_ref(&declared));
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
