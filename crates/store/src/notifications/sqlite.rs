//! Notifications, on SQLite. Keys go as a JSON array of pairs: the type and the target.

use std::time::Duration;

use relais_core::Timestamp;
use relais_notify::{
    AudienceKey, Belonging, Counts, Delivery, LedgerLine, ListFilter, ListRequest, ListedNotification, LogEntry,
    LogHead, Member, NotificationFilter, StoredNotification, UserScope,
};
use sqlx::{AssertSqlSafe, sqlite::SqliteRow};
use uuid::Uuid;

use crate::{
    notifications::statements::{
        AppendedEntry, ChangedState, InsertedRow, NotificationReader, NotificationRow, NotificationRows,
        acknowledged_pair, changed_meanwhile, counts, entries, from_jiff, head, ids, key, ledger_line, listed, member,
        notification_row, scope, status_code, stored,
    },
    row::{Columns, in_millis, signed, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::{Statement, array},
    sqlite::{Sqlite, error},
};

/// The columns of a message, of `notification n`.
macro_rules! notification_columns {
    () => {
        "n.message, n.position AS emitted_at, n.client, n.status, n.attempts, n.replaced_by"
    };
}

/// And what its rules need.
macro_rules! state_columns {
    () => {
        ", n.ack_timeout_ms, n.expiration, n.resent_at, n.due, n.revision, n.outstanding"
    };
}

/// What keys contain, themselves too, as it is since a position: of the keys `?1`, up to `?2`.
macro_rules! reach {
    () => {
        "WITH RECURSIVE reach (type, target) AS (
             SELECT k.value ->> 0, k.value ->> 1 FROM json_each(?1) AS k
             UNION
             SELECT m.member_type, m.member FROM reach r
             JOIN membership m ON m.type = r.type AND m.target = r.target WHERE m.since <= ?2
         ) "
    };
}

/// What contains a key, itself too: of type `?1` and target `?2`.
macro_rules! containing {
    () => {
        "WITH RECURSIVE up (type, target) AS (
             SELECT ?1, ?2
             UNION
             SELECT m.type, m.target FROM up JOIN membership m ON m.member_type = up.type AND m.member = up.target
         ) "
    };
}

/// A user's messages that are not over, with whether the user is awaited: of the keys `?1` with since when, `?2` user.
macro_rules! of_user {
    () => {
        concat!(
            "FROM (
                 SELECT k.notification, max(coalesce(k.position >= (w.value ->> 2), 0)) AS awaited
                 FROM json_each(?1) AS w
                 CROSS JOIN notification_key k
                     ON k.type = (w.value ->> 0) AND k.target = (w.value ->> 1) AND k.kind = 0
                 GROUP BY k.notification
             ) v CROSS JOIN notification n ON n.id = v.notification
             LEFT JOIN notification_recipient r ON r.notification = n.id AND r.user_id = ?2
             WHERE n.status NOT IN (3, 4) AND n.expiration > ",
            now!()
        )
    };
}

type Pairs<'a> = Vec<(&'a str, &'a str)>;

fn pairs<'a>(keys: impl IntoIterator<Item = &'a AudienceKey>) -> Pairs<'a> {
    keys.into_iter().map(|key| (key.kind.as_str(), key.target.as_str())).collect()
}

fn belongs(scope: &UserScope) -> Result<String> {
    let rows: Vec<(&str, &str, Option<i64>)> = scope
        .belongs
        .iter()
        .map(|Belonging { key, since }| (key.kind.as_str(), key.target.as_str(), since.map(wide)))
        .collect();
    array(&rows)
}

impl Sqlite {
    async fn rows(&self, statement: Statement<'_>) -> Result<Vec<SqliteRow>> {
        statement.fetch_all(&self.read).await.map_err(error)
    }
}

impl NotificationReader for Sqlite {
    async fn read_head(&self) -> Result<LogHead> {
        let rows = self
            .rows(sqlx::query(concat!("SELECT epoch, position, floor, ", now!(), " AS now FROM notification_head")))
            .await?;
        rows.first().map(head).ok_or_else(changed_meanwhile)?
    }

    async fn read_entries(&self, after: i64, limit: i64) -> Result<Vec<LogEntry>> {
        let statement = sqlx::query(concat!(
            "SELECT e.position, e.at, e.kind, e.attempts AS entry_attempts, e.detail, ",
            notification_columns!(),
            " FROM notification_entry e LEFT JOIN notification n ON n.id = e.notification
              WHERE e.position > ?1 ORDER BY e.position LIMIT ?2"
        ));
        entries(&self.rows(statement.bind(after).bind(limit)).await?)
    }

    async fn read_entries_of(
        &self,
        keys: &[&AudienceKey],
        after: i64,
        up_to: i64,
        limit: i64,
    ) -> Result<Vec<LogEntry>> {
        let statement = sqlx::query(concat!(
            "SELECT e.position, e.at, e.kind, e.attempts AS entry_attempts, e.detail, ",
            notification_columns!(),
            " FROM (
                  SELECT DISTINCT k.position FROM json_each(?1) AS w
                  CROSS JOIN notification_key k ON k.type = (w.value ->> 0) AND k.target = (w.value ->> 1)
                      AND k.position > ?2 AND k.position <= ?3
                  ORDER BY k.position LIMIT ?4
              ) p CROSS JOIN notification_entry e ON e.position = p.position
              LEFT JOIN notification n ON n.id = e.notification
              ORDER BY e.position"
        ));
        let keys = array(&pairs(keys.iter().copied()))?;
        entries(&self.rows(statement.bind(keys).bind(after).bind(up_to).bind(limit)).await?)
    }

    async fn read_scopes(&self, users: &[String]) -> Result<Vec<(String, Belonging)>> {
        let statement = sqlx::query(
            "WITH RECURSIVE up (user_id, type, target, since) AS (
                 SELECT u.value, 'USER', u.value, 0 FROM json_each(?1) AS u
                 UNION
                 SELECT up.user_id, m.type, m.target, max(up.since, m.since)
                 FROM up JOIN membership m ON m.member_type = up.type AND m.member = up.target
             )
             SELECT user_id, type, target, min(since) AS since FROM up WHERE type <> 'USER'
             GROUP BY user_id, type, target",
        );
        self.rows(statement.bind(array(users)?)).await?.iter().map(scope).collect()
    }

    async fn acknowledged_by(&self, id: Uuid, users: &[String]) -> Result<Vec<String>> {
        let statement = sqlx::query(
            "SELECT r.user_id FROM json_each(?2) AS u
             CROSS JOIN notification_recipient r ON r.notification = ?1 AND r.user_id = u.value
             WHERE r.acknowledged IS NOT NULL",
        );
        let rows = self.rows(statement.bind(id.to_string()).bind(array(users)?)).await?;
        rows.iter().map(|row| row.text("user_id")).collect()
    }

    async fn acknowledged_of(&self, user: &str, of: &[Uuid]) -> Result<Vec<Uuid>> {
        let statement = sqlx::query(
            "SELECT r.notification AS id FROM json_each(?2) AS i
             CROSS JOIN notification_recipient r ON r.notification = i.value AND r.user_id = ?1
             WHERE r.acknowledged IS NOT NULL",
        );
        ids(&self.rows(statement.bind(user).bind(array(of)?)).await?)
    }

    async fn list_of_user(&self, request: &ListRequest) -> Result<Vec<ListedNotification>> {
        let ListRequest { scope, filter, before, limit } = request;
        let statement = sqlx::query(concat!(
            "SELECT r.acknowledged, ",
            notification_columns!(),
            " ",
            of_user!(),
            " AND (?3 = 0 OR r.acknowledged IS NULL) AND (?3 < 2 OR (n.ack_required AND v.awaited)) AND n.position < ?4
              ORDER BY n.position DESC LIMIT ?5"
        ));
        let statement = statement
            .bind(belongs(scope)?)
            .bind(&scope.user)
            .bind(match filter {
                ListFilter::All => 0,
                ListFilter::Unread => 1,
                ListFilter::Unacknowledged => 2,
            })
            .bind(before.map_or(i64::MAX, wide))
            .bind(wide(*limit));
        self.rows(statement).await?.iter().map(listed).collect()
    }

    async fn count_of_user(&self, scope: &UserScope) -> Result<Counts> {
        let statement = sqlx::query(concat!(
            "SELECT count(*) AS every, count(*) FILTER (WHERE r.acknowledged IS NULL) AS unread,
                 count(*) FILTER (WHERE r.acknowledged IS NULL AND n.ack_required AND v.awaited) AS unacknowledged ",
            of_user!()
        ));
        let rows = self.rows(statement.bind(belongs(scope)?).bind(&scope.user)).await?;
        rows.first().map_or(Ok(Counts::default()), counts)
    }

    async fn next_notification_due(&self) -> Result<Option<Duration>> {
        let statement =
            sqlx::query(concat!("SELECT min(due) - ", now!(), " AS millis FROM notification WHERE due IS NOT NULL"));
        let rows = self.rows(statement).await?;
        let millis = rows.first().map_or(Ok(None), |row| row.big_if_any("millis"))?;
        Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
    }

    async fn list_members(&self, of: &AudienceKey, after: Option<&AudienceKey>, limit: i64) -> Result<Vec<Member>> {
        let statement = sqlx::query(
            "SELECT member_type AS type, member AS target, since FROM membership
             WHERE type = ?1 AND target = ?2 AND (member_type, member) > (?3, ?4)
             ORDER BY member_type, member LIMIT ?5",
        );
        let statement = statement
            .bind(&of.kind)
            .bind(&of.target)
            .bind(after.map_or("", |key| key.kind.as_str()))
            .bind(after.map_or("", |key| key.target.as_str()))
            .bind(limit);
        self.rows(statement).await?.iter().map(member).collect()
    }

    async fn list_notifications(&self, filter: &NotificationFilter) -> Result<Vec<StoredNotification>> {
        let text = format!(
            concat!(
                "SELECT ",
                notification_columns!(),
                " FROM notification n WHERE n.position < ?1{}{} ORDER BY n.position DESC LIMIT ?2"
            ),
            if filter.client.is_some() { " AND n.client = ?3" } else { " AND ?3 IS NULL" },
            if filter.status.is_some() { " AND n.status = ?4" } else { " AND ?4 IS NULL" },
        );
        let statement = sqlx::query(AssertSqlSafe(text))
            .bind(filter.before.map_or(i64::MAX, wide))
            .bind(wide(filter.limit))
            .bind(filter.client.as_deref())
            .bind(filter.status.map(status_code));
        self.rows(statement).await?.iter().map(stored).collect()
    }

    async fn find_notification(&self, id: Uuid) -> Result<Option<StoredNotification>> {
        let statement =
            sqlx::query(concat!("SELECT ", notification_columns!(), " FROM notification n WHERE n.id = ?1"));
        self.rows(statement.bind(id.to_string())).await?.first().map(stored).transpose()
    }

    async fn read_ledger(
        &self,
        id: Uuid,
        keys: &[AudienceKey],
        emitted_at: i64,
        limit: i64,
    ) -> Result<Vec<LedgerLine>> {
        let statement = sqlx::query(concat!(
            reach!(),
            "SELECT u.user_id, max(u.awaited) AS awaited, coalesce(max(r.deliveries), 0) AS deliveries,
                 max(r.delivered) AS delivered, max(r.acknowledged) AS acknowledged
             FROM (
                 SELECT target AS user_id, 1 AS awaited FROM reach WHERE type = 'USER'
                 UNION ALL
                 SELECT user_id, 0 FROM notification_recipient WHERE notification = ?3
             ) u LEFT JOIN notification_recipient r ON r.notification = ?3 AND r.user_id = u.user_id
             GROUP BY u.user_id
             ORDER BY (max(u.awaited) AND max(r.acknowledged) IS NULL) DESC, u.user_id LIMIT ?4"
        ));
        let statement = statement.bind(array(&pairs(keys))?).bind(emitted_at).bind(id.to_string()).bind(limit);
        self.rows(statement).await?.iter().map(ledger_line).collect()
    }
}

impl NotificationRows for SqliteSession {
    /// Who writes is alone.
    async fn lock_head(&mut self) -> Result<LogHead> {
        let rows = self
            .rows(sqlx::query(concat!("SELECT epoch, position, floor, ", now!(), " AS now FROM notification_head")))
            .await?;
        rows.first().map(head).ok_or_else(changed_meanwhile)?
    }

    async fn advance_head(&mut self, position: i64) -> Result<()> {
        self.change(sqlx::query("UPDATE notification_head SET position = ?1").bind(position)).await.map(drop)
    }

    async fn known_notifications(&mut self, of: &[Uuid]) -> Result<Vec<Uuid>> {
        let rows =
            self.fetch("SELECT n.id FROM json_each(?1) AS i CROSS JOIN notification n ON n.id = i.value", of).await?;
        ids(&rows)
    }

    async fn insert_notifications(&mut self, rows: &[InsertedRow]) -> Result<()> {
        for row in rows {
            let statement = sqlx::query(
                "INSERT INTO notification (id, position, client, message, ack_required, ack_timeout_ms, expiration,
                     status, attempts, resent_at, due, revision, outstanding)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, 0, 0, ?8, 0, ?9)",
            );
            let statement = statement
                .bind(row.id.to_string())
                .bind(row.position)
                .bind(row.client.as_deref())
                .bind(&row.message)
                .bind(row.ack_required)
                .bind(row.ack_timeout_ms)
                .bind(row.expiration.as_millis())
                .bind(row.due.map(Timestamp::as_millis))
                .bind(row.outstanding);
            self.change(statement).await?;
        }
        Ok(())
    }

    async fn append_entries(&mut self, entries: &[AppendedEntry]) -> Result<()> {
        let rows: Vec<_> = entries
            .iter()
            .map(|entry| (entry.position, entry.kind, entry.notification, entry.attempts, entry.detail.as_deref()))
            .collect();
        self.execute(
            concat!(
                "INSERT INTO notification_entry (position, kind, notification, attempts, detail, at)
                 SELECT w.value ->> 0, w.value ->> 1, w.value ->> 2, w.value ->> 3, w.value ->> 4, ",
                now!(),
                " FROM json_each(?1) AS w"
            ),
            &rows,
        )
        .await?;
        let keys: Vec<_> = entries
            .iter()
            .flat_map(|entry| {
                let to_row = move |key: &AudienceKey| {
                    (key.kind.clone(), key.target.clone(), entry.position, entry.kind, entry.notification)
                };
                entry.keys.iter().map(to_row)
            })
            .collect();
        self.execute(
            "INSERT INTO notification_key (type, target, position, kind, notification)
             SELECT w.value ->> 0, w.value ->> 1, w.value ->> 2, w.value ->> 3, w.value ->> 4 FROM json_each(?1) AS w",
            &keys,
        )
        .await
    }

    async fn count_awaited(&mut self, keys: &[AudienceKey], emitted_at: i64, id: Uuid) -> Result<i64> {
        let statement = sqlx::query(concat!(
            reach!(),
            "SELECT count(*) AS awaited FROM reach u WHERE u.type = 'USER' AND NOT EXISTS (
                 SELECT 1 FROM notification_recipient r
                 WHERE r.notification = ?3 AND r.user_id = u.target AND r.acknowledged IS NOT NULL
             )"
        ));
        let statement = statement.bind(array(&pairs(keys))?).bind(emitted_at).bind(id.to_string());
        self.rows(statement).await?.first().map_or(Ok(0), |row| row.big("awaited"))
    }

    async fn lock_notifications(&mut self, of: &[Uuid]) -> Result<Vec<NotificationRow>> {
        let rows = self
            .fetch(
                concat!(
                    "SELECT ",
                    notification_columns!(),
                    state_columns!(),
                    " FROM json_each(?1) AS i CROSS JOIN notification n ON n.id = i.value"
                ),
                of,
            )
            .await?;
        rows.iter().map(notification_row).collect()
    }

    async fn lock_due(&mut self, limit: i64) -> Result<(Vec<NotificationRow>, Timestamp)> {
        let statement = sqlx::query(concat!(
            "SELECT ",
            now!(),
            " AS now, ",
            notification_columns!(),
            state_columns!(),
            " FROM notification n WHERE n.due <= ",
            now!(),
            " ORDER BY n.due LIMIT ?1"
        ));
        let rows = self.rows(statement.bind(limit)).await?;
        let now = rows.first().map_or(Ok(Timestamp::from_millis(0)), |row| row.moment("now"))?;
        Ok((rows.iter().map(notification_row).collect::<Result<_>>()?, now))
    }

    async fn write_states(&mut self, changes: &[ChangedState]) -> Result<()> {
        for change in changes {
            let statement = sqlx::query(
                "UPDATE notification SET status = ?3, attempts = ?4, resent_at = ?5, due = ?6, revision = ?7,
                     outstanding = ?8, replaced_by = ?9
                 WHERE id = ?1 AND revision = ?2",
            );
            let statement = statement
                .bind(change.id.to_string())
                .bind(wide(change.before))
                .bind(status_code(change.state.status))
                .bind(signed(change.state.attempts))
                .bind(signed(change.state.resent_at))
                .bind(change.state.due.map(|due| from_jiff(due).as_millis()))
                .bind(wide(change.state.revision))
                .bind(change.outstanding)
                .bind(change.replaced_by.map(|id| id.to_string()));
            if self.change(statement).await? == 0 {
                return Err(changed_meanwhile());
            }
        }
        Ok(())
    }

    async fn visible_notifications(&mut self, keys: &[&AudienceKey], of: &[Uuid]) -> Result<Vec<Uuid>> {
        let statement = sqlx::query(
            "SELECT DISTINCT n.id FROM json_each(?2) AS i CROSS JOIN notification n ON n.id = i.value
             WHERE EXISTS (
                 SELECT 1 FROM json_each(?1) AS w CROSS JOIN notification_key k
                     ON k.type = (w.value ->> 0) AND k.target = (w.value ->> 1) AND k.position = n.position
             )",
        );
        ids(&self.rows(statement.bind(array(&pairs(keys.iter().copied()))?).bind(array(of)?)).await?)
    }

    async fn unread_notifications(&mut self, user: &str, keys: &[&AudienceKey], limit: i64) -> Result<Vec<Uuid>> {
        let statement = sqlx::query(concat!(
            "SELECT n.id FROM (
                 SELECT DISTINCT k.notification FROM json_each(?1) AS w CROSS JOIN notification_key k
                     ON k.type = (w.value ->> 0) AND k.target = (w.value ->> 1) AND k.kind = 0
             ) v CROSS JOIN notification n ON n.id = v.notification
             WHERE n.status NOT IN (3, 4) AND n.expiration > ",
            now!(),
            " AND NOT EXISTS (
                 SELECT 1 FROM notification_recipient r
                 WHERE r.notification = n.id AND r.user_id = ?2 AND r.acknowledged IS NOT NULL
             ) ORDER BY n.position LIMIT ?3"
        ));
        let statement = statement.bind(array(&pairs(keys.iter().copied()))?).bind(user).bind(limit);
        ids(&self.rows(statement).await?)
    }

    async fn write_acknowledgements(&mut self, pairs: &[(Uuid, &str)]) -> Result<Vec<(Uuid, String)>> {
        let statement = sqlx::query(concat!(
            "INSERT INTO notification_recipient (notification, user_id, deliveries, acknowledged)
             SELECT w.value ->> 0, w.value ->> 1, 0, ",
            now!(),
            " FROM json_each(?1) AS w WHERE true
             ON CONFLICT (notification, user_id) DO UPDATE SET acknowledged = excluded.acknowledged
                 WHERE acknowledged IS NULL
             RETURNING notification AS id, user_id"
        ));
        self.wrote = true;
        self.rows(statement.bind(array(pairs)?)).await?.iter().map(acknowledged_pair).collect()
    }

    async fn members_of(&mut self, of: &AudienceKey) -> Result<Vec<AudienceKey>> {
        let statement =
            sqlx::query("SELECT member_type AS type, member AS target FROM membership WHERE type = ?1 AND target = ?2");
        self.rows(statement.bind(&of.kind).bind(&of.target)).await?.iter().map(key).collect()
    }

    async fn which_contain(&mut self, wholes: &[AudienceKey], part: &AudienceKey) -> Result<Vec<AudienceKey>> {
        let statement = sqlx::query(concat!(
            containing!(),
            "SELECT up.type, up.target FROM up JOIN json_each(?3) AS w
                 ON up.type = (w.value ->> 0) AND up.target = (w.value ->> 1)"
        ));
        let statement = statement.bind(&part.kind).bind(&part.target).bind(array(&pairs(wholes))?);
        self.rows(statement).await?.iter().map(key).collect()
    }

    async fn insert_members(&mut self, of: &AudienceKey, members: &[AudienceKey], since: i64) -> Result<()> {
        let statement = sqlx::query(
            "INSERT INTO membership (type, target, member_type, member, since)
             SELECT ?1, ?2, w.value ->> 0, w.value ->> 1, ?4 FROM json_each(?3) AS w",
        );
        let statement = statement.bind(&of.kind).bind(&of.target).bind(array(&pairs(members))?).bind(since);
        self.change(statement).await.map(drop)
    }

    async fn delete_members(&mut self, of: &AudienceKey, members: &[AudienceKey]) -> Result<()> {
        let statement = sqlx::query(
            "DELETE FROM membership WHERE type = ?1 AND target = ?2 AND (member_type, member) IN (
                 SELECT w.value ->> 0, w.value ->> 1 FROM json_each(?3) AS w
             )",
        );
        self.change(statement.bind(&of.kind).bind(&of.target).bind(array(&pairs(members))?)).await.map(drop)
    }

    async fn open_notifications(&mut self, of: &AudienceKey, after: i64, limit: i64) -> Result<Vec<(Uuid, i64)>> {
        let statement = sqlx::query(concat!(
            containing!(),
            "SELECT DISTINCT n.id, n.position FROM up CROSS JOIN notification_key k
                 ON k.type = up.type AND k.target = up.target AND k.kind = 0 AND k.position > ?3
             CROSS JOIN notification n ON n.id = k.notification
             WHERE n.status IN (0, 2) AND n.ack_required ORDER BY n.position LIMIT ?4"
        ));
        let rows = self.rows(statement.bind(&of.kind).bind(&of.target).bind(after).bind(limit)).await?;
        let found = ids(&rows)?;
        found.into_iter().zip(&rows).map(|(id, row)| Ok((id, row.big("position")?))).collect()
    }

    async fn write_deliveries(&mut self, deliveries: &[(Delivery, i32)]) -> Result<()> {
        let rows: Vec<_> = deliveries.iter().map(|(delivery, count)| (delivery.id, &delivery.user, count)).collect();
        self.execute(
            concat!(
                "INSERT INTO notification_recipient (notification, user_id, deliveries, delivered)
                 SELECT n.id, w.value ->> 1, w.value ->> 2, ",
                now!(),
                " FROM json_each(?1) AS w CROSS JOIN notification n ON n.id = (w.value ->> 0) WHERE true
                  ON CONFLICT (notification, user_id) DO UPDATE
                      SET deliveries = deliveries + excluded.deliveries, delivered = excluded.delivered"
            ),
            &rows,
        )
        .await
    }

    async fn purge_entries(&mut self, age: Duration, limit: i64) -> Result<u64> {
        let statement = sqlx::query(concat!(
            "DELETE FROM notification_entry WHERE position IN (
                 SELECT position FROM (
                     SELECT position, at FROM notification_entry ORDER BY position LIMIT ?2
                 ) f WHERE f.at < ",
            now!(),
            " - ?1) RETURNING position"
        ));
        self.wrote = true;
        let rows = self.rows(statement.bind(in_millis(age)).bind(limit)).await?;
        let positions = rows.iter().map(|row| row.big("position")).collect::<Result<Vec<i64>>>()?;
        let Some(last) = positions.iter().max().copied() else { return Ok(0) };
        self.execute(
            "DELETE FROM notification_key WHERE kind <> 0 AND position IN (SELECT value FROM json_each(?1))",
            &positions,
        )
        .await?;
        self.change(sqlx::query("UPDATE notification_head SET floor = max(floor, ?1)").bind(last)).await?;
        Ok(positions.len() as u64)
    }

    async fn purge_notifications(&mut self, age: Duration, limit: i64) -> Result<u64> {
        let statement = sqlx::query(concat!(
            "DELETE FROM notification WHERE id IN (
                 SELECT id FROM notification WHERE expiration < ",
            now!(),
            " - ?1 ORDER BY expiration LIMIT ?2) RETURNING id"
        ));
        self.wrote = true;
        let gone = ids(&self.rows(statement.bind(in_millis(age)).bind(limit)).await?)?;
        for statement in [
            "DELETE FROM notification_key WHERE kind = 0 AND notification IN (SELECT value FROM json_each(?1))",
            "DELETE FROM notification_recipient WHERE notification IN (SELECT value FROM json_each(?1))",
        ] {
            self.execute(statement, &gone).await?;
        }
        Ok(gone.len() as u64)
    }

    async fn ticket_key(&mut self, new: &[u8; 32]) -> Result<Vec<u8>> {
        self.wrote = true;
        let statement =
            sqlx::query("UPDATE notification_head SET ticket_key = coalesce(ticket_key, ?1) RETURNING ticket_key");
        let rows = self.rows(statement.bind(new.as_slice())).await?;
        rows.first().map_or_else(|| Err(changed_meanwhile()), |row| row.bytes("ticket_key"))
    }
}
