//! Notifications, on PostgreSQL.

use std::time::Duration;

use relais_core::Timestamp;
use relais_notify::{
    AudienceKey, Belonging, Counts, Delivery, LedgerLine, ListFilter, ListRequest, ListedNotification, LogEntry,
    LogHead, Member, NotificationFilter, StoredNotification, UserScope,
};
use sqlx::{AssertSqlSafe, postgres::PgRow};
use uuid::Uuid;

use crate::{
    notifications::statements::{
        AppendedEntry, ChangedState, InsertedRow, NotificationReader, NotificationRow, NotificationRows,
        acknowledged_pair, changed_meanwhile, counts, entries, from_jiff, head, ids, key, ledger_line, listed, member,
        notification_row, scope, status_code, stored,
    },
    postgres::session::{PgSession, column},
    postgres::{Postgres, error, to_sql},
    row::{Columns, signed, wide},
    session::Result,
};

/// The columns of a message, of `relais.notification n`.
macro_rules! notification_columns {
    () => {
        "n.message, n.position AS emitted_at, n.client, n.status, n.attempts, n.replaced_by::text AS replaced_by"
    };
}

/// And what its rules need.
macro_rules! state_columns {
    () => {
        ", n.ack_timeout_ms, n.expiration, n.resent_at, n.due, n.revision, n.outstanding"
    };
}

/// What keys contain, themselves too, as it is since a position: of `$1` types and `$2` targets, up to `$3`.
macro_rules! reach {
    () => {
        "WITH RECURSIVE reach (type, target) AS (
             SELECT k.type COLLATE \"C\", k.target COLLATE \"C\" FROM unnest($1::text[], $2::text[]) AS k (type, target)
             UNION
             SELECT m.member_type, m.member FROM reach r
             JOIN relais.membership m ON m.type = r.type AND m.target = r.target WHERE m.since <= $3
         ) "
    };
}

/// What contains a key, itself too: of type `$1` and target `$2`.
macro_rules! containing {
    () => {
        "WITH RECURSIVE up (type, target) AS (
             SELECT $1::text COLLATE \"C\", $2::text COLLATE \"C\"
             UNION
             SELECT m.type, m.target FROM up JOIN relais.membership m ON m.member_type = up.type AND m.member = up.target
         ) "
    };
}

/// A user's messages that are not over, with whether the user is awaited: of `$1` types, `$2` targets and `$3` positions since
/// when, `$4` user.
macro_rules! of_user {
    () => {
        "FROM (
             SELECT k.notification, coalesce(bool_or(k.position >= w.since), false) AS awaited
             FROM unnest($1::text[], $2::text[], $3::bigint[]) AS w (type, target, since)
             JOIN relais.notification_key k ON k.type = w.type AND k.target = w.target AND k.kind = 0
             GROUP BY k.notification
         ) v JOIN relais.notification n ON n.id = v.notification
         LEFT JOIN relais.notification_recipient r ON r.notification = n.id AND r.user_id = $4
         WHERE n.status NOT IN (3, 4) AND n.expiration > clock_timestamp()"
    };
}

fn kinds<'a>(keys: impl IntoIterator<Item = &'a AudienceKey>) -> Vec<&'a str> {
    keys.into_iter().map(|key| key.kind.as_str()).collect()
}

fn targets<'a>(keys: impl IntoIterator<Item = &'a AudienceKey>) -> Vec<&'a str> {
    keys.into_iter().map(|key| key.target.as_str()).collect()
}

fn sinces(scope: &UserScope) -> Vec<Option<i64>> {
    scope.belongs.iter().map(|belonging| belonging.since.map(wide)).collect()
}

fn texts(rows: &[PgRow], column: &str) -> Result<Vec<String>> {
    rows.iter().map(|row| row.text(column)).collect()
}

impl NotificationReader for Postgres {
    async fn read_head(&self) -> Result<LogHead> {
        let mut lent = self.lend().await?;
        let row = sqlx::query("SELECT epoch, position, floor, clock_timestamp() AS now FROM relais.notification_head")
            .fetch_one(&mut *lent)
            .await
            .map_err(error)?;
        lent.keep();
        head(&row)
    }

    async fn read_entries(&self, after: i64, limit: i64) -> Result<Vec<LogEntry>> {
        let mut lent = self.lend().await?;
        let rows = sqlx::query(concat!(
            "SELECT e.position, e.at, e.kind, e.attempts AS entry_attempts, e.detail, ",
            notification_columns!(),
            " FROM relais.notification_entry e LEFT JOIN relais.notification n ON n.id = e.notification
              WHERE e.position > $1 ORDER BY e.position LIMIT $2"
        ))
        .bind(after)
        .bind(limit)
        .fetch_all(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        entries(&rows)
    }

    async fn read_entries_of(
        &self,
        keys: &[&AudienceKey],
        after: i64,
        up_to: i64,
        limit: i64,
    ) -> Result<Vec<LogEntry>> {
        let mut lent = self.lend().await?;
        let rows = sqlx::query(concat!(
            "SELECT e.position, e.at, e.kind, e.attempts AS entry_attempts, e.detail, ",
            notification_columns!(),
            " FROM (
                  SELECT DISTINCT k.position FROM unnest($1::text[], $2::text[]) AS w (type, target)
                  CROSS JOIN LATERAL (
                      SELECT k.position FROM relais.notification_key k
                      WHERE k.type = w.type AND k.target = w.target AND k.position > $3 AND k.position <= $4
                      ORDER BY k.position LIMIT $5
                  ) k ORDER BY k.position LIMIT $5
              ) p JOIN relais.notification_entry e ON e.position = p.position
              LEFT JOIN relais.notification n ON n.id = e.notification
              ORDER BY e.position"
        ))
        .bind(kinds(keys.iter().copied()))
        .bind(targets(keys.iter().copied()))
        .bind(after)
        .bind(up_to)
        .bind(limit)
        .fetch_all(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        entries(&rows)
    }

    async fn read_scopes(&self, users: &[String]) -> Result<Vec<(String, Belonging)>> {
        let mut lent = self.lend().await?;
        let rows = sqlx::query(
            "WITH RECURSIVE up (user_id, type, target, since) AS (
                 SELECT u COLLATE \"C\", 'USER'::text COLLATE \"C\", u COLLATE \"C\", 0::bigint
                 FROM unnest($1::text[]) AS u
                 UNION
                 SELECT up.user_id, m.type, m.target, greatest(up.since, m.since)
                 FROM up JOIN relais.membership m ON m.member_type = up.type AND m.member = up.target
             )
             SELECT user_id, type, target, min(since) AS since FROM up WHERE type <> 'USER'
             GROUP BY user_id, type, target",
        )
        .bind(users)
        .fetch_all(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        rows.iter().map(scope).collect()
    }

    async fn acknowledged_by(&self, id: Uuid, users: &[String]) -> Result<Vec<String>> {
        let rows = sqlx::query(
            "SELECT r.user_id FROM unnest($2::text[]) AS u
             JOIN relais.notification_recipient r ON r.notification = $1 AND r.user_id = u
             WHERE r.acknowledged IS NOT NULL",
        )
        .bind(id)
        .bind(users)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        texts(&rows, "user_id")
    }

    async fn acknowledged_of(&self, user: &str, of: &[Uuid]) -> Result<Vec<Uuid>> {
        let rows = sqlx::query(
            "SELECT r.notification::text AS id FROM unnest($2::uuid[]) AS i
             JOIN relais.notification_recipient r ON r.notification = i AND r.user_id = $1
             WHERE r.acknowledged IS NOT NULL",
        )
        .bind(user)
        .bind(of)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        ids(&rows)
    }

    async fn list_of_user(&self, request: &ListRequest) -> Result<Vec<ListedNotification>> {
        let ListRequest { scope, filter, before, limit } = request;
        let mut lent = self.lend().await?;
        let rows = sqlx::query(concat!(
            "SELECT r.acknowledged, ",
            notification_columns!(),
            " ",
            of_user!(),
            " AND ($5 = 0 OR r.acknowledged IS NULL) AND ($5 < 2 OR (n.ack_required AND v.awaited)) AND n.position < $6
              ORDER BY n.position DESC LIMIT $7"
        ))
        .bind(kinds(scope.keys()))
        .bind(targets(scope.keys()))
        .bind(sinces(scope))
        .bind(&scope.user)
        .bind(match filter {
            ListFilter::All => 0_i32,
            ListFilter::Unread => 1,
            ListFilter::Unacknowledged => 2,
        })
        .bind(before.map_or(i64::MAX, wide))
        .bind(wide(*limit))
        .fetch_all(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        rows.iter().map(listed).collect()
    }

    async fn count_of_user(&self, scope: &UserScope) -> Result<Counts> {
        let mut lent = self.lend().await?;
        let row = sqlx::query(concat!(
            "SELECT count(*) AS every, count(*) FILTER (WHERE r.acknowledged IS NULL) AS unread,
                 count(*) FILTER (WHERE r.acknowledged IS NULL AND n.ack_required AND v.awaited) AS unacknowledged ",
            of_user!()
        ))
        .bind(kinds(scope.keys()))
        .bind(targets(scope.keys()))
        .bind(sinces(scope))
        .bind(&scope.user)
        .fetch_one(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        counts(&row)
    }

    async fn next_notification_due(&self) -> Result<Option<Duration>> {
        let row = sqlx::query(
            "SELECT (extract(epoch FROM min(due) - clock_timestamp()) * 1000)::float8 AS millis
             FROM relais.notification WHERE due IS NOT NULL",
        )
        .fetch_one(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        Ok(row.real_if_any("millis")?.map(|millis| Duration::from_secs_f64(millis.max(0.0) / 1000.0)))
    }

    async fn list_members(&self, of: &AudienceKey, after: Option<&AudienceKey>, limit: i64) -> Result<Vec<Member>> {
        let rows = sqlx::query(
            "SELECT member_type AS type, member AS target, since FROM relais.membership
             WHERE type = $1 AND target = $2 AND (member_type, member) > ($3, $4)
             ORDER BY member_type, member LIMIT $5",
        )
        .bind(&of.kind)
        .bind(&of.target)
        .bind(after.map_or("", |key| key.kind.as_str()))
        .bind(after.map_or("", |key| key.target.as_str()))
        .bind(limit)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(member).collect()
    }

    async fn list_notifications(&self, filter: &NotificationFilter) -> Result<Vec<StoredNotification>> {
        let statement = format!(
            concat!(
                "SELECT ",
                notification_columns!(),
                " FROM relais.notification n WHERE n.position < $1{}{} ORDER BY n.position DESC LIMIT $2"
            ),
            if filter.client.is_some() { " AND n.client = $3" } else { " AND $3::text IS NULL" },
            if filter.status.is_some() { " AND n.status = $4" } else { " AND $4::smallint IS NULL" },
        );
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(filter.before.map_or(i64::MAX, wide))
            .bind(wide(filter.limit))
            .bind(filter.client.as_deref())
            .bind(filter.status.map(status_code))
            .fetch_all(&mut *self.lend().await?)
            .await
            .map_err(error)?;
        rows.iter().map(stored).collect()
    }

    async fn find_notification(&self, id: Uuid) -> Result<Option<StoredNotification>> {
        let row =
            sqlx::query(concat!("SELECT ", notification_columns!(), " FROM relais.notification n WHERE n.id = $1"))
                .bind(id)
                .fetch_optional(&mut *self.lend().await?)
                .await
                .map_err(error)?;
        row.as_ref().map(stored).transpose()
    }

    async fn read_ledger(
        &self,
        id: Uuid,
        keys: &[AudienceKey],
        emitted_at: i64,
        limit: i64,
    ) -> Result<Vec<LedgerLine>> {
        let rows = sqlx::query(concat!(
            reach!(),
            "SELECT u.user_id, bool_or(u.awaited) AS awaited, coalesce(max(r.deliveries), 0) AS deliveries,
                 max(r.delivered) AS delivered, max(r.acknowledged) AS acknowledged
             FROM (
                 SELECT target AS user_id, true AS awaited FROM reach WHERE type = 'USER'
                 UNION ALL
                 SELECT user_id, false FROM relais.notification_recipient WHERE notification = $4
             ) u LEFT JOIN relais.notification_recipient r ON r.notification = $4 AND r.user_id = u.user_id
             GROUP BY u.user_id
             ORDER BY (bool_or(u.awaited) AND max(r.acknowledged) IS NULL) DESC, u.user_id LIMIT $5"
        ))
        .bind(kinds(keys))
        .bind(targets(keys))
        .bind(emitted_at)
        .bind(id)
        .bind(limit)
        .fetch_all(&mut *self.lend().await?)
        .await
        .map_err(error)?;
        rows.iter().map(ledger_line).collect()
    }
}

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
