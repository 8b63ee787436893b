//! The Store conformance suite on PostgreSQL, with two handles on each database as two processes would have.

use anyhow::Result;
use relais_store::Options;
use relais_testkit::{
    TestDatabase,
    store_suite::{Harness, StoreFeatures},
};

async fn harness() -> Result<Harness> {
    let database = TestDatabase::create().await?;
    let options = Options { max_connections: 6, ..Options::default() };
    let mut handles = Vec::new();
    for _ in 0..2 {
        let store = relais_store::open(database.url(), &options).await?;
        store.migrate().await?;
        handles.push(store);
    }
    Ok(Harness { features: StoreFeatures { many_processes: true }, handles, keep: Box::new(database) })
}

relais_testkit::store_suite!(harness);
