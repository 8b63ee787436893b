//! The conformance suite of the port `AudienceDeclarations`: what every store keeps of declared audiences.
//!
//! A driver's own test builds an [`AudienceHarness`] and passes it to [`audience_suite!`](crate::audience_suite), which makes
//! one test of each promise.

use std::{any::Any, sync::Arc};

use anyhow::{Result, ensure};
use relais_core::{
    AudienceChange, AudienceDeclarations, AudienceRecord, Change, DeclaredAudience, DeclaredMember, RelayChange,
    RelayKind, RelayName, Store,
};

/// A store on an empty database whose tables were made.
pub struct AudienceHarness {
    /// How they are changed: with everything that is declared.
    pub store: Arc<dyn Store>,
    /// How they are read.
    pub audiences: Arc<dyn AudienceDeclarations>,
    /// Whatever must live as long as the database.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for AudienceHarness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AudienceHarness").finish_non_exhaustive()
    }
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<AudienceHarness>`.
#[macro_export]
macro_rules! audience_suite {
    ($harness:ident) => {
        $crate::audience_suite! { @tests $harness;
            audiences_are_read_back_in_the_order_of_their_names,
            an_audience_that_is_declared_again_has_the_new_members,
            a_target_that_is_deleted_is_gone_until_it_is_forgotten,
            a_type_that_is_deleted_leaves_nothing,
            an_audience_is_declared_with_everything_else_or_not_at_all,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::audience_suite::$promise(&$harness().await?).await
        })*
    };
}

fn audience(kind: &str, target: Option<&str>) -> DeclaredAudience {
    DeclaredAudience { kind: kind.to_owned(), target: target.map(str::to_owned) }
}

fn record(audience: &DeclaredAudience, members: &[&str]) -> AudienceRecord {
    let member = |target: &&str| DeclaredMember { kind: "USER".to_owned(), target: (*target).to_owned() };
    AudienceRecord { audience: audience.clone(), members: members.iter().map(member).collect(), gone: false }
}

fn put(record: &AudienceRecord) -> Change {
    Change::Audience(AudienceChange::Put { audience: record.audience.clone(), members: record.members.clone() })
}

fn delete(audience: &DeclaredAudience) -> Change {
    Change::Audience(AudienceChange::Delete(audience.clone()))
}

/// Names of any kind come back as they were; a type comes before its targets.
pub async fn audiences_are_read_back_in_the_order_of_their_names(harness: &AudienceHarness) -> Result<()> {
    ensure!(harness.audiences.list_audiences().await?.is_empty());
    let records = [
        record(&audience("COURSE", None), &[]),
        record(&audience("COURSE", Some("é \"x\" '; --")), &["ann", "bob"]),
        record(&audience("GROUP", Some("B")), &[]),
        record(&audience("GROUP", Some("a")), &["ann"]),
    ];
    harness.store.declare(records.iter().rev().map(put).collect()).await?;
    ensure!(harness.audiences.list_audiences().await? == records);
    Ok(())
}

/// The last declaration counts; what it does not name stays.
pub async fn an_audience_that_is_declared_again_has_the_new_members(harness: &AudienceHarness) -> Result<()> {
    let (one, two) = (audience("GROUP", Some("a")), record(&audience("GROUP", Some("b")), &["eve"]));
    harness.store.declare(vec![put(&record(&one, &["ann"])), put(&two)]).await?;
    let changed = record(&one, &["bob", "cem"]);
    harness.store.declare(vec![put(&changed)]).await?;
    ensure!(harness.audiences.list_audiences().await? == [changed, two]);
    Ok(())
}

/// Its members have still to be removed by somebody who knows where they are. One that is declared again meanwhile stays.
pub async fn a_target_that_is_deleted_is_gone_until_it_is_forgotten(harness: &AudienceHarness) -> Result<()> {
    let (one, two) = (audience("GROUP", Some("a")), audience("GROUP", Some("b")));
    harness.store.declare(vec![put(&record(&one, &["ann"])), put(&record(&two, &["bob"]))]).await?;
    harness.store.declare(vec![delete(&one)]).await?;
    let gone = AudienceRecord { gone: true, ..record(&one, &[]) };
    ensure!(harness.audiences.list_audiences().await? == [gone, record(&two, &["bob"])]);
    harness.store.declare(vec![put(&record(&one, &["cem"]))]).await?;
    harness.audiences.forget_audience(&one).await?;
    ensure!(harness.audiences.list_audiences().await?.len() == 2, "what is declared is not forgotten");
    harness.store.declare(vec![delete(&one)]).await?;
    harness.audiences.forget_audience(&one).await?;
    ensure!(harness.audiences.list_audiences().await? == [record(&two, &["bob"])]);
    Ok(())
}

/// There is nothing to be removed with it. Its targets stay.
pub async fn a_type_that_is_deleted_leaves_nothing(harness: &AudienceHarness) -> Result<()> {
    let (kind, target) = (audience("COURSE", None), record(&audience("COURSE", Some("maths")), &[]));
    harness.store.declare(vec![put(&record(&kind, &[])), put(&target)]).await?;
    harness.store.declare(vec![delete(&kind)]).await?;
    ensure!(harness.audiences.list_audiences().await? == [target]);
    Ok(())
}

/// One transaction, and one number for it.
pub async fn an_audience_is_declared_with_everything_else_or_not_at_all(harness: &AudienceHarness) -> Result<()> {
    let nobody = RelayChange::Pause { kind: RelayKind::Outbox, name: RelayName::new("nobody")?, paused: true };
    let version = harness.store.declared_version().await?;
    let refused = harness.store.declare(vec![put(&record(&audience("GROUP", Some("a")), &[])), Change::Relay(nobody)]);
    ensure!(refused.await.is_err());
    ensure!(harness.audiences.list_audiences().await?.is_empty());
    harness.store.declare(vec![put(&record(&audience("GROUP", Some("a")), &[]))]).await?;
    ensure!(harness.store.declared_version().await? == version + 1);
    Ok(())
}
