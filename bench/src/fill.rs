//! A queue that is long already, loaded by SQL: a million submissions would take minutes.
//!
//! **Mirrors the migrations and the counters of relais-store** (`postgres/migrations`, `sqlite/migrations`,
//! `counters/ledger.rs`, and `position.rs` of relais-core): whoever changes those changes this. That it still does is
//! verified through the API each time ([`World`](crate::world::World)): the next submission has to get the place
//! after the last one.
//!
//! One task in eleven is finished, spread evenly, so that placing a task has departures to add up.

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

/// One task in so many is finished, where some are pending.
const FINISHED: u64 = 11;

/// Which tasks are in a queue of `pending` tasks, as this module fills it.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    pending: u64,
    finished: u64,
    /// One task in so many is finished.
    every: u64,
    /// What they were asked, and what came of those that are finished.
    request: &'static str,
    response: &'static str,
}

impl Queue {
    /// `pending` tasks, a multiple of ten.
    pub fn of(pending: u64) -> Self {
        let finished = pending / (FINISHED - 1);
        let pending = finished * (FINISHED - 1);
        Self { pending, finished, every: FINISHED, request: BODY, response: BODY }
    }

    /// `finished` tasks that have ended, with this request and response, and none that waits.
    pub fn ended(finished: u64, request: &'static str, response: &'static str) -> Self {
        Self { pending: 0, finished, every: 1, request, response }
    }

    /// How many are pending.
    pub fn pending(self) -> u64 {
        self.pending
    }

    fn all(self) -> u64 {
        self.pending + self.finished
    }

    fn finished(self) -> u64 {
        self.finished
    }

    /// Names of pending tasks, `count` of them evenly from the first to the last.
    pub fn pending_ids(self, count: u64) -> Vec<String> {
        let count = count.min(self.pending);
        (1..=count)
            .map(|n| n * self.pending / count - 1)
            .map(|n| name(n / (FINISHED - 1) * FINISHED + n % (FINISHED - 1)))
            .collect()
    }

    /// Names of finished tasks, likewise.
    pub fn finished_ids(self, count: u64) -> Vec<String> {
        let count = count.min(self.finished());
        (1..=count).map(|n| n * self.finished() / count - 1).map(|n| name(n * FINISHED + FINISHED - 1)).collect()
    }
}

/// The `task_id` of a loaded task: in the order of time like a real one (UUIDv7), and known without asking.
fn name(seq: u64) -> String {
    let millis = START + seq / 8;
    format!("{:08x}-{:04x}-7{:03x}-8{:03x}-{:012x}", millis >> 16, millis & 0xffff, seq % 4096, 0, seq)
}

/// When the first loaded task was submitted, in milliseconds since 1970: 2026-01-01.
const START: u64 = 1_767_225_600_000;

/// The body that every task of the benchmarks has.
pub const BODY: &str = r#"{"sleep":0.5,"mustSucceed":true,"name":"a task of the benchmark"}"#;

/// Empties the tables and fills the queue of a service.
pub async fn postgres(url: &str, queue: Queue, service: &str, client: &str) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    let (all, finished, every) = (queue.all(), queue.finished(), queue.every);
    let (request, response) = (queue.request, queue.response);
    let ids = format!(
        "(SELECT id FROM relais.service WHERE name = '{service}') AS s (service_id), \
         (SELECT id FROM relais.client WHERE client_id = '{client}') AS c (client_id)"
    );
    let last = every - 1;
    let statements = [
        "SET synchronous_commit = off; SET maintenance_work_mem = '256MB'".to_owned(),
        "TRUNCATE relais.task, relais.position_tree, relais.idempotency RESTART IDENTITY".to_owned(),
        format!(
            "DELETE FROM relais.counter WHERE service_id = (SELECT id FROM relais.service WHERE name = '{service}')"
        ),
        "UPDATE relais.counter SET n = 0".to_owned(),
        format!(
            "INSERT INTO relais.task (task_id, service_id, client_id, seq, rank, status, attempt, revision, progress,
                                      submitted, started, ended, worker_host, request, response)
             SELECT (lpad(to_hex(({START} + n / 8) >> 16), 8, '0') || lpad(to_hex(({START} + n / 8) & 65535), 4, '0')
                     || '7' || lpad(to_hex(n % 4096), 3, '0') || '8000' || lpad(to_hex(n), 12, '0'))::uuid,
                    service_id, client_id, n, {START} + n / 8,
                    CASE WHEN f.finished THEN 2 ELSE 0 END, f.finished::integer, 2 * f.finished::integer,
                    CASE WHEN f.finished THEN 100 ELSE 0 END, now(),
                    CASE WHEN f.finished THEN now() END, CASE WHEN f.finished THEN now() END,
                    CASE WHEN f.finished THEN 'bench' END, '{request}', CASE WHEN f.finished THEN '{response}'::json END
             FROM {ids}, generate_series(0, {all}::bigint - 1) AS n
             CROSS JOIN LATERAL (SELECT n % {every} = {last} AS finished) f
             ORDER BY n"
        ),
        format!(
            "INSERT INTO relais.position_tree (service_id, level, slot, n)
             SELECT service_id, l.level, n >> l.bits, count(*)
             FROM {ids}, generate_series({last}::bigint, {all} - 1, {every}) AS n,
                  (VALUES (0, 4), (1, 8), (2, 12), (3, 16), (4, 20), (5, 24)) AS l (level, bits)
             GROUP BY 1, 2, 3"
        ),
        format!(
            "INSERT INTO relais.counter (service_id, client_id, status, departed, n)
             SELECT service_id, t.own * client_id, t.status, t.departed, t.n
             FROM {ids}, (VALUES {}) AS t (own, status, departed, n)",
            counters(all, finished)
        ),
        "UPDATE relais.counter t SET brokered = true FROM relais.service s
         WHERE s.id = t.service_id AND s.transport = 1 AND t.client_id = 0 AND t.status = 0 AND NOT t.departed"
            .to_owned(),
    ];
    for statement in statements {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    }
    for statement in ["VACUUM ANALYZE", "CHECKPOINT"] {
        sqlx::raw_sql(statement).execute(&mut connection).await?;
    }
    Ok(connection.close().await?)
}

/// The same on SQLite. Nobody else may have the file open.
pub async fn sqlite(url: &str, queue: Queue, service: &str, client: &str) -> Result<()> {
    let mut connection = SqliteConnection::connect(url).await?;
    let (all, finished, every) = (queue.all(), queue.finished(), queue.every);
    let (request, response) = (queue.request, queue.response);
    let ids = format!(
        "(SELECT id AS service_id FROM service WHERE name = '{service}') s, \
         (SELECT id AS client_id FROM client WHERE client_id = '{client}') c"
    );
    let last = every - 1;
    let now = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    let statements = [
        "PRAGMA synchronous = off".to_owned(),
        "DELETE FROM task".to_owned(),
        "DELETE FROM departure".to_owned(),
        "DELETE FROM idempotency".to_owned(),
        format!("DELETE FROM tally WHERE service_id = (SELECT id FROM service WHERE name = '{service}')"),
        "UPDATE tally SET n = 0".to_owned(),
        format!(
            "INSERT INTO task (task_id, service_id, client_id, seq, rank, status, attempt, revision, progress, submitted,
                               started, ended, worker_host, request, response)
             WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {all})
             SELECT printf('%08x-%04x-7%03x-8000-%012x', ({START} + n / 8) >> 16, ({START} + n / 8) & 65535, n % 4096, n),
                    service_id, client_id, n, {START} + n / 8,
                    iif(n % {every} = {last}, 2, 0), n % {every} = {last}, 2 * (n % {every} = {last}),
                    iif(n % {every} = {last}, 100, 0), {now},
                    iif(n % {every} = {last}, {now}, NULL), iif(n % {every} = {last}, {now}, NULL),
                    iif(n % {every} = {last}, 'bench', NULL), '{request}', iif(n % {every} = {last}, '{response}', NULL)
             FROM {ids}, numbers WHERE n < {all}"
        ),
        format!(
            "INSERT INTO departure (service_id, level, slot, n)
             WITH RECURSIVE numbers (n) AS (SELECT {last} UNION ALL SELECT n + {every} FROM numbers WHERE n + {every} < {all}),
                            levels (level, bits) AS (VALUES (0, 4), (1, 8), (2, 12), (3, 16), (4, 20), (5, 24))
             SELECT service_id, level, n >> bits, count(*) FROM {ids}, numbers, levels WHERE n < {all} GROUP BY 1, 2, 3"
        ),
        format!(
            "INSERT INTO tally (service_id, client_id, status, departed, n)
             WITH t (own, status, departed, n) AS (VALUES {})
             SELECT service_id, own * client_id, status, departed, n FROM {ids}, t",
            counters(all, finished)
        ),
        "PRAGMA wal_checkpoint(TRUNCATE)".to_owned(),
    ];
    for statement in statements {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    }
    Ok(connection.close().await?)
}

/// Whose (0: all clients', 1: the client's own), status, whether they left it, how many.
fn counters(all: u64, finished: u64) -> String {
    format!(
        "(0, 0, false, {all}), (1, 0, false, {all}), (0, 0, true, {finished}), (1, 0, true, {finished}), \
         (0, 1, false, {finished}), (1, 1, false, {finished}), (0, 1, true, {finished}), (1, 1, true, {finished}), \
         (0, 2, false, {finished})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_queue_has_exact_counters() {
        let queue = Queue::of(1000);
        assert_eq!((queue.pending(), queue.all(), queue.finished()), (1000, 1100, 100));
        assert_eq!(queue.pending_ids(1), [name(1098)], "the last pending one; 1099 is finished");
        assert_eq!(queue.pending_ids(1000)[..11].last(), Some(&name(11)));
        assert_eq!(queue.finished_ids(100)[..2], [name(10), name(21)]);
    }
}
