//! The conformance suite of the port `RelayDeclarations`: what every store keeps of declared outboxes, captures and
//! notification sources.
//!
//! A driver's own test builds a [`RelayHarness`] and passes it to [`relay_suite!`](crate::relay_suite), which makes one
//! test of each promise.

use std::{any::Any, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use relais_core::{
    Change, Json, RelayChange, RelayDeclarations, RelayKind, RelayName, RelayRecord, RelayReport, RelaySecrets, Store,
    StoreError,
};

/// A store on an empty database whose tables were made.
pub struct RelayHarness {
    /// Which of them is declared.
    pub kind: RelayKind,
    /// How they are changed: with everything that is declared.
    pub store: Arc<dyn Store>,
    /// How they are read.
    pub relays: Arc<dyn RelayDeclarations>,
    /// Whatever must live as long as the database.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for RelayHarness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayHarness").finish_non_exhaustive()
    }
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<RelayHarness>`.
#[macro_export]
macro_rules! relay_suite {
    ($harness:ident) => {
        $crate::relay_suite! { @tests $harness;
            what_is_declared_is_read_back_in_the_order_of_names,
            a_pause_stays_until_somebody_says_otherwise,
            it_is_declared_with_everything_else_or_not_at_all,
            every_change_has_a_number_of_its_own,
            what_is_deleted_is_gone,
            a_report_replaces_what_the_process_said_before,
            what_was_reported_too_long_ago_is_not_told,
            kinds_are_apart,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::relay_suite::$promise(&$harness().await?).await
        })*
    };
}

/// One that is not paused.
pub fn relay(kind: RelayKind, name: &str, declaration: &str, secrets: &str) -> Result<RelayRecord> {
    Ok(RelayRecord {
        kind,
        name: RelayName::new(name)?,
        declaration: Json::parse(declaration.to_owned())?,
        secrets: RelaySecrets::new(secrets),
        paused: false,
    })
}

/// The change that declares it.
pub fn put(relay: &RelayRecord, paused: Option<bool>) -> Change {
    Change::Relay(RelayChange::Put { relay: Box::new(relay.clone()), paused })
}

/// Texts of any kind come back as they were, and a second declaration replaces the first.
pub async fn what_is_declared_is_read_back_in_the_order_of_names(harness: &RelayHarness) -> Result<()> {
    ensure!(harness.relays.list_relays(harness.kind).await?.is_empty());
    let second = relay(
        harness.kind,
        "b",
        r#"{"table": "é \"x\"", "number": 12345678901234567890123}"#,
        r#"{"databaseUrl": "postgres://u:p@h"}"#,
    )?;
    let first = relay(harness.kind, "B", "{}", "{}")?;
    harness.store.declare(vec![put(&second, None), put(&first, None)]).await?;
    ensure!(harness.relays.list_relays(harness.kind).await? == [first.clone(), second]);
    let changed = relay(harness.kind, "b", r#"{"table": "other"}"#, r#"{"databaseUrl": "sqlite:x"}"#)?;
    harness.store.declare(vec![put(&changed, None)]).await?;
    ensure!(harness.relays.list_relays(harness.kind).await? == [first, changed]);
    Ok(())
}

/// A declaration that says nothing of it leaves a paused one paused.
pub async fn a_pause_stays_until_somebody_says_otherwise(harness: &RelayHarness) -> Result<()> {
    let orders = relay(harness.kind, "orders", "{}", "{}")?;
    let pause = |paused| Change::Relay(RelayChange::Pause { kind: harness.kind, name: orders.name.clone(), paused });
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
        ensure!(harness.relays.list_relays(harness.kind).await?[0].paused == paused, "{said}");
    }
    Ok(())
}

/// A change that is refused takes those before it back.
pub async fn it_is_declared_with_everything_else_or_not_at_all(harness: &RelayHarness) -> Result<()> {
    let unknown =
        Change::Relay(RelayChange::Pause { kind: harness.kind, name: RelayName::new("unknown")?, paused: true });
    let answer = harness.store.declare(vec![put(&relay(harness.kind, "orders", "{}", "{}")?, None), unknown]).await;
    ensure!(matches!(answer, Err(StoreError::Conflict(_))), "{answer:?}");
    ensure!(harness.relays.list_relays(harness.kind).await?.is_empty());
    Ok(())
}

/// Whoever follows what is declared sees that something has changed.
pub async fn every_change_has_a_number_of_its_own(harness: &RelayHarness) -> Result<()> {
    let before = harness.store.declared_version().await?;
    harness.store.declare(vec![put(&relay(harness.kind, "orders", "{}", "{}")?, None)]).await?;
    ensure!(harness.store.declared_version().await? > before);
    Ok(())
}

/// And may be declared anew. To delete what is not there is no error.
pub async fn what_is_deleted_is_gone(harness: &RelayHarness) -> Result<()> {
    let orders = relay(harness.kind, "orders", "{}", "{}")?;
    let delete = || Change::Relay(RelayChange::Delete(harness.kind, orders.name.clone()));
    harness.store.declare(vec![delete(), put(&orders, Some(true)), delete()]).await?;
    ensure!(harness.relays.list_relays(harness.kind).await?.is_empty());
    harness.store.declare(vec![put(&orders, None)]).await?;
    ensure!(harness.relays.list_relays(harness.kind).await? == [orders], "it is as if it had never been");
    Ok(())
}

fn report(name: &str, process: &str, text: &str) -> Result<RelayReport> {
    Ok(RelayReport { name: RelayName::new(name)?, process: process.to_owned(), report: text.to_owned() })
}

/// What other processes said stays.
pub async fn a_report_replaces_what_the_process_said_before(harness: &RelayHarness) -> Result<()> {
    let (hour, relays) = (Duration::from_secs(3600), &harness.relays);
    let tell = async |process: &str, reports| relays.report_relays(harness.kind, process.to_owned(), reports).await;
    tell("two", vec![report("a", "two", "{}")?]).await?;
    tell("one", vec![report("a", "one", "first")?, report("b", "one", "{}")?]).await?;
    let told = relays.list_reports(harness.kind, hour).await?;
    ensure!(told == [report("a", "one", "first")?, report("a", "two", "{}")?, report("b", "one", "{}")?], "{told:?}");
    tell("one", vec![report("a", "one", "second")?]).await?;
    let told = relays.list_reports(harness.kind, hour).await?;
    ensure!(told == [report("a", "one", "second")?, report("a", "two", "{}")?], "{told:?}");
    tell("one", Vec::new()).await?;
    ensure!(relays.list_reports(harness.kind, hour).await? == [report("a", "two", "{}")?]);
    Ok(())
}

/// A process that is gone is forgotten.
pub async fn what_was_reported_too_long_ago_is_not_told(harness: &RelayHarness) -> Result<()> {
    let (minute, relays) = (Duration::from_secs(60), &harness.relays);
    relays.report_relays(harness.kind, "one".to_owned(), vec![report("a", "one", "{}")?]).await?;
    harness.store.advance(2 * minute).await?;
    ensure!(relays.list_reports(harness.kind, minute).await?.is_empty());
    ensure!(relays.list_reports(harness.kind, 3 * minute).await?.len() == 1);
    harness.store.advance(120 * minute).await?;
    relays.report_relays(harness.kind, "two".to_owned(), Vec::new()).await?;
    ensure!(
        relays.list_reports(harness.kind, 1000 * minute).await?.is_empty(),
        "another process removes it in the end"
    );
    Ok(())
}

/// Also where they have the same name.
pub async fn kinds_are_apart(harness: &RelayHarness) -> Result<()> {
    let other = RelayKind::ALL.into_iter().find(|kind| *kind != harness.kind).unwrap_or(harness.kind);
    let (one, two) = (relay(harness.kind, "orders", "{}", "{}")?, relay(other, "orders", r#"{"a": 1}"#, "{}")?);
    harness.store.declare(vec![put(&one, None), put(&two, None)]).await?;
    harness.relays.report_relays(other, "one".to_owned(), vec![report("orders", "one", "{}")?]).await?;
    ensure!(harness.relays.list_relays(harness.kind).await? == [one]);
    ensure!(harness.relays.list_reports(harness.kind, Duration::from_secs(60)).await?.is_empty());
    harness.store.declare(vec![Change::Relay(RelayChange::Delete(harness.kind, two.name.clone()))]).await?;
    ensure!(harness.relays.list_relays(other).await? == [two]);
    Ok(())
}
