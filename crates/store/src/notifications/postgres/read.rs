//! Reads of the log and the ledger, on PostgreSQL.

use std::time::Duration;

use relais_notify::{
    AudienceKey, Belonging, Counts, LedgerLine, ListFilter, ListRequest, ListedNotification, LogEntry, LogHead, Member,
    NotificationFilter, StoredNotification, UserScope,
};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::{
    notifications::statements::{
        NotificationReader, counts, entries, head, ids, ledger_line, listed, member, scope, status_code, stored,
    },
    postgres::{Postgres, error},
    row::{Columns, wide},
    session::Result,
};

use super::{kinds, sinces, targets, texts};

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
