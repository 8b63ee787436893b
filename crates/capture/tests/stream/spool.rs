//! Transactions that come while they are open, and wait in a spool for their commit.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use relais_capture::{
    CaptureError, Change, ChangeStream, Spool, SpoolOptions, StreamEvent, StreamOptions, StreamPosition,
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::{DEADLINE, World, changes, show, until_nobody_reads};

/// More than the server keeps in memory.
const LARGE: i32 = 3000;

struct SpoolWorld {
    world: World,
    directory: TempDir,
    spool: Spool,
}

impl SpoolWorld {
    async fn new() -> Result<Self> {
        Self::with_limit(1 << 30).await
    }

    async fn with_limit(limit: u64) -> Result<Self> {
        let (world, directory) = (World::with_little_memory().await?, tempfile::tempdir()?);
        let spool = open(directory.path(), limit).await?;
        Ok(Self { world, directory, spool })
    }

    fn options(&self) -> StreamOptions {
        StreamOptions { spool: Some(self.spool.clone()), ..self.world.options() }
    }

    async fn stream(&self) -> Result<ChangeStream> {
        self.world.stream(self.options()).await
    }

    async fn connect(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(self.world.database.url()).await?)
    }

    /// Waits until so much is on disk.
    async fn until_used(&self, wanted: impl Fn(u64) -> bool) -> Result<()> {
        let waiting = async {
            while !wanted(self.spool.used()) {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, waiting).await.with_context(|| format!("{} bytes are on disk", self.spool.used()))
    }

    async fn until_empty(&self) -> Result<()> {
        let waiting = async {
            while !folders(self.directory.path())?.is_empty() {
                tokio::task::yield_now().await;
            }
            anyhow::Ok(())
        };
        timeout(DEADLINE, waiting).await.context("the folder is removed")??;
        ensure!(self.spool.used() == 0, "{} bytes are still counted", self.spool.used());
        Ok(())
    }

    async fn end(self, mut stream: ChangeStream) -> Result<()> {
        stream.stop().await;
        self.until_empty().await?;
        self.world.end().await
    }
}

async fn open(directory: &Path, limit: u64) -> Result<Spool> {
    Ok(Spool::open(SpoolOptions { directory: directory.to_owned(), limit }).await?)
}

/// The folders of streams.
fn folders(directory: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries = std::fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}

async fn run(connection: &mut PgConnection, sql: impl Into<String>) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(connection).await?;
    Ok(())
}

/// Inserts rows with numbers from `first` on.
fn rows(first: i32, number: i32) -> String {
    let last = first + number - 1;
    format!("INSERT INTO orders SELECT n, 'row', repeat('x', 100) FROM generate_series({first}, {last}) n;")
}

/// The number of an inserted row.
fn id(change: &Change) -> i32 {
    let shown = show(change);
    shown.strip_prefix("c ").and_then(|row| row.split(',').next()?.parse().ok()).unwrap_or(-1)
}

fn ids(changes: &[Change]) -> Vec<i32> {
    changes.iter().map(id).collect()
}

/// Reads until the stream fails.
async fn failure(stream: &mut ChangeStream) -> Result<CaptureError> {
    let failing = async {
        loop {
            if let Err(error) = stream.next().await {
                return error;
            }
        }
    };
    timeout(DEADLINE, failing).await.context("the stream fails")
}

#[tokio::test]
async fn nothing_of_an_open_transaction_is_given_before_its_commit() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let (mut stream, mut large) = (spool.stream().await?, spool.connect().await?);
    run(&mut large, format!("BEGIN; {}", rows(1, LARGE))).await?;
    spool.until_used(|used| used > 0).await?;
    spool.world.execute("INSERT INTO orders VALUES (100001, 'small', NULL)").await?;
    let (found, confirm) = changes(&mut stream, 1).await?;
    assert_eq!(ids(&found), [100_001]);
    stream.confirm(confirm.unwrap_or_default());
    run(&mut large, "COMMIT").await?;
    spool.world.execute("INSERT INTO orders VALUES (100002, 'small', NULL)").await?;
    let (found, _) = changes(&mut stream, usize::try_from(LARGE)? + 1).await?;
    assert_eq!(ids(&found), (1..=LARGE).chain([100_002]).collect::<Vec<_>>());
    let (first, last) = (&found[0], &found[found.len() - 2]);
    assert_eq!((first.position.ordinal, last.position.ordinal), (1, u64::try_from(LARGE)?));
    assert!(Arc::ptr_eq(&first.transaction, &last.transaction) && found.is_sorted_by(|a, b| a.position < b.position));
    spool.until_used(|used| used == 0).await?;
    spool.end(stream).await
}

#[tokio::test]
async fn open_transactions_of_which_parts_come_in_turns_are_given_in_the_order_of_commits() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let mut stream = spool.stream().await?;
    let (mut one, mut two, mut three) = (spool.connect().await?, spool.connect().await?, spool.connect().await?);
    for connection in [&mut one, &mut two, &mut three] {
        run(connection, "BEGIN").await?;
    }
    for part in 0..4 {
        run(&mut one, rows(part * 1000, 1000)).await?;
        run(&mut two, rows(10_000 + part * 1000, 1000)).await?;
        run(&mut three, rows(20_000 + part * 1000, 1000)).await?;
        spool.world.execute(&rows(30_000 + part, 1)).await?;
    }
    run(&mut two, "COMMIT").await?;
    run(&mut three, "ROLLBACK").await?;
    run(&mut one, "COMMIT").await?;
    let (found, _) = changes(&mut stream, 8004).await?;
    let expected: Vec<i32> = (30_000..30_004).chain(10_000..14_000).chain(0..4000).collect();
    assert_eq!(ids(&found), expected);
    spool.until_used(|used| used == 0).await?;
    spool.end(stream).await
}

#[tokio::test]
async fn what_was_rolled_back_is_left_out_also_a_part_within_a_part() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let (mut stream, mut large) = (spool.stream().await?, spool.connect().await?);
    run(&mut large, format!("BEGIN; {} ROLLBACK", rows(1, LARGE))).await?;
    run(&mut large, format!("BEGIN; {} SAVEPOINT a; {}", rows(1, 1000), rows(2001, 1000))).await?;
    run(&mut large, format!("SAVEPOINT b; {} ROLLBACK TO b; {}", rows(3001, 1000), rows(4001, 1000))).await?;
    run(&mut large, format!("SAVEPOINT c; {} RELEASE c; ROLLBACK TO a; {}", rows(5001, 1000), rows(6001, 1000)))
        .await?;
    run(&mut large, format!("SAVEPOINT d; SAVEPOINT e; {} RELEASE e; {}", rows(7001, 10), rows(7011, 1000))).await?;
    run(&mut large, format!("RELEASE d; {} COMMIT", rows(8011, 10))).await?;
    let (found, _) = changes(&mut stream, 3020).await?;
    let expected: Vec<i32> = (1..=1000).chain(6001..=7000).chain(7001..=8020).collect();
    assert_eq!(ids(&found), expected);
    assert_eq!(found.last().map(|change| change.position.ordinal), Some(3020));
    // The last that was kept may be rolled back too.
    let lost = format!("SAVEPOINT a; {} ROLLBACK TO a;", rows(40_001, 10));
    run(&mut large, format!("BEGIN; {} {lost} COMMIT", rows(30_001, LARGE))).await?;
    spool.world.execute(&rows(50_001, 1)).await?;
    let (found, _) = changes(&mut stream, usize::try_from(LARGE)? + 1).await?;
    assert_eq!(ids(&found), (30_001..=30_000 + LARGE).chain([50_001]).collect::<Vec<_>>());
    spool.end(stream).await
}

#[tokio::test]
async fn a_position_can_be_used_with_a_spool_and_without_one() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let mut large = spool.connect().await?;
    let lost = format!("SAVEPOINT a; {} ROLLBACK TO a;", rows(50_001, 1000));
    run(&mut large, format!("BEGIN; {} {lost} {} COMMIT", rows(1, 2000), rows(2001, 2000))).await?;
    spool.world.execute(&rows(100_001, 1)).await?;
    let mut resume: Option<StreamPosition> = None;
    for (turn, until) in [700, 1900, 2500, 3999, 4001].into_iter().enumerate() {
        let with = StreamOptions { batch_rows: 50, resume, ..spool.options() };
        let options = StreamOptions { spool: with.spool.clone().filter(|_| turn % 2 == 0), ..with };
        let mut stream = spool.world.stream(options).await?;
        let first = resume.map_or(0, |resume| usize::try_from(resume.ordinal).unwrap_or_default());
        let (found, _) = changes(&mut stream, until - first).await?;
        let expected: Vec<i32> = (1..=4000).chain([100_001]).skip(first).take(found.len()).collect();
        assert_eq!(ids(&found), expected, "turn {turn}");
        resume = found.get(until - first - 1).map(|change| change.position);
        // As a crash would end it.
        drop(stream);
        until_nobody_reads(&spool.world).await?;
    }
    spool.until_empty().await?;
    spool.world.end().await
}

#[tokio::test]
async fn columns_that_change_within_an_open_transaction_are_told_once_it_is_committed() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let (mut stream, mut large) = (spool.stream().await?, spool.connect().await?);
    // Rolled back, as a whole and in part: nobody ever sees these columns.
    run(&mut large, format!("BEGIN; ALTER TABLE orders ADD never integer; {} ROLLBACK", rows(1, LARGE))).await?;
    spool.world.execute(&rows(10_001, 1)).await?;
    run(&mut large, format!("BEGIN; {} SAVEPOINT a; ALTER TABLE orders DROP note;", rows(1, LARGE))).await?;
    run(&mut large, "INSERT INTO orders SELECT n, 'short' FROM generate_series(20001, 23000) n; ROLLBACK TO a").await?;
    run(&mut large, format!("{} ALTER TABLE orders ADD total integer DEFAULT 7;", rows(4001, 10))).await?;
    run(&mut large, format!("{} COMMIT", rows(5001, LARGE))).await?;
    spool.world.execute(&rows(10_002, 1)).await?;
    let number = usize::try_from(LARGE)?;
    let (found, _) = changes(&mut stream, 2 * number + 12).await?;
    let columns = |change: &Change| change.relation.columns.len();
    let told: Vec<(i32, usize)> = [0, 1, number, number + 10, number + 11, 2 * number + 11]
        .map(|place| (id(&found[place]), columns(&found[place])))
        .to_vec();
    assert_eq!(told, [(10_001, 3), (1, 3), (LARGE, 3), (4010, 3), (5001, 4), (10_002, 4)]);
    spool.end(stream).await
}

#[tokio::test]
async fn large_values_truncates_and_messages_are_as_without_a_spool() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let options = StreamOptions { messages: true, ..spool.options() };
    let (mut stream, mut large) = (spool.world.stream(options).await?, spool.connect().await?);
    run(&mut large, "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL").await?;
    run(&mut large, format!("BEGIN; {} SELECT pg_logical_emit_message(true, 'shop', 'in it');", rows(1, LARGE)))
        .await?;
    run(&mut large, "INSERT INTO orders SELECT n, 'big', repeat('y', 100000) FROM generate_series(9001, 9010) n")
        .await?;
    run(&mut large, "UPDATE orders SET state = 'paid' WHERE id > 9000").await?;
    spool.world.execute("SELECT pg_logical_emit_message(false, 'shop', 'outside')").await?;
    run(&mut large, format!("TRUNCATE orders; {} COMMIT", rows(1, LARGE))).await?;
    let (mut shown, mut messages) = (Vec::new(), Vec::new());
    while shown.len() < usize::try_from(2 * LARGE)? + 21 {
        for event in timeout(DEADLINE, stream.next()).await.context("changes come")??.events {
            match event {
                StreamEvent::Change(change) => shown.push((show(&change), change.position.ordinal)),
                StreamEvent::Message(message) => {
                    messages.push((String::from_utf8_lossy(&message.content).into_owned(), message.position.ordinal));
                }
            }
        }
    }
    let large = u64::try_from(LARGE)?;
    assert_eq!(messages, [("outside".to_owned(), 0), ("in it".to_owned(), large + 1)]);
    let at = usize::try_from(LARGE)?;
    assert_eq!(shown[at], (format!("c 9001,big,{}", "y".repeat(100_000)), large + 2));
    assert_eq!(shown[at + 10], ("u 9001,paid,UNCHANGED".to_owned(), large + 12));
    assert_eq!(shown[at + 20], ("t".to_owned(), large + 22));
    spool.end(stream).await
}

#[tokio::test]
async fn the_server_is_answered_while_a_transaction_is_read_back_and_nothing_of_it_is_confirmed() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let mut large = spool.connect().await?;
    let mut stream = spool.world.stream(StreamOptions { batch_rows: 10, ..spool.options() }).await?;
    run(&mut large, format!("BEGIN; {} COMMIT", rows(1, LARGE))).await?;
    let (found, _) = changes(&mut stream, 10).await?;
    // Nobody takes the rest. Answers go on, and with them what is confirmed.
    let answered = async || -> Result<(f64, bool)> {
        let sql = "SELECT extract(epoch FROM reply_time)::float8, coalesce(flush_lsn < $2::text::pg_lsn, true)
                   FROM pg_stat_replication
                   WHERE pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1)";
        let commit = relais_capture::format_lsn(found[0].position.commit_lsn);
        Ok(sqlx::query_as(sql).bind(spool.world.slot.name()).bind(commit).fetch_one(&spool.world.pool).await?)
    };
    let (before, _) = answered().await?;
    let waiting = async {
        loop {
            let (now, is_before_commit) = answered().await?;
            if now > before {
                return anyhow::Ok(is_before_commit);
            }
            tokio::task::yield_now().await;
        }
    };
    assert!(
        timeout(DEADLINE, waiting).await.context("the server is answered")??,
        "only whole transactions are confirmed"
    );
    assert!(spool.spool.used() > 0, "it is still read back");
    let (found, _) = changes(&mut stream, usize::try_from(LARGE)? - found.len()).await?;
    assert_eq!(found.last().map(id), Some(LARGE));
    spool.end(stream).await
}

#[tokio::test]
async fn a_message_that_may_be_rolled_back_is_left_to_a_stream_without_the_spool() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let options = StreamOptions { messages: true, ..spool.options() };
    let (mut stream, mut large) = (spool.world.stream(options.clone()).await?, spool.connect().await?);
    let part = "SAVEPOINT a; SELECT pg_logical_emit_message(true, 'shop', 'never');";
    run(&mut large, format!("BEGIN; {} {part} {}", rows(1, LARGE), rows(10_001, LARGE))).await?;
    run(&mut large, "ROLLBACK TO a; SELECT pg_logical_emit_message(true, 'shop', 'kept'); COMMIT").await?;
    let error = failure(&mut stream).await?;
    assert!(matches!(error, CaptureError::SpoolUnclear { .. }) && error.is_passing(), "{error:?}");
    until_nobody_reads(&spool.world).await?;
    let mut stream = spool.world.stream(options).await?;
    let mut events = Vec::new();
    while events.len() < usize::try_from(LARGE)? + 1 {
        events.extend(timeout(DEADLINE, stream.next()).await.context("changes come")??.events);
    }
    let Some(StreamEvent::Message(message)) = events.last() else { anyhow::bail!("no message") };
    assert_eq!((&message.content[..], message.position.ordinal), (&b"kept"[..], u64::try_from(LARGE)? + 1));
    spool.end(stream).await
}

#[tokio::test]
async fn a_transaction_larger_than_the_spool_comes_without_it_and_the_next_one_with_it() -> Result<()> {
    let spool = SpoolWorld::with_limit(300_000).await?;
    let (mut stream, mut large) = (spool.stream().await?, spool.connect().await?);
    run(&mut large, format!("BEGIN; {}", rows(1, LARGE))).await?;
    let error = failure(&mut stream).await?;
    assert!(matches!(error, CaptureError::SpoolFull { limit: 300_000 }) && error.is_passing(), "{error:?}");
    drop(stream);
    spool.until_empty().await?;
    until_nobody_reads(&spool.world).await?;
    let mut stream = spool.stream().await?;
    spool.world.execute(&rows(100_001, 1)).await?;
    run(&mut large, "COMMIT").await?;
    let (found, confirm) = changes(&mut stream, usize::try_from(LARGE)? + 1).await?;
    assert_eq!(ids(&found), [100_001].into_iter().chain(1..=LARGE).collect::<Vec<_>>());
    assert!(folders(spool.directory.path())?.is_empty(), "it goes without the spool");
    stream.confirm(confirm.unwrap_or_default());
    stream.stop().await;
    until_nobody_reads(&spool.world).await?;
    // One that fits.
    let mut stream = spool.stream().await?;
    run(&mut large, format!("BEGIN; {}", rows(200_001, 1000))).await?;
    spool.until_used(|used| used > 0).await?;
    run(&mut large, "COMMIT").await?;
    let resumed = changes(&mut stream, 1000).await?.0;
    assert_eq!(resumed.last().map(id), Some(201_000));
    spool.end(stream).await
}

#[tokio::test]
async fn a_disk_that_fails_ends_the_stream_and_nothing_is_lost() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let (mut stream, mut large) = (spool.stream().await?, spool.connect().await?);
    // Nothing can be made in a folder that is gone.
    for folder in folders(spool.directory.path())? {
        std::fs::remove_dir_all(folder)?;
    }
    run(&mut large, format!("BEGIN; {}", rows(1, LARGE))).await?;
    let error = failure(&mut stream).await?;
    assert!(matches!(error, CaptureError::Spool { .. }) && error.is_passing(), "{error:?}");
    assert!(error.to_string().contains(&spool.directory.path().display().to_string()), "{error}");
    run(&mut large, "COMMIT").await?;
    until_nobody_reads(&spool.world).await?;
    let mut stream = spool.stream().await?;
    let (found, _) = changes(&mut stream, usize::try_from(LARGE)?).await?;
    assert_eq!(ids(&found), (1..=LARGE).collect::<Vec<_>>());
    spool.end(stream).await
}

#[tokio::test]
async fn a_directory_that_can_not_be_used_is_refused_at_once() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("a file");
    std::fs::write(&file, "")?;
    let error = open(&file.join("spool"), 1000).await.expect_err("a file is no directory");
    assert!(error.to_string().contains("must be able to write there"), "{error}");
    Ok(())
}

#[tokio::test]
async fn what_a_killed_process_left_is_removed_at_the_next_start() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let left = spool.directory.path().join("shop-1-0.spool");
    std::fs::create_dir(&left)?;
    std::fs::write(left.join("77.changes"), "rows")?;
    std::fs::write(left.join("lock"), "")?;
    let (stream, mut large) = (spool.stream().await?, spool.connect().await?);
    assert!(!left.exists());
    run(&mut large, format!("BEGIN; {}", rows(1, LARGE))).await?;
    spool.until_used(|used| used > 0).await?;
    // Another process looks, and leaves alone what is in use.
    let others = open(spool.directory.path(), 1000).await?;
    assert_eq!((folders(spool.directory.path())?.len(), others.used()), (1, 0));
    // A stream that is dropped leaves nothing.
    drop(stream);
    spool.until_empty().await?;
    run(&mut large, "COMMIT").await?;
    until_nobody_reads(&spool.world).await?;
    let mut stream = spool.stream().await?;
    let (found, _) = changes(&mut stream, usize::try_from(LARGE)?).await?;
    assert_eq!(found.len(), usize::try_from(LARGE)?);
    spool.end(stream).await
}

#[tokio::test]
async fn the_server_spills_to_its_own_disk_only_without_a_spool() -> Result<()> {
    let spool = SpoolWorld::new().await?;
    let mut large = spool.connect().await?;
    // Rows of tables that nobody captures count as well.
    for (with_spool, first) in [(true, 1), (false, 10_001)] {
        let options = if with_spool { spool.options() } else { spool.world.options() };
        let mut stream = spool.world.stream(options).await?;
        let others = "INSERT INTO other SELECT generate_series(1, 5000)";
        run(&mut large, format!("BEGIN; {others}; {} COMMIT", rows(first, 1))).await?;
        let (found, confirm) = changes(&mut stream, 1).await?;
        let mut confirm = confirm.unwrap_or_default();
        while confirm < found[0].position.commit_lsn {
            let batch = timeout(DEADLINE, stream.next()).await.context("the end comes")??;
            confirm = batch.confirm.unwrap_or_default();
        }
        stream.confirm(confirm);
        stream.stop().await;
        let counted = async {
            loop {
                let (streamed, spilled) = spool.world.streamed_and_spilled().await?;
                if if with_spool { streamed } else { spilled } > 0 {
                    return anyhow::Ok((streamed, spilled));
                }
                tokio::task::yield_now().await;
            }
        };
        let (streamed, spilled) = timeout(DEADLINE, counted).await.context("the server counts")??;
        assert_eq!((streamed, spilled > 0), (1, !with_spool));
        until_nobody_reads(&spool.world).await?;
    }
    spool.until_empty().await?;
    spool.world.end().await
}
