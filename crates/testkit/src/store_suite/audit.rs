//! The audit log.

use std::time::Duration;

use anyhow::{Result, ensure};
use relais_core::AuditEntry;

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

/// In their order, page by page.
pub async fn what_was_done_is_read_back_newest_first(harness: &Harness) -> Result<()> {
    let store = harness.store();
    ensure!(store.audit_log(None, 10).await?.records.is_empty());
    for i in 0..5 {
        let both = vec![entry("ada", &format!("a{i}")), entry("bob", &format!("b{i}"))];
        store.write_audit(both).await?;
    }
    store.write_audit(Vec::new()).await?;
    let (mut read, mut before) = (Vec::new(), None);
    loop {
        let page = store.audit_log(before, 3).await?;
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

/// And only that.
pub async fn what_was_done_long_ago_is_forgotten(harness: &Harness) -> Result<()> {
    let store = harness.store();
    for _ in 0..3 {
        store.write_audit((0..500).map(|i| entry("ada", &i.to_string())).collect()).await?;
    }
    ensure!(store.forget_audit(Duration::from_secs(3600)).await? == 0);
    super::world::a_moment(store).await?;
    ensure!(store.forget_audit(Duration::ZERO).await? == 1500, "in more batches than one");
    ensure!(store.audit_log(None, 10).await?.records.is_empty());
    Ok(())
}
