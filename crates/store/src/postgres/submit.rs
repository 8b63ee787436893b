//! Taking tasks in with one statement: one round trip and one commit for the whole batch.

use std::collections::BTreeMap;

use relais_core::{NewTask, Wakeup, wakeup};

use super::{
    CHANNEL, Postgres, error,
    session::{callbacks, column, held, parent, retries, trace},
};
use crate::{
    row::{Columns, in_millis, wide},
    session::Result,
};

impl Postgres {
    /// Takes a batch for one service, unless its queue is limited. The update of the queue's row is the lock: it waits for
    /// submissions that are under way, and then sees the row as they left it, `limited` and all.
    pub(super) async fn submit_in_one_statement(&self, tasks: &[NewTask], wakeup: &Wakeup) -> Result<Option<u64>> {
        let Some(first) = tasks.first() else { return Ok(None) };
        let mut shares: BTreeMap<i32, i64> = BTreeMap::new();
        for task in tasks {
            *shares.entry(task.client.0).or_default() += 1;
        }
        let (clients, counts): (Vec<i32>, Vec<i64>) = shares.into_iter().unzip();
        let mut lent = self.lend().await?;
        let row = sqlx::query(
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
                 ORDER BY w.place
             ), due AS (
                 INSERT INTO relais.dispatch (service_id, task_id, due)
                 SELECT $1, w.task_id, clock_timestamp() + make_interval(secs => w.held)
                 FROM queue q CROSS JOIN unnest($3::uuid[], $12::double precision[]) AS w (task_id, held) WHERE q.brokered
             ), shares AS (
                 INSERT INTO relais.tally AS t (service_id, client_id, status, departed, n)
                 SELECT $1, w.client_id, 0, false, w.n
                 FROM queue CROSS JOIN unnest($8::integer[], $9::bigint[]) AS w (client_id, n)
                 ON CONFLICT (service_id, client_id, status, departed) DO UPDATE SET n = t.n + excluded.n
             )
             SELECT q.arrived, CASE WHEN $11::text IS NOT NULL THEN pg_notify($10, $11)::text END AS told,
                    coalesce((SELECT n FROM relais.tally
                              WHERE service_id = $1 AND client_id = 0 AND status = 0 AND departed), 0) AS departed
             FROM queue q",
        )
        .bind(first.service.0)
        .bind(wide(tasks.len()))
        .bind(column(tasks, |task| task.task_id.0))
        .bind(column(tasks, |task| task.client.0))
        .bind(column(tasks, |task| task.request.get()))
        .bind(callbacks(tasks.iter())?)
        .bind(column(tasks, |task| task.correlation_id.as_deref()))
        .bind(clients)
        .bind(counts)
        .bind(CHANNEL)
        .bind(self.tells_as().map(|origin| wakeup::encode(origin, wakeup)))
        .bind(column(tasks, held))
        .bind(column(tasks, |task| i16::from(task.terms.priority.level())))
        .bind(column(tasks, |task| task.terms.head_start))
        .bind(column(tasks, |task| task.terms.timeout.map(in_millis)))
        .bind(retries(tasks.iter())?)
        .bind(column(tasks, parent))
        .bind(column(tasks, trace))
        .fetch_optional(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        let Some(row) = row else { return Ok(None) };
        let (arrived, departed): (i64, i64) = (row.big("arrived")?, row.big("departed")?);
        // A departure that was committed while the statement waited is not in its snapshot: the place may be a little
        // too far back, as it would be had the task come a moment earlier.
        Ok(Some(u64::try_from(arrived - departed).unwrap_or(0) + 1))
    }
}
