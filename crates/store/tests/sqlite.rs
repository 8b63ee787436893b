//! The Store conformance suite on SQLite.

use anyhow::Result;
use relais_store::Options;
use relais_testkit::store_suite::{Harness, StoreFeatures};

async fn harness() -> Result<Harness> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("relais.db").display());
    let store = relais_store::open(&url, &Options::default()).await?;
    store.migrate().await?;
    Ok(Harness { features: StoreFeatures { many_processes: false }, handles: vec![store], keep: Box::new(folder) })
}

relais_testkit::store_suite!(harness);
