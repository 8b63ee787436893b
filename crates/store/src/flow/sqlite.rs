//! Services whose flow is limited, on SQLite. Claims take turns anyway, so there is nothing to lock.

use std::collections::HashMap;

use relais_core::{
    ClientFlow, ClientId, ClientKey, FlowFacts, FlowLimits, FlowState, ServiceKey, ServiceName, Standing,
};
use sqlx::SqliteTransaction;

use crate::{
    claims::sqlite::pending_columns,
    claims::statements::{LockedPending, locked_pending},
    flow::statements::{FlowKind, Flows, flow_client, flow_facts, flow_kind, flow_state},
    row::{Columns as _, in_millis, signed, unsigned, wide},
    session::Result,
    sqlite::error,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    tasks::statements::{Locked, locked},
};

/// What a claim has to know. How many tasks are in a status is what came less what left; both counters are found by
/// their whole key.
const FACTS: &str = concat!(
    "SELECT flow, handed, max_running, max_running_per_client, rate_count, rate_per_ms, rate_burst, fair_share,
            dispatch_window, ",
    now!(),
    " * 1000000 AS now_nanos,
            coalesce((SELECT n FROM counter
                      WHERE service_id = ?1 AND client_id = 0 AND status = 0 AND departed = 0), 0)
            - coalesce((SELECT n FROM counter
                        WHERE service_id = ?1 AND client_id = 0 AND status = 0 AND departed = 1), 0) AS pending,
            coalesce((SELECT n FROM counter
                      WHERE service_id = ?1 AND client_id = 0 AND status = 1 AND departed = 0), 0)
            - coalesce((SELECT n FROM counter
                        WHERE service_id = ?1 AND client_id = 0 AND status = 1 AND departed = 1), 0) AS running
     FROM service WHERE id = ?1 AND NOT paused AND NOT deleted AND transport = 0"
);

/// The cost is that of the clients that the service has had, not of their tasks.
pub(crate) const CLIENTS: &str = "
    SELECT c.client_id, c.pending, c.running, a.max_running, a.share, f.time, f.turn FROM (
        SELECT came.client_id,
            coalesce((SELECT n FROM counter
                      WHERE service_id = ?1 AND client_id = came.client_id AND status = 0 AND departed = 0), 0)
            - coalesce((SELECT n FROM counter
                        WHERE service_id = ?1 AND client_id = came.client_id AND status = 0 AND departed = 1), 0) AS pending,
            coalesce((SELECT n FROM counter
                      WHERE service_id = ?1 AND client_id = came.client_id AND status = 1 AND departed = 0), 0)
            - coalesce((SELECT n FROM counter
                        WHERE service_id = ?1 AND client_id = came.client_id AND status = 1 AND departed = 1), 0) AS running
        FROM counter came
        WHERE came.service_id = ?1 AND came.client_id > 0 AND came.status = 0 AND came.departed = 0
    ) c
    LEFT JOIN authorization a ON a.client_id = c.client_id AND a.service_id = ?1
    LEFT JOIN flow_client f ON f.service_id = ?1 AND f.client_id = c.client_id
    WHERE c.pending > 0";

/// Where the first pending tasks of one client stand, in the order in which claims get them, without those that are
/// leased.
pub(crate) const PLACES: &str = "
    SELECT t.rank, t.id FROM task t INDEXED BY task_by_share
    WHERE t.service_id = ?1 AND t.client_id = ?2 AND t.status = 0 AND t.id NOT IN (SELECT value FROM json_each(?4))
    ORDER BY t.rank, t.id LIMIT ?3";

/// Such tasks, with all that their workers get.
pub(crate) const LOCK_SHARE: &str = concat!(
    "SELECT ",
    now!(),
    " AS now, NULL AS retry, ",
    pending_columns!(),
    " FROM service s CROSS JOIN client c CROSS JOIN task t INDEXED BY task_by_share
      WHERE s.id = ?1 AND c.id = ?2
        AND t.service_id = ?1 AND t.client_id = ?2 AND t.status = 0 AND t.id NOT IN (SELECT value FROM json_each(?4))
      ORDER BY t.rank, t.id LIMIT ?3"
);

impl Flows for SqliteSession {
    async fn lock_flow(&mut self, service: ServiceKey) -> Result<Option<FlowState>> {
        let row = sqlx::query("SELECT ahead_until, time, turns FROM flow WHERE service_id = ?1")
            .bind(service.0)
            .fetch_optional(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        row.as_ref().map(flow_state).transpose()
    }

    async fn flow_facts(&mut self, service: ServiceKey, state: FlowState) -> Result<Option<(FlowFacts, bool)>> {
        let row = sqlx::query(FACTS)
            .bind(service.0)
            .fetch_optional(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        let Some(row) = row else { return Ok(None) };
        let mut facts = flow_facts(&row, state)?;
        if flow_kind(&row)? == FlowKind::ByClient {
            let rows = sqlx::query(CLIENTS)
                .bind(service.0)
                .fetch_all(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
            facts.clients = Some(rows.iter().map(flow_client).collect::<Result<_>>()?);
        }
        Ok(Some((facts, row.flag("handed")?)))
    }

    async fn waiting_leased(&mut self, leased: &[i64]) -> Result<HashMap<ClientKey, u64>> {
        let rows: Vec<(i32, i64)> = sqlx::query_as(
            "SELECT t.client_id, count(*) FROM json_each(?1) AS w CROSS JOIN task t ON t.id = w.value
             WHERE t.status = 0 GROUP BY t.client_id",
        )
        .bind(array(leased)?)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|failure| self.failed(failure))?;
        Ok(rows.into_iter().map(|(client, number)| (ClientKey(client), unsigned(number))).collect())
    }

    async fn pending_places(
        &mut self,
        service: ServiceKey,
        most: &[(ClientKey, usize)],
        leased: &[i64],
    ) -> Result<Vec<(ClientKey, (i64, i64))>> {
        let (mut places, leased) = (Vec::new(), array(leased)?);
        for &(client, most) in most {
            let rows: Vec<(i64, i64)> = sqlx::query_as(PLACES)
                .bind(service.0)
                .bind(client.0)
                .bind(wide(most))
                .bind(&leased)
                .fetch_all(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
            places.extend(rows.into_iter().map(|place| (client, place)));
        }
        Ok(places)
    }

    async fn lock_shares(
        &mut self,
        service: ServiceKey,
        shares: &[(ClientKey, usize)],
        leased: &[i64],
    ) -> Result<Locked<LockedPending>> {
        let (mut all, leased) = (Vec::new(), array(leased)?);
        for &(client, most) in shares {
            let rows = sqlx::query(LOCK_SHARE)
                .bind(service.0)
                .bind(client.0)
                .bind(wide(most))
                .bind(&leased)
                .fetch_all(&mut *self.tx)
                .await
                .map_err(|failure| self.failed(failure))?;
            all.extend(rows);
        }
        locked(&all, locked_pending)
    }

    async fn write_flow(
        &mut self,
        service: ServiceKey,
        state: FlowState,
        clients: &[(ClientKey, Standing)],
    ) -> Result<()> {
        sqlx::query("UPDATE flow SET ahead_until = ?2, time = ?3, turns = ?4 WHERE service_id = ?1")
            .bind(service.0)
            .bind(state.ahead_until)
            .bind(state.time)
            .bind(state.turns)
            .execute(&mut *self.tx)
            .await
            .map_err(|failure| self.failed(failure))?;
        if clients.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = clients.iter().map(|(client, at)| (service.0, client.0, at.time, at.turn)).collect();
        self.execute(
            "INSERT INTO flow_client (service_id, client_id, time, turn)
             SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each(?1) WHERE true
             ON CONFLICT (service_id, client_id) DO UPDATE SET time = excluded.time, turn = excluded.turn",
            &rows,
        )
        .await
    }

    async fn note_flows(&mut self) -> Result<()> {
        for statement in [
            "UPDATE service SET flow = CASE
                 WHEN deleted THEN 0
                 WHEN fair_share OR max_running_per_client IS NOT NULL OR EXISTS (
                     SELECT 1 FROM authorization a WHERE a.service_id = service.id AND a.max_running IS NOT NULL
                 ) THEN 2
                 WHEN max_running IS NOT NULL OR rate_count IS NOT NULL THEN 1
                 WHEN handed THEN 3
                 ELSE 0 END",
            "INSERT INTO flow (service_id) SELECT id FROM service WHERE flow > 0 OR dispatch_window IS NOT NULL
             ON CONFLICT DO NOTHING",
            // A window that is new: what is at the broker already is given places.
            "UPDATE service SET again_places = 1, again_running = 1, again_after = 0,
                 again_until = coalesce((SELECT max(id) FROM task), 0)
             WHERE dispatch_window IS NOT NULL AND transport = 1 AND NOT deleted AND NOT windowed AND again_after IS NULL
               AND EXISTS (SELECT 1 FROM task t WHERE t.service_id = service.id AND t.status IN (0, 1))",
            "UPDATE service SET windowed = 1 WHERE dispatch_window IS NOT NULL AND transport = 1 AND NOT deleted",
            // One that is gone.
            "DELETE FROM dispatch WHERE due = 9223372036854775807 AND window_id IN (
                 SELECT id FROM service WHERE windowed AND (dispatch_window IS NULL OR transport = 0 OR deleted))",
            "UPDATE dispatch SET window_id = NULL WHERE window_id IN (
                 SELECT id FROM service WHERE windowed AND (dispatch_window IS NULL OR transport = 0 OR deleted))",
            "UPDATE service SET windowed = 0, again_places = 0, again_after = iif(again_places, NULL, again_after)
             WHERE windowed AND (dispatch_window IS NULL OR transport = 0 OR deleted)",
        ] {
            sqlx::query(statement).execute(&mut *self.tx).await.map_err(|failure| self.failed(failure))?;
        }
        Ok(())
    }
}

/// Declares what limits a service's flow.
pub(crate) async fn put_service(
    tx: &mut SqliteTransaction<'static>,
    name: &ServiceName,
    limits: &FlowLimits,
) -> Result<()> {
    sqlx::query(
        "UPDATE service SET max_running = ?2, max_running_per_client = ?3, rate_count = ?4, rate_per_ms = ?5,
             rate_burst = ?6, fair_share = ?7, dispatch_window = ?8
         WHERE name = ?1",
    )
    .bind(name.as_str())
    .bind(limits.max_running.map(signed))
    .bind(limits.max_running_per_client.map(signed))
    .bind(limits.rate.map(|rate| signed(rate.count)))
    .bind(limits.rate.map(|rate| in_millis(rate.per)))
    .bind(limits.rate.map(|rate| signed(rate.burst)))
    .bind(limits.fair_share)
    .bind(limits.dispatch_window.map(signed))
    .execute(&mut **tx)
    .await
    .map_err(error)?;
    Ok(())
}

/// Declares a client's part in a service's flow.
pub(crate) async fn put_authorization(
    tx: &mut SqliteTransaction<'static>,
    client_id: &ClientId,
    service: &ServiceName,
    flow: ClientFlow,
) -> Result<()> {
    sqlx::query(
        "UPDATE authorization SET max_running = ?3, share = ?4
         WHERE client_id = (SELECT id FROM client WHERE client_id = ?1)
           AND service_id = (SELECT id FROM service WHERE name = ?2)",
    )
    .bind(client_id.as_str())
    .bind(service.as_str())
    .bind(flow.max_running.map(signed))
    .bind(signed(flow.share))
    .execute(&mut **tx)
    .await
    .map_err(error)?;
    Ok(())
}
