//! Notifications on both drivers: the conformance suite.

use anyhow::Result;
use relais_store::{Options, Ports};
use relais_testkit::{TestDatabase, notification_suite::NotificationHarness};

async fn open(url: &str) -> Result<Ports> {
    let ports = relais_store::open_ports(url, &Options::default()).await?;
    ports.store.migrate().await?;
    Ok(ports)
}

mod sqlite {
    use super::*;

    async fn harness() -> Result<NotificationHarness> {
        let folder = tempfile::tempdir()?;
        let ports = open(&format!("sqlite:{}", folder.path().join("relais.db").display())).await?;
        Ok(NotificationHarness { store: ports.notifications, keep: Box::new(folder) })
    }

    relais_testkit::notification_suite!(harness);
}

mod postgres {
    use super::*;

    async fn harness() -> Result<NotificationHarness> {
        let database = TestDatabase::create().await?;
        let ports = open(database.url()).await?;
        Ok(NotificationHarness { store: ports.notifications, keep: Box::new(database) })
    }

    relais_testkit::notification_suite!(harness);
}
