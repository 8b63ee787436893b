//! Tasks that are to be dispatched to a broker, on SQLite.

use std::time::Duration;

use relais_core::{Dispatched, DueDispatch, ServiceKey, TaskId};
use sqlx::Row as _;

use super::{batch::array, error, session::SqliteSession};
use crate::{
    dispatch::Dispatch,
    row::{due_dispatch, in_millis, wide},
    session::Result,
};

impl Dispatch for SqliteSession {
    async fn insert_dispatches(&mut self, tasks: &[(ServiceKey, TaskId)]) -> Result<Vec<ServiceKey>> {
        let mut services: Vec<i32> = sqlx::query_scalar(concat!(
            "INSERT INTO dispatch (service_id, task_id, due)
             SELECT w.value->>0, w.value->>1, ",
            now!(),
            " FROM json_each(?1) AS w JOIN service s ON s.id = w.value->>0 AND s.transport = 1 WHERE true
              ON CONFLICT (service_id, task_id) DO UPDATE SET due = excluded.due RETURNING service_id"
        ))
        .bind(array(&named(tasks))?)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        services.sort_unstable();
        services.dedup();
        Ok(services.into_iter().map(ServiceKey).collect())
    }

    async fn hold_dispatches(
        &mut self,
        services: &[ServiceKey],
        each: usize,
        lease: Duration,
    ) -> Result<Vec<DueDispatch>> {
        let mut held = Vec::new();
        for service in services {
            let rows = sqlx::query(concat!(
                "SELECT d.service_id, d.task_id, t.request, t.correlation_id
                 FROM (SELECT service_id, task_id FROM dispatch WHERE service_id = ?1 AND due <= ",
                now!(),
                " ORDER BY task_id LIMIT ?2) d
                 LEFT JOIN task t ON t.task_id = d.task_id AND t.status IN (0, 1) ORDER BY d.task_id"
            ))
            .bind(service.0)
            .bind(wide(each))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
            held.extend(rows.iter().map(due_dispatch).collect::<Result<Vec<_>>>()?);
        }
        if held.is_empty() {
            return Ok(held);
        }
        let tasks: Vec<_> = held.iter().map(|due| (due.service, due.task_id)).collect();
        sqlx::query(concat!(
            "UPDATE dispatch SET due = ",
            now!(),
            " + ?2 WHERE (service_id, task_id) IN (SELECT value->>0, value->>1 FROM json_each(?1))"
        ))
        .bind(array(&named(&tasks))?)
        .bind(in_millis(lease))
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(held)
    }

    async fn settle_dispatches(&mut self, tasks: &[(ServiceKey, TaskId)], outcome: Dispatched) -> Result<()> {
        let statement = match outcome {
            Dispatched::Done => {
                "DELETE FROM dispatch WHERE (service_id, task_id) IN (SELECT value->>0, value->>1 FROM json_each(?1))"
            }
            Dispatched::Again => concat!(
                "UPDATE dispatch SET due = ",
                now!(),
                " WHERE (service_id, task_id) IN (SELECT value->>0, value->>1 FROM json_each(?1))"
            ),
        };
        self.execute(statement, &named(tasks)).await
    }

    async fn note_dispatch_again(&mut self, service: ServiceKey, running: bool) -> Result<()> {
        sqlx::query(
            "UPDATE service SET again_after = 0, again_running = ?2,
                 again_until = coalesce((SELECT max(id) FROM task), 0)
             WHERE id = ?1 AND transport = 1",
        )
        .bind(service.0)
        .bind(running)
        .execute(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(())
    }

    async fn dispatch_noted(&mut self, limit: usize) -> Result<Option<ServiceKey>> {
        let noted = sqlx::query(
            "SELECT id, again_after, again_until, again_running FROM service
             WHERE again_after IS NOT NULL AND transport = 1 AND NOT deleted ORDER BY id LIMIT 1",
        )
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        let Some(noted) = noted else { return Ok(None) };
        let service: i32 = noted.try_get("id").map_err(error)?;
        let after: i64 = noted.try_get("again_after").map_err(error)?;
        let until: i64 = noted.try_get("again_until").map_err(error)?;
        let running: bool = noted.try_get("again_running").map_err(error)?;
        let mut next: Vec<(i64, String)> = Vec::new();
        for status in if running { &[0, 1][..] } else { &[0] } {
            let found: Vec<(i64, String)> = sqlx::query_as(
                "SELECT id, task_id FROM task WHERE service_id = ?1 AND status = ?2 AND id > ?3 AND id <= ?4
                 ORDER BY id LIMIT ?5",
            )
            .bind(service)
            .bind(status)
            .bind(after)
            .bind(until)
            .bind(wide(limit))
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
            next.extend(found);
        }
        next.sort_unstable();
        next.truncate(limit);
        let rows: Vec<_> = next.iter().map(|(_, task_id)| (service, task_id)).collect();
        self.execute(
            concat!(
                "INSERT INTO dispatch (service_id, task_id, due) SELECT value->>0, value->>1, ",
                now!(),
                " FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING"
            ),
            &rows,
        )
        .await?;
        let last = next.last().filter(|_| next.len() == limit).map(|(id, _)| *id);
        sqlx::query("UPDATE service SET again_after = ?2 WHERE id = ?1")
            .bind(service)
            .bind(last)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        Ok(Some(ServiceKey(service)))
    }

    async fn lease_running(&mut self, services: &[&str]) -> Result<()> {
        self.execute(
            concat!(
                "UPDATE task SET lease_until = ",
                now!(),
                " + s.lease_ms FROM json_each(?1) w JOIN service s ON s.name = w.value AND s.transport = 1
                  WHERE task.service_id = s.id AND task.status = 1 AND task.lease_until IS NULL"
            ),
            services,
        )
        .await
    }
}

fn named(tasks: &[(ServiceKey, TaskId)]) -> Vec<(i32, TaskId)> {
    tasks.iter().map(|(service, task_id)| (service.0, *task_id)).collect()
}
