//! Pushes on both drivers: the conformance suite.

use anyhow::Result;
use relais_store::{Options, Ports};
use relais_testkit::{TestDatabase, push_suite::PushHarness};

async fn open(url: &str) -> Result<Ports> {
    let ports = relais_store::open_ports(url, &Options::default()).await?;
    ports.store.migrate().await?;
    Ok(ports)
}

mod sqlite {
    use super::*;

    async fn harness() -> Result<PushHarness> {
        let folder = tempfile::tempdir()?;
        let ports = open(&format!("sqlite:{}", folder.path().join("relais.db").display())).await?;
        Ok(PushHarness { store: ports.pushes, keep: Box::new(folder) })
    }

    relais_testkit::push_suite!(harness);
}

mod postgres {
    use super::*;

    async fn harness() -> Result<PushHarness> {
        let database = TestDatabase::create().await?;
        let ports = open(database.url()).await?;
        Ok(PushHarness { store: ports.pushes, keep: Box::new(database) })
    }

    relais_testkit::push_suite!(harness);
}
