//! Services whose flow is limited, on PostgreSQL.

use std::collections::HashMap;

use relais_core::{
    ClientFlow, ClientId, ClientKey, FlowFacts, FlowLimits, FlowState, ServiceKey, ServiceName, Standing,
};
use sqlx::PgConnection;

use crate::{
    claims::postgres::pending_columns,
    claims::statements::{LockedPending, locked_pending},
    flow::statements::{FlowKind, Flows, flow_client, flow_facts, flow_kind, flow_state},
    postgres::error,
    postgres::session::{PgSession, column},
    row::{Columns as _, client_key, in_millis, signed, unsigned, wide},
    session::Result,
    tasks::statements::{Locked, locked},
};

/// Where the first pending tasks of each of the clients `w` stand, in the order in which claims get them: at most
/// `w.most` of each, and none of `$4`, which are leased. A whole row says where to begin. Nothing says where to end but
/// the number, since a scan that finds too few ends with the service and not with the client: what is of the next
/// client is left out.
const PENDING_PLACES: &str = "
    SELECT w.client_id, t.rank, t.id FROM unnest($2::integer[], $3::bigint[]) AS w (client_id, most)
    CROSS JOIN LATERAL (
        SELECT i.rank, i.id FROM (
            SELECT service_id, client_id, rank, id FROM relais.task
            WHERE status = 0 AND (service_id, client_id, rank, id) > ($1, w.client_id, -9223372036854775808, 0)
            ORDER BY service_id, client_id, rank, id LIMIT w.most + cardinality($4::bigint[]) + 0
        ) i
        WHERE i.service_id = $1 AND i.client_id = w.client_id AND i.id NOT IN (SELECT unnest($4::bigint[]))
        ORDER BY i.rank, i.id LIMIT w.most
    ) t";

/// Locks such tasks. A few more are looked at, for those that others have locked. What is compared and sorted by is no
/// column, so that no index seems to help but the one that finds each task.
const LOCK_SHARES: &str = concat!(
    "SELECT clock_timestamp() AS now, c.client_id AS client, ",
    pending_columns!("NULL"),
    " FROM unnest($2::integer[], $3::bigint[]) AS w (client_id, most)
     CROSS JOIN LATERAL (
         SELECT * FROM relais.task WHERE status + 0 = 0 AND id = ANY(ARRAY(
             SELECT i.id FROM (
                 SELECT service_id, client_id, rank, id FROM relais.task
                 WHERE status = 0 AND (service_id, client_id, rank, id) > ($1, w.client_id, -9223372036854775808, 0)
                 ORDER BY service_id, client_id, rank, id LIMIT w.most + cardinality($4::bigint[]) + 16
             ) i
             WHERE i.service_id = $1 AND i.client_id = w.client_id AND i.id NOT IN (SELECT unnest($4::bigint[]))
         )) ORDER BY rank + 0, id LIMIT w.most FOR NO KEY UPDATE SKIP LOCKED
     ) t
     CROSS JOIN LATERAL (SELECT * FROM relais.service WHERE id = t.service_id OFFSET 0) s
     CROSS JOIN LATERAL (SELECT * FROM relais.client WHERE id = t.client_id OFFSET 0) c"
);

impl Flows for PgSession {
    async fn lock_flow(&mut self, service: ServiceKey) -> Result<Option<FlowState>> {
        let row =
            sqlx::query("SELECT ahead_until, time, turns FROM relais.flow WHERE service_id = $1 FOR NO KEY UPDATE")
                .bind(service.0)
                .fetch_optional(&mut *self.tx)
                .await
                .map_err(error)?;
        row.as_ref().map(flow_state).transpose()
    }

    async fn flow_facts(&mut self, service: ServiceKey, state: FlowState) -> Result<Option<(FlowFacts, bool)>> {
        let row = sqlx::query(
            "SELECT s.flow, s.handed, s.max_running, s.max_running_per_client, s.rate_count, s.rate_per_ms, s.rate_burst, s.fair_share,
                    s.dispatch_window,
                    (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint AS now_nanos, c.pending, c.running
             FROM relais.service s CROSS JOIN LATERAL (
                 SELECT coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 0), 0)::bigint AS pending,
                        coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 1), 0)::bigint AS running
                 FROM relais.counter WHERE service_id = s.id AND client_id = 0
             ) c
             WHERE s.id = $1 AND NOT s.paused AND NOT s.deleted AND s.transport = 0",
        )
        .bind(service.0)
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(error)?;
        let Some(row) = row else { return Ok(None) };
        let mut facts = flow_facts(&row, state)?;
        if flow_kind(&row)? == FlowKind::ByClient {
            // The cost is that of the clients that the service has had, not of their tasks.
            let rows = sqlx::query(
                "SELECT c.client_id, c.pending, c.running, a.max_running, a.share, f.time, f.turn
                 FROM (SELECT client_id,
                              coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 0), 0)::bigint AS pending,
                              coalesce(sum(CASE WHEN departed THEN -n ELSE n END) FILTER (WHERE status = 1), 0)::bigint AS running
                       FROM relais.counter WHERE service_id = $1 AND client_id > 0 GROUP BY client_id) c
                 LEFT JOIN LATERAL (
                     SELECT max_running, share FROM relais.authorization
                     WHERE client_id = c.client_id AND service_id = $1 OFFSET 0
                 ) a ON true
                 LEFT JOIN LATERAL (
                     SELECT time, turn FROM relais.flow_client WHERE service_id = $1 AND client_id = c.client_id OFFSET 0
                 ) f ON true
                 WHERE c.pending > 0",
            )
            .bind(service.0)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
            facts.clients = Some(rows.iter().map(flow_client).collect::<Result<_>>()?);
        }
        Ok(Some((facts, row.flag("handed")?)))
    }

    async fn waiting_leased(&mut self, leased: &[i64]) -> Result<HashMap<ClientKey, u64>> {
        // What is sorted out by is no column, so that no index seems to help but the one that finds each task.
        let rows: Vec<(i32, i64)> = sqlx::query_as(
            "SELECT client_id, count(*) FROM relais.task WHERE id = ANY($1) AND status + 0 = 0 GROUP BY client_id",
        )
        .bind(leased)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(rows.into_iter().map(|(client, number)| (ClientKey(client), unsigned(number))).collect())
    }

    async fn pending_places(
        &mut self,
        service: ServiceKey,
        most: &[(ClientKey, usize)],
        leased: &[i64],
    ) -> Result<Vec<(ClientKey, (i64, i64))>> {
        let rows = sqlx::query(PENDING_PLACES)
            .bind(service.0)
            .bind(column(most, |(client, _)| client.0))
            .bind(column(most, |&(_, most)| wide(most)))
            .bind(leased)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        rows.iter().map(|row| Ok((client_key(row)?, (row.big("rank")?, row.big("id")?)))).collect()
    }

    async fn lock_shares(
        &mut self,
        service: ServiceKey,
        shares: &[(ClientKey, usize)],
        leased: &[i64],
    ) -> Result<Locked<LockedPending>> {
        let rows = sqlx::query(LOCK_SHARES)
            .bind(service.0)
            .bind(column(shares, |(client, _)| client.0))
            .bind(column(shares, |&(_, most)| wide(most)))
            .bind(leased)
            .fetch_all(&mut *self.tx)
            .await
            .map_err(error)?;
        locked(&rows, locked_pending)
    }

    async fn write_flow(
        &mut self,
        service: ServiceKey,
        state: FlowState,
        clients: &[(ClientKey, Standing)],
    ) -> Result<()> {
        sqlx::query(
            "WITH clients AS (
                 INSERT INTO relais.flow_client (service_id, client_id, time, turn)
                 SELECT $1, w.client_id, w.time, w.turn
                 FROM unnest($5::integer[], $6::bigint[], $7::bigint[]) AS w (client_id, time, turn)
                 ON CONFLICT (service_id, client_id) DO UPDATE SET time = excluded.time, turn = excluded.turn
             )
             UPDATE relais.flow SET ahead_until = $2, time = $3, turns = $4 WHERE service_id = $1",
        )
        .bind(service.0)
        .bind(state.ahead_until)
        .bind(state.time)
        .bind(state.turns)
        .bind(column(clients, |(client, _)| client.0))
        .bind(column(clients, |(_, standing)| standing.time))
        .bind(column(clients, |(_, standing)| standing.turn))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn note_flows(&mut self) -> Result<()> {
        sqlx::query(
            "WITH w AS (
                 SELECT s.id, s.dispatch_window, CASE
                     WHEN s.deleted THEN 0
                     WHEN s.fair_share OR s.max_running_per_client IS NOT NULL OR EXISTS (
                         SELECT 1 FROM relais.authorization a WHERE a.service_id = s.id AND a.max_running IS NOT NULL
                     ) THEN 2
                     WHEN s.max_running IS NOT NULL OR s.rate_count IS NOT NULL THEN 1
                     WHEN s.handed THEN 3
                     ELSE 0 END AS flow
                 FROM relais.service s
             ), made AS (
                 INSERT INTO relais.flow (service_id) SELECT id FROM w WHERE flow > 0 OR dispatch_window IS NOT NULL
                 ON CONFLICT DO NOTHING
             )
             UPDATE relais.service s SET flow = w.flow FROM w WHERE s.id = w.id AND s.flow <> w.flow",
        )
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        for statement in [
            // A window that is new: what is at the broker already is given places.
            "UPDATE relais.service s SET windowed = true, again_places = n.new, again_running = n.new OR s.again_running,
                 again_after = CASE WHEN n.new THEN 0 ELSE s.again_after END,
                 again_until = CASE WHEN n.new THEN coalesce((SELECT max(id) FROM relais.task), 0) ELSE s.again_until END
             FROM (SELECT id, again_after IS NULL AND EXISTS (
                       SELECT 1 FROM relais.task t WHERE t.service_id = s.id AND t.status IN (0, 1)
                   ) AS new
                   FROM relais.service s
                   WHERE dispatch_window IS NOT NULL AND transport = 1 AND NOT deleted AND NOT windowed) n
             WHERE s.id = n.id",
            // One that is gone.
            "DELETE FROM relais.dispatch WHERE due = 'infinity' AND window_id = ANY(ARRAY(
                 SELECT id FROM relais.service
                 WHERE windowed AND (dispatch_window IS NULL OR transport = 0 OR deleted)))",
            "UPDATE relais.dispatch SET window_id = NULL WHERE window_id = ANY(ARRAY(
                 SELECT id FROM relais.service
                 WHERE windowed AND (dispatch_window IS NULL OR transport = 0 OR deleted)))",
            "UPDATE relais.service SET windowed = false, again_places = false,
                 again_after = CASE WHEN NOT again_places THEN again_after END
             WHERE windowed AND (dispatch_window IS NULL OR transport = 0 OR deleted)",
        ] {
            sqlx::query(statement).execute(&mut *self.tx).await.map_err(error)?;
        }
        Ok(())
    }
}

/// Declares what limits a service's flow.
pub(crate) async fn put_service(tx: &mut PgConnection, name: &ServiceName, limits: &FlowLimits) -> Result<()> {
    sqlx::query(
        "UPDATE relais.service SET max_running = $2, max_running_per_client = $3, rate_count = $4, rate_per_ms = $5,
             rate_burst = $6, fair_share = $7, dispatch_window = $8
         WHERE name = $1",
    )
    .bind(name.as_str())
    .bind(limits.max_running.map(signed))
    .bind(limits.max_running_per_client.map(signed))
    .bind(limits.rate.map(|rate| signed(rate.count)))
    .bind(limits.rate.map(|rate| in_millis(rate.per)))
    .bind(limits.rate.map(|rate| signed(rate.burst)))
    .bind(limits.fair_share)
    .bind(limits.dispatch_window.map(signed))
    .execute(tx)
    .await
    .map_err(error)?;
    Ok(())
}

/// Declares a client's part in a service's flow.
pub(crate) async fn put_authorization(
    tx: &mut PgConnection,
    client_id: &ClientId,
    service: &ServiceName,
    flow: ClientFlow,
) -> Result<()> {
    sqlx::query(
        "UPDATE relais.authorization a SET max_running = $3, share = $4 FROM relais.client c, relais.service s
         WHERE a.client_id = c.id AND a.service_id = s.id AND c.client_id = $1 AND s.name = $2",
    )
    .bind(client_id.as_str())
    .bind(service.as_str())
    .bind(flow.max_running.map(signed))
    .bind(signed(flow.share))
    .execute(tx)
    .await
    .map_err(error)?;
    Ok(())
}
