//! Writes of the log and the ledger, on PostgreSQL.

use std::time::Duration;

use relais_core::Timestamp;
use relais_notify::{AudienceKey, Delivery, LogHead};
use uuid::Uuid;

use crate::{
    notifications::statements::{
        AppendedEntry, ChangedState, InsertedRow, NotificationRow, NotificationRows, acknowledged_pair,
        changed_meanwhile, from_jiff, head, ids, key, notification_row, status_code,
    },
    postgres::session::{PgSession, column},
    postgres::{error, to_sql},
    row::{Columns, signed, wide},
    session::Result,
};

use super::{kinds, targets};

impl NotificationRows for PgSession {
    async fn lock_head(&mut self) -> Result<LogHead> {
        let row = sqlx::query(
            "SELECT epoch, position, floor, clock_timestamp() AS now FROM relais.notification_head FOR UPDATE",
        )
        .fetch_one(&mut *self.tx)
        .await
        .map_err(error)?;
        head(&row)
    }

    async fn advance_head(&mut self, position: i64) -> Result<()> {
        sqlx::query("UPDATE relais.notification_head SET position = $1")
            .bind(position)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn known_notifications(&mut self, of: &[Uuid]) -> Result<Vec<Uuid>> {
        let rows =
            sqlx::query("SELECT n.id::text AS id FROM unnest($1::uuid[]) AS i JOIN relais.notification n ON n.id = i")
                .bind(of)
                .fetch_all(&mut *self.tx)
                .await
                .map_err(error)?;
        ids(&rows)
    }

    async fn insert_notifications(&mut self, rows: &[InsertedRow]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.notification (id, position, client, message, ack_required, ack_timeout_ms, expiration,
                 status, attempts, resent_at, due, revision, outstanding)
             SELECT id, position, client, message, ack_required, ack_timeout_ms, expiration, 0, 0, 0, due, 0, outstanding
             FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::boolean[], $6::bigint[],
                 $7::timestamptz[], $8::timestamptz[], $9::bigint[])
                 AS w (id, position, client, message, ack_required, ack_timeout_ms, expiration, due, outstanding)",
        )
        .bind(column(rows, |row| row.id))
        .bind(column(rows, |row| row.position))
        .bind(column(rows, |row| row.client.as_deref()))
        .bind(column(rows, |row| row.message.as_str()))
        .bind(column(rows, |row| row.ack_required))
        .bind(column(rows, |row| row.ack_timeout_ms))
        .bind(column(rows, |row| to_sql(row.expiration)))
        .bind(column(rows, |row| row.due.map(to_sql)))
        .bind(column(rows, |row| row.outstanding))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn append_entries(&mut self, entries: &[AppendedEntry]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.notification_entry (position, kind, notification, attempts, detail, at)
             SELECT position, kind, notification, attempts, detail, clock_timestamp()
             FROM unnest($1::bigint[], $2::smallint[], $3::uuid[], $4::integer[], $5::text[])
                 AS w (position, kind, notification, attempts, detail)",
        )
        .bind(column(entries, |entry| entry.position))
        .bind(column(entries, |entry| entry.kind))
        .bind(column(entries, |entry| entry.notification))
        .bind(column(entries, |entry| signed(entry.attempts)))
        .bind(column(entries, |entry| entry.detail.as_deref()))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        let keys: Vec<(&AudienceKey, &AppendedEntry)> =
            entries.iter().flat_map(|entry| entry.keys.iter().map(move |key| (key, entry))).collect();
        sqlx::query(
            "INSERT INTO relais.notification_key (type, target, position, kind, notification)
             SELECT type, target, position, kind, notification
             FROM unnest($1::text[], $2::text[], $3::bigint[], $4::smallint[], $5::uuid[])
                 AS w (type, target, position, kind, notification)",
        )
        .bind(column(&keys, |(key, _)| key.kind.as_str()))
        .bind(column(&keys, |(key, _)| key.target.as_str()))
        .bind(column(&keys, |(_, entry)| entry.position))
        .bind(column(&keys, |(_, entry)| entry.kind))
        .bind(column(&keys, |(_, entry)| entry.notification))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn count_awaited(&mut self, keys: &[AudienceKey], emitted_at: i64, id: Uuid) -> Result<i64> {
        let row = sqlx::query(concat!(
            reach!(),
            "SELECT count(*) AS awaited FROM reach u WHERE u.type = 'USER' AND NOT EXISTS (
                 SELECT 1 FROM relais.notification_recipient r
                 WHERE r.notification = $4 AND r.user_id = u.target AND r.acknowledged IS NOT NULL
             )"
        ))
        .bind(kinds(keys))
        .bind(targets(keys))
        .bind(emitted_at)
        .bind(id)
        .fetch_one(&mut *self.tx)
        .await
        .map_err(error)?;
        row.big("awaited")
    }

    async fn lock_notifications(&mut self, of: &[Uuid]) -> Result<Vec<NotificationRow>> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            notification_columns!(),
            state_columns!(),
            " FROM relais.notification n WHERE n.id = ANY($1) ORDER BY n.id FOR UPDATE"
        ))
        .bind(of)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(notification_row).collect()
    }

    async fn lock_due(&mut self, limit: i64) -> Result<(Vec<NotificationRow>, Timestamp)> {
        let rows = sqlx::query(concat!(
            "SELECT now() AS now, ",
            notification_columns!(),
            state_columns!(),
            " FROM relais.notification n WHERE n.due <= now() ORDER BY n.due LIMIT $1 FOR UPDATE SKIP LOCKED"
        ))
        .bind(limit)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        let now = rows.first().map_or(Ok(Timestamp::from_millis(0)), |row| row.moment("now"))?;
        Ok((rows.iter().map(notification_row).collect::<Result<_>>()?, now))
    }

    async fn write_states(&mut self, changes: &[ChangedState]) -> Result<()> {
        let done = sqlx::query(
            "UPDATE relais.notification n SET status = w.status, attempts = w.attempts, resent_at = w.resent_at,
                 due = w.due, revision = w.revision, outstanding = w.outstanding, replaced_by = w.replaced_by
             FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::integer[], $5::integer[], $6::timestamptz[],
                 $7::bigint[], $8::bigint[], $9::uuid[])
                 AS w (id, before, status, attempts, resent_at, due, revision, outstanding, replaced_by)
             WHERE n.id = w.id AND n.revision = w.before",
        )
        .bind(column(changes, |change| change.id))
        .bind(column(changes, |change| wide(change.before)))
        .bind(column(changes, |change| status_code(change.state.status)))
        .bind(column(changes, |change| signed(change.state.attempts)))
        .bind(column(changes, |change| signed(change.state.resent_at)))
        .bind(column(changes, |change| change.state.due.map(|due| to_sql(from_jiff(due)))))
        .bind(column(changes, |change| wide(change.state.revision)))
        .bind(column(changes, |change| change.outstanding))
        .bind(column(changes, |change| change.replaced_by))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        if done.rows_affected() < changes.len() as u64 { Err(changed_meanwhile()) } else { Ok(()) }
    }

    async fn visible_notifications(&mut self, keys: &[&AudienceKey], of: &[Uuid]) -> Result<Vec<Uuid>> {
        let rows = sqlx::query(
            "SELECT DISTINCT n.id::text AS id FROM unnest($3::uuid[]) AS i JOIN relais.notification n ON n.id = i
             WHERE EXISTS (
                 SELECT 1 FROM unnest($1::text[], $2::text[]) AS w (type, target)
                 JOIN relais.notification_key k
                     ON k.type = w.type AND k.target = w.target AND k.position = n.position
             )",
        )
        .bind(kinds(keys.iter().copied()))
        .bind(targets(keys.iter().copied()))
        .bind(of)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        ids(&rows)
    }

    async fn unread_notifications(&mut self, user: &str, keys: &[&AudienceKey], limit: i64) -> Result<Vec<Uuid>> {
        let rows = sqlx::query(
            "SELECT n.id::text AS id FROM (
                 SELECT DISTINCT k.notification FROM unnest($1::text[], $2::text[]) AS w (type, target)
                 JOIN relais.notification_key k ON k.type = w.type AND k.target = w.target AND k.kind = 0
             ) v JOIN relais.notification n ON n.id = v.notification
             WHERE n.status NOT IN (3, 4) AND n.expiration > clock_timestamp() AND NOT EXISTS (
                 SELECT 1 FROM relais.notification_recipient r
                 WHERE r.notification = n.id AND r.user_id = $3 AND r.acknowledged IS NOT NULL
             ) ORDER BY n.position LIMIT $4",
        )
        .bind(kinds(keys.iter().copied()))
        .bind(targets(keys.iter().copied()))
        .bind(user)
        .bind(limit)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        ids(&rows)
    }

    async fn write_acknowledgements(&mut self, pairs: &[(Uuid, &str)]) -> Result<Vec<(Uuid, String)>> {
        let rows = sqlx::query(
            "INSERT INTO relais.notification_recipient AS r (notification, user_id, deliveries, acknowledged)
             SELECT w.id, w.user_id, 0, clock_timestamp() FROM unnest($1::uuid[], $2::text[]) AS w (id, user_id)
             ORDER BY w.id, w.user_id COLLATE \"C\"
             ON CONFLICT (notification, user_id) DO UPDATE SET acknowledged = excluded.acknowledged
                 WHERE r.acknowledged IS NULL
             RETURNING notification::text AS id, user_id",
        )
        .bind(column(pairs, |(id, _)| *id))
        .bind(column(pairs, |(_, user)| *user))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(acknowledged_pair).collect()
    }

    async fn members_of(&mut self, of: &AudienceKey) -> Result<Vec<AudienceKey>> {
        let rows = sqlx::query(
            "SELECT member_type AS type, member AS target FROM relais.membership WHERE type = $1 AND target = $2",
        )
        .bind(&of.kind)
        .bind(&of.target)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(key).collect()
    }

    async fn which_contain(&mut self, wholes: &[AudienceKey], part: &AudienceKey) -> Result<Vec<AudienceKey>> {
        let rows = sqlx::query(concat!(
            containing!(),
            "SELECT up.type, up.target FROM up JOIN unnest($3::text[], $4::text[]) AS w (type, target)
                 ON up.type = w.type AND up.target = w.target"
        ))
        .bind(&part.kind)
        .bind(&part.target)
        .bind(kinds(wholes))
        .bind(targets(wholes))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(key).collect()
    }

    async fn insert_members(&mut self, of: &AudienceKey, members: &[AudienceKey], since: i64) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.membership (type, target, member_type, member, since)
             SELECT $1, $2, w.type, w.target, $5 FROM unnest($3::text[], $4::text[]) AS w (type, target)",
        )
        .bind(&of.kind)
        .bind(&of.target)
        .bind(kinds(members))
        .bind(targets(members))
        .bind(since)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn delete_members(&mut self, of: &AudienceKey, members: &[AudienceKey]) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.membership m USING unnest($3::text[], $4::text[]) AS w (type, target)
             WHERE m.type = $1 AND m.target = $2 AND m.member_type = w.type AND m.member = w.target",
        )
        .bind(&of.kind)
        .bind(&of.target)
        .bind(kinds(members))
        .bind(targets(members))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn open_notifications(&mut self, of: &AudienceKey, after: i64, limit: i64) -> Result<Vec<(Uuid, i64)>> {
        let rows = sqlx::query(concat!(
            containing!(),
            "SELECT DISTINCT n.id::text AS id, n.position FROM up
             JOIN relais.notification_key k ON k.type = up.type AND k.target = up.target AND k.kind = 0
                 AND k.position > $3
             JOIN relais.notification n ON n.id = k.notification
             WHERE n.status IN (0, 2) AND n.ack_required ORDER BY n.position LIMIT $4"
        ))
        .bind(&of.kind)
        .bind(&of.target)
        .bind(after)
        .bind(limit)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        let found = ids(&rows)?;
        found.into_iter().zip(&rows).map(|(id, row)| Ok((id, row.big("position")?))).collect()
    }

    async fn write_deliveries(&mut self, deliveries: &[(Delivery, i32)]) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.notification_recipient AS r (notification, user_id, deliveries, delivered)
             SELECT w.id, w.user_id, w.count, clock_timestamp()
             FROM unnest($1::uuid[], $2::text[], $3::integer[]) AS w (id, user_id, count)
             JOIN relais.notification n ON n.id = w.id
             ORDER BY w.id, w.user_id COLLATE \"C\"
             ON CONFLICT (notification, user_id) DO UPDATE
                 SET deliveries = r.deliveries + excluded.deliveries, delivered = excluded.delivered",
        )
        .bind(column(deliveries, |(delivery, _)| delivery.id))
        .bind(column(deliveries, |(delivery, _)| delivery.user.as_str()))
        .bind(column(deliveries, |(_, count)| *count))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn purge_entries(&mut self, age: Duration, limit: i64) -> Result<u64> {
        let rows = sqlx::query(
            "DELETE FROM relais.notification_entry WHERE position IN (
                 SELECT position FROM (
                     SELECT position, at FROM relais.notification_entry ORDER BY position LIMIT $2
                 ) f WHERE f.at < now() - make_interval(secs => $1)
             ) RETURNING position",
        )
        .bind(age.as_secs_f64())
        .bind(limit)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        let positions = rows.iter().map(|row| row.big("position")).collect::<Result<Vec<i64>>>()?;
        let Some(last) = positions.iter().max().copied() else { return Ok(0) };
        sqlx::query("DELETE FROM relais.notification_key WHERE position = ANY($1) AND kind <> 0")
            .bind(&positions)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        sqlx::query("UPDATE relais.notification_head SET floor = greatest(floor, $1)")
            .bind(last)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(positions.len() as u64)
    }

    async fn purge_notifications(&mut self, age: Duration, limit: i64) -> Result<u64> {
        let rows = sqlx::query(
            "DELETE FROM relais.notification WHERE id IN (
                 SELECT id FROM relais.notification WHERE expiration < now() - make_interval(secs => $1)
                 ORDER BY expiration LIMIT $2 FOR UPDATE SKIP LOCKED
             ) RETURNING id::text AS id",
        )
        .bind(age.as_secs_f64())
        .bind(limit)
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        let gone = ids(&rows)?;
        for statement in [
            "DELETE FROM relais.notification_key WHERE notification = ANY($1) AND kind = 0",
            "DELETE FROM relais.notification_recipient WHERE notification = ANY($1)",
        ] {
            sqlx::query(statement).bind(&gone).execute(&mut *self.tx).await.map_err(error)?;
        }
        Ok(gone.len() as u64)
    }

    async fn ticket_key(&mut self, new: &[u8; 32]) -> Result<Vec<u8>> {
        let row = sqlx::query(
            "UPDATE relais.notification_head SET ticket_key = coalesce(ticket_key, $1) RETURNING ticket_key",
        )
        .bind(new.as_slice())
        .fetch_one(&mut *self.tx)
        .await
        .map_err(error)?;
        row.bytes("ticket_key")
    }
}
