//! Declared audiences on both drivers: the conformance suite.

use anyhow::Result;
use relais_store::{Options, Ports};
use relais_testkit::{TestDatabase, audience_suite::AudienceHarness};

async fn harness_on(url: &str, keep: Box<dyn std::any::Any + Send + Sync>) -> Result<AudienceHarness> {
    let Ports { store, audiences, .. } = relais_store::open_ports(url, &Options::default()).await?;
    store.migrate().await?;
    Ok(AudienceHarness { store, audiences, keep })
}

mod sqlite {
    async fn harness() -> anyhow::Result<super::AudienceHarness> {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("relais.db").display());
        super::harness_on(&url, Box::new(folder)).await
    }

    relais_testkit::audience_suite!(harness);
}

mod postgres {
    async fn harness() -> anyhow::Result<super::AudienceHarness> {
        let database = super::TestDatabase::create().await?;
        let url = database.url().to_owned();
        super::harness_on(&url, Box::new(database)).await
    }

    relais_testkit::audience_suite!(harness);
}
