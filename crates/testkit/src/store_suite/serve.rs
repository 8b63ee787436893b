//! The store as a whole: tables, clock, chores and close.

use std::time::Duration;

use anyhow::{Result, ensure};
use relais_core::StoreError;

use super::{
    Harness,
    world::{LONG, a_moment, at_once, one_of_each},
};

/// The tables exist and stay as they are.
pub async fn a_second_migration_does_nothing(harness: &Harness) -> Result<()> {
    let (service, _) = one_of_each(harness.store()).await?;
    for handle in &harness.handles {
        ensure!(handle.migrate().await? == 0);
        ensure!(handle.declared().await?.services["resize"].key == service);
    }
    Ok(())
}

/// The clock is that of the database, in UTC, and never goes back.
pub async fn the_database_clock_is_utc_and_never_goes_back(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let ours = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis() as i64;
    let mut last = store.ping().await?;
    ensure!((last.as_millis() - ours).abs() < 60_000, "{last} is not now");
    for _ in 0..20 {
        let now = store.ping().await?;
        ensure!(now >= last, "{now} after {last}");
        last = now;
    }
    ensure!(store.backlog().await?.now >= Some(last));
    Ok(())
}

/// Many processes ask, and one of them gets the chore.
pub async fn a_chore_is_taken_once_per_period_by_one_process(harness: &Harness) -> Result<()> {
    let turns = at_once(harness, 30, |store, _| async move { Ok(store.take_turn("purge", LONG).await?) }).await?;
    ensure!(turns.iter().filter(|&&mine| mine).count() == 1, "{turns:?}");
    let store = harness.store();
    ensure!(store.take_turn("tidy", LONG).await?, "chores are independent");
    a_moment(store).await?;
    ensure!(store.take_turn("purge", Duration::ZERO).await?, "the period is over");
    ensure!(!store.take_turn("purge", LONG).await?);
    Ok(())
}

/// Every call fails at once with `Unavailable`.
pub async fn a_closed_store_is_unavailable(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    store.close().await;
    let answers = [
        store.ping().await.map(drop),
        store.declared().await.map(drop),
        store.submit_many(vec![super::world::new_task(service, client)?]).await.map(drop),
    ];
    for answer in answers {
        ensure!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    }
    Ok(())
}
