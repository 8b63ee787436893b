//! A full disk under SQLite.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use relais_tests::{
    chaos::{Api, Load, LoadOptions, consumer, declare, judge, wait_until_drained},
    instance::Instance,
};
use serde_json::json;
use tempfile::TempDir;

const RECOVERY: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(20);

/// A file system of its own, small and in memory, unmounted at the end.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "relais-test"])
            .arg(folder.path())
            .output()
            .context("run mount")?;
        if !mounted.status.success() {
            bail!(
                "this test needs a small file system to fill, and may not mount one; run it as root: {}",
                String::from_utf8_lossy(&mounted.stderr).trim()
            );
        }
        Ok(Self(folder))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Takes all the room there is left, and says how much that was.
    fn fill(&self) -> Result<u64> {
        let mut filler = File::create(self.file("filler"))?;
        let mut written = 0;
        // Down to the last page, which SQLite would still find.
        for block in [64 * 1024, 4096] {
            while filler.write_all(&vec![0; block]).is_ok() {
                written += block as u64;
            }
        }
        Ok(written)
    }

    fn free(&self) -> Result<()> {
        fs::remove_file(self.file("filler")).context("remove the filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the server may be a moment slower to end than this. What is left over is memory of a test.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_reported_and_no_accepted_task_is_lost() -> Result<()> {
    let disk = SmallDisk::mount("16m")?;
    let server = Instance::start(format!("sqlite:{}", disk.file("relais.db").display())).await?;
    declare(&server.url(), "2s").await?;
    let mut load = Load::start(&[server.url()], LoadOptions::default())?;
    load.ledger().more(100, RECOVERY).await?;
    assert!(disk.fill()? > 0);

    // What SQLite has set aside already may take some more.
    let (consumer, admin) = (consumer(&server.url())?, Api::admin(server.url())?);
    let (begun, mut number) = (Instant::now(), 0);
    let refusal = loop {
        number += 1;
        let mark = format!("padding-{number}");
        let submission = json!({"body": {"padding": "x".repeat(20_000)}, "correlationId": mark});
        let answer = consumer.post("/v1/services/chaos/tasks", &submission).await?;
        if answer.status != 201 {
            break answer;
        }
        load.ledger().accepted(answer.body["data"]["taskId"].as_str().context("a task without a name")?, &mark);
        assert!(begun.elapsed() < RECOVERY, "a full disk takes more and more");
    };
    assert_eq!((refusal.status, refusal.number()), (503, 503_001), "{}", refusal.body);
    // Something smaller may still find a place for a moment.
    let readiness = loop {
        let readiness = admin.get("/readyz").await?;
        if readiness.status != 200 {
            break readiness;
        }
        assert!(begun.elapsed() < RECOVERY, "it says that it is ready, with a full disk");
    };
    assert_eq!((readiness.status, readiness.number()), (503, 503_001), "{}", readiness.body);

    disk.free()?;
    load.ledger().more(100, RECOVERY).await.context("there is room again")?;
    assert_eq!(admin.get("/readyz").await?.status, 200);
    load.stop_consumers().await?;
    wait_until_drained(&server.url(), DRAIN).await?;
    let ledger = load.stop().await?;
    judge(&server.url(), &ledger, 1).await?.report("full disk")
}
