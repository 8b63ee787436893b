//! The audit log, the sessions of operators, and the worker registry.

use std::time::Duration;

use anyhow::{Result, ensure};
use relais_core::{AuditEntry, AuditOutcome, SessionsOf};

use super::Harness;

fn entry(actor: &str, action: &str) -> AuditEntry {
    AuditEntry {
        actor: actor.to_owned(),
        via: "api".to_owned(),
        action: action.to_owned(),
        target: "resize\0".to_owned(),
        detail: (actor == "ada").then(|| "because".to_owned()),
        error: (actor == "bob").then(|| "no".to_owned()),
    }
}

/// Records are listed in order, page by page.
pub async fn the_audit_log_is_read_newest_first(harness: &Harness) -> Result<()> {
    let store = harness.store();
    ensure!(store.list_audit(None, 10).await?.records.is_empty());
    for i in 0..5 {
        let both = vec![entry("ada", &format!("a{i}")), entry("bob", &format!("b{i}"))];
        store.write_audit(both).await?;
    }
    store.write_audit(Vec::new()).await?;
    let (mut read, mut before) = (Vec::new(), None);
    loop {
        let page = store.list_audit(before, 3).await?;
        ensure!(page.records.len() <= 3);
        read.extend(page.records);
        before = page.next_before;
        if before.is_none() {
            break;
        }
    }
    let actions: Vec<&str> = read.iter().map(|record| record.entry.action.as_str()).collect();
    ensure!(actions == ["b4", "a4", "b3", "a3", "b2", "a2", "b1", "a1", "b0", "a0"], "{actions:?}");
    ensure!(read[0].entry == entry("bob", "b4").tidied() && read[1].entry == entry("ada", "a4").tidied());
    ensure!(read.is_sorted_by(|a, b| a.id > b.id && a.at >= b.at));
    Ok(())
}

/// The record exists before the action, and gets its result afterwards.
pub async fn the_audit_record_is_written_before_the_action(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let unknown = store.begin_audit(entry("cyd", "c0")).await?;
    let done = store.begin_audit(entry("ada", "a0")).await?;
    let failed = store.begin_audit(entry("cyd", "c1")).await?;
    let nothing = store.begin_audit(entry("cyd", "c2")).await?;
    ensure!(store.list_audit(None, 10).await?.records.iter().all(|record| record.open));
    let outcome = AuditOutcome { target: Some("both".to_owned()), detail: Some("2\0".to_owned()), error: None };
    store.complete_audit(done, Some(outcome.clone())).await?;
    store
        .complete_audit(failed, Some(AuditOutcome { error: Some("no".to_owned()), ..AuditOutcome::default() }))
        .await?;
    store.complete_audit(nothing, None).await?;
    // A record that has its result does not change.
    store.complete_audit(done, None).await?;
    let log = store.list_audit(None, 10).await?.records;
    ensure!(log.iter().map(|record| record.id).collect::<Vec<_>>() == [failed, done, unknown], "{log:?}");
    ensure!(!log[0].open && log[0].entry.error.as_deref() == Some("no") && log[0].entry.target == "resize\u{fffd}");
    let outcome = outcome.tidied();
    ensure!(!log[1].open && log[1].entry.target == "both" && log[1].entry.detail == outcome.detail);
    ensure!(log[2].open && log[2].entry == entry("cyd", "c0").tidied(), "nobody knows what came of it");
    Ok(())
}

/// A session ends when it is closed or when it expires.
pub async fn a_session_is_open_until_it_ends_or_expires(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let open = async |id: &str| store.session_is_open(id.to_owned()).await;
    let hour = Duration::from_secs(3600);
    for (id, operator) in [("a1", "ada"), ("a2", "ada"), ("a3", "ada"), ("b1", "bob")] {
        store.open_session(id.to_owned(), operator.to_owned(), hour).await?;
    }
    ensure!(open("a1").await? && open("b1").await? && !open("a").await? && !open("").await?);
    ensure!(store.end_sessions(SessionsOf::Browser("a1".to_owned())).await? == 1);
    ensure!(store.end_sessions(SessionsOf::Browser("a1".to_owned())).await? == 0, "it has ended");
    ensure!(!open("a1").await? && open("a2").await?, "that one alone");
    ensure!(store.end_sessions(SessionsOf::Operator("ada".to_owned())).await? == 2);
    ensure!(!open("a2").await? && !open("a3").await? && open("b1").await?, "all of hers");
    store.open_session("short".to_owned(), "bob".to_owned(), Duration::ZERO).await?;
    super::world::a_moment(store).await?;
    ensure!(!open("short").await?, "its time is over");
    store.open_session("next".to_owned(), "bob".to_owned(), Duration::from_secs(u64::MAX / 2000)).await?;
    ensure!(open("next").await?);
    ensure!(store.end_sessions(SessionsOf::Operator("bob".to_owned())).await? == 2, "what has expired is forgotten");
    Ok(())
}

/// Each process reads what the others wrote, until that is too old.
pub async fn processes_share_their_worker_registries(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let minute = Duration::from_secs(60);
    let told = async |but: &str, within| -> Result<Vec<String>> {
        let mut told: Vec<String> =
            store.list_published_workers(but.to_owned(), within).await?.into_iter().map(|(text, _)| text).collect();
        told.sort();
        Ok(told)
    };
    ensure!(told("p1", minute).await?.is_empty());
    for (process, workers) in [("p1", "a"), ("p2", "b"), ("p3", "c"), ("p2", "d")] {
        store.publish_workers(process.to_owned(), Some(workers.to_owned())).await?;
    }
    ensure!(told("p1", minute).await? == ["c", "d"], "the others, and what they said last");
    ensure!(told("", minute).await? == ["a", "c", "d"]);
    ensure!(store.list_published_workers(String::new(), minute).await?.iter().all(|(_, ago)| *ago < minute));
    store.publish_workers("p3".to_owned(), None).await?;
    store.publish_workers("p9".to_owned(), None).await?;
    ensure!(told("p1", minute).await? == ["d"], "one that knows of none is not heard");
    super::world::a_moment(store).await?;
    ensure!(told("p1", Duration::ZERO).await?.is_empty(), "nor what is old");
    Ok(())
}

/// A purge of the audit log keeps recent records.
pub async fn old_audit_records_are_purged(harness: &Harness) -> Result<()> {
    let store = harness.store();
    for _ in 0..3 {
        store.write_audit((0..500).map(|i| entry("ada", &i.to_string())).collect()).await?;
    }
    ensure!(store.purge_audit(Duration::from_secs(3600)).await? == 0);
    super::world::a_moment(store).await?;
    ensure!(store.purge_audit(Duration::ZERO).await? == 1500, "in more batches than one");
    ensure!(store.list_audit(None, 10).await?.records.is_empty());
    Ok(())
}
