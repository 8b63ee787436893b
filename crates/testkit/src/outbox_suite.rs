//! The conformance suite of the port `OutboxDeclarations`: what every store keeps of declared outboxes.
//!
//! A driver's own test builds an [`OutboxHarness`] and passes it to [`outbox_suite!`](crate::outbox_suite), which makes one
//! test of each promise.

use std::{any::Any, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use relais_core::{
    Change, Json, OutboxChange, OutboxDeclarations, OutboxName, OutboxRecord, OutboxSecrets, RelayReport, Store,
    StoreError,
};

/// A store on an empty database whose tables were made.
pub struct OutboxHarness {
    /// How outboxes are changed: with everything that is declared.
    pub store: Arc<dyn Store>,
    /// How they are read.
    pub outboxes: Arc<dyn OutboxDeclarations>,
    /// Whatever must live as long as the database.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for OutboxHarness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxHarness").finish_non_exhaustive()
    }
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<OutboxHarness>`.
#[macro_export]
macro_rules! outbox_suite {
    ($harness:ident) => {
        $crate::outbox_suite! { @tests $harness;
            what_is_declared_is_read_back_in_the_order_of_names,
            a_pause_stays_until_somebody_says_otherwise,
            an_outbox_is_declared_with_everything_else_or_not_at_all,
            every_change_has_a_number_of_its_own,
            a_deleted_outbox_is_gone,
            a_report_replaces_what_the_process_said_before,
            what_was_reported_too_long_ago_is_not_told,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::outbox_suite::$promise(&$harness().await?).await
        })*
    };
}

/// An outbox that is not paused.
pub fn outbox(name: &str, declaration: &str, secrets: &str) -> Result<OutboxRecord> {
    Ok(OutboxRecord {
        name: OutboxName::new(name)?,
        declaration: Json::parse(declaration.to_owned())?,
        secrets: OutboxSecrets::new(secrets),
        paused: false,
    })
}

/// The change that declares it.
pub fn put(outbox: &OutboxRecord, paused: Option<bool>) -> Change {
    Change::Outbox(OutboxChange::Put { outbox: Box::new(outbox.clone()), paused })
}

/// Texts of any kind come back as they were, and a second declaration replaces the first.
pub async fn what_is_declared_is_read_back_in_the_order_of_names(harness: &OutboxHarness) -> Result<()> {
    ensure!(harness.outboxes.list_outboxes().await?.is_empty());
    let second = outbox(
        "b",
        r#"{"table": "é \"x\"", "number": 12345678901234567890123}"#,
        r#"{"databaseUrl": "postgres://u:p@h"}"#,
    )?;
    let first = outbox("B", "{}", "{}")?;
    harness.store.declare(vec![put(&second, None), put(&first, None)]).await?;
    ensure!(harness.outboxes.list_outboxes().await? == [first.clone(), second]);
    let changed = outbox("b", r#"{"table": "other"}"#, r#"{"databaseUrl": "sqlite:x"}"#)?;
    harness.store.declare(vec![put(&changed, None)]).await?;
    ensure!(harness.outboxes.list_outboxes().await? == [first, changed]);
    Ok(())
}

/// A declaration that says nothing of it leaves a paused outbox paused.
pub async fn a_pause_stays_until_somebody_says_otherwise(harness: &OutboxHarness) -> Result<()> {
    let orders = outbox("orders", "{}", "{}")?;
    let pause = |paused| Change::Outbox(OutboxChange::Pause { name: orders.name.clone(), paused });
    for (change, paused) in [
        (put(&orders, None), false),
        (pause(true), true),
        (put(&orders, None), true),
        (put(&orders, Some(false)), false),
        (put(&orders, Some(true)), true),
        (pause(false), false),
    ] {
        let said = format!("{change:?}");
        harness.store.declare(vec![change]).await?;
        ensure!(harness.outboxes.list_outboxes().await?[0].paused == paused, "{said}");
    }
    Ok(())
}

/// A change that is refused takes those before it back.
pub async fn an_outbox_is_declared_with_everything_else_or_not_at_all(harness: &OutboxHarness) -> Result<()> {
    let unknown = Change::Outbox(OutboxChange::Pause { name: OutboxName::new("unknown")?, paused: true });
    let answer = harness.store.declare(vec![put(&outbox("orders", "{}", "{}")?, None), unknown]).await;
    ensure!(matches!(answer, Err(StoreError::Conflict(_))), "{answer:?}");
    ensure!(harness.outboxes.list_outboxes().await?.is_empty());
    Ok(())
}

/// Whoever follows what is declared sees that something has changed.
pub async fn every_change_has_a_number_of_its_own(harness: &OutboxHarness) -> Result<()> {
    let before = harness.store.declared_version().await?;
    harness.store.declare(vec![put(&outbox("orders", "{}", "{}")?, None)]).await?;
    ensure!(harness.store.declared_version().await? > before);
    Ok(())
}

/// And may be declared anew. To delete what is not there is no error.
pub async fn a_deleted_outbox_is_gone(harness: &OutboxHarness) -> Result<()> {
    let orders = outbox("orders", "{}", "{}")?;
    let delete = || Change::Outbox(OutboxChange::Delete(orders.name.clone()));
    harness.store.declare(vec![delete(), put(&orders, Some(true)), delete()]).await?;
    ensure!(harness.outboxes.list_outboxes().await?.is_empty());
    harness.store.declare(vec![put(&orders, None)]).await?;
    ensure!(harness.outboxes.list_outboxes().await? == [orders], "it is as if it had never been");
    Ok(())
}

fn report(outbox: &str, process: &str, text: &str) -> Result<RelayReport> {
    Ok(RelayReport { outbox: OutboxName::new(outbox)?, process: process.to_owned(), report: text.to_owned() })
}

/// What other processes said stays.
pub async fn a_report_replaces_what_the_process_said_before(harness: &OutboxHarness) -> Result<()> {
    let (hour, outboxes) = (Duration::from_secs(3600), &harness.outboxes);
    let tell = async |process: &str, reports| outboxes.report_relays(process.to_owned(), reports).await;
    tell("two", vec![report("a", "two", "{}")?]).await?;
    tell("one", vec![report("a", "one", "first")?, report("b", "one", "{}")?]).await?;
    let told = outboxes.list_relays(hour).await?;
    ensure!(told == [report("a", "one", "first")?, report("a", "two", "{}")?, report("b", "one", "{}")?], "{told:?}");
    tell("one", vec![report("a", "one", "second")?]).await?;
    let told = outboxes.list_relays(hour).await?;
    ensure!(told == [report("a", "one", "second")?, report("a", "two", "{}")?], "{told:?}");
    tell("one", Vec::new()).await?;
    ensure!(outboxes.list_relays(hour).await? == [report("a", "two", "{}")?]);
    Ok(())
}

/// A process that is gone is forgotten.
pub async fn what_was_reported_too_long_ago_is_not_told(harness: &OutboxHarness) -> Result<()> {
    let (minute, outboxes) = (Duration::from_secs(60), &harness.outboxes);
    outboxes.report_relays("one".to_owned(), vec![report("a", "one", "{}")?]).await?;
    harness.store.advance(2 * minute).await?;
    ensure!(outboxes.list_relays(minute).await?.is_empty());
    ensure!(outboxes.list_relays(3 * minute).await?.len() == 1);
    harness.store.advance(120 * minute).await?;
    outboxes.report_relays("two".to_owned(), Vec::new()).await?;
    ensure!(outboxes.list_relays(1000 * minute).await?.is_empty(), "another process removes it in the end");
    Ok(())
}
