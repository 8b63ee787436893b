//! Taking tasks in with one statement: one round trip and one commit for the whole batch.

use std::collections::BTreeMap;

use relais_core::{NewTask, Wakeup, wakeup};
use sqlx::{PgConnection, postgres::PgRow};

use crate::instances::postgres::pending;

use super::{
    CHANNEL, Postgres, error,
    read::pending_columns,
    session::{callbacks, column, held, parent, retries, trace},
    write::Statement,
};
use crate::{
    instances::statements::{Leased, Taker},
    row::{Columns, in_millis, wide},
    session::Result,
};

/// Takes a batch for the service $1, unless its queue is limited. The update of the queue's row is the lock: it waits for
/// submissions that are under way, and then sees the row as they left it, `limited` and all. `returning` is what is told of the new
/// rows, `more` are further parts of the statement, `columns` what is told besides, and `from` where that is.
macro_rules! submit {
    ($returning:literal, $more:expr, $columns:expr, $from:literal) => {
        concat!(
            "WITH queue AS (
                 UPDATE relais.tally SET n = n + $2
                 WHERE service_id = $1 AND client_id = 0 AND status = 0 AND NOT departed AND NOT limited
                 RETURNING n - $2 AS arrived, brokered
             ), taken AS (
                 INSERT INTO relais.task
                     (task_id, service_id, client_id, seq, submitted, request, callback, correlation_id, priority, rank,
                      timeout_ms, retry, parent_id, trace)
                 SELECT w.task_id, $1, w.client_id, q.arrived + w.place - 1, c.now, w.request::json, w.callback::json,
                        w.correlation_id, w.priority, (extract(epoch FROM c.now) * 1000)::bigint - w.head_start,
                        w.timeout_ms, w.retry, w.parent_id, w.trace
                 FROM queue q CROSS JOIN unnest($3::uuid[], $4::integer[], $5::text[], $6::text[], $7::text[],
                                                $13::smallint[], $14::bigint[], $15::bigint[], $16::text[],
                                                $17::uuid[], $18::text[])
                      WITH ORDINALITY AS w (task_id, client_id, request, callback, correlation_id, priority, head_start,
                                            timeout_ms, retry, parent_id, trace, place)
                 CROSS JOIN LATERAL (SELECT clock_timestamp() AS now WHERE w.place > 0) c
                 ORDER BY w.place ",
            $returning,
            "), due AS (
                 INSERT INTO relais.dispatch (service_id, task_id, due)
                 SELECT $1, w.task_id, clock_timestamp() + make_interval(secs => w.held)
                 FROM queue q CROSS JOIN unnest($3::uuid[], $12::double precision[]) AS w (task_id, held) WHERE q.brokered
             ), shares AS (
                 INSERT INTO relais.tally AS t (service_id, client_id, status, departed, n)
                 SELECT $1, w.client_id, 0, false, w.n
                 FROM queue CROSS JOIN unnest($8::integer[], $9::bigint[]) AS w (client_id, n)
                 ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = t.n + excluded.n
             )",
            $more,
            " SELECT q.arrived, CASE WHEN $11::text IS NOT NULL THEN (SELECT pg_notify($10, $11)::text) END AS told,
                    coalesce((SELECT n FROM relais.tally
                              WHERE service_id = $1 AND client_id = 0 AND status = 0 AND departed), 0) AS departed",
            $columns,
            " FROM queue q",
            $from
        )
    };
}

/// The same, and the process $19 has them in hand: if nothing else waits, and nobody else is about to hand out tasks. What is locked is
/// passed over, since others lock in another order.
/// (A key share would do to hold the process, but would be had of a row that was since counted up.)
const SUBMIT_AND_TAKE: &str = submit!(
    "RETURNING *",
    ", gone AS (DELETE FROM relais.hand WHERE id = ANY($20)
     ), s AS MATERIALIZED (
         SELECT * FROM relais.service WHERE id = $1
     ), desk AS MATERIALIZED (
         SELECT f.service_id FROM relais.flow f CROSS JOIN relais.instance i
         WHERE f.service_id = $1 AND i.id = $19 AND NOT i.undecided AND i.epoch = $21
               AND (SELECT handed AND flow = 3 AND NOT paused AND NOT deleted AND transport = 0 FROM s)
         FOR NO KEY UPDATE OF f SKIP LOCKED FOR SHARE OF i SKIP LOCKED
     ), made AS (
         INSERT INTO relais.hand (instance_id, service_id, tasks)
         SELECT $19, $1, array_agg(n.id) FROM taken n CROSS JOIN desk
         WHERE NOT (SELECT brokered FROM queue)
               AND (SELECT count(*) FROM (
                        SELECT FROM relais.task
                        WHERE queue_id = $1 AND id NOT IN (SELECT unnest(tasks) FROM relais.hand WHERE service_id = $1)
                        ORDER BY queue_id, rank, id LIMIT 1
                    ) waits) = 0
         HAVING count(*) > 0 RETURNING id
     )",
    concat!(", clock_timestamp() AS now, made.id AS hand, ", pending_columns!("coalesce(t.retry, s.retry)")),
    " LEFT JOIN (made CROSS JOIN taken t CROSS JOIN s) ON true"
);

/// The same, and no more.
const SUBMIT: &str = submit!("", "", "", "");

/// Binds what the tasks are, and what others are told.
fn bind<'q>(statement: &'static str, tasks: &'q [NewTask], payload: Option<String>) -> Result<Statement<'q>> {
    let mut shares: BTreeMap<i32, i64> = BTreeMap::new();
    for task in tasks {
        *shares.entry(task.client.0).or_default() += 1;
    }
    let (clients, counts): (Vec<i32>, Vec<i64>) = shares.into_iter().unzip();
    Ok(sqlx::query(statement)
        .bind(tasks.first().map(|task| task.service.0))
        .bind(wide(tasks.len()))
        .bind(column(tasks, |task| task.task_id.0))
        .bind(column(tasks, |task| task.client.0))
        .bind(column(tasks, |task| task.request.get()))
        .bind(callbacks(tasks.iter())?)
        .bind(column(tasks, |task| task.correlation_id.as_deref()))
        .bind(clients)
        .bind(counts)
        .bind(CHANNEL)
        .bind(payload)
        .bind(column(tasks, held))
        .bind(column(tasks, |task| i16::from(task.terms.priority.level())))
        .bind(column(tasks, |task| task.terms.head_start))
        .bind(column(tasks, |task| task.terms.timeout.map(in_millis)))
        .bind(retries(tasks.iter())?)
        .bind(column(tasks, parent))
        .bind(column(tasks, trace)))
}

/// Where the first one stands. A departure that was committed while the statement waited is not in its snapshot: the place may be a
/// little too far back, as it would be had the task come a moment earlier.
fn place(row: &PgRow) -> Result<u64> {
    let (arrived, departed): (i64, i64) = (row.big("arrived")?, row.big("departed")?);
    Ok(u64::try_from(arrived - departed).unwrap_or(0) + 1)
}

/// Takes a batch for one service, within a transaction.
pub(crate) async fn insert(connection: &mut PgConnection, tasks: &[NewTask]) -> Result<Option<u64>> {
    let row = bind(SUBMIT, tasks, None)?.fetch_optional(connection).await.map_err(error)?;
    row.as_ref().map(place).transpose()
}

impl Postgres {
    /// Takes a batch for one service, unless its queue is limited; tells where the first one stands, and what the taker has in hand.
    pub(crate) async fn submit_in_one_statement(
        &self,
        tasks: &[NewTask],
        wakeup: &Wakeup,
        taker: Option<&Taker>,
    ) -> Result<Option<(u64, Option<Leased>)>> {
        let payload = self.tells_as().map(|origin| wakeup::encode(origin, wakeup));
        let statement = match taker {
            Some(taker) => {
                let statement = bind(SUBMIT_AND_TAKE, tasks, payload)?;
                statement.bind(taker.instance.0).bind(&taker.done_with).bind(taker.epoch)
            }
            None => bind(SUBMIT, tasks, payload)?,
        };
        let mut lent = self.lend().await?;
        let rows = statement.fetch_all(&mut *lent).await.map_err(error)?;
        let first = rows.first();
        let hand = match first.filter(|_| taker.is_some()) {
            Some(row) => row.big_if_any("hand")?,
            None => None,
        };
        let taken = match hand {
            Some(hand) => {
                let locked = pending(&rows, &self.names, &mut lent).await?;
                Some(Leased { hand: Some(hand), locked })
            }
            None => None,
        };
        lent.keep();
        Ok(first.map(place).transpose()?.map(|place| (place, taken)))
    }
}
